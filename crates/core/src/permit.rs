//! Back-pressure as a thing you hold: a permit is a reservation of bytes against one budget, given back on drop.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A number of bytes that may be outstanding at once, shared by everything that moves data in this process.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit_bytes: u64,
    used_bytes: AtomicU64,
    /// Of a part: what it is a part of.
    pool: Option<Pool>,
}

#[derive(Debug)]
struct Pool {
    budget: Budget,
    /// Bytes that this part has beside those of the pool, and how many of them are reserved.
    own_bytes: u64,
    own_used_bytes: AtomicU64,
}

impl Budget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Budget {
        Budget(Arc::new(Inner { limit_bytes, used_bytes: AtomicU64::new(0), pool: None }))
    }

    /// A part of this budget for one of those that share it. It has `own_bytes` beside it, whatever the others do; of the
    /// rest it takes at most as much as it leaves free, so that whoever comes later finds some; and `limit_bytes` in
    /// all. (Choudhury and Hahne, "Dynamic queue length thresholds", 1998, with a factor of 1.)
    #[must_use]
    pub fn part(&self, own_bytes: u64, limit_bytes: u64) -> Budget {
        let pool = Pool { budget: self.clone(), own_bytes, own_used_bytes: AtomicU64::new(0) };
        Budget(Arc::new(Inner { limit_bytes, used_bytes: AtomicU64::new(0), pool: Some(pool) }))
    }

    /// Reserves `bytes`, or returns `None` if that would exceed the limit. A reservation larger than the whole
    /// budget succeeds when nothing else is reserved, so that one big piece cannot block for ever.
    pub fn try_reserve(&self, bytes: u64) -> Option<Permit> {
        let taken = add(&self.0.used_bytes, bytes, |used, wanted| used == 0 || wanted <= self.0.limit_bytes);
        let used_bytes = taken?;
        let mut permit = Permit { budget: self.clone(), bytes, place: Place::Here };
        let Some(Pool { budget: pool, own_bytes, own_used_bytes }) = &self.0.pool else {
            return Some(permit);
        };
        if add(own_used_bytes, bytes, |_, wanted| wanted <= *own_bytes).is_some() {
            permit.place = Place::Own;
            return Some(permit);
        }
        let ours_bytes = used_bytes.saturating_sub(own_used_bytes.load(Ordering::Acquire));
        let limit_bytes = pool.0.limit_bytes;
        let leaves_as_much = |_, wanted| wanted <= limit_bytes && ours_bytes <= limit_bytes - wanted;
        // Dropped without it, the permit gives back what it has.
        add(&pool.0.used_bytes, bytes, leaves_as_much)?;
        permit.place = Place::Pool;
        Some(permit)
    }

    /// Bytes reserved now.
    pub fn used_bytes(&self) -> u64 {
        self.0.used_bytes.load(Ordering::Acquire)
    }

    /// The limit it was made with.
    pub fn limit_bytes(&self) -> u64 {
        self.0.limit_bytes
    }
}

/// What is reserved in several budgets together, those included that nobody uses any more: what was never given back stays to be seen.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<Mutex<Vec<Budget>>>);

impl Gauge {
    /// Counts what is reserved in `budget`, from now on.
    pub fn watch(&self, budget: &Budget) {
        let mut watched = self.watched();
        // Without anything reserved, and with nobody else who could reserve anything.
        watched.retain(|other| Arc::strong_count(&other.0) > 1 || other.used_bytes() > 0);
        watched.push(budget.clone());
    }

    /// Bytes reserved now. Of a part of another budget both count: watch the one or the other.
    pub fn used_bytes(&self) -> u64 {
        self.watched().iter().map(Budget::used_bytes).sum()
    }

