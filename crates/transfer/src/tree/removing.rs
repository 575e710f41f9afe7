//! What a receiver has in place leaves its source piece by piece, so that who removes goes on speaking and listening: where the source lies on a server each entry may take long.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use dray_core::limits::{SYNC_IN_PLACE_WAITING_MAX, SYNC_REMOVALS_MAX};
use dray_core::message::{EntryFailed, InPlace, InPlaceRun, Message, Removed};
use dray_core::{Error, ErrorKind, Result};

/// Entries that are removed between two looks at the clock.
const PIECE_ENTRIES: u64 = 16;
/// Messages that wait before no further entries are told: what is told is remembered until it is removed.
const BEHIND_MESSAGES: usize = 64;

/// Removes from the sources what the receiver has in place.
pub trait Removes: Send + Sync {
    /// Removes what `in_place` names of the entries told, as far as it is what was told; how many are gone, and what the receiver is told of others. It may come in several pieces,
    /// of which the last one alone tells what is settled, and whether it is the last.
    fn remove(&self, in_place: &InPlace) -> (u64, Vec<EntryFailed>);
}

/// What waits to be removed.
#[derive(Default)]
pub(super) struct Removing {
    removes: Option<Arc<dyn Removes>>,
    waiting: VecDeque<Waiting>,
    /// Runs in all that waits.
    runs: usize,
}

/// One message of the receiver's, as far as it is not done.
struct Waiting {
    runs: VecDeque<InPlaceRun>,
    settled: u64,
    is_last: bool,
    /// What is gone of it so far.
    count: u64,
}

