//! What is told of a transfer, as plain data: the keys of its JSON, on the socket, in the data directory and from
//! `dray explain --json`, are the names of these fields ([docs/operating.md](../../../../docs/operating.md)).
//!
//! Another version of the program may read what this one wrote: keys it does not know are ignored, missing ones have
//! their default, words it does not know are `unknown`.

use dray_core::limits::TEXT_BYTES_MAX;
use dray_core::text::one_line;
use dray_core::{Error, Result};
use dray_engine::planner::{self, SourceExplanation};
use serde::{Deserialize, Serialize};

/// Texts of one source: with the most sources all fit into one snapshot.
const SOURCE_TEXT_BYTES_MAX: usize = 512;
/// An error that names several sources, and what each of them did.
const CULPRITS_BYTES_MAX: usize = 8 * TEXT_BYTES_MAX;

/// A transfer at one moment.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Snapshot {
    /// Whether it runs, and how it ended.
    pub state: State,
    /// Process that runs it.
    pub pid: u32,
    /// `get`, `cp` or `sync`.
    pub command: String,
    /// What this process does with the bytes.
    pub role: Role,
    /// The object: its OID, or the file that is sent.
    pub what: String,
    /// Where to: the destination's path here, or where an upload goes on the other host. `None` while it is not known,
    /// and for standard output.
    pub path: Option<String>,
    /// The other host of a copy.
    pub peer: Option<String>,
    /// When it began, microseconds since 1970 (UTC).
    pub began_unix_us: u64,
    /// When it ended.
    pub ended_unix_us: Option<u64>,
    /// How long it has run, microseconds.
    pub elapsed_us: u64,
    /// Of a tree: `size_bytes` and `left_bytes` are 0, as its sender finds out what there is while it goes on.
    pub is_tree: bool,
    /// Bytes of the object.
    pub size_bytes: u64,
    /// Bytes of it that are safely there, resumed ones included.
    pub done_bytes: u64,
    /// Bytes that are not.
    pub left_bytes: u64,
    /// Bytes that an earlier run left.
    pub resumed_bytes: u64,
    /// Bytes taken from an older version at the destination.
    pub older_version_bytes: u64,
    /// Bytes taken from other files of the user.
    pub other_files_bytes: u64,
    /// Bytes that stand elsewhere in the object, too, and were taken from there.
    pub repeated_bytes: u64,
    /// Bytes of the object that came to be safely there in a second, over the last `rate_span_us`. Of a transfer that ended:
    /// over all of its time.
    pub rate_bytes_per_s: u64,
    /// The time that rates are measured over, microseconds: at most about 5 s.
    pub rate_span_us: u64,
    /// Bytes that are wanted and that nobody is asked for yet.
    pub unassigned_bytes: u64,
    /// Bytes that came after another source had brought them.
    pub duplicate_bytes: u64,
    /// Bytes of the memory budget (`window_mib`) in use.
    pub budget_used_bytes: u64,
    /// All of the budget.
    pub budget_limit_bytes: u64,
    /// What holds it back now; `None` if that is not known here, or it has ended.
    pub bottleneck: Option<Bottleneck>,
    /// Every source; of an upload, every way.
    pub sources: Vec<SourceSnapshot>,
    /// Sources beyond the first [`dray_core::limits::SNAPSHOT_SOURCES_MAX`].
    pub sources_omitted: u64,
    /// Why it failed.
    pub failure: Option<Failure>,
}

