//! P12 and P13: a source that freezes on the way, and ends that are killed.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::process::Signal;

use super::BenchRow;
use crate::bench::Bench;
use crate::contenders::Job;
use crate::measure::{Ground, Run};
use crate::pair::{Between, Pair, signal};
use crate::site::{self, Random, What};
use crate::tools::Tool;
use crate::turns::{Entrant, Place, Turn};

/// A run that is frozen for good is given up after this.
const FROZEN_PATIENCE: Duration = Duration::from_secs(60);
/// Runs that nobody kills, of which that counts which takes least.
const WHOLE_RUNS: usize = 3;
/// More than a handshake; what comes after it is payload.
const FIRST_BYTES: u64 = 64 << 10;
/// Where the second mirror listens.
const SECOND_PORT: u16 = 81;

pub(super) const FROZEN: BenchRow = BenchRow {
    name: "P12",
    about: "one source is stopped (SIGSTOP) in the middle: with another there, and alone; 128 MiB at 200 Mbit/s x 20 ms",
    run: frozen,
};

pub(super) const KILLED: BenchRow = BenchRow {
    name: "P13",
    about: "kill -9 of either end at a random moment, then the same again; 512 MiB at 1 Gbit/s x 50 ms",
    run: killed,
};

/// The program that fetches.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fetcher {
    Dray,
    Aria2,
    Rsync,
    Curl,
}

impl Fetcher {
    fn tools(self) -> &'static [Tool] {
        match self {
            Fetcher::Dray => &[],
            Fetcher::Aria2 => &[Tool::Aria2, Tool::Nginx, Tool::Rclone],
            Fetcher::Rsync => &[Tool::Rsync],
            Fetcher::Curl => &[Tool::Curl, Tool::Nginx],
        }
    }
}

/// Who takes part: P12 and P13.
#[derive(Clone, Copy, Debug)]
struct Sufferer<T> {
    label: &'static str,
    title: &'static str,
    fetcher: Fetcher,
    what: T,
}

impl<T: Copy> Entrant for Sufferer<T> {
    fn label(&self) -> String {
        self.label.to_owned()
    }

    fn title(&self) -> String {
        self.title.to_owned()
    }

    fn tools(&self) -> &'static [Tool] {
        self.fetcher.tools()
    }

    fn is_ours(&self) -> bool {
        self.fetcher == Fetcher::Dray
    }
}

const fn sufferer<T>(label: &'static str, title: &'static str, fetcher: Fetcher, what: T) -> Sufferer<T> {
    Sufferer { label, title, fetcher, what }
}

/// What P12 does to one of them.
#[derive(Clone, Copy, Debug)]
struct Freeze {
    sources: usize,
    freezes: bool,
}

const fn of(sources: usize) -> Freeze {
    Freeze { sources, freezes: false }
}

const fn frozen_of(sources: usize) -> Freeze {
    Freeze { sources, freezes: true }
}

const SOURCES: [Sufferer<Freeze>; 6] = [
    sufferer("dray-get-2", "dray get, two holders, none frozen", Fetcher::Dray, of(2)),
    sufferer("dray-get-2-frozen", "dray get, two holders, one frozen", Fetcher::Dray, frozen_of(2)),
    sufferer(
        "dray-get-1-frozen",
        "dray get, one holder, frozen (must end with a typed error)",
        Fetcher::Dray,
        frozen_of(1),
    ),
    sufferer("aria2-2", "aria2, two mirrors, none frozen", Fetcher::Aria2, of(2)),
    sufferer("aria2-2-frozen", "aria2, two mirrors, one frozen", Fetcher::Aria2, frozen_of(2)),
    sufferer("rsync-1-frozen", "rsync daemon, frozen", Fetcher::Rsync, frozen_of(1)),
];

