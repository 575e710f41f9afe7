//! `dray explain`: transfers as a person reads them, 80 columns wide, or as JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use dray_core::{Error, ErrorKind, Result};
use dray_node::Paths;
use dray_node::explain::{self, Bottleneck, Idle, Role, Snapshot, SourceSnapshot, Standing, State};
use serde_json::{Value, json};

use crate::output::{self, Output};

/// Stands for a space at which no line is broken.
const GLUE: &str = "\u{a0}";
/// Width of everything.
const COLUMNS: usize = 80;
/// Width of a source's name in the table; a longer one has a line of its own.
const LABEL_COLUMNS: usize = 25;

/// Shows what runs; if nothing does, what ended last, and with `all` everything that is known to have ended.
pub(crate) fn run(all: bool, output: &Output) -> Result<()> {
    let paths = Paths::from_environment()?;
    let mut told = explain::running(&paths);
    let is_running = !told.is_empty();
    // What ended while it was asked is told once.
    let is_new = |ended: &Snapshot| {
        !told.iter().any(|other| (other.pid, other.began_unix_us) == (ended.pid, ended.began_unix_us))
    };
    let mut ended: Vec<Snapshot> = explain::ended(&paths).into_iter().filter(is_new).collect();
    if !all {
        ended.truncate(usize::from(!is_running));
    }
    told.append(&mut ended);
    if told.is_empty() {
        return if output.is_json() {
            Ok(())
        } else {
            output.page("no transfer is running, and none is known that ended\n")
        };
    }
    let now = SystemTime::now();
    let mut page = String::new();
    if !is_running && !output.is_json() {
        page.push_str("no transfer is running; ");
        page.push_str(if all { "those that ended, the last one first:\n\n" } else { "the last one:\n\n" });
    }
    for (index, snapshot) in told.iter().enumerate() {
        if output.is_json() {
            page.push_str(&event(snapshot)?.to_string());
            page.push('\n');
        } else {
            page.push_str(if index > 0 { "\n" } else { "" });
            page.push_str(&shown(snapshot, now));
        }
    }
    output.page(&page)
}

/// A snapshot as an event.
fn event(snapshot: &Snapshot) -> Result<Value> {
    let failed = |error| Error::new(ErrorKind::Internal, "cannot write a snapshot as JSON").caused_by(error);
    let mut event = json!({"event": "transfer"});
    if let (Value::Object(event), Value::Object(keys)) =
        (&mut event, serde_json::to_value(snapshot).map_err(failed)?)
    {
        event.extend(keys);
    }
    Ok(event)
}

/// A transfer as a person reads it.
fn shown(snapshot: &Snapshot, now: SystemTime) -> String {
    let mut page = String::new();
    if snapshot.state == State::NoAnswer {
        wrapped(&mut page, 0, &format!("process {} does not answer", snapshot.pid));
        let advice = format!(
            "it is stopped, or this machine is very busy; `kill -CONT {}` continues it",
            snapshot.pid
        );
        wrapped(&mut page, 2, &advice);
        return page;
    }
    wrapped(&mut page, 0, &title(snapshot));
    wrapped(&mut page, 2, &how_far(snapshot, now));
    if let Some(failure) = &snapshot.failure {
        wrapped(&mut page, 2, &format!("{} (exit {}): {}", failure.kind, failure.exit_code, failure.what));
        if let Some(advice) = &failure.advice {
            wrapped(&mut page, 2, &format!("-> {advice}"));
        }
    }
    if let Some(silent) = not_heard(snapshot) {
        wrapped(&mut page, 2, &silent);
    } else if snapshot.state == State::Running && !snapshot.is_tree {
        wrapped(&mut page, 2, &bottleneck(snapshot));
    }
    let at_hand = [
        (snapshot.older_version_bytes, "the older version here"),
        (snapshot.other_files_bytes, "other files of yours"),
        (snapshot.repeated_bytes, "other parts of it, which they repeat"),
    ];
    for (bytes, whence) in at_hand.into_iter().filter(|(bytes, _)| *bytes > 0) {
        wrapped(&mut page, 2, &format!("{} came from {whence}", size(bytes)));
    }
    table(&mut page, snapshot);
    page
}

