//! Logs: what happens to which transfer, for whoever looks for a fault afterwards. They say what observers hear, by `tracing`; whether and
//! where they are written is up to the program. Nothing secret gets there: no ticket, no key, and of errors what a user is told.

use dray_core::Error;

use crate::Event;

/// Notes that `event` happened to what is called `transfer`.
pub fn log_event(transfer: &str, event: &Event) {
    match event {
        // Several in a second, and `dray explain` says the same better.
        Event::Hashing { .. } | Event::Progress { .. } | Event::TreeProgress { .. } => {}
        Event::Shared { oid, size_bytes, .. } => tracing::info!(transfer, %oid, size_bytes, "shared"),
        Event::SharedDirectory { path, .. } => tracing::info!(transfer, ?path, "a directory is shared"),
        Event::ServingDirectory { node } => {
            tracing::info!(transfer, node, "a receiver of a directory was let in")
        }
        Event::ServedDirectory { node, sent_bytes, lost } => {
            tracing::info!(transfer, node, sent_bytes, lost, "a receiver of a directory has gone");
        }
        Event::Serving { node, oid } => tracing::info!(transfer, node, %oid, "a receiver was let in"),
        Event::Served { node, sent_bytes, size_bytes, lost } => {
            tracing::info!(transfer, node, sent_bytes, size_bytes, lost, "a receiver has gone");
        }
        Event::TurnedAway { reason } => tracing::info!(transfer, reason, "a receiver was turned away"),
        Event::Started { name, total_bytes, resumed_bytes } => {
            tracing::info!(transfer, ?name, total_bytes, resumed_bytes, "begun");
        }
        Event::SourceUp { label } => tracing::info!(transfer, source = label, "a source came up"),
        Event::SourceDown { label, reason, is_barred: true, .. } => {
            tracing::warn!(transfer, source = label, reason, "a source is not used any more");
        }
        Event::SourceDown { label, reason, .. } => {
            tracing::info!(transfer, source = label, reason, "a source was lost");
        }
        Event::Note(text) => tracing::debug!(transfer, "{text}"),
        Event::EntryFailed { path, kind, reason } => {
            tracing::warn!(transfer, ?path, kind = kind.word(), reason, "an entry failed");
        }
        Event::Planned { action, path, .. } => tracing::debug!(transfer, action, ?path, "planned"),
        Event::Synced { letters, path, .. } => tracing::debug!(transfer, letters, ?path, "synced"),
        Event::Listed(listed) => tracing::debug!(transfer, path = ?listed.path, "listed"),
        Event::Warning(text) => tracing::warn!(transfer, "{text}"),
    }
}

/// Notes how what is called `transfer` ended.
pub fn log_outcome(transfer: &str, outcome: Result<(), &Error>) {
    match outcome {
        Ok(()) => tracing::info!(transfer, "done"),
        Err(error) => {
            tracing::error!(transfer, kind = error.kind().word(), advice = error.advice(), "failed: {error}");
        }
    }
}
