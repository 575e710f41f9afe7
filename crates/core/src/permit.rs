//! Back-pressure as a thing you hold: a permit is a reservation of bytes against one budget, given back on drop.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number of bytes that may be outstanding at once, shared by everything that moves data in this process.
#[derive(Clone, Debug)]
pub struct Budget(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    limit_bytes: u64,
    used_bytes: AtomicU64,
}

impl Budget {
    /// A budget of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Budget {
        Budget(Arc::new(Inner { limit_bytes, used_bytes: AtomicU64::new(0) }))
    }

    /// Reserves `bytes`, or returns `None` if that would exceed the limit. A reservation larger than the whole
    /// budget succeeds when nothing else is reserved, so that one big piece cannot block for ever.
    pub fn try_reserve(&self, bytes: u64) -> Option<Permit> {
        let reserved = self.0.used_bytes.try_update(Ordering::AcqRel, Ordering::Acquire, |used| {
            let wanted = used.checked_add(bytes)?;
            (used == 0 || wanted <= self.0.limit_bytes).then_some(wanted)
        });
        reserved.ok().map(|_| Permit { budget: self.clone(), bytes })
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

/// A reservation of bytes; dropping it gives them back.
#[derive(Debug)]
pub struct Permit {
    budget: Budget,
    bytes: u64,
}

impl Permit {
    /// Bytes this permit holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
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
}