fn frozen(bench: &mut Bench) -> Result<(), String> {
    let (link, own, after) = match bench.options.is_smoke {
        true => ("100M/4ms", 4 << 20, Duration::from_millis(100)),
        false => ("200M/20ms", 128 << 20, Duration::from_millis(1500)),
    };
    let Some(bytes) = bench.size(own) else { return Ok(()) };
    let what = What::File { bytes };
    // In a smoke test nobody waits for those that hang.
    let hangs = |who: &Sufferer<Freeze>| who.what.freezes && (who.what.sources == 1 || !who.is_ours());
    let is_smoke = bench.options.is_smoke;
    let all: Vec<_> = SOURCES.into_iter().filter(|who| !(is_smoke && hangs(who))).collect();
    for between in bench.links(&[link])? {
        let pair = bench.pair(between)?;
        bench.site.make(what, bench.options.seed)?;
        let name = what.name();
        let place = Place { row: "P12", cell: &name, link: between.name() };
        bench.rounds(1, bench.pairs(), |bench, round| {
            bench.in_turn(&place, &all, round, |bench, turn| {
                let Freeze { sources, freezes } = turn.who.what;
                let (mut run, job) = one_frozen(bench, &pair, what, &turn.who, freezes.then_some(after))?;
                let [from, to] = [format!("far/in/{name}"), "near/out/file".into()]
                    .map(|below| bench.site.root.join(below));
                run.check_arrived(|| site::is_same(&from, &to));
                if turn.who.is_ours() && sources == 1 && freezes {
                    // It cannot succeed; what counts is that it ends by itself and says why.
                    run.status = match run.exit_code {
                        5 if run.seconds <= 30.0 + after.as_secs_f64() => "ok".into(),
                        _ => format!("no typed error within 30 s: {}", run.status),
                    };
                }
                let command = bench.readable(&job, &pair);
                let figures = vec![("exit code", f64::from(run.exit_code))];
                bench.tell(&place, &run, turn.told(Some(bytes), figures, command))
            })
        })?;
    }
    bench.site.remove(what);
    bench.site.forget()
}

/// Freezes the first source `after` the start.
fn one_frozen(
    bench: &Bench,
    pair: &Pair,
    what: What,
    who: &Sufferer<Freeze>,
    after: Option<Duration>,
) -> Result<(Run, Job), String> {
    let site = &bench.site;
    let ground = Ground { patience: FROZEN_PATIENCE, ..bench.ground(pair) };
    let (from, to, far) =
        (site.path(&format!("far/in/{}", what.name())), site.path("near/out/file"), pair.far_ip);
    let mut servers = Vec::new();
    let mut victims = BTreeSet::new();
    let argv: Vec<String> = match who.fetcher {
        Fetcher::Dray => {
            let first = ground.serve(&["dray".into(), "put".into(), from.clone()], false)?;
            victims.insert(first.id());
            let mut ticket = first.ticket.clone();
            servers.push(first);
            if who.what.sources == 2 {
                // Another user's copy: its own data and its own identity.
                let (data, state) = (site.path("far/data/second"), site.path("far/state/second"));
                let second = format!(
                    "DRAY_DATA_DIR={data} XDG_STATE_HOME={state} exec dray put --ticket {ticket} {from}"
                );
                let second = ground.serve(&["sh".into(), "-c".into(), second], false)?;
                ticket.clone_from(&second.ticket);
                servers.push(second);
            }
            vec!["dray".into(), "get".into(), ticket, "-o".into(), to]
        }
        Fetcher::Aria2 => {
            let text = format!(
                "echo up; exec rclone --config /dev/null serve http {} --addr {far}:{SECOND_PORT}",
                site.path("far")
            );
            let second = ground.serve(&["sh".into(), "-c".into(), text], false)?;
            victims.insert(second.id());
            servers.push(second);
            pair.wait_for(SECOND_PORT)?;
            let urls = [
                format!("http://{far}:{SECOND_PORT}/in/{}", what.name()),
                format!("http://{far}/in/{}", what.name()),
            ];
            let mut argv: Vec<String> =
                ["aria2c", "-q", "--file-allocation=none", "-x4", "-s4", "-k", "1M", "-d"]
                    .map(str::to_owned)
                    .to_vec();
            argv.extend([site.path("near/out"), "-o".into(), "file".into()]);
            argv.extend(urls);
            argv
        }
        Fetcher::Rsync => {
            vec!["rsync".into(), "-W".into(), format!("rsync://{far}/far/in/{}", what.name()), to]
        }
        Fetcher::Curl => return Err("P12 has nobody who fetches with curl".into()),
    };
    let waiting = pair.waiting.clone();
    let mut is_frozen = false;
    let mut freeze = |elapsed: Duration| {
        if after.is_some_and(|after| elapsed >= after) && !is_frozen {
            is_frozen = true;
            // A daemon has a process for each connection; it is the one that was not there before.
            let new = pair.far_processes();
            let targets = if victims.is_empty() {
                new.difference(&waiting).copied().collect()
            } else {
                victims.clone()
            };
            targets.into_iter().for_each(|pid| signal(pid, Signal::STOP));
        }
    };
    let run = ground.run_near(&argv, false, false, Some(&mut freeze));
    for pid in pair.far_processes().difference(&pair.waiting) {
        signal(*pid, Signal::KILL);
    }
    servers.into_iter().for_each(|server| server.end());
    pair.end_leftovers();
    let mut run = run?;
    if after.is_some() && !is_frozen {
        run.status = "it had ended before anybody was frozen".into();
    }
    Ok((run, Job { argv, ..Job::default() }))
}