impl Removing {
    pub(super) fn new(removes: Option<Arc<dyn Removes>>) -> Removing {
        Removing { removes, ..Removing::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// True if so much waits that nothing more had better be told.
    pub(super) fn is_behind(&self) -> bool {
        self.waiting.len() >= BEHIND_MESSAGES
    }

    /// The receiver has these in place, of the `told` entries that were told until now.
    pub(super) fn push(&mut self, in_place: InPlace, told: u64) -> Result<()> {
        let mut end = 0;
        let is_next = |run: &InPlaceRun| {
            let is_behind = run.first >= std::mem::replace(&mut end, run.first.saturating_add(run.count));
            is_behind && run.first.checked_add(run.count).is_some_and(|end| end <= told)
        };
        let wrong = |what| Err(Error::new(ErrorKind::Protocol, what));
        if self.removes.is_none() || in_place.settled > told || !in_place.runs.iter().all(is_next) {
            return wrong("receiver has in place what was not told, or need not say so");
        }
        let InPlace { runs, settled, is_last } = in_place;
        self.runs += runs.len();
        if self.runs > SYNC_REMOVALS_MAX || self.waiting.len() >= SYNC_IN_PLACE_WAITING_MAX {
            return wrong("receiver has more in place than waits for its word");
        }
        self.waiting.push_back(Waiting { runs: runs.into(), settled, is_last, count: 0 });
        Ok(())
    }

    /// Removes some of what waits, until `deadline` or a little longer; what the receiver is told then.
    pub(super) fn step(&mut self, deadline: Instant) -> Vec<Message> {
        let mut said = Vec::new();
        let Some(removes) = &self.removes else { return said };
        while let Some(first) = self.waiting.front_mut() {
            let mut piece = InPlace { runs: Vec::new(), settled: 0, is_last: false };
            let is_over = first.runs.is_empty();
            if let Some(run) = first.runs.front_mut() {
                let count = run.count.min(PIECE_ENTRIES);
                piece.runs.push(InPlaceRun { first: run.first, count });
                (run.first, run.count) = (run.first + count, run.count - count);
                if run.count == 0 {
                    first.runs.pop_front();
                    self.runs -= 1;
                }
            } else {
                (piece.settled, piece.is_last) = (first.settled, first.is_last);
            }
            let (count, failed) = removes.remove(&piece);
            first.count += count;
            said.extend(failed.into_iter().map(Message::EntryFailed));
            if is_over {
                said.push(Message::Removed(Removed { count: first.count, is_last: first.is_last }));
                self.waiting.pop_front();
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        said
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::time::Duration;

    use super::*;

    /// Remembers what it was told to remove; every tenth entry stays.
    #[derive(Default)]
    struct Remembering(Mutex<Vec<InPlace>>);

    impl Removes for Remembering {
        fn remove(&self, in_place: &InPlace) -> (u64, Vec<EntryFailed>) {
            self.0.lock().unwrap().push(in_place.clone());
            let stays = |number: u64| number.is_multiple_of(10);
            let numbers = in_place.runs.iter().flat_map(|run| run.first..run.first + run.count);
            let failed = EntryFailed {
                path: Vec::new().into(),
                kind: 1,
                text: String::new(),
                unnamed: None,
                left_out: None,
            };
            let (stay, go): (Vec<u64>, Vec<u64>) = numbers.partition(|number| stays(*number));
            (go.len() as u64, stay.iter().map(|_| failed.clone()).collect())
        }
    }

    fn in_place(runs: &[(u64, u64)], settled: u64, is_last: bool) -> InPlace {
        let runs = runs.iter().map(|(first, count)| InPlaceRun { first: *first, count: *count }).collect();
        InPlace { runs, settled, is_last }
    }

    /// Issue "--timeout": one piece at a time where the time is up, whatever one message names; each is answered once, with all that is gone, when all of it is done.
    #[test]
    fn much_goes_piece_by_piece() {
        let removes = Arc::new(Remembering::default());
        let mut removing = Removing::new(Some(removes.clone()));
        removing.push(in_place(&[(1, 100), (200, 5)], 300, false), 1000).unwrap();
        removing.push(in_place(&[], 1000, true), 1000).unwrap();
        let (mut steps, mut gone, mut said) = (0, 0, Vec::new());
        while !removing.is_empty() {
            steps += 1;
            said.extend(removing.step(Instant::now()));
            let calls = removes.0.lock().unwrap();
            assert_eq!(calls.len(), steps, "one piece in each step");
            let count: u64 = calls[steps - 1].runs.iter().map(|run| run.count).sum();
            assert!(count <= PIECE_ENTRIES);
            gone += count;
        }
        assert_eq!(gone, 105);
        let removed = |message: &Message| match message {
            Message::Removed(removed) => Some((removed.count, removed.is_last)),
            _ => None,
        };
        assert_eq!(said.iter().filter_map(removed).collect::<Vec<_>>(), [(94, false), (0, true)]);
        assert_eq!(said.len(), 11 + 2);
        let settled: Vec<_> = removes.0.lock().unwrap().iter().map(|it| (it.settled, it.is_last)).collect();
        assert_eq!(
            settled.iter().filter(|it| **it != (0, false)).collect::<Vec<_>>(),
            [&(300, false), &(1000, true)]
        );
        // With time, all at once.
        removing.push(in_place(&[(300, 500)], 1000, false), 1000).unwrap();
        removing.step(Instant::now() + Duration::from_secs(600));
        assert!(removing.is_empty() && removing.runs == 0);
    }

    /// What was not told, is named twice, or is more than can wait breaks the protocol.
    #[test]
    fn what_cannot_be_in_place_is_refused() {
        let removing = || Removing::new(Some(Arc::new(Remembering::default())));
        for wrong in [
            in_place(&[(1, 3)], 3, false),
            in_place(&[(u64::MAX, 2)], 3, false),
            in_place(&[(1, 1)], 4, false),
            in_place(&[(0, 2), (1, 1)], 3, false),
            in_place(&[(1, 1), (0, 1)], 3, false),
        ] {
            assert_eq!(removing().push(wrong, 3).unwrap_err().kind(), ErrorKind::Protocol);
        }
        removing().push(in_place(&[(0, 1), (1, 2)], 3, false), 3).unwrap();
        assert!(Removing::new(None).push(in_place(&[], 0, true), 3).is_err());
        let mut full = removing();
        let many = in_place(&vec![(0, 0); SYNC_REMOVALS_MAX / 2], 0, false);
        full.push(many.clone(), 3).unwrap();
        full.push(many.clone(), 3).unwrap();
        assert!(full.push(in_place(&[(0, 1)], 0, false), 3).is_err());
    }
}