/// Whether a transfer runs, and how it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It runs.
    Running,
    /// Everything was delivered.
    Done,
    /// It ended with an error, or was interrupted.
    Failed,
    /// Its process did not answer in time: it is stopped, or very busy.
    NoAnswer,
    /// A word of another version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// What a process does with the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// It plans and receives.
    Receiving,
    /// It sends what the other end asks for; that one plans.
    Sending,
    /// A word of another version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// What holds a transfer back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bottleneck {
    /// The paths from the sources.
    Network,
    /// The sources.
    Source,
    /// Writing here.
    Disk,
    /// Proving here.
    Cpu,
    /// The memory budget here.
    Memory,
    /// Whoever takes the bytes in order.
    Consumer,
    /// Nothing is left to fetch: the whole is confirmed and put in place.
    Finishing,
    /// A word of another version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// A source at one moment. Of a way of an upload only label, rate, share and delivered bytes are known.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SourceSnapshot {
    /// Its number in this transfer.
    pub number: u32,
    /// Its name for people, with the address if it is dialled.
    pub label: String,
    /// Where it stands.
    pub standing: Option<Standing>,
    /// Its place in the order of use; who has a higher number than another that is up is a spare.
    pub priority: Option<u16>,
    /// Bytes of the object delivered in a second, over the last `rate_span_us`; over all of its time if it ended.
    pub rate_bytes_per_s: u64,
    /// Bytes that crossed its sockets in a second, over the same time.
    pub received_bytes_per_s: Option<u64>,
    /// Bytes it may owe.
    pub window_bytes: Option<u64>,
    /// Bytes it owes.
    pub queue_bytes: Option<u64>,
    /// Requests it owes them in.
    pub queue_requests: Option<u64>,
    /// Its part of all delivered bytes, 0 to 1.
    pub share: f64,
    /// Bytes of the object that were delivered from it.
    pub delivered_bytes: u64,
    /// Bytes that came from it and were not needed: duplicates, and what came after it was told to stop.
    pub discarded_bytes: Option<u64>,
    /// Bytes that crossed its sockets: data, proofs, framing and encryption, without headers of TCP and IP.
    pub received_bytes: Option<u64>,
    /// How long it has owed something and said nothing, microseconds.
    pub silent_us: u64,
    /// Why it owes nothing, if it does.
    pub idle: Option<Idle>,
    /// For how long it is left alone yet after failing, microseconds.
    pub paused_us: Option<u64>,
    /// What it was barred or lost for; its last failure otherwise.
    pub cause: Option<String>,
}

/// Where a source stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Standing {
    /// It answers.
    Up,
    /// It owes something and is silent, or fails again and again.
    Frozen,
    /// It is not used any more: it lied, broke the protocol, or does not have the object.
    Barred,
    /// It will not come again.
    Gone,
    /// It is not there yet, or not there again yet.
    Waiting,
    /// A word of another version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// Why a source owes nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// It is not up.
    NotUp,
    /// Somebody of a lower priority number is up.
    Spare,
    /// It failed, and is left alone for a while.
    Paused,
    /// The memory budget has no room.
    NoBudget,
    /// The consumer has to take something first.
    Consumer,
    /// Others will have what is left sooner, or nothing is left.
    NotNeeded,
    /// A word of another version.
    #[default]
    #[serde(other)]
    Unknown,
}

/// The error that a transfer ended with.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// [`dray_core::ErrorKind::word`].
    pub kind: String,
    /// What failed and why, the culprits named.
    pub what: String,
    /// What to do.
    pub advice: Option<String>,
    /// Exit code of the command.
    pub exit_code: u8,
}

impl Failure {
    pub(super) fn of(error: &Error) -> Failure {
        Failure {
            kind: error.kind().word().to_owned(),
            what: told_within(&error.to_string(), CULPRITS_BYTES_MAX),
            advice: error.advice().map(told),
            exit_code: error.kind().exit_code(),
        }
    }
}

impl Snapshot {
    /// Its JSON, on one line.
    pub(super) fn to_json(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|error| {
            Error::new(dray_core::ErrorKind::Internal, "cannot write a snapshot as JSON").caused_by(error)
        })
    }

    /// Reads what another process wrote; its texts are made fit to be shown.
    pub(super) fn from_json(json: &[u8]) -> Option<Snapshot> {
        let mut snapshot: Snapshot = serde_json::from_slice(json).ok()?;
        let fit = |text: &mut String| *text = told(text);
        [&mut snapshot.command, &mut snapshot.what].into_iter().for_each(fit);
        [&mut snapshot.path, &mut snapshot.peer].into_iter().flatten().for_each(fit);
        for source in &mut snapshot.sources {
            fit(&mut source.label);
            source.cause.iter_mut().for_each(fit);
        }
        if let Some(failure) = &mut snapshot.failure {
            failure.what = told_within(&failure.what, CULPRITS_BYTES_MAX);
            fit(&mut failure.kind);
            failure.advice.iter_mut().for_each(fit);
        }
        Some(snapshot)
    }
}

