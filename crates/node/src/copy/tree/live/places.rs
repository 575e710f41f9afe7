//! Who may fetch shared directories at a time. No ticket, and no address, keeps others out for ever: whoever has most of what there is gives
//! way to a newcomer that has less.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dray_core::limits::{
    LIVE_TREE_GOING_ADDRESS_MAX, LIVE_TREE_GONE_MAX, LIVE_TREE_LEAVING_MAX, LIVE_TREE_PLACES_MAX,
};
use dray_core::ticket::DirectoryId;
use dray_core::{Error, ErrorKind, Result};
use dray_transfer::transport::counted_address;

use crate::{Stop, lock};

/// How long one step of a walk, or a read, may last before the disk is taken for one that does not answer.
pub(super) const DISK_PATIENCE: Duration = Duration::from_secs(60);
/// How long the opening of a directory may take before it is taken for one on a disk that does not answer.
const OPENING_PATIENCE: Duration = Duration::from_secs(5);
/// How long one that left, or gave way, may take to go, which its last words do, before a disk is taken to hold its thread.
const LEAVING_PATIENCE: Duration = Duration::from_secs(10);
/// What whoever finds no place is told.
const TOO_MANY: &str = "too many are fetching from the holder";
/// How often it is looked whether all have gone.
const WAIT_INTERVAL: Duration = Duration::from_millis(10);

/// The places of one process.
#[derive(Debug)]
pub(super) struct Places {
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// In order of arrival.
    taken: BTreeMap<u64, Taken>,
}

#[derive(Debug)]
struct Taken {
    directory: DirectoryId,
    address: Option<IpAddr>,
    stop: Stop,
    /// Since when nobody waits for it any more. It has its last words; if it is there for long after that, a disk that does not answer
    /// holds its thread.
    leaving: Option<Instant>,
    /// When its directory was begun to be opened, until it is.
    opening: Option<Instant>,
    /// When its thread came by last, as it does all the time unless a read holds it.
    passed: Instant,
}

impl Taken {
    /// A disk holds its thread, or is likely to.
    fn is_stuck(&self) -> bool {
        let lasts = |since: Option<Instant>, patience| since.is_some_and(|since| since.elapsed() > patience);
        lasts(self.leaving, LEAVING_PATIENCE)
            || lasts(self.opening, OPENING_PATIENCE)
            || lasts(Some(self.passed), DISK_PATIENCE)
    }

    /// It takes a place from others. Those that are gone do not; [`State::is_full`] bounds them.
    fn is_here(&self) -> bool {
        self.leaving.is_none() && !self.is_stuck()
    }
}

/// One receiver's place, given back when this is dropped, and whoever works for it is done.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    /// Set when it has to give way, or the directory is not shared any more.
    pub(super) stop: Stop,
    held: Arc<Held>,
}

/// A place that is taken.
#[derive(Debug)]
struct Held {
    places: Arc<Places>,
    number: u64,
}

/// Of those for whom `group` says something, what it says most often, and how often.
fn most<T: PartialEq + Copy>(all: &[&Taken], group: impl Fn(&Taken) -> T) -> Option<(T, usize)> {
    let mut counts: Vec<(T, usize)> = Vec::new();
    for taken in all {
        let key = group(taken);
        match counts.iter_mut().find(|(known, _)| *known == key) {
            Some((_, count)) => *count += 1,
            None => counts.push((key, 1)),
        }
    }
    counts.into_iter().max_by_key(|(_, count)| *count)
}

impl State {
    /// Who gives way to a newcomer: of the directory that has most receivers, if that leaves it no fewer than the newcomer's then has; else of
    /// the newcomer's own directory. There, by the same rule, of the address that has most; its newest. If nobody does by that, the newest of the
    /// address that has most in all directories, by the same rule once more. No address takes a place from another that has no more than itself.
    fn who_gives_way(&self, directory: DirectoryId, address: Option<IpAddr>) -> Option<u64> {
        let here: Vec<&Taken> = self.taken.values().filter(|taken| taken.is_here()).collect();
        let count = |is_it: &dyn Fn(&Taken) -> bool| here.iter().filter(|taken| is_it(taken)).count();
        let of_address = |address| count(&|taken| taken.address == address);
        let newest = |is_it: &dyn Fn(&Taken) -> bool| {
            let mut taken = self.taken.iter().rev();
            taken.find(|(_, taken)| taken.is_here() && is_it(taken)).map(|(number, _)| *number)
        };
        let own_all = of_address(address);
        let may_give = |taken: &Taken| taken.address == address || of_address(taken.address) > own_all;
        let from_in = |of: DirectoryId| {
            let theirs: Vec<&Taken> =
                here.iter().copied().filter(|taken| taken.directory == of && may_give(taken)).collect();
            most(&theirs, |taken| taken.address)
        };
        let in_directory = |of: DirectoryId, from: Option<IpAddr>| {
            newest(&|taken| taken.directory == of && taken.address == from)
        };
        let own = count(&|taken| taken.directory == directory);
        let (greedy, all) = most(&here, |taken| taken.directory)?;
        if greedy != directory
            && all > own + 1
            && let Some((from, _)) = from_in(greedy)
        {
            return in_directory(greedy, from);
        }
        let own = count(&|taken| taken.directory == directory && taken.address == address);
        if let Some((from, many)) = from_in(directory)
            && from != address
            && many > own + 1
        {
            return in_directory(directory, from);
        }
        let (from, many) = most(&here, |taken| taken.address)?;
        if many > own_all + 1 { newest(&|taken| taken.address == from) } else { None }
    }

