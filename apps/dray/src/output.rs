//! What a person or a script sees: a progress bar and notes on standard error, or JSON events on standard output.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dray_core::text::{hex, one_line, quoted_name, shown_name};
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_node::{Delivered, Event, Observer, SourceShare, Stop, TreeCopied};
use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use serde_json::{Value, json};

use crate::arguments::Show;

/// Progress events of `--json` come no more often than this.
const JSON_INTERVAL: Duration = Duration::from_millis(200);

/// Barred sources that a success names.
const BARRED_NAMED_MAX: usize = 3;

/// Shows events in the way that was asked for.
pub(crate) struct Output {
    show: Show,
    state: Mutex<State>,
    /// Ends the command when nothing can come of it any more.
    stop: Stop,
    /// Warnings are shown also when quiet: nobody looks at this program while it runs, only at its log.
    warns_always: bool,
    /// What the log calls what it hears of; `None` where somebody else logs.
    transfer: Option<String>,
}

struct State {
    bar: Option<ProgressBar>,
    senders: Senders,
    /// Sources that were barred, and why: told with a success; an error names them itself.
    barred: Vec<String>,
    last_json: Option<Instant>,
    /// The end has been told.
    is_all_told: bool,
    is_terminal: bool,
    /// Why a result could not be printed.
    lost: Option<Error>,
    /// Whoever reads a plan or a listing has closed it (`| head`): he has what he wanted.
    has_left: bool,
}

impl Output {
    /// Sets `stop` when the ticket of a `put` cannot be printed: it would be served for nobody.
    pub(crate) fn new(show: Show, stop: Stop, transfer: Option<String>) -> Output {
        let is_terminal = std::io::stderr().is_terminal();
        let (bar, senders, barred, last_json, lost) = (None, Senders::default(), Vec::new(), None, None);
        Output {
            show,
            transfer,
            state: Mutex::new(State {
                has_left: false,
                bar,
                senders,
                barred,
                last_json,
                is_all_told: false,
                is_terminal,
                lost,
            }),
            stop,
            warns_always: false,
        }
    }

    /// The same for a daemon, whose log has warnings also when it is quiet.
    pub(crate) fn of_daemon(self) -> Output {
        Output { warns_always: true, ..self }
    }

    /// `Internal` if a result could not be printed: whoever waits for it must not take silence for success.
    pub(crate) fn check(&self) -> Result<()> {
        self.state().lost.take().map_or(Ok(()), Err)
    }

