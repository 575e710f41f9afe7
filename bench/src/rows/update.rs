//! P6: the new version of real software where the old one lies. Each version is one object, the tar of a published package.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::BenchRow;
use crate::bench::{Bench, Told};
use crate::contenders::{Job, ssh_options};
use crate::pair::{Pair, SSH_PORT};
use crate::site::{self, run};

/// A binary package and two of its patch releases, from the Python package index.
const PACKAGE: &str = "scipy";
const VERSIONS: [&str; 2] = ["1.15.2", "1.15.3"];
const PLATFORM: &str = "manylinux2014_x86_64";
const LINK: &str = "10M/40ms";
/// In a smoke test the object is made, and is as long as this.
const SMOKE_BYTES: usize = 400_000;

pub(super) const ROW: BenchRow = BenchRow {
    name: "P6",
    about: "a new patch release of a binary package (one object) where the old one lies, 10 Mbit/s x 40 ms",
    run: measure,
};

fn measure(bench: &mut Bench) -> Result<(), String> {
    let [old, new] = match versions(bench) {
        Ok(paths) => paths,
        Err(why) => return bench.miss("P6", "update", LINK, "the package", &why),
    };
    let link = if bench.options.is_smoke { "100M/4ms" } else { LINK };
    for between in bench.links(&[link])? {
        let pair = bench.pair(between)?;
        prepare(bench, &new)?;
        for round in 1..=bench.pairs() {
            for name in turn(round) {
                one(bench, &pair, &old, &new, name, round)?;
            }
        }
    }
    for below in ["far/in/store.castr", "far/in/new.caibx", "far/in/new.zsync", "far/in/new"] {
        site::remove(&bench.site.root.join(below));
    }
    bench.site.forget()
}

const NAMES: [&str; 8] =
    ["dray-get", "dray-cp", "dray-cp-z", "rsync-z", "rsync-zl19", "casync", "zsync", "whole-rsync-z"];

fn turn(round: u32) -> Vec<&'static str> {
    let mut names = NAMES.to_vec();
    names.rotate_left(round as usize % NAMES.len());
    names
}

/// What is served to casync and zsync is made once, as a publisher would.
fn prepare(bench: &Bench, new: &Path) -> Result<(), String> {
    let site = &bench.site;
    std::fs::copy(new, site.root.join("far/in/new"))
        .map_err(|error| format!("copy the new version: {error}"))?;
    if bench.tools.has("casync") {
        let mut make = Command::new("casync");
        make.args(["make", &format!("--store={}", site.path("far/in/store.castr"))]);
        run(make.args([site.path("far/in/new.caibx"), site.path("far/in/new")]))?;
    }
    if bench.tools.has("zsync") {
        let mut make = Command::new("zsyncmake");
        run(make.args(["-u", "new", "-o", &site.path("far/in/new.zsync"), &site.path("far/in/new")]))?;
    }
    Ok(())
}

fn one(bench: &mut Bench, pair: &Pair, old: &Path, new: &Path, name: &str, round: u32) -> Result<(), String> {
    let is_ours = name.starts_with("dray");
    let wanted = bench.options.only.is_empty()
        || bench.options.only.iter().any(|only| name.starts_with(only.as_str()));
    if !wanted {
        return Ok(());
    }
    let tool =
        if is_ours { "ssh" } else { name.trim_start_matches("whole-").split('-').next().unwrap_or(name) };
    if let Some(why) = bench.tools.missing(tool).map(str::to_owned) {
        return bench.miss("P6", "update", pair.between.name(), name, &why);
    }
    for (build, (build_name, path)) in bench.builds.clone().iter().enumerate() {
        if !is_ours && build > 0 {
            continue;
        }
        bench.use_build(path)?;
        bench.site.forget()?;
        let to = bench.site.root.join("near/out/file");
        std::fs::copy(old, &to).map_err(|error| format!("copy the old version: {error}"))?;
        if name == "whole-rsync-z" {
            site::remove(&to);
        }
        let (job, title) = job(bench, pair, name);
        let mut run = bench.ground(pair).run(&job, round == 1, None)?;
        if run.status == "ok" && !site::is_same(new, &to) {
            run.status = "what arrived differs".into();
        }
        let wire = (run.wire.received + run.wire.sent) as f64 / 1e6;
        let many = bench.builds.len() > 1 && is_ours;
        let label = if many { format!("{name}@{build_name}") } else { name.to_owned() };
        let title = if many { format!("{title}, build {build_name}") } else { title };
        let bytes = new.metadata().map(|metadata| metadata.len()).ok();
        let command = bench.readable(&job, pair);
        let figures = vec![("MB on the wire, both ways", wire)];
        bench.tell(
            "P6",
            "update",
            pair,
            &run,
            Told { is_ours, label, title, round, bytes, figures, command },
        )?;
    }
    Ok(())
}