    /// Why nobody is let in, whoever would give way: threads that a disk, or anything else, keeps are bounded.
    fn is_full(&self, directory: DirectoryId, address: Option<IpAddr>) -> Option<&'static str> {
        let count = |is_it: &dyn Fn(&Taken) -> bool| self.taken.values().filter(|taken| is_it(taken)).count();
        let stuck = count(&|taken| taken.directory == directory && taken.is_stuck());
        if stuck >= LIVE_TREE_LEAVING_MAX {
            return Some("the holder's disk does not answer");
        }
        let gone = count(&|taken| taken.directory == directory && !taken.is_here());
        let going = count(&|taken| taken.address == address && !taken.is_here() && !taken.is_stuck());
        let is_full = self.taken.len() >= LIVE_TREE_PLACES_MAX
            || gone >= LIVE_TREE_GONE_MAX
            || going >= LIVE_TREE_GOING_ADDRESS_MAX;
        is_full.then_some(TOO_MANY)
    }
}

impl Places {
    /// So many.
    pub(super) fn of(max: usize) -> Arc<Places> {
        Arc::new(Places { max, state: Mutex::default() })
    }

    /// A place for a receiver of `directory` at `address`; one that gives way to it is stopped.
    pub(super) fn take(self: &Arc<Places>, directory: DirectoryId, address: Option<IpAddr>) -> Result<Place> {
        let address = address.map(counted_address);
        let refused = |what: &str| {
            // Of a kind by which the receiver knows that it may come again.
            Error::new(ErrorKind::TimedOut, what.to_owned()).advise("run the same command again in a while")
        };
        let mut state = lock(&self.state);
        if let Some(why) = state.is_full(directory, address) {
            return Err(refused(why));
        }
        if state.taken.values().filter(|taken| taken.is_here()).count() >= self.max {
            let number = state.who_gives_way(directory, address);
            let way = number.and_then(|number| state.taken.get_mut(&number));
            let way = way.ok_or_else(|| refused(TOO_MANY))?;
            way.leaving = Some(Instant::now());
            way.stop.set();
        }
        let (number, stop) = (state.next, Stop::new());
        state.next += 1;
        let now = Instant::now();
        let opening = Some(now);
        let taken = Taken { directory, address, stop: stop.clone(), leaving: None, opening, passed: now };
        state.taken.insert(number, taken);
        let held = Arc::new(Held { places: self.clone(), number });
        Ok(Place { places: self.clone(), number, stop, held })
    }

    /// The directory is not shared any more: everybody who fetches it is stopped.
    pub(super) fn end(&self, directory: DirectoryId) {
        for taken in lock(&self.state).taken.values_mut().filter(|taken| taken.directory == directory) {
            taken.stop.set();
        }
    }

    /// Everybody is stopped.
    pub(super) fn end_all(&self) {
        lock(&self.state).taken.values().for_each(|taken| taken.stop.set());
    }

    /// Waits until everybody has gone whom no disk keeps, at most for `patience`.
    pub(super) fn wait(&self, patience: Duration) {
        let begun = Instant::now();
        let is_empty = || lock(&self.state).taken.values().all(Taken::is_stuck);
        while !is_empty() && begun.elapsed() < patience {
            std::thread::sleep(WAIT_INTERVAL);
        }
    }
}

impl Place {
    /// The directory is open.
    pub(super) fn opened(&self) {
        if let Some(taken) = lock(&self.places.state).taken.get_mut(&self.number) {
            taken.opening = None;
        }
    }

    /// Its thread comes by.
    pub(super) fn passes(&self) {
        if let Some(taken) = lock(&self.places.state).taken.get_mut(&self.number) {
            taken.passed = Instant::now();
        }
    }

    /// For a thread that may hang in a read: as long as it has this the place is taken.
    pub(super) fn hold(&self) -> Box<dyn Send> {
        Box::new(self.held.clone())
    }