    /// True if events go to standard output.
    pub(crate) fn is_json(&self) -> bool {
        self.show.json
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A line on standard error, unless quiet or JSON.
    pub(crate) fn note(&self, text: &str) {
        if !self.show.quiet && !self.show.json {
            self.aside(text);
        }
    }

    /// A note that a daemon's log has also when it is quiet.
    fn warn(&self, text: &str) {
        if self.warns_always && !self.show.json { self.aside(text) } else { self.note(text) }
    }

    /// A line on standard error, beside the progress bar.
    fn aside(&self, text: &str) {
        let state = self.state();
        match &state.bar {
            Some(bar) => bar.suspend(|| line(&mut std::io::stderr(), text)),
            None => line(&mut std::io::stderr(), text),
        }
    }

    fn json(&self, value: &Value) {
        line(&mut std::io::stdout(), &value.to_string());
    }

    /// A line on standard output that somebody waits for; false if it cannot be printed, which [`Output::check`] tells, but for the rest of a plan,
    /// listing or report of which the beginning was enough.
    fn must(&self, what: &str, text: &str) -> bool {
        self.require(what, print(format!("{text}\n").as_bytes()))
    }

    /// The same of what was printed.
    fn require(&self, what: &str, printed: std::io::Result<()>) -> bool {
        let Err(cause) = printed else { return true };
        let is_closed = cause.kind() == std::io::ErrorKind::BrokenPipe;
        let mut state = self.state();
        state.has_left |= is_closed && matches!(what, "plan" | "list" | "findings");
        if !(is_closed && state.has_left) {
            let error = Error::new(ErrorKind::Internal, format!("cannot print the {what}"))
                .caused_by(cause)
                .advise("send standard output to where it can be written, and try again");
            state.lost.get_or_insert(error);
        }
        false
    }

    /// Prints a result on standard output: `text`, unless quiet, or `value` with `--json`.
    pub(crate) fn result(&self, text: &str, value: &Value) {
        self.clear();
        if self.show.json {
            self.must("result", &value.to_string());
        } else if !self.show.quiet {
            self.must("result", text);
        }
    }

    /// Prints the ticket that a daemon serves: alone on standard output, or the event with `--json`.
    pub(crate) fn ticket(&self, ticket: &str, event: &Value) {
        self.clear();
        self.must("ticket", if self.show.json { event.to_string() } else { ticket.to_owned() }.as_str());
    }

    /// Says on standard error what has happened, unless quiet, or prints the event with `--json`.
    pub(crate) fn told(&self, text: &str, event: &Value) {
        self.clear();
        if self.show.json { self.json(event) } else { self.note(text) }
    }

    /// True if nothing is wanted but errors, and what was asked for by itself.
    pub(crate) fn is_quiet(&self) -> bool {
        self.show.quiet
    }

    /// Prints a page that was asked for, also when quiet.
    pub(crate) fn page(&self, text: &str) -> Result<()> {
        paged(print(text.as_bytes()))
    }

    /// Prints a finding; one that is not as it should be also when quiet.
    pub(crate) fn finding(&self, is_good: bool, text: &str, value: &Value) {
        if self.show.json {
            self.must("findings", &value.to_string());
        } else if !is_good || !self.show.quiet {
            self.must("findings", text);
        }
    }

    /// Says on standard error what was delivered where, or prints the event.
    pub(crate) fn delivered(&self, delivered: &Delivered, elapsed: Duration) {
        self.clear();
        if self.show.json {
            let event = json!({
                "event": "delivered",
                "oid": delivered.oid.to_string(),
                "size_bytes": delivered.size_bytes,
                "resumed_bytes": delivered.resumed_bytes,
                "sent_bytes": delivered.sent_bytes,
                "seconds": elapsed.as_secs_f64(),
            });
            self.must("result", &with_path(event, "path", delivered.path.as_deref()).to_string());
            return;
        }
        let place = delivered
            .path
            .as_deref()
            .map_or_else(|| "standard output".to_owned(), |path| format!("{path:?}"));
        // Not within the loop's head, where the lock would be held for all of it.
        let barred = std::mem::take(&mut self.state().barred);
        for barred in barred {
            self.note(&format!("warning: {barred}"));
        }
        let new_bytes = delivered.size_bytes.saturating_sub(delivered.resumed_bytes);
        let sent_bytes = delivered.sent_bytes.unwrap_or(new_bytes);
        let sent = match sent_bytes < delivered.size_bytes {
            true => format!(" ({} sent now)", bytes(sent_bytes)),
            false => String::new(),
        };
        self.note(&format!(
            "{place}: {} in {:.1} s{sent}, proven {}",
            bytes(delivered.size_bytes),
            elapsed.as_secs_f64(),
            delivered.oid
        ));
    }

    /// Prints a line of a list that was asked for. What comes from elsewhere is fit for a terminal already.
    pub(crate) fn line(&self, text: &str) {
        let state = self.state();
        let print = || print(format!("{text}\n").as_bytes());
        let printed = match &state.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        };
        drop(state);
        self.require("list", printed);
    }