fn title(snapshot: &Snapshot) -> String {
    let place = snapshot.path.as_deref().map_or_else(String::new, |path| format!("{path:?}"));
    let peer = snapshot.peer.as_deref().unwrap_or("this machine");
    let what = match (snapshot.role, snapshot.what.strip_prefix("blake3:").and_then(|hex| hex.get(..12))) {
        (_, Some(hex)) => format!("blake3:{hex}..."),
        (_, None) => format!("{:?}", snapshot.what),
    };
    let ways = match snapshot.role {
        Role::Sending => format!("{what} to {peer} {place}"),
        _ if snapshot.command == "cp" || snapshot.peer.is_some() => format!("{what} from {peer} to {place}"),
        _ if place.is_empty() => what,
        _ => format!("{what} to {place}"),
    };
    format!("{} {ways} (pid {})", snapshot.command, snapshot.pid)
}

/// How far it is, or how it ended.
fn how_far(snapshot: &Snapshot, now: SystemTime) -> String {
    let Snapshot { size_bytes, done_bytes, left_bytes, rate_bytes_per_s, .. } = *snapshot;
    let elapsed = duration(Duration::from_micros(snapshot.elapsed_us));
    let resumed = match snapshot.resumed_bytes {
        0 => String::new(),
        resumed => format!(", {} of them from an earlier run", size(resumed)),
    };
    let done = match snapshot.is_tree {
        true => format!("{} came", size(done_bytes)),
        false => format!("{} of {}{resumed}", size(done_bytes), size(size_bytes)),
    };
    if let Some(ended) = snapshot.ended_unix_us {
        let ended = UNIX_EPOCH + Duration::from_micros(ended);
        let ago = duration(now.duration_since(ended).unwrap_or_default());
        let how = match snapshot.state {
            State::Done => "done",
            State::Failed if snapshot.failure.as_ref().is_some_and(|it| it.kind == "interrupted") => {
                "interrupted"
            }
            _ => "failed",
        };
        return format!("{how} {ago} ago, after {elapsed}: {done}, {}/s", size(rate_bytes_per_s));
    }
    if snapshot.is_tree {
        return format!("{done} after {elapsed}, {}/s", size(rate_bytes_per_s));
    }
    let left = match left_bytes {
        0 => String::new(),
        left => format!("; {} left", size(left)),
    };
    let time_left = match left_bytes.checked_div(rate_bytes_per_s) {
        Some(seconds) if left_bytes > 0 => format!(", about {}", duration(Duration::from_secs(seconds))),
        _ => String::new(),
    };
    let percent = (done_bytes as f64 * 100.0 / size_bytes.max(1) as f64) as u64;
    format!("{done} ({percent} %) after {elapsed}, {}/s{left}{time_left}", size(rate_bytes_per_s))
}

/// What is told of a running copy of which nothing came or was confirmed: its other end may not have answered at all.
fn not_heard(snapshot: &Snapshot) -> Option<String> {
    let nothing = snapshot.done_bytes == 0 && snapshot.bottleneck.is_none();
    let is_silent = snapshot.sources.iter().all(|source| source.delivered_bytes == 0);
    if snapshot.state != State::Running || !nothing || !is_silent {
        return None;
    }
    let peer = snapshot.peer.as_deref()?;
    let reach = format!("Does `ssh {peer}` get there, with the options of the command?");
    Some(match snapshot.is_tree {
        // Directories, links and empty files may have come.
        true => format!(
            "no content of it came yet: {peer} has not answered, both ends look at what they have, or nothing has to come. {reach}"
        ),
        false => {
            format!("nothing of it is there yet: {peer} has not answered, or looks at what it has. {reach}")
        }
    })
}

