//! Who hears what happens: the daemon's own log, and the event streams of open sessions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dray_api::EventSender;
use dray_core::limits::API_SESSIONS_MAX;
use dray_core::ticket::DirectoryId;
use dray_core::{Error, ErrorKind, Oid, Result};
use serde_json::{Value, json};

use super::metrics::Metrics;
use crate::{Event, Observer, lock, log_event};

/// Passes on what happens.
pub(super) struct Hub {
    observer: Arc<dyn Observer>,
    /// What is counted of it.
    pub(super) metrics: Metrics,
    /// By session; `None` when there shall be no more.
    streams: Mutex<Option<HashMap<String, EventSender>>>,
}

impl Hub {
    pub(super) fn new(observer: Arc<dyn Observer>) -> Hub {
        Hub { observer, metrics: Metrics::default(), streams: Mutex::new(Some(HashMap::new())) }
    }

    /// A session that hears everything from now on.
    pub(super) fn join(&self, session: String, sender: EventSender) -> Result<()> {
        let mut streams = lock(&self.streams);
        let Some(open) = &mut *streams else {
            return Err(Error::new(ErrorKind::Refused, "the daemon is stopping").with_retryable(true));
        };
        if open.len() >= API_SESSIONS_MAX {
            return Err(Error::new(ErrorKind::Refused, "too many sessions are open")
                .with_retryable(true)
                .advise("close event streams that nobody needs"));
        }
        sender.send("session", &json!({"session": session}).to_string());
        open.insert(session, sender);
        Ok(())
    }

    /// It hears nothing more.
    pub(super) fn leave(&self, session: &str) {
        if let Some(open) = &mut *lock(&self.streams) {
            open.remove(session);
        }
    }

    pub(super) fn sessions(&self) -> usize {
        lock(&self.streams).as_ref().map_or(0, HashMap::len)
    }

    /// `NotFound` if a session is not open.
    pub(super) fn check(&self, session: &str) -> Result<()> {
        if self.has(session) {
            return Ok(());
        }
        Err(Error::new(ErrorKind::NotFound, format!("there is no session {session:?}"))
            .advise("open one with GET /v1/events and keep that connection: it names its session first"))
    }

    /// Whether a session is open.
    pub(super) fn has(&self, session: &str) -> bool {
        lock(&self.streams).as_ref().is_some_and(|open| open.contains_key(session))
    }

    /// Ends every stream; no session begins any more.
    pub(super) fn end(&self) {
        *lock(&self.streams) = None;
    }

    /// Tells all sessions.
    pub(super) fn tell(&self, name: &str, data: &Value) {
        let text = data.to_string();
        for sender in lock(&self.streams).iter().flat_map(HashMap::values) {
            sender.send(name, &text);
        }
    }

    /// Warns in the log and in `session`, if that is open, of something about its `transaction`.
    pub(super) fn warn_of(&self, session: &str, transaction: &str, text: String) {
        let data = json!({"transaction": transaction, "text": text}).to_string();
        if let Some(sender) = lock(&self.streams).as_ref().and_then(|open| open.get(session)) {
            sender.send("warning", &data);
        }
        let event = Event::Warning(text);
        log_event(transaction, &event);
        self.observer.event(event);
    }

    /// Tells the log and all sessions of something that is about no object.
    pub(super) fn log(&self, event: Event) {
        self.metrics.note(&event);
        log_event("daemon", &event);
        match &event {
            Event::TurnedAway { reason } => self.tell("turned-away", &json!({"reason": reason})),
            Event::Warning(text) => self.tell("warning", &json!({"text": text})),
            _ => {}
        }
        self.observer.event(event);
    }

    /// Tells the log and all sessions of something about a directory.
    pub(super) fn log_of_directory(&self, id: DirectoryId, event: Event) {
        self.metrics.note(&event);
        let id = id.to_string();
        log_event(&id, &event);
        match &event {
            Event::ServingDirectory { node } => {
                self.tell("serving-directory", &json!({"directory": id, "node": node}));
            }
            Event::ServedDirectory { node, sent_bytes, lost } => self.tell(
                "served-directory",
                &json!({"directory": id, "node": node, "sent_bytes": sent_bytes, "lost": lost}),
            ),
            Event::Warning(text) => self.tell("warning", &json!({"directory": id, "text": text})),
            _ => {}
        }
        self.observer.event(event);
    }

    /// Tells the log and all sessions of something about the object `oid`.
    pub(super) fn log_of(&self, oid: Oid, event: Event) {
        self.metrics.note(&event);
        let oid = oid.to_string();
        log_event(&oid, &event);
        match &event {
            Event::Serving { node, .. } => self.tell("serving", &json!({"oid": oid, "node": node})),
            Event::Served { node, sent_bytes, size_bytes, lost } => self.tell(
                "served",
                &json!({"oid": oid, "node": node, "sent_bytes": sent_bytes, "size_bytes": size_bytes, "lost": lost}),
            ),
            Event::Warning(text) => self.tell("warning", &json!({"oid": oid, "text": text})),
            _ => {}
        }
        self.observer.event(event);
    }
}