    /// Says what a tree copy did, or, without a change, would have done.
    pub(crate) fn copied(&self, copied: &TreeCopied, is_dry: bool, elapsed: Duration) {
        self.clear();
        if self.show.json {
            let event = json!({
                "event": "copied",
                "entries": copied.entries,
                "files": copied.files,
                "unchanged": copied.unchanged,
                "bytes": copied.bytes,
                "failed": copied.failed,
                "deleted": copied.deleted,
                "dry_run": is_dry,
                "seconds": elapsed.as_secs_f64(),
            });
            self.must("result", &event.to_string());
            return;
        }
        let deleted = match copied.deleted {
            0 => String::new(),
            deleted => format!(", {deleted} {}deleted", if is_dry { "to be " } else { "" }),
        };
        if is_dry {
            self.note(&format!(
                "dry run, nothing was changed: {}, {} to make, replace, compare or change, {} unchanged{deleted}",
                count(copied.entries, "entry", "entries"),
                copied.files,
                count(copied.unchanged, "file", "files"),
            ));
            return;
        }
        self.note(&format!(
            "{}, {} copied ({}), {} unchanged{deleted}, in {:.1} s",
            count(copied.entries, "entry", "entries"),
            count(copied.files, "file", "files"),
            bytes(copied.bytes),
            copied.unchanged,
            elapsed.as_secs_f64(),
        ));
    }

    /// Names an entry that failed on standard error, also when quiet: it is an error.
    fn failed_entry(&self, path: &Path, reason: &str) {
        let text = format!("failed: {}: {}", quoted_name(path.as_os_str().as_bytes()), one_line(reason));
        let state = self.state();
        match &state.bar {
            Some(bar) => bar.suspend(|| line(&mut std::io::stderr(), &text)),
            None => line(&mut std::io::stderr(), &text),
        }
    }

    /// Shows an error: what failed, why, what to do.
    pub(crate) fn error(&self, error: &Error) {
        self.clear();
        if self.show.json {
            self.json(&json!({
                "event": "error",
                "kind": error.kind().word(),
                "what": error.to_string(),
                "advice": error.advice(),
                "exit_code": error.kind().exit_code(),
            }));
        }
        let mut text = format!("dray: {}", one_line(&error.to_string()));
        if let Some(advice) = error.advice() {
            text.push_str("\n  -> ");
            text.push_str(&one_line(advice));
        }
        line(&mut std::io::stderr(), &text);
    }

    fn clear(&self) {
        if let Some(bar) = self.state().bar.take() {
            bar.finish_and_clear();
        }
    }

    /// Draws the bar on a terminal; with `waiting`, that instead of a rate.
    fn bar(&self, done_bytes: u64, total_bytes: Option<u64>, message: String, is_waiting: bool) {
        let mut state = self.state();
        if !state.is_terminal || self.show.quiet {
            return;
        }
        let bar = state.bar.get_or_insert_with(|| begin_bar(done_bytes, total_bytes));
        let template = match (total_bytes, is_waiting) {
            (Some(_), false) => "{bar:24} {bytes}/{total_bytes} {binary_bytes_per_sec} {left} {wide_msg}",
            (Some(_), true) => "{bar:24} {bytes}/{total_bytes} {wide_msg}",
            (None, _) => "{spinner} {bytes} {binary_bytes_per_sec} {wide_msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.with_key("left", left));
        }
        bar.set_position(done_bytes);
        bar.set_message(message);
    }

    /// Tells how far it is now and then, and the end once whenever it comes.
    fn json_progress(&self, is_end: bool, value: impl FnOnce() -> Value) {
        let mut state = self.state();
        let is_news = is_end && !std::mem::replace(&mut state.is_all_told, is_end);
        if is_news || state.last_json.is_none_or(|last| last.elapsed() >= JSON_INTERVAL) {
            state.last_json = Some(Instant::now());
            drop(state);
            self.json(&value());
        }
    }
}

