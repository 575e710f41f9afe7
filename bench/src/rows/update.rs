//! P6: the new version of real software where the old one lies. Each version is one object, the tar of a published package.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::BenchRow;
use crate::bench::Bench;
use crate::contenders::{Job, ssh_options};
use crate::pair::{Pair, SSH_PORT};
use crate::site::{self, run};
use crate::tools::Tool;
use crate::turns::{Entrant, Place, Turn};

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
    let place = Place { row: "P6", cell: "update", link: LINK };
    let [old, new] = match versions(bench) {
        Ok(paths) => paths,
        Err(why) => return bench.miss(&place, "all", "the package", &why),
    };
    let link = if bench.options.is_smoke { "100M/4ms" } else { LINK };
    for between in bench.links(&[link])? {
        let pair = bench.pair(between)?;
        let place = Place { link: between.name(), ..place };
        prepare(bench, &new)?;
        bench.rounds(1, bench.pairs(), |bench, round| {
            bench.in_turn(&place, &Updater::ALL, round, |bench, turn| {
                one(bench, &pair, &place, [&old, &new], turn)
            })
        })?;
    }
    for below in ["far/in/store.castr", "far/in/new.caibx", "far/in/new.zsync", "far/in/new"] {
        site::remove(&bench.site.root.join(below));
    }
    bench.site.forget()
}

/// Who brings the new version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Updater {
    DrayGet,
    DrayCp,
    DrayCpZ,
    RsyncZ,
    RsyncZl19,
    Casync,
    Zsync,
    WholeRsyncZ,
}

impl Updater {
    const ALL: [Updater; 8] = [
        Updater::DrayGet,
        Updater::DrayCp,
        Updater::DrayCpZ,
        Updater::RsyncZ,
        Updater::RsyncZl19,
        Updater::Casync,
        Updater::Zsync,
        Updater::WholeRsyncZ,
    ];
}

impl Entrant for Updater {
    fn label(&self) -> String {
        let label = match self {
            Updater::DrayGet => "dray-get",
            Updater::DrayCp => "dray-cp",
            Updater::DrayCpZ => "dray-cp-z",
            Updater::RsyncZ => "rsync-z",
            Updater::RsyncZl19 => "rsync-zl19",
            Updater::Casync => "casync",
            Updater::Zsync => "zsync",
            Updater::WholeRsyncZ => "whole-rsync-z",
        };
        label.to_owned()
    }

    fn title(&self) -> String {
        let title = match self {
            Updater::DrayGet => "dray get",
            Updater::DrayCp => "dray cp",
            Updater::DrayCpZ => "dray cp -z",
            Updater::RsyncZ => "rsync -z over ssh",
            Updater::RsyncZl19 => "rsync -z --zc=zstd --zl=19 over ssh",
            Updater::Casync => "casync from nginx",
            Updater::Zsync => "zsync from nginx",
            Updater::WholeRsyncZ => "rsync -z over ssh, nothing there before",
        };
        title.to_owned()
    }

    fn tools(&self) -> &'static [Tool] {
        match self {
            Updater::DrayGet => &[],
            Updater::DrayCp | Updater::DrayCpZ => &[Tool::Ssh],
            Updater::RsyncZ | Updater::RsyncZl19 | Updater::WholeRsyncZ => &[Tool::Rsync, Tool::Ssh],
            Updater::Casync => &[Tool::Casync, Tool::Nginx],
            Updater::Zsync => &[Tool::Zsync, Tool::Nginx],
        }
    }

    fn is_ours(&self) -> bool {
        matches!(self, Updater::DrayGet | Updater::DrayCp | Updater::DrayCpZ)
    }
}

/// What is served to casync and zsync is made once, as a publisher would.
fn prepare(bench: &Bench, new: &Path) -> Result<(), String> {
    let site = &bench.site;
    std::fs::copy(new, site.root.join("far/in/new"))
        .map_err(|error| format!("copy the new version: {error}"))?;
    if bench.tools.has(Tool::Casync) {
        let mut make = Command::new("casync");
        make.args(["make", &format!("--store={}", site.path("far/in/store.castr"))]);
        run(make.args([site.path("far/in/new.caibx"), site.path("far/in/new")]))?;
    }
    if bench.tools.has(Tool::Zsync) {
        let mut make = Command::new("zsyncmake");
        run(make.args(["-u", "new", "-o", &site.path("far/in/new.zsync"), &site.path("far/in/new")]))?;
    }
    Ok(())
}

fn one(
    bench: &mut Bench,
    pair: &Pair,
    place: &Place<'_>,
    [old, new]: [&Path; 2],
    turn: &Turn<Updater>,
) -> Result<(), String> {
    let to = bench.site.root.join("near/out/file");
    if turn.who != Updater::WholeRsyncZ {
        std::fs::copy(old, &to).map_err(|error| format!("copy the old version: {error}"))?;
    }
    let job = job(bench, pair, turn.who);
    let mut run = bench.ground(pair).run(&job, turn.round == 1, None)?;
    run.check_arrived(|| site::is_same(new, &to));
    let wire = (run.wire.received + run.wire.sent) as f64 / 1e6;
    let bytes = new.metadata().map(|metadata| metadata.len()).ok();
    let command = bench.readable(&job, pair);
    bench.tell(place, &run, turn.told(bytes, vec![("MB on the wire, both ways", wire)], command))
}

fn job(bench: &Bench, pair: &Pair, who: Updater) -> Job {
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
    job.argv = match who {
        Updater::DrayGet => {
            job.serve = Some(words(&["dray", "put", &from]));
            words(&["dray", "get", "TICKET", "-o", &to])
        }
        Updater::DrayCp => dray_cp(&[]),
        Updater::DrayCpZ => dray_cp(&["-z"]),
        Updater::RsyncZ | Updater::WholeRsyncZ => words(&["rsync", "-z", "-e", &ssh, &remote, &to]),
        Updater::RsyncZl19 => words(&["rsync", "-z", "--zc=zstd", "--zl=19", "-e", &ssh, &remote, &to]),
        Updater::Casync => {
            let seed = format!("{to}.old");
            let text = format!(
                "mv {to} {seed} && exec casync extract --store=http://{far}/in/store.castr --seed={seed} http://{far}/in/new.caibx {to}"
            );
            words(&["sh", "-c", &text])
        }
        Updater::Zsync => {
            let text =
                format!("mv {to} {to}.old && exec zsync -q -i {to}.old -o {to} http://{far}/in/new.zsync");
            words(&["sh", "-c", &text])
        }
    };
    job
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
