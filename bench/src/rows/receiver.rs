//! P7: what the receiver's disk has of a file that comes over a slow line, and what looking for that costs.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::states::{self, State};
use super::{BenchRow, MIB};
use crate::bench::Bench;
use crate::contenders::{Job, ssh_options};
use crate::page::amount;
use crate::pair::{Pair, SSH_PORT};
use crate::site::{self, Site};
use crate::tools::Tool;
use crate::turns::{Entrant, Place};

pub(super) const ROW: BenchRow = BenchRow {
    name: "P7",
    about: "50 MiB over a T1 line (1.544 Mbit/s, 40 ms) to a receiver in five initial states",
    run: measure,
};

/// Who brings the file, and how the receiver is configured.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bringer {
    label: &'static str,
    title: &'static str,
    config: &'static str,
    how: How,
    /// Takes part only where something lies elsewhere: other orders of a search differ in nothing else.
    is_of_siblings: bool,
}

/// The command that brings it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum How {
    DrayCp,
    DrayGet,
    RsyncSsh,
    RsyncDaemon,
}

const fn bringer(label: &'static str, title: &'static str, how: How, config: &'static str) -> Bringer {
    Bringer { label, title, config, how, is_of_siblings: false }
}

impl Bringer {
    const fn of_siblings(mut self) -> Bringer {
        self.is_of_siblings = true;
        self
    }

    fn is_pull(&self) -> bool {
        matches!(self.how, How::DrayGet | How::RsyncDaemon)
    }
}

impl Entrant for Bringer {
    fn label(&self) -> String {
        self.label.to_owned()
    }

    fn title(&self) -> String {
        self.title.to_owned()
    }

    fn tools(&self) -> &'static [Tool] {
        match self.how {
            How::DrayGet => &[],
            How::DrayCp => &[Tool::Ssh],
            How::RsyncSsh => &[Tool::Rsync, Tool::Ssh],
            How::RsyncDaemon => &[Tool::Rsync],
        }
    }

    fn is_ours(&self) -> bool {
        matches!(self.how, How::DrayCp | How::DrayGet)
    }
}

pub(super) const SEARCHING: Bringer =
    bringer("dray-cp-push", "dray cp, search = true", How::DrayCp, "search = true\n");
pub(super) const WITHOUT: Bringer = bringer(
    "dray-no-disk-push",
    "dray cp, without a search (as it comes)",
    How::DrayCp,
    "search = true\nsearch_policy = \"no-disk\"\n",
);
pub(super) const NO_PRESSURE: Bringer = bringer(
    "dray-no-pressure-push",
    "dray cp, search_policy = \"no-pressure\"",
    How::DrayCp,
    "search = true\nsearch_policy = \"no-pressure\"\n",
);
pub(super) const RSYNC: Bringer = bringer("rsync-ssh-push", "rsync over ssh", How::RsyncSsh, "");

const BRINGERS: [Bringer; 8] = [
    SEARCHING,
    WITHOUT,
    RSYNC,
    bringer("dray-get-pull", "dray get --search", How::DrayGet, ""),
    bringer("rsync-daemon-pull", "rsync daemon (clear text)", How::RsyncDaemon, ""),
    NO_PRESSURE.of_siblings(),
    bringer(
        "dray-breadth-first-push",
        "dray cp, search_policy = \"breadth-first\"",
        How::DrayCp,
        "search = true\nsearch_policy = \"breadth-first\"\n",
    )
    .of_siblings(),
    bringer(
        "dray-all-stats-push",
        "dray cp, search_policy = \"all-stats\"",
        How::DrayCp,
        "search = true\nsearch_policy = \"all-stats\"\n",
    )
    .of_siblings(),
];

fn measure(bench: &mut Bench) -> Result<(), String> {
    let link = if bench.options.is_smoke { "100M/4ms" } else { "t1" };
    for between in bench.links(&[link])? {
        let pair = bench.pair(between)?;
        for bytes in bench.sizes(&[50 * MIB]) {
            let source = source(bench, bytes)?;
            bench.rounds_of(1, bench.pairs(), &states::beside(&State::ALL), |bench, at, round| {
                let state = State::ALL[at];
                let takes_part = |bringer: &&Bringer| !bringer.is_of_siblings || state == State::Sibling;
                let all: Vec<Bringer> = BRINGERS.iter().filter(takes_part).copied().collect();
                let homes = ["near/home", "far/home"].map(|home| bench.site.root.join(home));
                let homes = homes.each_ref().map(|home| home.as_path());
                let task = Brought { row: "P7", cell: state.name(), state, round, homes, source: &source };
                bring(bench, &pair, &all, &task, &mut Calm)
            })?;
            site::remove(&source);
        }
    }
    for below in ["near/home/project", "far/home/project"] {
        site::remove(&bench.site.root.join(below));
    }
    bench.site.forget()
}