impl Observer for Output {
    fn event(&self, event: Event) {
        if let Some(transfer) = &self.transfer {
            dray_node::log_event(transfer, &event);
        }
        if self.show.json {
            match event {
                Event::Progress { done_bytes, total_bytes, sources } => self.json_progress(done_bytes == total_bytes, || {
                    json!({
                        "event": "progress", "done_bytes": done_bytes, "total_bytes": total_bytes,
                        "sources": brought(&sources).map(|s| json!({"label": s.label, "bytes": s.bytes})).collect::<Vec<_>>(),
                    })
                }),
                Event::Hashing { done_bytes, total_bytes } => self.json_progress(
                    false,
                    || json!({"event": "hashing", "done_bytes": done_bytes, "total_bytes": total_bytes}),
                ),
                Event::Shared { oid, size_bytes, ticket, addresses } => {
                    let event = json!({
                        "event": "shared", "oid": oid.to_string(), "size_bytes": size_bytes, "ticket": ticket,
                        "addresses": addresses,
                    });
                    if !self.must("ticket", &event.to_string()) {
                        self.stop.set();
                    }
                }
                Event::SharedDirectory { path, ticket, addresses } => {
                    let event = json!({"event": "shared-directory", "ticket": ticket, "addresses": addresses});
                    if !self.must("ticket", &with_path(event, "path", Some(&path)).to_string()) {
                        self.stop.set();
                    }
                }
                Event::ServingDirectory { node } => {
                    self.json(&json!({"event": "serving-directory", "node": node}));
                }
                Event::ServedDirectory { node, sent_bytes, lost } => self.json(&json!({
                    "event": "served-directory", "node": node, "sent_bytes": sent_bytes, "lost": lost,
                })),
                Event::Serving { node, oid } => {
                    self.json(&json!({"event": "serving", "node": node, "oid": oid.to_string()}));
                }
                Event::Served { node, sent_bytes, size_bytes, lost } => self.json(&json!({
                    "event": "served", "node": node, "sent_bytes": sent_bytes, "size_bytes": size_bytes,
                    "lost": lost,
                })),
                Event::TurnedAway { reason } => self.json(&json!({"event": "turned-away", "reason": reason})),
                Event::Started { name, total_bytes, resumed_bytes } => {
                    let event = json!({
                        "event": "started", "total_bytes": total_bytes, "resumed_bytes": resumed_bytes,
                    });
                    self.json(&with_path(event, "path", name.as_deref()));
                }
                Event::SourceUp { label } => self.json(&json!({"event": "source-up", "source": label})),
                Event::SourceDown { label, reason, is_barred, .. } => self.json(&json!({
                    "event": "source-down", "source": label, "reason": reason, "barred": is_barred,
                })),
                Event::Note(text) => self.json(&json!({"event": "note", "text": text})),
                Event::TreeProgress { done_bytes } => {
                    self.json_progress(false, || json!({"event": "progress", "done_bytes": done_bytes}));
                }
                Event::EntryFailed { path, kind, reason } => {
                    let event = json!({"event": "entry-failed", "kind": kind.word(), "reason": reason});
                    self.json(&with_path(event, "path", Some(&path)));
                }
                Event::Planned { action, changes, path } => {
                    let mut event =
                        with_path(json!({"event": "planned", "action": action}), "path", Some(&path));
                    if !changes.is_empty() {
                        event["changes"] = json!(changes);
                    }
                    self.must("plan", &event.to_string());
                }
                Event::Synced { letters, path, link } => {
                    let event = json!({"event": "synced", "deleted": letters.is_none(), "letters": letters});
                    self.json(&with_path(with_path(event, "path", Some(&path)), "link", link.as_deref()));
                }
                Event::Listed(listed) => {
                    let event = json!({
                        "event": "listed", "kind": listed.kind.word(), "mode": format!("{:04o}", listed.mode),
                        "size_bytes": listed.size_bytes, "mtime_s": listed.mtime_s, "mtime_ns": listed.mtime_ns,
                    });
                    let event = with_path(event, "path", Some(&listed.path));
                    self.must("list", &with_path(event, "link", listed.link.as_deref()).to_string());
                }
                Event::Warning(text) => self.json(&json!({"event": "warning", "text": text})),
            }
            return;
        }
        match event {
            Event::Progress { done_bytes, total_bytes, sources } => {
                let waiting = {
                    let mut state = self.state();
                    if !sources.is_empty() {
                        state.senders.asked = None;
                    }
                    state.senders.waiting(Instant::now())
                };
                let is_waiting = waiting.is_some();
                let message = waiting.unwrap_or_else(|| shares(&sources));
                self.bar(done_bytes, Some(total_bytes), message, is_waiting);
            }
            Event::Hashing { done_bytes, total_bytes } => {
                self.bar(done_bytes, total_bytes, "hashing".into(), false);
            }
            Event::Shared { ticket, size_bytes, .. } => {
                self.clear();
                if !self.must("ticket", &ticket) {
                    self.stop.set();
                    return;
                }
                self.note(&format!(
                    "serving {}; there: dray get TICKET; Ctrl-C here ends it",
                    bytes(size_bytes)
                ));
            }
            Event::SharedDirectory { path, ticket, .. } => {
                self.clear();
                if !self.must("ticket", &ticket) {
                    self.stop.set();
                    return;
                }
                let path = shown_name(path.as_os_str().as_bytes());
                self.note(&format!(
                    "serving {path}; there: dray get TICKET -o DIR, later dray sync -a TICKET DIR; Ctrl-C here ends it"
                ));
            }
            Event::ServingDirectory { node } => {
                self.note(&format!("receiver {} connected", short(&node)));
            }
            Event::ServedDirectory { node, sent_bytes, lost } => {
                let (node, sent) = (short(&node), bytes(sent_bytes));
                match lost {
                    Some(lost) => {
                        self.note(&format!("receiver {node} lost after {sent}: {}", one_line(&lost)))
                    }
                    None => self.note(&format!("receiver {node} is done, {sent} sent")),
                }
            }
            Event::Serving { node, .. } => {
                self.note(&format!("receiver {} connected", short(&node)));
            }
            Event::Served { node, sent_bytes, size_bytes, lost } => {
                self.note(&gone(&node, sent_bytes, size_bytes, lost.as_deref()));
            }
            Event::TurnedAway { reason } => {
                self.warn(&format!("turned a receiver away: {}", one_line(&reason)));
            }
            Event::Started { resumed_bytes, .. } => {
                self.state().senders.asked = Some(Instant::now());
                if resumed_bytes > 0 {
                    self.note(&format!("going on after {}", bytes(resumed_bytes)));
                }
            }
            Event::Note(text) => self.note(&one_line(&text)),
            Event::TreeProgress { done_bytes } => self.bar(done_bytes, None, String::new(), false),
            Event::EntryFailed { path, reason, .. } => self.failed_entry(&path, &reason),
            Event::Planned { action, changes, path } => {
                let what =
                    if changes.is_empty() { String::new() } else { format!(" ({})", changes.join(", ")) };
                self.must("plan", &format!("{action:<8} {}{what}", shown_name(path.as_os_str().as_bytes())));
            }
            // Who asks for it says so line by line.
            Event::Synced { .. } | Event::Listed(_) => {}
            Event::Warning(text) => self.warn(&format!("warning: {}", one_line(&text))),
            Event::SourceUp { label } => {
                let mut state = self.state();
                let was_waiting = state.senders.lost.is_some();
                state.senders.up(label);
                if let Some(bar) = state.bar.as_ref().filter(|_| was_waiting) {
                    // The rate is that of the data, not of the time without a sender.
                    bar.reset_eta();
                }
            }
            Event::SourceDown { label, reason, is_barred, .. } => {
                let mut state = self.state();
                if is_barred && state.barred.len() < BARRED_NAMED_MAX {
                    state.barred.push(format!("{label} was not used any more: {}", one_line(&reason)));
                }
                state.senders.down(&label, one_line(&reason), Instant::now());
            }
        }
    }
}