    fn watched(&self) -> MutexGuard<'_, Vec<Budget>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds `bytes` if what was there and what would be is `fine`; what there is then.
fn add(counter: &AtomicU64, bytes: u64, fine: impl Fn(u64, u64) -> bool) -> Option<u64> {
    let added = counter.try_update(Ordering::AcqRel, Ordering::Acquire, |used| {
        let wanted = used.checked_add(bytes)?;
        fine(used, wanted).then_some(wanted)
    });
    added.ok().map(|before| before + bytes)
}

/// A reservation of bytes; dropping it gives them back.
#[derive(Debug)]
pub struct Permit {
    budget: Budget,
    bytes: u64,
    place: Place,
}

/// Where a permit's bytes are counted, beside the budget that gave it.
#[derive(Debug)]
enum Place {
    Here,
    Own,
    Pool,
}

impl Permit {
    /// Bytes this permit holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        match (&self.place, &self.budget.0.pool) {
            (Place::Own, Some(pool)) => drop(pool.own_used_bytes.fetch_sub(self.bytes, Ordering::AcqRel)),
            (Place::Pool, Some(pool)) => {
                pool.budget.0.used_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
            }
            _ => {}
        }
        self.budget.0.used_bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserves_up_to_the_limit_and_gives_back_on_drop() {
        let budget = Budget::new(100);
        let first = budget.try_reserve(60).unwrap();
        assert!(budget.try_reserve(60).is_none());
        let second = budget.try_reserve(40).unwrap();
        assert_eq!(budget.used_bytes(), 100);
        assert_eq!(first.bytes() + second.bytes(), 100);
        drop(first);
        assert_eq!(budget.used_bytes(), 40);
        drop(second);
        let whole = budget.try_reserve(1000).expect("one oversized piece passes alone");
        assert!(budget.try_reserve(1).is_none());
        drop(whole);
        assert_eq!(budget.used_bytes(), 0);
    }

    /// Design 7, "reserved against one memory budget": whoever shares it finds some of it, has its own share in any case, and all of
    /// them together never have more than the whole and their own shares.
    #[test]
    fn parts_leave_something_for_others() {
        let whole = Budget::new(128);
        let mut parts = Vec::new();
        for _ in 0..32 {
            let part = whole.part(1, 32);
            let permits: Vec<Permit> = std::iter::from_fn(|| part.try_reserve(1)).collect();
            assert_eq!(part.used_bytes(), permits.len() as u64);
            parts.push((part, permits));
        }
        let had: Vec<usize> = parts.iter().map(|(_, permits)| permits.len()).collect();
        assert_eq!(had[..8], [32, 32, 32, 18, 10, 5, 3, 2]);
        assert!(had.iter().all(|had| *had >= 1));
        assert!(whole.used_bytes() <= 128);
        // The first gives its bytes back: the last one grows, and again leaves as much as it has.
        parts[0].1.clear();
        let (last, permits) = &mut parts[31];
        permits.extend(std::iter::from_fn(|| last.try_reserve(1)));
        let free = 128 - whole.used_bytes();
        assert!(last.used_bytes() > 15 && last.used_bytes() - 1 <= free, "{} {free}", last.used_bytes());
        assert!(last.try_reserve(40).is_none(), "a refusal takes nothing");
        let before = (last.used_bytes(), whole.used_bytes());
        assert!(last.try_reserve(1).is_none());
        assert_eq!((last.used_bytes(), whole.used_bytes()), before);
        parts.clear();
        assert_eq!(whole.used_bytes(), 0);
    }

    /// Issue "chaos", "every gauge back at zero": what is reserved is seen as long as it is, also where nobody has the budget any more, and what
    /// is not is forgotten.
    #[test]
    fn a_gauge_outlives_its_budgets() {
        let (gauge, whole) = (Gauge::default(), Budget::new(100));
        gauge.watch(&whole);
        let part = whole.part(10, 50);
        let other = Gauge::default();
        other.watch(&part);
        let permits = [part.try_reserve(10).unwrap(), part.try_reserve(20).unwrap()];
        assert_eq!((other.used_bytes(), gauge.used_bytes()), (30, 20));
        drop((part, whole));
        assert_eq!((other.used_bytes(), gauge.used_bytes()), (30, 20));
        // As one that is never given back.
        let [lost, permit] = permits;
        drop(permit);
        std::mem::forget(lost);
        for _ in 0..3 {
            other.watch(&Budget::new(1));
        }
        assert_eq!((other.used_bytes(), other.watched().len()), (10, 2));
        assert_eq!(gauge.used_bytes(), 0);
    }
}
