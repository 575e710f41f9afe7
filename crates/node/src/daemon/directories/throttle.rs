//! How often it is told who fetches a directory: whoever has its ticket may come again and again, and fills no log by that.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::{Event, lock};

/// For so long what was told of a node counts.
const WINDOW: Duration = Duration::from_secs(60);
/// So often it is told of one node that it has come, and that it has gone.
const TOLD_MAX: u32 = 8;
/// So many nodes are remembered.
const NODES_MAX: usize = 1024;

/// Of one directory.
#[derive(Default)]
pub(super) struct Throttle {
    nodes: Mutex<HashMap<String, Told>>,
}

struct Told {
    since: Instant,
    came: u32,
    went: u32,
}

impl Throttle {
    /// Whether `event` is to be told, and not only counted.
    pub(super) fn passes(&self, event: &Event) -> bool {
        let (node, has_come) = match event {
            Event::ServingDirectory { node } => (node, true),
            Event::ServedDirectory { node, .. } => (node, false),
            _ => return true,
        };
        let mut nodes = lock(&self.nodes);
        nodes.retain(|_, told| told.since.elapsed() < WINDOW);
        if nodes.len() >= NODES_MAX && !nodes.contains_key(node) {
            // Nodes cost nothing to make: so many are a flood, too.
            return false;
        }
        let told =
            nodes.entry(node.clone()).or_insert_with(|| Told { since: Instant::now(), came: 0, went: 0 });
        let count = if has_come { &mut told.came } else { &mut told.went };
        *count = count.saturating_add(1);
        *count <= TOLD_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn came(node: usize) -> Event {
        Event::ServingDirectory { node: node.to_string() }
    }

    /// Threat model "fill the log": a node that comes again and again is told of a few times a minute, what it says of others is not held
    /// back, nor are warnings.
    #[test]
    fn a_node_that_comes_again_and_again_fills_no_log() {
        let throttle = Throttle::default();
        let passed = |event: &Event| (0..100).filter(|_| throttle.passes(event)).count();
        assert_eq!(passed(&came(1)), 8);
        let went = Event::ServedDirectory { node: "1".into(), sent_bytes: 1, lost: None };
        assert_eq!(passed(&went), 8);
        assert_eq!(passed(&came(2)), 8);
        assert_eq!(passed(&Event::Warning("a disk".into())), 100);
        // After a minute it is told of again.
        lock(&throttle.nodes).values_mut().for_each(|told| {
            told.since = told.since.checked_sub(WINDOW).unwrap();
        });
        assert_eq!(passed(&came(1)), 8);
        // However many nodes there are, so many are remembered.
        (10..2 * NODES_MAX).for_each(|node| {
            throttle.passes(&came(node));
        });
        assert_eq!(lock(&throttle.nodes).len(), NODES_MAX);
        assert!(!throttle.passes(&came(9)));
    }
}
