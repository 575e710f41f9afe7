//! What a plugin's own test hands to the suite, and how the suite steers the holder behind it.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dray_core::source::{Grade, Source, SourceEvents};

/// A way to connect sources of one kind.
pub trait SourceBed {
    /// What the suite may expect of its sources.
    fn properties(&self) -> Properties;
    /// Connects a new source about `object` that reports to `events`; what `trouble` says goes wrong.
    fn connect(
        &self,
        object: &TestObject,
        trouble: Trouble,
        events: Arc<dyn SourceEvents>,
    ) -> SourceUnderTest;
}

/// See [`SourceBed::properties`].
#[derive(Clone, Copy, Debug)]
pub struct Properties {
    /// Grade of what it brings.
    pub grade: Grade,
    /// Connections to the holder.
    pub connections: usize,
    /// Requests it may have on their way at once; what is beyond waits in the source.
    pub outstanding_max: usize,
    /// Comes up again by itself after its holder was lost.
    pub recovers: bool,
    /// It dials an address and shows a secret, so that both can be wrong.
    pub dials: bool,
}

/// A source and the holder behind it.
pub struct SourceUnderTest {
    /// The source, connecting or connected.
    pub source: Arc<dyn Source>,
    /// Breaks every connection of the holder at once, without a word. It takes new ones if the source recovers.
    pub break_connections: Box<dyn Fn()>,
}

/// What goes wrong from the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trouble {
    /// Nothing.
    None,
    /// The receiver has another secret than the holder.
    WrongSecret,
    /// The holder has another object.
    UnknownObject,
    /// Nobody listens.
    Unreachable,
}

/// An object that the holder has.
#[derive(Clone, Debug)]
pub struct TestObject {
    /// Its bytes.
    pub data: Arc<Vec<u8>>,
    /// Ranges that the holder keeps as holes, ascending and disjoint; zeros in `data`.
    pub holes: Vec<Range<u64>>,
    /// File name that the holder suggests.
    pub name: Vec<u8>,
    /// The holder asks it before it reads.
    pub gate: Arc<Gate>,
}

impl TestObject {
    /// An object without holes.
    pub fn new(data: Vec<u8>) -> TestObject {
        TestObject {
            data: Arc::new(data),
            holes: vec![],
            name: b"na me\n\xff".to_vec(),
            gate: Arc::default(),
        }
    }

    /// The piece at byte `offset`, cut at `end`, and whether it is a hole.
    pub fn extent_at(&self, offset: u64, end: u64) -> (Range<u64>, bool) {
        match self.holes.iter().find(|hole| hole.end > offset) {
            Some(hole) if hole.start <= offset => (offset..hole.end.min(end), true),
            Some(hole) => (offset..hole.start.min(end), false),
            None => (offset..end, false),
        }
    }
}

/// Holds the holder back at a byte of the object, so that the suite can act while a request runs.
#[derive(Debug, Default)]
pub struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    /// Reads that end beyond this byte wait.
    shut_at: Option<u64>,
    waiting: usize,
}

/// Longer than anything here takes; then the test fails instead of hanging.
pub(super) const PATIENCE: Duration = Duration::from_secs(30);

impl Gate {
    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Called by the holder before it reads up to byte `end`.
    pub fn pass(&self, end: u64) {
        let mut state = self.state();
        let is_shut = |state: &GateState| state.shut_at.is_some_and(|at| end > at);
        if is_shut(&state) {
            state.waiting += 1;
            self.changed.notify_all();
            while is_shut(&state) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            state.waiting -= 1;
        }
    }

    /// Reads beyond byte `at` wait from now on.
    pub fn shut(&self, at: u64) {
        self.state().shut_at = Some(at);
        self.changed.notify_all();
    }

    /// Nothing waits any more.
    pub fn open(&self) {
        self.state().shut_at = None;
        self.changed.notify_all();
    }

    /// Waits until some read waits here; false if none came within `patience`.
    pub fn is_reached(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let mut state = self.state();
        while state.waiting == 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}