/// What is brought, of which both ends know the path.
pub(super) fn source(bench: &Bench, bytes: u64) -> Result<PathBuf, String> {
    let source = bench.site.root.join("far/in/image");
    let mut random = site::Random::new(bench.options.seed, "image");
    random.write_file(&source, bytes).map_err(|error| format!("make {}: {error}", source.display()))?;
    Ok(source)
}

/// What is brought where, and how the results call it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Brought<'a> {
    pub(super) row: &'static str,
    /// The cell's name, without the size.
    pub(super) cell: &'a str,
    pub(super) state: State,
    pub(super) round: u32,
    /// Of the near end and of the far one.
    pub(super) homes: [&'a Path; 2],
    pub(super) source: &'a Path,
}

/// What happens around a run.
pub(super) trait Around {
    /// Before the clock starts, the receiver prepared.
    fn before(&mut self) -> Result<(), String>;
    /// Now and then, so long after it has started.
    fn meanwhile(&mut self, elapsed: Duration);
    /// Once it has stopped.
    fn after(&mut self);
}

/// Nothing.
struct Calm;

impl Around for Calm {
    fn before(&mut self) -> Result<(), String> {
        Ok(())
    }

    fn meanwhile(&mut self, _: Duration) {}

    fn after(&mut self) {}
}

/// A round: everybody has a turn.
pub(super) fn bring(
    bench: &mut Bench,
    pair: &Pair,
    all: &[Bringer],
    task: &Brought<'_>,
    around: &mut dyn Around,
) -> Result<(), String> {
    let Brought { row, round, source, homes, .. } = *task;
    let bytes = source.metadata().map_err(|error| format!("{}: {error}", source.display()))?.len();
    let cell = format!("{} of {}", task.cell, amount(bytes as f64));
    let place = Place { row, cell: &cell, link: pair.between.name() };
    bench.in_turn(&place, all, round, |bench, turn| {
        let bringer = turn.who;
        let home = homes[usize::from(!bringer.is_pull())];
        states::prepare(task.state, home, source, bench.options.seed)
            .map_err(|error| format!("prepare {cell}: {error}"))?;
        bench.site.write("etc/default.toml", bringer.config)?;
        let to = states::destination(home);
        let job = job(&bench.site, pair, bringer, source, home, &to);
        around.before()?;
        let mut meanwhile = |elapsed| around.meanwhile(elapsed);
        let run = bench.ground(pair).run(&job, round == 1, Some(&mut meanwhile));
        around.after();
        let mut run = run?;
        bench.site.write("etc/default.toml", "")?;
        run.check_arrived(|| site::is_same(source, &to));
        let figures = vec![("MB on the wire, both ways", (run.wire.received + run.wire.sent) as f64 / 1e6)];
        let command = bench.readable(&job, pair);
        bench.tell(&place, &run, turn.told(Some(bytes), figures, command))
    })
}

fn job(site: &Site, pair: &Pair, bringer: Bringer, source: &Path, home: &Path, to: &Path) -> Job {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let (source, home, to, far) = (text(source), text(home), text(to), pair.far_ip);
    let options = ssh_options(site);
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut job = Job::default();
    job.argv = match bringer.how {
        How::DrayGet => {
            job.serve = Some(words(&["dray", "put", &source]));
            words(&["dray", "get", "--search", &home, "TICKET", "-o", &to])
        }
        How::RsyncDaemon => {
            let below = source.strip_prefix(&site.path("far")).unwrap_or(&source);
            words(&["rsync", &format!("rsync://{far}/far{below}"), &to])
        }
        How::RsyncSsh => {
            let ssh = format!("ssh -p {SSH_PORT} {}", options.join(" "));
            words(&["rsync", "-e", &ssh, &source, &format!("root@{far}:{to}")])
        }
        How::DrayCp => {
            let mut argv = words(&["dray", "cp", "-P", &SSH_PORT.to_string()]);
            argv.extend(options);
            argv.extend(words(&[&source, &format!("root@{far}:{to}")]));
            argv
        }
    };
    job
}