/// The end that P13 kills.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    Near,
    Far,
}

const RESUMERS: [Sufferer<End>; 4] = [
    sufferer("dray-get-kill-near", "dray get, receiver killed", Fetcher::Dray, End::Near),
    sufferer("dray-get-kill-far", "dray get, holder killed", Fetcher::Dray, End::Far),
    sufferer(
        "rsync-kill-near",
        "rsync daemon --partial --append-verify, receiver killed",
        Fetcher::Rsync,
        End::Near,
    ),
    sufferer("curl-kill-near", "curl -C - (not verified), receiver killed", Fetcher::Curl, End::Near),
];

/// Names in the results, for whoever asks for one.
#[cfg(test)]
pub(crate) fn labels() -> Vec<&'static str> {
    let (frozen, killed) = (SOURCES.iter().map(|who| who.label), RESUMERS.iter().map(|who| who.label));
    frozen.chain(killed).collect()
}

fn killed(bench: &mut Bench) -> Result<(), String> {
    let (link, own) = if bench.options.is_smoke { ("200M/4ms", 8 << 20) } else { ("1g-50ms", 512 << 20) };
    let Some(bytes) = bench.size(own) else { return Ok(()) };
    let what = What::File { bytes };
    let mut random = Random::new(bench.options.seed, "moments");
    for between in bench.links(&[link])? {
        let pair = bench.pair(between)?;
        bench.site.make(what, bench.options.seed)?;
        let Between::Link(condition) = between else { return Err("P13 needs a link of the lab".into()) };
        let rate = condition.up.rate.map_or(1e9, |rate| rate.bits_per_second() as f64);
        let expected = bytes as f64 * 8.0 / rate + 0.2;
        let name = what.name();
        let place = Place { row: "P13", cell: &name, link: between.name() };
        // What a run that nobody kills takes from the wire, of each program: the least of some, as TCP sends again in one what it does not in another.
        let mut whole = BTreeMap::new();
        bench.rounds(1, bench.pairs(), |bench, round| {
            // One moment for all of a round.
            let moment = Duration::from_secs_f64(expected * (0.2 + 0.6 * random.share()));
            bench.in_turn(&place, &RESUMERS, round, |bench, turn| {
                let fetcher = turn.who.fetcher;
                if let Entry::Vacant(vacant) = whole.entry(fetcher) {
                    let mut least = u64::MAX;
                    for _ in 0..if bench.options.is_smoke { 1 } else { WHOLE_RUNS } {
                        least = least.min(taken_by_a_whole_run(bench, &pair, what, fetcher)?);
                        bench.site.forget()?;
                    }
                    vacant.insert(least);
                }
                let plan = Killing { moment, whole: whole[&fetcher] };
                one_killed(bench, &pair, what, &plan, &place, turn)
            })
        })?;
    }
    bench.site.remove(what);
    bench.site.forget()
}

/// One run of P13.
struct Killing {
    moment: Duration,
    /// Bytes that a run takes from the wire which nobody kills: with headers, proofs and all else that is no payload.
    whole: u64,
}

/// How `fetcher` fetches `what`; `ticket` is for those that take one.
fn fetching(
    bench: &Bench,
    pair: &Pair,
    what: What,
    fetcher: Fetcher,
    ticket: &str,
) -> Result<Vec<String>, String> {
    let (far, file) = (pair.far_ip, what.name());
    let to = bench.site.path("near/out/file");
    let (words, from): (&[&str], String) = match fetcher {
        Fetcher::Dray => (&["dray", "get", "FROM", "-o", "TO"], ticket.to_owned()),
        Fetcher::Rsync => {
            (&["rsync", "--partial", "--append-verify", "FROM", "TO"], format!("rsync://{far}/far/in/{file}"))
        }
        Fetcher::Curl => {
            (&["curl", "-sSf", "-C", "-", "-o", "TO", "FROM"], format!("http://{far}/in/{file}"))
        }
        Fetcher::Aria2 => return Err("P13 has nobody who fetches with aria2".into()),
    };
    let word = |word: &&str| match *word {
        "FROM" => from.clone(),
        "TO" => to.clone(),
        other => other.to_owned(),
    };
    Ok(words.iter().map(word).collect())
}