/// A bar whose rate and time left count only what comes from now on: what an earlier run left is not what this one
/// achieved.
fn begin_bar(done_bytes: u64, total_bytes: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total_bytes, ProgressDrawTarget::hidden());
    bar.set_position(done_bytes);
    bar.tick();
    bar.reset_eta();
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
    bar
}

/// Time left, once there is a rate to tell it from.
fn left(state: &ProgressState, out: &mut dyn std::fmt::Write) {
    if state.per_sec() > 0.0 {
        // A formatter that fails leaves a gap in the bar.
        let _ = write!(out, "{:#} left", HumanDuration(state.eta()));
    }
}

/// Which senders are there, to say how long nobody has been.
#[derive(Default)]
struct Senders {
    up: BTreeSet<String>,
    lost: Option<(Instant, String)>,
    /// When the transfer began, until somebody answers.
    asked: Option<Instant>,
}

impl Senders {
    fn up(&mut self, label: String) {
        self.up.insert(label);
        (self.lost, self.asked) = (None, None);
    }

    fn down(&mut self, label: &str, reason: String, now: Instant) {
        if self.up.remove(label) && self.up.is_empty() {
            self.lost = Some((now, reason));
        }
    }

    /// What to show while the last one is gone, or while none has answered; a second of that is nothing to speak of.
    fn waiting(&self, now: Instant) -> Option<String> {
        if let Some(seconds) = self.asked.map(|asked| now.duration_since(asked).as_secs()) {
            return (seconds > 0).then(|| format!("waiting for an answer, {seconds} s"));
        }
        let (since, reason) = self.lost.as_ref()?;
        Some(format!("sender gone for {} s, waiting: {reason}", now.duration_since(*since).as_secs()))
    }
}