impl SourceSnapshot {
    pub(super) fn of(source: SourceExplanation, received_bytes: Option<u64>) -> SourceSnapshot {
        let (idle, paused_us) = match source.idle {
            None => (None, None),
            Some(planner::Idle::NotUp) => (Some(Idle::NotUp), None),
            Some(planner::Idle::Spare) => (Some(Idle::Spare), None),
            Some(planner::Idle::Paused { for_us }) => (Some(Idle::Paused), Some(for_us)),
            Some(planner::Idle::NoBudget) => (Some(Idle::NoBudget), None),
            Some(planner::Idle::Consumer) => (Some(Idle::Consumer), None),
            Some(planner::Idle::NotNeeded) => (Some(Idle::NotNeeded), None),
        };
        SourceSnapshot {
            number: source.stats.source.0,
            label: told_within(&source.stats.label, SOURCE_TEXT_BYTES_MAX),
            standing: Some(match source.standing {
                planner::Standing::Up => Standing::Up,
                planner::Standing::Frozen => Standing::Frozen,
                planner::Standing::Barred => Standing::Barred,
                planner::Standing::Gone => Standing::Gone,
                planner::Standing::Waiting => Standing::Waiting,
            }),
            priority: Some(source.priority),
            rate_bytes_per_s: 0,
            received_bytes_per_s: None,
            window_bytes: Some(source.stats.window_bytes),
            queue_bytes: Some(source.stats.outstanding_bytes),
            queue_requests: Some(source.requests as u64),
            share: source.share,
            delivered_bytes: source.stats.delivered_bytes,
            discarded_bytes: Some(source.stats.discarded_bytes),
            received_bytes,
            silent_us: source.silent_us,
            idle,
            paused_us,
            cause: source.cause.as_deref().map(|cause| told_within(cause, SOURCE_TEXT_BYTES_MAX)),
        }
    }
}

/// `bottleneck` in the words of a snapshot.
pub(super) fn bottleneck(bottleneck: planner::Bottleneck) -> Bottleneck {
    match bottleneck {
        planner::Bottleneck::Nothing => Bottleneck::Finishing,
        planner::Bottleneck::Network => Bottleneck::Network,
        planner::Bottleneck::Source => Bottleneck::Source,
        planner::Bottleneck::Disk => Bottleneck::Disk,
        planner::Bottleneck::Cpu => Bottleneck::Cpu,
        planner::Bottleneck::Memory => Bottleneck::Memory,
        planner::Bottleneck::Consumer => Bottleneck::Consumer,
    }
}

/// A text from anywhere, on one line without control and format characters, and not too long.
pub(super) fn told(text: &str) -> String {
    told_within(text, TEXT_BYTES_MAX)
}

fn told_within(text: &str, bytes_max: usize) -> String {
    let mut text = one_line(text);
    if text.len() > bytes_max {
        text.truncate(text.floor_char_boundary(bytes_max - '…'.len_utf8()));
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A later version may add keys and words, and an earlier one lack them; a peer's text cannot move the cursor.
    #[test]
    fn other_versions_are_understood() {
        let json = r#"{"state":"dreaming","pid":7,"new":{"a":[1]},"sources":[{"label":"a\u001b[2Jb\u202e","standing":"odd"}]}"#;
        let snapshot = Snapshot::from_json(json.as_bytes()).unwrap();
        assert_eq!((snapshot.state, snapshot.pid), (State::Unknown, 7));
        assert_eq!(snapshot.sources[0].standing, Some(Standing::Unknown));
        assert_eq!(snapshot.sources[0].label, "a [2Jb ");
        assert_eq!(snapshot.sources[0].queue_bytes, None);
        let again = Snapshot::from_json(&snapshot.to_json().unwrap()).unwrap();
        assert_eq!(again, snapshot);
        for bad in ["", "7", "{", "null", "{\"pid\":-1}", "{\"sources\":7}"] {
            assert!(Snapshot::from_json(bad.as_bytes()).is_none(), "{bad}");
        }
    }

    /// Texts are bounded, at a character's boundary.
    #[test]
    fn long_texts_are_cut() {
        assert_eq!(told("short"), "short");
        let long = told(&"ä".repeat(TEXT_BYTES_MAX));
        assert!(long.len() <= TEXT_BYTES_MAX && long.ends_with('…'), "{}", long.len());
    }
}
