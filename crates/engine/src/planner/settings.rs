//! What a planner is told at the start: the object, the order, the bounds, and which of its methods it uses.

use dray_core::hash_tree::Geometry;
use dray_core::permit::Budget;

/// What a planner is told at the start.
#[derive(Clone, Debug)]
pub struct PlannerConfig {
    /// Shape of the object.
    pub geometry: Geometry,
    /// Groups of the smallest request: a power of two up to [`UNIT_GROUPS`](dray_core::limits::UNIT_GROUPS), which is usual;
    /// fewer where only small parts of the object are wanted.
    pub piece_groups: u64,
    /// More will be wanted ([`Planner::want`](super::Planner::want)), so having everything is not the end.
    pub is_open: bool,
    /// In which order the consumer takes the bytes.
    pub delivery: DeliveryMode,
    /// What all outstanding requests are reserved against.
    pub budget: Budget,
    /// Bounds of each source's window.
    pub window: WindowLimits,
    /// Which methods are used.
    pub strategy: Strategy,
    /// Microseconds of silence after which a source that owes something is stalled (10 s is usual).
    pub progress_timeout_us: u64,
    /// Microseconds without progress of anybody after which the transfer fails (25 s is usual).
    pub give_up_us: u64,
    /// Requests are numbered from the next one on: another planner of the same sources used those up to here. 0 for
    /// the first.
    pub last_request: u32,
}

/// In which order units may be asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeliveryMode {
    /// Any order; the planner still prefers the lowest, so that both ends read and write nearly sequentially.
    OutOfOrder,
    /// Only units that begin within `window_bytes` of where the consumer is (rounded down to units, at least one).
    Sequential {
        /// How far ahead of the consumer.
        window_bytes: u64,
    },
}

/// Which methods a planner uses. All of them is the default; less is the baseline that each is measured against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Strategy {
    /// A source that has run dry takes requests that have not begun from the source with the longest queue (D22,
    /// design 8).
    pub borrowing: bool,
    /// When nothing is left to ask for, idle sources are asked for what others still owe; whoever is late is
    /// cancelled (design 8).
    pub end_game: bool,
    /// A source that owes something and is silent loses its work to others (design 9). Without it only the end of
    /// the whole transfer is timed.
    pub deadlines: bool,
    /// How much a source may owe.
    pub outstanding: Outstanding,
}

impl Default for Strategy {
    fn default() -> Strategy {
        Strategy { borrowing: true, end_game: true, deadlines: true, outstanding: Outstanding::Window }
    }
}

/// How much one source may owe.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outstanding {
    /// A window in bytes that follows the source's rate.
    Window,
    /// So many requests of one unit each, whatever the rate; DOT had ten (D22). At least one.
    Requests(usize),
}

/// Bounds of the bytes one source may owe. Whatever they say, a window holds at least one unit; at most about a second
/// of the source's measured rate (beyond one unit), or three round trips of it if they take longer; and at most 8 MiB on a
/// local network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WindowLimits {
    /// Before anything is measured.
    pub initial_bytes: u64,
    /// Never less; raised to one unit.
    pub min_bytes: u64,
    /// Never more; raised to `min_bytes`.
    pub max_bytes: u64,
}

impl Default for WindowLimits {
    /// 2 MiB at first, 1 MiB to 64 MiB after: enough for four round trips of 1 Gbit/s over 132 ms.
    fn default() -> WindowLimits {
        WindowLimits { initial_bytes: 2 << 20, min_bytes: 1 << 20, max_bytes: 64 << 20 }
    }
}
