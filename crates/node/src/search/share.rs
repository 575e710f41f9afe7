//! Whom a search keeps from the processor (Y5, design 7, [ADR 37]): the threads of its transfer that are ready to run and wait for a turn are a queue,
//! too. While that is long, the search takes a small share of the time.
//!
//! [ADR 37]: ../../../../docs/adr/0037-the-processor-as-a-queue.md

use std::time::Duration;

/// How often it is looked, in microseconds.
const INTERVAL_US: u64 = 10_000;
/// The transfer waits where its threads did so for this part of the time that the search ran: to be woken takes a moment, too.
const WAITS_PART: u64 = 2;
/// So many times as long as it ran the search rests then.
const REST_TIMES: u64 = 10;
/// And no longer, in microseconds: they may not be waiting any more, and that shows only when it works again.
const REST_MAX_US: u64 = 100_000;

/// Nanoseconds as the kernel counts them, each from some moment on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reading {
    /// That the search's thread ran.
    pub(super) ran_ns: u64,
    /// That threads of the transfer were ready to run and did not: the length of that queue over time.
    pub(super) waited_ns: u64,
}

/// How much of the processor a search takes, and what others wait for meanwhile.
#[derive(Debug, Default)]
pub(super) struct Share {
    /// When it was looked last since it rested or stood back, and what there was.
    looked: Option<(u64, Reading)>,
    /// For how long it has worked since it was judged, by these looks, and what happened in that time.
    worked_us: u64,
    ran_ns: u64,
    waited_ns: u64,
    rests_until_us: u64,
    /// How often it rested.
    #[cfg(test)]
    pub(super) rests: u64,
}

impl Share {
    /// Whether the search is to rest at this time, in microseconds; `read` looks, which is done now and then.
    pub(super) fn is_too_large(&mut self, now_us: u64, read: impl FnOnce() -> Option<Reading>) -> bool {
        if now_us < self.rests_until_us {
            return true;
        }
        if self.looked.is_some_and(|(at, _)| self.worked_us + now_us.saturating_sub(at) < INTERVAL_US) {
            return false;
        }
        let Some(now) = read() else { return false };
        self.count(now_us, now);
        self.looked = Some((now_us, now));
        if self.worked_us < INTERVAL_US {
            return false;
        }
        let (ran_ns, waited_ns) = (self.ran_ns, self.waited_ns);
        (self.worked_us, self.ran_ns, self.waited_ns) = (0, 0, 0);
        if waited_ns == 0 || waited_ns < ran_ns / WAITS_PART {
            return false;
        }
        // What they wait for meanwhile is not this search.
        self.looked = None;
        let rest_us = (ran_ns / 1000).saturating_mul(REST_TIMES).min(REST_MAX_US);
        self.rests_until_us = now_us.saturating_add(rest_us);
        #[cfg(test)]
        {
            self.rests += 1;
        }
        true
    }

    /// The search stands back from now on: what they wait for until it is asked for again whether it is too large is not this search, either.
    pub(super) fn pause(&mut self, now_us: u64, read: impl FnOnce() -> Option<Reading>) {
        if self.looked.is_some() {
            if let Some(now) = read() {
                self.count(now_us, now);
            }
            self.looked = None;
        }
    }

    /// What others wait for now counts.
    #[cfg(test)]
    pub(super) fn is_charged(&self) -> bool {
        self.looked.is_some()
    }

    /// Adds what happened since it was looked last.
    fn count(&mut self, now_us: u64, now: Reading) {
        let Some((at, before)) = self.looked else { return };
        self.worked_us += now_us.saturating_sub(at);
        self.ran_ns += now.ran_ns.saturating_sub(before.ran_ns);
        self.waited_ns += now.waited_ns.saturating_sub(before.waited_ns);
    }
}

/// How long the thread of this directory below `/proc` has run, and has waited for a processor; `None` where the kernel does not tell.
pub(crate) fn scheduled(directory: &str) -> Option<(u64, u64)> {
    let told = std::fs::read_to_string(format!("{directory}/schedstat")).ok()?;
    let mut figures = told.split_whitespace().map(|figure| figure.parse().ok());
    Some((figures.next()??, figures.next()??))
}

/// How long that thread has run, or was ready to and waited: the rest of the time it waited for something else.
pub(crate) fn busy(directory: &str) -> Option<Duration> {
    let (ran_ns, waited_ns) = scheduled(directory)?;
    Some(Duration::from_nanos(ran_ns.saturating_add(waited_ns)))
}