/// The first digits of a node id.
fn short(node: &str) -> String {
    format!("{}…", node.get(..16).unwrap_or(node))
}

/// How a receiver ended. Fewer bytes than the object has do not mean that it lacks any: it may have had them from
/// elsewhere, or from an earlier run.
fn gone(node: &str, sent_bytes: u64, size_bytes: u64, lost: Option<&str>) -> String {
    let (node, sent) = (short(node), bytes(sent_bytes));
    match lost {
        Some(why) => format!("receiver {node} was lost after {sent} sent: {}", one_line(why)),
        None if sent_bytes < size_bytes => format!("receiver {node} has gone after {sent} sent"),
        None => format!("receiver {node} has had all {}", bytes(size_bytes)),
    }
}

/// The sources that have brought something.
fn brought(sources: &[SourceShare]) -> impl Iterator<Item = &SourceShare> {
    sources.iter().filter(|source| source.bytes > 0)
}

/// Share of each source, when there is more than one.
fn shares(sources: &[SourceShare]) -> String {
    let total: u64 = sources.iter().map(|source| source.bytes).sum();
    if brought(sources).count() < 2 {
        return String::new();
    }
    let parts = brought(sources).map(|source| format!("{} {}%", source.label, source.bytes * 100 / total));
    parts.collect::<Vec<_>>().join(", ")
}

/// A size for people.
pub(crate) fn bytes(count: u64) -> String {
    indicatif::BinaryBytes(count).to_string()
}

/// A number of things for people, with the word for one of them or for several.
pub(crate) fn count(number: u64, one: &str, several: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { several })
}

/// Writes all of `bytes` to standard output.
pub(crate) fn print(bytes: &[u8]) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    out.write_all(bytes).and_then(|()| out.flush())
}

/// How it went to print a page.
pub(crate) fn paged(printed: std::io::Result<()>) -> Result<()> {
    match printed {
        // Who reads the beginning has all of it that he wants (`| head`).
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Error::new(ErrorKind::Internal, "cannot write standard output").caused_by(error))
        }
        _ => Ok(()),
    }
}