/// What holds it back, and what to do about it.
fn bottleneck(snapshot: &Snapshot) -> String {
    let has = |standing| snapshot.sources.iter().any(|source| source.standing == Some(standing));
    let text = match snapshot.bottleneck {
        None if snapshot.role == Role::Sending => {
            "the receiving end knows what it waits for: run `dray explain` there"
        }
        None | Some(Bottleneck::Unknown) => "bottleneck: not known",
        Some(Bottleneck::Network) if snapshot.command == "cp" => {
            "bottleneck: the network, or the limit that the copy was given (`--bwlimit`). The other end sends, and this machine waits for it: a \
             faster path, or a higher limit, would help"
        }
        Some(Bottleneck::Network) => {
            "bottleneck: the network. The sources deliver, and this machine waits for them: another holder in the \
             ticket (`dray put --ticket`) or a faster path would help"
        }
        Some(Bottleneck::Source)
            if snapshot.done_bytes == snapshot.resumed_bytes && !has(Standing::Frozen) =>
        {
            "bottleneck: the sources. None has sent anything yet: does the sender run, and can this machine reach it?"
        }
        Some(Bottleneck::Source) => {
            "bottleneck: the sources. None is there, or those that owe something are silent: look at the sender's \
             machine, its disk and its network. After 25 s of this the command ends; started again, it goes on"
        }
        Some(Bottleneck::Disk) => {
            "bottleneck: the disk. Writing takes most of the time: another folder on a faster disk would help"
        }
        Some(Bottleneck::Cpu) => {
            "bottleneck: the CPU of this machine. Checking the bytes takes most of the time: it is busy with something \
             else, too, or faster networks than this are its limit"
        }
        Some(Bottleneck::Memory) => {
            "bottleneck: the memory budget. More cannot be outstanding at once: raise window_mib in the configuration"
        }
        Some(Bottleneck::Consumer) => {
            "bottleneck: the reader of the output. It has not taken what came: look at the program behind the pipe"
        }
        Some(Bottleneck::Finishing) => {
            "nothing is left to fetch: the whole is confirmed and put in its place"
        }
    };
    text.to_owned()
}

/// A row for each source, and below it what the row does not say.
fn table(page: &mut String, snapshot: &Snapshot) {
    if snapshot.sources.is_empty() {
        return;
    }
    row(
        page,
        "SOURCE",
        ["STANDING", "RATE/S", "WINDOW", "QUEUE", "SHARE", "CAME", "TWICE"].map(String::from),
    );
    for source in &snapshot.sources {
        let known = |figure: Option<u64>| figure.map_or_else(|| "-".to_owned(), short);
        let queue = match (source.queue_bytes, source.queue_requests) {
            (Some(bytes), Some(requests)) => format!("{}/{requests}", short(bytes)),
            _ => "-".to_owned(),
        };
        let cells = [
            standing(source.standing).to_owned(),
            short(source.rate_bytes_per_s),
            known(source.window_bytes),
            queue,
            format!("{:.0}%", source.share * 100.0),
            short(source.delivered_bytes),
            known(source.discarded_bytes),
        ];
        row(page, &source.label, cells);
        for reason in reasons(source, snapshot.ended_unix_us.is_some()) {
            wrapped(page, 4, &reason);
        }
    }
    if snapshot.sources_omitted > 0 {
        wrapped(page, 4, &format!("and {} more", snapshot.sources_omitted));
    }
}

fn row(page: &mut String, label: &str, cells: [String; 7]) {
    let mut name = label.to_owned();
    if name.chars().count() > LABEL_COLUMNS {
        wrapped(page, 0, &name);
        name.clear();
    }
    let [standing, rate, window, queue, share, came, twice] = cells;
    let line = format!(
        "{name:LABEL_COLUMNS$} {standing:<8} {rate:>6} {window:>6} {queue:>9} {share:>5} {came:>6} {twice:>6}"
    );
    page.push_str(line.trim_end());
    page.push('\n');
}