fn job(bench: &Bench, pair: &Pair, name: &str) -> (Job, String) {
    let site = &bench.site;
    let (from, to, far) = (site.path("far/in/new"), site.path("near/out/file"), pair.far_ip);
    let options = ssh_options(site);
    let ssh = format!("ssh -p {SSH_PORT} {}", options.join(" "));
    let port = SSH_PORT.to_string();
    let remote = format!("root@{far}:{from}");
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let dray_cp = |flags: &[&str]| {
        let mut argv = words(&["dray", "cp"]);
        argv.extend(words(flags));
        argv.extend(words(&["-P", &port]));
        argv.extend(options.clone());
        argv.extend([remote.clone(), to.clone()]);
        argv
    };
    let mut job = Job::default();
    let title = match name {
        "dray-get" => {
            job.serve = Some(words(&["dray", "put", &from]));
            job.argv = words(&["dray", "get", "TICKET", "-o", &to]);
            "dray get"
        }
        "dray-cp" => {
            job.argv = dray_cp(&[]);
            "dray cp"
        }
        "dray-cp-z" => {
            job.argv = dray_cp(&["-z"]);
            "dray cp -z"
        }
        "rsync-z" => {
            job.argv = words(&["rsync", "-z", "-e", &ssh, &remote, &to]);
            "rsync -z over ssh"
        }
        "rsync-zl19" => {
            job.argv = words(&["rsync", "-z", "--zc=zstd", "--zl=19", "-e", &ssh, &remote, &to]);
            "rsync -z --zc=zstd --zl=19 over ssh"
        }
        "casync" => {
            let seed = format!("{to}.old");
            let text = format!(
                "mv {to} {seed} && exec casync extract --store=http://{far}/in/store.castr --seed={seed} http://{far}/in/new.caibx {to}"
            );
            job.argv = words(&["sh", "-c", &text]);
            "casync from nginx"
        }
        "zsync" => {
            let text =
                format!("mv {to} {to}.old && exec zsync -q -i {to}.old -o {to} http://{far}/in/new.zsync");
            job.argv = words(&["sh", "-c", &text]);
            "zsync from nginx"
        }
        _ => {
            job.argv = words(&["rsync", "-z", "-e", &ssh, &remote, &to]);
            "rsync -z over ssh, nothing there before"
        }
    };
    (job, title.to_owned())
}

/// Both versions, as tars that hold nothing of the moment; kept in the user's cache.
fn versions(bench: &Bench) -> Result<[PathBuf; 2], String> {
    if bench.options.is_smoke {
        let paths = ["old", "new"].map(|name| bench.site.root.join(name));
        let mut bytes: Vec<u8> = (0..SMOKE_BYTES).map(|at| (at * at / 7919) as u8).collect();
        for path in &paths {
            std::fs::write(path, &bytes).map_err(|error| format!("write {}: {error}", path.display()))?;
            bytes.splice(SMOKE_BYTES / 2..SMOKE_BYTES / 2, *b"a few bytes that were not there");
        }
        return Ok(paths);
    }
    let cache = crate::tools::cache_folder().join("data");
    std::fs::create_dir_all(&cache).map_err(|error| format!("make {}: {error}", cache.display()))?;
    let path = |version: &str| cache.join(format!("{PACKAGE}-{version}.tar"));
    for version in VERSIONS {
        let tar = path(version);
        if tar.exists() {
            continue;
        }
        if !bench.options.installs {
            return Err(format!("{PACKAGE} {version} is not here"));
        }
        let work = cache.join(format!("{PACKAGE}-{version}"));
        // What a download left that was broken off.
        site::remove(&work);
        let wheel = format!("{PACKAGE}=={version}");
        let folder = work.to_string_lossy().into_owned();
        let mut download = Command::new("python3");
        download.args([
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--python-version=3.11",
        ]);
        run(download.args([&format!("--platform={PLATFORM}"), "-d", &folder, &wheel]))?;
        let unpack = format!(
            "set -e; mkdir unpacked; python3 -m zipfile -e *.whl unpacked; \
             tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf {0}.part -C unpacked . && mv {0}.part {0}",
            tar.display()
        );
        run(Command::new("sh").args(["-c", &unpack]).current_dir(&work))?;
        site::remove(&work);
    }
    Ok(VERSIONS.map(path))
}
