//! What wakes a thread that looks after something from time to time, and ends it.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::lock;

/// Shared by such a thread and whoever wants something of it.
#[derive(Debug, Default)]
pub(super) struct Pulse {
    state: Mutex<Beat>,
    beat: Condvar,
}

#[derive(Debug, Default)]
struct Beat {
    is_due: bool,
    is_over: bool,
}

/// Why a wait has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Woken {
    /// Somebody stirred.
    Stirred,
    /// Nobody did, for as long as was waited.
    Late,
    /// It is the end.
    Over,
}

impl Pulse {
    /// Something has happened that wants looking after.
    pub(super) fn stir(&self) {
        let mut state = lock(&self.state);
        if !state.is_due {
            state.is_due = true;
            self.beat.notify_all();
        }
    }

    /// What somebody rests for may have changed.
    pub(super) fn nudge(&self) {
        let _state = lock(&self.state);
        self.beat.notify_all();
    }

    pub(super) fn end(&self) {
        lock(&self.state).is_over = true;
        self.beat.notify_all();
    }

    pub(super) fn is_over(&self) -> bool {
        lock(&self.state).is_over
    }

    /// Waits until somebody stirs, at most `patience`.
    pub(super) fn wait(&self, patience: Duration) -> Woken {
        let waited = self
            .beat
            .wait_timeout_while(lock(&self.state), patience, |state| !state.is_due && !state.is_over);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        match (state.is_over, std::mem::take(&mut state.is_due)) {
            (true, _) => Woken::Over,
            (false, true) => Woken::Stirred,
            (false, false) => Woken::Late,
        }
    }

    /// Waits for the end, at most `patience`; false if it has come.
    pub(super) fn rest(&self, patience: Duration) -> bool {
        self.rest_while(patience, || true)
    }

    /// The same, as long as `is_wanted`, which is asked when somebody nudges.
    pub(super) fn rest_while(&self, patience: Duration, is_wanted: impl Fn() -> bool) -> bool {
        let state = lock(&self.state);
        let waited = self.beat.wait_timeout_while(state, patience, |state| !state.is_over && is_wanted());
        !waited.unwrap_or_else(PoisonError::into_inner).0.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever stirred before it was waited for is not missed, and the end comes first.
    #[test]
    fn nothing_is_missed() {
        let pulse = Pulse::default();
        assert_eq!(pulse.wait(Duration::ZERO), Woken::Late);
        pulse.stir();
        assert_eq!(pulse.wait(Duration::MAX), Woken::Stirred);
        assert_eq!(pulse.wait(Duration::ZERO), Woken::Late, "it was told once");
        assert!(pulse.rest(Duration::ZERO));
        assert!(pulse.rest_while(Duration::MAX, || false), "nothing is waited for");
        pulse.stir();
        pulse.end();
        assert_eq!(pulse.wait(Duration::MAX), Woken::Over);
        assert!(!pulse.rest(Duration::MAX) && pulse.is_over());
    }
}