/// Whether a thread that reads, and is `busy` for so much of the time that it takes, waits for a disk for most of it.
pub(crate) fn waits_for_disk(took: Duration, busy: Duration) -> bool {
    busy <= took / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Milliseconds that a search runs of each second, by a kernel that gives it `gets_per_mille` of the time when it wants to run, and has the transfer's
    /// threads wait for `waits_per_mille` of the time in all.
    fn ran_ms(gets_per_mille: u64, waits_per_mille: u64) -> u64 {
        let (mut share, mut ran_us) = (Share::default(), 0);
        for now_us in (0..10_000_000).step_by(1000) {
            let now = Reading { ran_ns: ran_us * 1000, waited_ns: now_us * waits_per_mille };
            if !share.is_too_large(now_us, || Some(now)) {
                ran_us += gets_per_mille;
            }
        }
        ran_us / 10_000
    }

    /// Y5, design 7: where threads of the transfer wait for a processor, a search takes a tenth of the time at the most, whatever the kernel would give
    /// it, and never nothing. Where they do not, or the kernel does not tell, it takes what it gets.
    #[test]
    fn a_search_takes_a_small_share_where_others_wait() {
        assert_eq!(ran_ms(1000, 0), 1000);
        // They are woken, no more.
        assert_eq!(ran_ms(1000, 400), 1000);
        for waits in [600, 1000, 3000] {
            let ran = ran_ms(1000, waits);
            assert!((80..=110).contains(&ran), "{ran} ms of a second");
        }
        // What a busy processor leaves to nice 19.
        let ran = ran_ms(15, 1000);
        assert!((1..15).contains(&ran), "{ran} ms of a second");
        let mut share = Share::default();
        assert!((0..100).all(|number| !share.is_too_large(number * INTERVAL_US, || None)));
    }

    /// P7 "never slower": however long it ran before it looked, a rest has an end after which it works again if nobody waits any more.
    #[test]
    fn a_rest_is_short() {
        let mut share = Share::default();
        let reading = |ran_ns, waited_ns| Some(Reading { ran_ns, waited_ns });
        assert!(!share.is_too_large(0, || reading(0, 0)));
        let now_us = 5_000_000;
        assert!(share.is_too_large(now_us, || reading(5_000_000_000, 5_000_000_000)));
        assert!(share.is_too_large(now_us + REST_MAX_US - 1, || panic!("it rests")));
        for later_us in [0, INTERVAL_US, 2 * INTERVAL_US] {
            assert!(
                !share
                    .is_too_large(now_us + REST_MAX_US + later_us, || reading(5_000_000_000, 5_000_000_000))
            );
        }
    }

    /// ADR 37: while the transfer has something to do and the search stands back, its threads wait for each other, and that is not this search. What they wait
    /// while it works is, however short the times are for which it does.
    #[test]
    fn who_stands_back_keeps_nobody_waiting() {
        let reading = |ran_ms, waited_ms| {
            Some(Reading { ran_ns: ran_ms * 1_000_000, waited_ns: waited_ms * 1_000_000 })
        };
        let mut share = Share::default();
        assert!(!share.is_too_large(0, || reading(0, 0)));
        share.pause(3_000, || reading(3, 0));
        share.pause(4_000, || panic!("it has looked"));
        for (now_us, ran_ms) in [(200_000, 3), (207_000, 10), (217_000, 20)] {
            assert!(!share.is_too_large(now_us, || reading(ran_ms, 100)), "after {now_us} us");
        }
        let mut share = Share::default();
        let rests = (0..4).find(|turn| {
            let (now_us, ran_ms, waited_ms) = (turn * 10_000, turn * 4, turn * 3);
            let rests = share.is_too_large(now_us, || reading(ran_ms, waited_ms));
            share.pause(now_us + 4_000, || reading(ran_ms + 4, waited_ms + 3));
            rests
        });
        assert_eq!(rests, Some(3));
    }

    /// It is looked every 10 ms, not before each read of 64 KiB.
    #[test]
    fn it_is_looked_now_and_then() {
        let (mut share, mut looks) = (Share::default(), 0);
        for now_us in (0..1_000_000).step_by(100) {
            let read = || {
                looks += 1;
                Some(Reading { ran_ns: now_us * 1000, waited_ns: 0 })
            };
            assert!(!share.is_too_large(now_us, read));
        }
        assert_eq!(looks, 1_000_000 / INTERVAL_US);
    }
}