fn taken_by_a_whole_run(bench: &Bench, pair: &Pair, what: What, fetcher: Fetcher) -> Result<u64, String> {
    let ground = bench.ground(pair);
    let put = ["dray".to_owned(), "put".into(), bench.site.path(&format!("far/in/{}", what.name()))];
    let holder = if fetcher == Fetcher::Dray { Some(ground.serve(&put, false)?) } else { None };
    let ticket = holder.as_ref().map(|holder| holder.ticket.clone()).unwrap_or_default();
    let run = ground.run_near(&fetching(bench, pair, what, fetcher, &ticket)?, false, false, None)?;
    if let Some(holder) = holder {
        holder.end();
    }
    pair.end_leftovers();
    match run.status.as_str() {
        "ok" => Ok(run.wire.received),
        status => Err(format!("{fetcher:?}, which nobody killed: {status}")),
    }
}

fn one_killed(
    bench: &mut Bench,
    pair: &Pair,
    what: What,
    &Killing { moment, whole }: &Killing,
    place: &Place<'_>,
    turn: &Turn<Sufferer<End>>,
) -> Result<(), String> {
    let ground = bench.ground(pair);
    let (from, to) = (bench.site.path(&format!("far/in/{}", what.name())), bench.site.path("near/out/file"));
    let fetcher = turn.who.fetcher;
    let kills_far = turn.who.what == End::Far;
    let put = ["dray".to_owned(), "put".to_owned(), from.clone()];
    let mut holder = if turn.who.is_ours() { Some(ground.serve(&put, false)?) } else { None };
    let ticket = holder.as_ref().map(|holder| holder.ticket.clone()).unwrap_or_default();
    let holder_id = holder.as_ref().map(|holder| holder.id());
    let mut is_done = false;
    let mut kill = |elapsed: Duration| {
        if elapsed >= moment && !is_done {
            is_done = true;
            match (kills_far, holder_id) {
                (true, Some(holder)) => {
                    signal(holder, Signal::KILL);
                    // The receiver would wait for it; the user gives up, and comes back.
                    pair.near_processes().into_iter().for_each(|pid| signal(pid, Signal::INT));
                }
                _ => pair.near_processes().into_iter().for_each(|pid| signal(pid, Signal::KILL)),
            }
        }
    };
    ground.run_near(&fetching(bench, pair, what, fetcher, &ticket)?, false, false, Some(&mut kill))?;
    // What was on its way when the end was killed still arrives; it belongs to the first run.
    let before = pair.received_at_rest()?;
    let mut ticket = ticket;
    if kills_far {
        if let Some(holder) = holder.take() {
            holder.end();
        }
        let again = ground.serve(&put, false)?;
        ticket.clone_from(&again.ticket);
        holder = Some(again);
    }
    let mut first_byte = None;
    let mut watch = |elapsed: Duration| {
        if first_byte.is_none() && pair.received().is_ok_and(|bytes| bytes > FIRST_BYTES) {
            first_byte = Some(elapsed);
        }
    };
    let argv = fetching(bench, pair, what, fetcher, &ticket)?;
    let mut second = ground.run_near(&argv, false, false, Some(&mut watch))?;
    if let Some(holder) = holder {
        holder.end();
    }
    pair.end_leftovers();
    second.check_arrived(|| site::is_same(from.as_ref(), to.as_ref()));
    if second.status == "ok" && !is_done {
        second.status = "it had ended before it was killed".into();
    } else if second.status == "ok" && first_byte.is_none() {
        second.status = "nothing came after it was killed".into();
    }
    let overhead = whole as f64 / what.bytes() as f64;
    let crossed = (before + second.wire.received) as f64 / overhead;
    let figures = vec![
        ("killed after, s", moment.as_secs_f64()),
        ("first new byte, s", first_byte.map_or(f64::NAN, |time| time.as_secs_f64())),
        ("MiB before", before as f64 / overhead / f64::from(1 << 20)),
        ("MiB sent again", (crossed - what.bytes() as f64) / f64::from(1 << 20)),
    ];
    let job = Job { argv, ..Job::default() };
    let command = bench.readable(&job, pair);
    bench.tell(place, &second, turn.told(Some(what.bytes()), figures, command))
}