    /// What is to be called when nobody waits for this receiver any more: it stands in nobody's way then, whatever holds its thread.
    pub(super) fn leaving(&self) -> Box<dyn Fn() + Send + Sync> {
        let (places, number, stop) = (self.places.clone(), self.number, self.stop.clone());
        Box::new(move || {
            stop.set();
            if let Some(taken) = lock(&places.state).taken.get_mut(&number) {
                taken.leaving.get_or_insert_with(Instant::now);
            }
        })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        lock(&self.places.state).taken.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(number: u8) -> DirectoryId {
        DirectoryId::from_bytes([number; 32])
    }

    fn at(host: u8) -> Option<IpAddr> {
        Some(IpAddr::from([10, 0, 0, host]))
    }

    /// Threat model "one ticket holder keeps all places": whoever has most gives way, its newest first, and only as far as it has more.
    #[test]
    fn no_ticket_and_no_address_keeps_others_out() {
        let places = Places::of(4);
        let greedy: Vec<Place> = (0..4).map(|_| places.take(directory(1), at(1)).unwrap()).collect();
        assert!(places.take(directory(1), at(1)).is_err(), "nobody gives way to himself");
        // Another address, with the same ticket.
        let second = places.take(directory(1), at(2)).unwrap();
        let stopped = |all: &[Place]| all.iter().map(|place| place.stop.is_set()).collect::<Vec<_>>();
        assert_eq!(stopped(&greedy), [false, false, false, true]);
        // Another ticket, from the very address that has most.
        let third = places.take(directory(2), at(1)).unwrap();
        assert_eq!(stopped(&greedy), [false, false, true, true]);
        let fourth = places.take(directory(2), at(3)).unwrap();
        assert_eq!(stopped(&greedy), [false, true, true, true]);
        // Two and two: nobody has more than the newcomer would.
        assert_eq!(
            places.take(directory(2), at(1)).unwrap_err().to_string(),
            "too many are fetching from the holder"
        );
        assert!(!second.stop.is_set() && !third.stop.is_set() && !fourth.stop.is_set());
        // A place that is given back is free.
        drop(third);
        assert!(places.take(directory(3), at(9)).is_ok());
    }

    /// Threat model "one ticket holder keeps all places": nor does an address that has tickets of many directories.
    #[test]
    fn no_address_keeps_others_out_by_many_tickets() {
        let places = Places::of(16);
        let greedy: Vec<Place> = (0..16).map(|one| places.take(directory(one), at(1)).unwrap()).collect();
        let honest = places.take(directory(17), at(2)).unwrap();
        assert!(greedy[15].stop.is_set());
        let other = places.take(directory(3), at(3)).unwrap();
        assert_eq!(greedy.iter().filter(|place| place.stop.is_set()).count(), 2);
        drop(greedy.into_iter().rev().take(2).collect::<Vec<_>>());
        // The same of a ticket that both have: whoever has more takes nothing back.
        let second = places.take(directory(17), at(4)).unwrap();
        for one in 20..30 {
            let _ = places.take(directory(one), at(1));
        }
        let kept = [honest, other, second];
        assert!(kept.iter().all(|place| !place.stop.is_set()), "{kept:?}");
    }

    /// Threat model "a disk that does not answer": threads are bounded, in one directory, from one address, and in all.
    #[test]
    fn threads_that_are_left_behind_are_bounded() {
        let leave = |place: Place| {
            place.leaving()();
            place
        };
        let places = Places::of(16);
        let mut left = Vec::new();
        for host in 1.. {
            let before = left.len();
            let room = std::iter::from_fn(|| places.take(directory(1), at(host)).ok().map(leave));
            left.extend(room.take(LIVE_TREE_GONE_MAX + 1));
            assert!(left.len() <= before + LIVE_TREE_GOING_ADDRESS_MAX);
            if left.len() == before {
                break;
            }
        }
        assert_eq!(left.len(), LIVE_TREE_GONE_MAX);
        assert!(places.take(directory(2), at(200)).is_ok(), "other directories are not touched");
        // All directories of a disk that does not answer.
        for one in 2..100 {
            left.extend(places.take(directory(one), at(one)).map(leave));
        }
        assert_eq!(left.len(), LIVE_TREE_PLACES_MAX);
        left.iter().for_each(set_back);
        let error = places.take(directory(200), at(200)).unwrap_err();
        assert!(error.is_retryable() && error.to_string() == TOO_MANY, "{error}");
        drop(left);
        assert!(places.take(directory(1), at(1)).is_ok());
    }

    /// As if it had left long ago.
    fn set_back(place: &Place) {
        let long_ago = Instant::now().checked_sub(2 * LEAVING_PATIENCE);
        lock(&place.places.state).taken.get_mut(&place.number).unwrap().leaving = long_ago;
    }

    /// Threat model "a disk that does not answer": receivers that hang there take no place from others, and no further ones come.
    #[test]
    fn who_hangs_stands_in_the_way_of_its_own_directory_alone() {
        let places = Places::of(2);
        let mut hung = Vec::new();
        for _ in 0..LIVE_TREE_LEAVING_MAX {
            let place = places.take(directory(1), at(1)).unwrap();
            place.leaving()();
            assert!(place.stop.is_set());
            set_back(&place);
            hung.push(place);
        }
        let error = places.take(directory(1), at(2)).unwrap_err();
        assert!(error.to_string().contains("does not answer") && error.is_retryable());
        let others: Vec<_> = (0..2).map(|_| places.take(directory(2), at(1)).unwrap()).collect();
        assert!(places.take(directory(2), at(1)).is_err());
        drop(hung);
        // Nor does one whose directory cannot even be opened.
        let long_ago = Instant::now().checked_sub(2 * OPENING_PATIENCE);
        let opening: Vec<_> = (0..LIVE_TREE_LEAVING_MAX)
            .map(|_| {
                let place = places.take(directory(3), at(3)).unwrap();
                lock(&places.state).taken.get_mut(&place.number).unwrap().opening = long_ago;
                place
            })
            .collect();
        assert!(places.take(directory(3), at(4)).is_err());
        opening[0].opened();
        drop(others);
        assert!(places.take(directory(3), at(4)).is_ok(), "it was slow, and is there");
        drop(opening);
        assert!(places.take(directory(1), at(2)).is_ok());
        // Nor those whose reads hang, until they do not any more.
        let reading: Vec<_> = (0..LIVE_TREE_LEAVING_MAX)
            .map(|_| {
                let place = places.take(directory(4), at(4)).unwrap();
                place.opened();
                let long_ago = Instant::now().checked_sub(2 * DISK_PATIENCE).unwrap();
                lock(&places.state).taken.get_mut(&place.number).unwrap().passed = long_ago;
                place
            })
            .collect();
        assert!(places.take(directory(4), at(5)).unwrap_err().to_string().contains("does not answer"));
        assert!(places.take(directory(5), at(4)).is_ok());
        reading[0].passes();
        assert!(places.take(directory(4), at(5)).is_ok());
    }

    /// Threat model "one ticket holder keeps all places": who breaks off again and again, or has to give way, is not taken for a disk that
    /// does not answer.
    #[test]
    fn who_has_just_left_is_no_disk_that_hangs() {
        let places = Places::of(8);
        let left: Vec<Place> = (0..=LIVE_TREE_LEAVING_MAX)
            .map(|_| {
                let place = places.take(directory(1), at(1)).unwrap();
                place.leaving()();
                place
            })
            .collect();
        let honest = places.take(directory(1), at(2));
        assert!(honest.is_ok(), "{honest:?}");
        drop(honest);
        // Those that are still there long after their last words are held by something.
        left.iter().skip(1).for_each(set_back);
        assert!(places.take(directory(1), at(2)).is_err());
        assert!(places.take(directory(2), at(1)).is_ok());
        drop(left);
        // Nor those who gave way.
        let places = Places::of(6);
        let greedy: Vec<Place> = (0..6).map(|_| places.take(directory(1), at(1)).unwrap()).collect();
        for host in 2..=6 {
            let honest = places.take(directory(1), at(host));
            assert!(honest.is_ok(), "{host}: {honest:?}");
            std::mem::forget(honest);
        }
        drop(greedy);
    }

    /// Threat model "a disk that does not answer": a thread that is left behind in a read counts as long as it is there, though nobody waits
    /// for it any more.
    #[test]
    fn a_thread_that_is_left_behind_counts() {
        let places = Places::of(LIVE_TREE_LEAVING_MAX);
        let held: Vec<Box<dyn Send>> = (0..LIVE_TREE_LEAVING_MAX)
            .map(|_| {
                let place = places.take(directory(1), at(1)).unwrap();
                place.leaving()();
                set_back(&place);
                place.hold()
            })
            .collect();
        assert!(places.take(directory(1), at(2)).unwrap_err().to_string().contains("does not answer"));
        assert!(places.take(directory(2), at(1)).is_ok());
        drop(held);
        assert!(places.take(directory(1), at(2)).is_ok() && lock(&places.state).taken.is_empty());
    }

    /// D10: what is not shared any more is given to nobody, whoever is fetching it included.
    #[test]
    fn the_end_of_a_share_stops_its_receivers() {
        let places = Places::of(4);
        let (one, other) =
            (places.take(directory(1), at(1)).unwrap(), places.take(directory(2), at(1)).unwrap());
        places.end(directory(1));
        assert!(one.stop.is_set() && !other.stop.is_set());
    }
}