fn standing(standing: Option<Standing>) -> &'static str {
    match standing {
        Some(Standing::Up) => "up",
        Some(Standing::Frozen) => "frozen",
        Some(Standing::Barred) => "barred",
        Some(Standing::Gone) => "gone",
        Some(Standing::Waiting) => "waiting",
        Some(Standing::Unknown) => "?",
        None => "-",
    }
}

/// Why it stands where it stands, and why it has nothing to do.
fn reasons(source: &SourceSnapshot, is_over: bool) -> Vec<String> {
    let mut reasons = Vec::new();
    let silent = duration(Duration::from_micros(source.silent_us));
    let cause = source.cause.as_deref();
    match (source.standing, cause) {
        (Some(Standing::Frozen), _) if source.silent_us >= 1_000_000 => reasons.push(format!(
            "frozen: it owes {} and has said nothing for {silent}; others are asked",
            size(source.queue_bytes.unwrap_or(0))
        )),
        (Some(Standing::Frozen), None) => reasons.push("frozen: it was silent for too long".to_owned()),
        (Some(Standing::Barred), Some(cause)) => reasons.push(format!("barred: {cause}")),
        (Some(Standing::Gone), Some(cause)) if !(is_over && cause == "the connection was closed") => {
            reasons.push(format!("gone: {cause}"));
        }
        (Some(Standing::Waiting), Some(cause)) => reasons.push(format!("lost, and tried again: {cause}")),
        (Some(Standing::Waiting), None) => reasons.push("has not answered".to_owned()),
        _ => {}
    }
    if let (Some(Standing::Up | Standing::Frozen), Some(cause)) = (source.standing, cause) {
        reasons.push(format!("failed last: {cause}"));
    }
    let idle = match source.idle.filter(|_| !is_over) {
        Some(Idle::Spare) => {
            "idle: a spare, for when no source of a lower priority number answers".to_owned()
        }
        Some(Idle::Paused) => {
            let paused = Duration::from_micros(source.paused_us.unwrap_or(0));
            format!("idle: it failed, and is left alone for {:.1} s", paused.as_secs_f64())
        }
        Some(Idle::NoBudget) => "idle: the memory budget has no room for another request".to_owned(),
        Some(Idle::Consumer) => "idle: the reader of the output has to take something first".to_owned(),
        Some(Idle::NotNeeded) => "idle: others will have what is left sooner, or nothing is left".to_owned(),
        Some(Idle::NotUp | Idle::Unknown) | None => return reasons,
    };
    reasons.push(idle);
    reasons
}

/// A number of bytes in at most five characters.
fn short(count: u64) -> String {
    let mut unit = 0;
    let mut value = count as f64;
    // What would be rounded to 1024 of a unit is one of the next.
    while value >= 1023.5 && unit < 6 {
        value /= 1024.0;
        unit += 1;
    }
    match ["B", "K", "M", "G", "T", "P", "E"][unit] {
        "B" => format!("{count}"),
        unit if value < 9.95 => format!("{value:.1}{unit}"),
        unit => format!("{value:.0}{unit}"),
    }
}

/// A size for people, whose unit stays on its line.
fn size(count: u64) -> String {
    output::bytes(count).replace(' ', GLUE)
}

/// A time in at most two units, which stay together.
fn duration(time: Duration) -> String {
    let text = match time.as_secs() {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        seconds @ 10..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds @ 7200..172_800 => format!("{} h {} min", seconds / 3600, seconds / 60 % 60),
        seconds => format!("{} days", seconds / 86_400),
    };
    text.replace(' ', GLUE)
}