fn line(out: &mut dyn Write, text: &str) {
    // A note or an event that nobody reads any more; results go another way.
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// `event` with a path, or null, as text; where that is not UTF-8, also its bytes in hex digits, as `…_hex`: the text does not tell all of them apart.
fn with_path(mut event: Value, key: &str, path: Option<&Path>) -> Value {
    event[key] = json!(path.map(Path::to_string_lossy));
    if let Some(path) = path.filter(|path| path.to_str().is_none()) {
        event[format!("{key}_hex")] = hex(path.as_os_str().as_bytes()).into();
    }
    event
}

/// The verdict of `verify`, as JSON.
pub(crate) fn verified_json(path: &Path, oid: &Oid, size_bytes: u64) -> Value {
    let event = json!({"event": "verified", "oid": oid.to_string(), "size_bytes": size_bytes});
    with_path(event, "path", Some(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What an earlier run left counts as there, and not as done by this one.
    #[test]
    fn resumed_bytes_are_no_rate() {
        let bar = begin_bar(3 << 30, Some(4 << 30));
        assert_eq!((bar.position(), bar.per_sec()), (3 << 30, 0.0));
    }

    /// Issue "names are told apart": what JSON has no text for stands there in hex digits, and only that.
    #[test]
    fn a_path_that_is_not_utf_8_is_whole_in_json() {
        let told = |path: Option<&[u8]>| {
            let path = path.map(|bytes| Path::new(std::ffi::OsStr::from_bytes(bytes)));
            with_path(json!({"event": "x"}), "link", path)
        };
        assert_eq!(told(None), json!({"event": "x", "link": null}));
        assert_eq!(told(Some("ä\n".as_bytes())), json!({"event": "x", "link": "ä\n"}));
        let odd = json!({"event": "x", "link": "a\u{fffd}", "link_hex": "61ff"});
        assert_eq!(told(Some(b"a\xff")), odd);
    }

    /// A receiver that closed its connections early is not said to have everything.
    #[test]
    fn a_receiver_that_has_gone_has_not_had_all() {
        let node = "0123456789abcdef0123";
        assert_eq!(
            gone(node, 5 << 20, 8 << 20, None),
            "receiver 0123456789abcdef… has gone after 5.00 MiB sent"
        );
        assert_eq!(gone(node, 8 << 20, 8 << 20, None), "receiver 0123456789abcdef… has had all 8.00 MiB");
        assert_eq!(gone(node, 9 << 20, 8 << 20, None), "receiver 0123456789abcdef… has had all 8.00 MiB");
        let lost = gone(node, 8 << 20, 8 << 20, Some("reset\nby peer"));
        assert_eq!(lost, "receiver 0123456789abcdef… was lost after 8.00 MiB sent: reset by peer");
    }

    /// A sender that is gone is waited for in words, until one is there again.
    #[test]
    fn waiting_is_said_while_no_sender_is_there() {
        let mut senders = Senders::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(senders.waiting(begun), None);
        senders.asked = Some(begun);
        assert_eq!(senders.waiting(begun), None);
        assert_eq!(senders.waiting(at(3)).as_deref(), Some("waiting for an answer, 3 s"));
        senders.up("ssh".into());
        assert_eq!(senders.waiting(at(4)), None);
        senders.up("direct".into());
        senders.down("direct", "reset".into(), at(1));
        assert_eq!(senders.waiting(at(5)), None, "ssh is there");
        senders.down("ssh", "closed".into(), at(5));
        assert_eq!(senders.waiting(at(12)).as_deref(), Some("sender gone for 7 s, waiting: closed"));
        senders.down("ssh", "again".into(), at(13));
        assert_eq!(senders.waiting(at(15)).as_deref(), Some("sender gone for 10 s, waiting: closed"));
        senders.up("ssh".into());
        assert_eq!(senders.waiting(at(16)), None);
    }
}
