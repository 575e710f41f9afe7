//! What a search takes of the memory budget of its transfer: as much as it needs while there is that much, and else it gets along with less.

use std::sync::Mutex;

use dray_core::permit::{Budget, Permit};

use crate::lock;

/// So much is reserved at a time.
const STEP_BYTES: u64 = 1 << 20;
/// At most this part of the budget: the network needs the rest.
const PART: u64 = 2;
/// At most this part of that is for what waits to be found: what is found needs the rest.
const WAITING_PART: u64 = 2;

/// Memory of one search.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: Budget,
    most_bytes: u64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    permits: Vec<Permit>,
    reserved_bytes: u64,
    used_bytes: u64,
    /// Of those, for what waits to be found.
    waiting_bytes: u64,
}

impl Memory {
    /// Half of `budget` at the most.
    pub(crate) fn of(budget: &Budget) -> Memory {
        let most_bytes = budget.limit_bytes() / PART;
        Memory { budget: budget.clone(), most_bytes, held: Mutex::default() }
    }

    /// Whether there is room for so many bytes more; then they are taken.
    pub(crate) fn take(&self, bytes: u64) -> bool {
        self.take_locked(&mut lock(&self.held), bytes)
    }

    /// The same for what waits to be found: half of it all at the most.
    pub(crate) fn take_waiting(&self, bytes: u64) -> bool {
        let mut held = lock(&self.held);
        let waiting_bytes = held.waiting_bytes.saturating_add(bytes);
        let has_room = waiting_bytes <= self.most_bytes / WAITING_PART && self.take_locked(&mut held, bytes);
        if has_room {
            held.waiting_bytes = waiting_bytes;
        }
        has_room
    }

    /// So many bytes of what waited are for what was found from here on.
    pub(crate) fn keep_waiting(&self, bytes: u64) {
        let mut held = lock(&self.held);
        held.waiting_bytes = held.waiting_bytes.saturating_sub(bytes);
    }

    /// So many bytes of what waited are not needed any more.
    pub(crate) fn give_waiting(&self, bytes: u64) {
        self.keep_waiting(bytes);
        self.give(bytes);
    }

    fn take_locked(&self, held: &mut Held, bytes: u64) -> bool {
        let used_bytes = held.used_bytes.saturating_add(bytes);
        if used_bytes > held.reserved_bytes {
            let step_bytes = (used_bytes - held.reserved_bytes).max(STEP_BYTES);
            if held.reserved_bytes.saturating_add(step_bytes) > self.most_bytes {
                return false;
            }
            let Some(permit) = self.budget.try_reserve(step_bytes) else { return false };
            held.reserved_bytes += step_bytes;
            held.permits.push(permit);
        }
        held.used_bytes = used_bytes;
        true
    }

    /// So many of them are not needed any more.
    pub(crate) fn give(&self, bytes: u64) {
        let mut held = lock(&self.held);
        held.used_bytes = held.used_bytes.saturating_sub(bytes);
        // Not the last ones, which may be needed again at once, while there is anything.
        while let Some(last) = held.permits.last().map(Permit::bytes)
            && (held.used_bytes == 0 || held.used_bytes + last + STEP_BYTES <= held.reserved_bytes)
        {
            held.permits.pop();
            held.reserved_bytes -= last;
        }
    }
}

#[cfg(test)]
impl Default for Memory {
    /// As much as anybody may want.
    fn default() -> Memory {
        Memory::of(&Budget::new(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design 7, "reserved against one memory budget": a search takes half of it and no more, and only what others leave; it gives back what it needs
    /// no more.
    #[test]
    fn a_search_leaves_half_of_the_budget() {
        let budget = Budget::new(16 * STEP_BYTES);
        let memory = Memory::of(&budget);
        let taken = (0..100 * STEP_BYTES / 1000).take_while(|_| memory.take(1000)).count() as u64;
        assert_eq!((taken, budget.used_bytes()), (8 * STEP_BYTES / 1000, 8 * STEP_BYTES));
        let network = budget.try_reserve(8 * STEP_BYTES).expect("the other half");
        memory.give(taken * 1000);
        assert!(budget.used_bytes() <= network.bytes() + 2 * STEP_BYTES, "{}", budget.used_bytes());
        drop(memory);
        assert_eq!(budget.used_bytes(), network.bytes());
        let memory = Memory::of(&budget);
        let others = budget.try_reserve(8 * STEP_BYTES - 1).unwrap();
        assert!(!memory.take(1), "nothing is left");
        drop(others);
        assert!(memory.take(1) && !memory.take(9 * STEP_BYTES));
        memory.give(1);
        assert_eq!(budget.used_bytes(), network.bytes(), "nothing is used");
        assert!(memory.take_waiting(4 * STEP_BYTES) && !memory.take_waiting(1), "the half of what is found");
        memory.keep_waiting(STEP_BYTES);
        assert!(memory.take_waiting(STEP_BYTES) && memory.take(3 * STEP_BYTES));
        memory.give_waiting(4 * STEP_BYTES);
        memory.give(4 * STEP_BYTES);
        assert_eq!(budget.used_bytes(), network.bytes(), "nothing waits");
    }
}