/// Adds `text` indented, broken at spaces where it would be wider than the page; what comes after the first line is
/// indented by two more.
fn wrapped(page: &mut String, indent: usize, text: &str) {
    let from = page.len();
    let mut line = " ".repeat(indent);
    let mut is_empty = true;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            page.push_str(&line);
            page.push('\n');
            line = " ".repeat(indent + 2);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    page.push_str(&line);
    page.push('\n');
    let spaced = page.split_off(from).replace(GLUE, " ");
    page.push_str(&spaced);
}

#[cfg(test)]
mod tests {
    use dray_node::explain::Failure;

    use super::*;

    fn source(label: &str, standing: Standing) -> SourceSnapshot {
        SourceSnapshot {
            label: label.into(),
            standing: Some(standing),
            rate_bytes_per_s: u64::MAX,
            window_bytes: Some(1 << 30),
            queue_bytes: Some((1 << 30) - 1),
            queue_requests: Some(64),
            share: 1.0,
            delivered_bytes: 1 << 60,
            discarded_bytes: Some((1 << 50) - 1),
            ..SourceSnapshot::default()
        }
    }

    /// Whatever the figures, a page is 80 columns wide; a word that is longer has a line of its own.
    #[test]
    fn pages_fit_a_terminal() {
        let long = "direct [2001:db8:1234:5678:9abc:def0:1234:5678]:65535";
        let states = [Standing::Up, Standing::Frozen, Standing::Barred, Standing::Gone, Standing::Waiting];
        let idles = [Idle::Spare, Idle::Paused, Idle::NoBudget, Idle::Consumer, Idle::NotNeeded];
        let bottlenecks = [
            Bottleneck::Network,
            Bottleneck::Source,
            Bottleneck::Disk,
            Bottleneck::Cpu,
            Bottleneck::Memory,
            Bottleneck::Consumer,
            Bottleneck::Finishing,
        ];
        for (index, bottleneck) in bottlenecks.into_iter().enumerate() {
            let mut sources: Vec<_> = states.map(|standing| source(long, standing)).into();
            sources.extend(idles.map(|idle| SourceSnapshot {
                idle: Some(idle),
                cause: Some("it failed, and why it did is a long story ".repeat(9)),
                ..source("direct 192.0.2.7:4711", Standing::Up)
            }));
            let snapshot = Snapshot {
                state: [State::Running, State::Failed, State::Done, State::NoAnswer][index % 4],
                command: ["get", "cp"][index % 2].into(),
                what: format!("blake3:{}", "0".repeat(64)),
                path: Some("/home/somebody/in a folder/with spaces/and a name".into()),
                size_bytes: 1 << 60,
                done_bytes: 1 << 59,
                left_bytes: 1 << 59,
                rate_bytes_per_s: 1,
                elapsed_us: u64::MAX,
                ended_unix_us: [None, Some(1)][index % 2],
                bottleneck: Some(bottleneck),
                failure: Some(Failure { what: "first this, then that; ".repeat(50), ..Failure::default() }),
                sources,
                ..Snapshot::default()
            };
            let page = shown(&snapshot, SystemTime::now());
            let wide = page.lines().find(|line| line.chars().count() > COLUMNS);
            assert_eq!(wide, None, "{page}");
            assert!(!page.contains(GLUE) && page.lines().all(|line| !line.ends_with(' ')), "{page}");
        }
    }

    #[test]
    fn figures_are_short() {
        for (count, text) in [
            (0, "0"),
            (1023, "1023"),
            (1024, "1.0K"),
            (10_188, "9.9K"),
            (10_189, "10K"),
            ((1 << 20) - 1, "1.0M"),
            (1 << 60, "1.0E"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(short(count), text);
        }
        let spaced = |seconds| duration(Duration::from_secs_f64(seconds)).replace(GLUE, " ");
        assert_eq!(
            ["1.2 s", "119 s", "2 min 0 s", "2 h 0 min", "2 days"],
            [1.24, 119.9, 120.0, 7200.0, 172_800.0].map(spaced)
        );
    }
}
