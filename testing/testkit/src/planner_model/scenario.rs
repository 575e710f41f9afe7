//! What a simulated transfer is made of, and what is told of it afterwards: plain data, so that a property test or a
//! fuzz target can make it up.

use std::ops::Range;

use dray_core::error::{Error, ErrorKind};
use dray_engine::planner::{Explanation, Strategy, WindowLimits};

/// What a simulated source does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Behaviour {
    /// Sends what it is asked for.
    Honest,
    /// Falls silent after so many groups, for so long.
    Stalls {
        /// Groups before.
        after_groups: u64,
        /// Microseconds; `u64::MAX` is for ever.
        for_us: u64,
    },
    /// Sends no whole group after so many, but goes on sending bytes while it owes something.
    Trickles {
        /// Groups before.
        after_groups: u64,
        /// Bytes per second after.
        bytes_per_s: u64,
    },
    /// Fails a request with a retryable error at every n-th group.
    FailsRetryably {
        /// At which group of its own count.
        every: u64,
    },
    /// Says that it does not have the object any more, after so many groups.
    Quits {
        /// Groups before.
        after_groups: u64,
        /// With this kind of error.
        kind: ErrorKind,
    },
    /// Sends wrong bytes once; sends the right ones when asked to recheck.
    LiesOnce {
        /// Groups before.
        after_groups: u64,
    },
    /// Never sends a right byte.
    LiesAlways,
    /// Loses the connection after every so many groups and is back after a while.
    Flaps {
        /// Groups between.
        every: u64,
        /// Microseconds it is away.
        away_us: u64,
    },
    /// Is gone for good after so many groups.
    Dies {
        /// Groups before.
        after_groups: u64,
    },
    /// Ends a request without its last group.
    EndsEarly {
        /// Groups before.
        after_groups: u64,
    },
    /// Never answers every n-th request, also not that it was cancelled, and goes on with the others.
    Swallows {
        /// At which request of its own count.
        every: u64,
    },
    /// Never comes up.
    Absent,
}

/// One simulated source.
#[derive(Clone, Copy, Debug)]
pub struct SourceScript {
    /// What it does.
    pub behaviour: Behaviour,
    /// Its rank.
    pub priority: u16,
    /// Bytes per second.
    pub rate_bytes_per_s: u64,
    /// Round trip, microseconds.
    pub round_trip_us: u64,
    /// When it comes up, microseconds.
    pub up_at_us: u64,
    /// Ends requests early when told to.
    pub can_cancel: bool,
    /// But for what begins within so many bytes of what it owes.
    pub under_way_bytes: u64,
    /// Tells its round trip.
    pub tells_round_trip: bool,
    /// Reports groups twice, late, and of requests nobody made.
    pub is_noisy: bool,
}

/// What is wanted becomes known bit by bit, in order, as when a recipe is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unfolding {
    /// Pieces that are looked at with each step; those among them that are wanted become known.
    pub step_pieces: u64,
    /// Microseconds between two steps.
    pub interval_us: u64,
    /// Microseconds from the last step until it is said that no more will be wanted.
    pub end_us: u64,
}

/// One transfer.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Size of the object.
    pub size_bytes: u64,
    /// Groups of the smallest request: 1, 2, 4, 8 or 16.
    pub piece_groups: u64,
    /// Pieces that are there already.
    pub had_pieces: Vec<Range<u64>>,
    /// When the rest of what is wanted becomes known; `None` if all is known at once.
    pub unfolding: Option<Unfolding>,
    /// Sequential delivery with this window; `None` is out of order.
    pub sequential_bytes: Option<u64>,
    /// Microseconds between two looks of the sequential consumer, who then takes all that is in order.
    pub consumer_us: u64,
    /// The budget all sources share.
    pub budget_bytes: u64,
    /// Bounds of the windows.
    pub window: WindowLimits,
    /// How often the planner hears what has come from each source, in microseconds, besides whenever something happens.
    pub hear_interval_us: Option<u64>,
    /// Which methods the planner uses.
    pub strategy: Strategy,
    /// The sources, numbered from 0.
    pub sources: Vec<SourceScript>,
}

/// How a run ended.
#[derive(Debug)]
pub struct Report {
    /// The planner's outcome.
    pub outcome: Result<(), Error>,
    /// Virtual time at the end, microseconds.
    pub ended_us: u64,
    /// When the last new group was delivered, microseconds.
    pub last_delivery_us: u64,
    /// Groups delivered by each source.
    pub delivered_groups: Vec<u64>,
    /// Groups each source sent in vain.
    pub discarded_groups: Vec<u64>,
    /// Of these, groups that were asked for and had come from elsewhere.
    pub repeated_groups: Vec<u64>,
    /// Groups that were there when each source was asked for their unit: a unit lost half-way is sent again whole.
    pub resent_groups: Vec<u64>,
    /// When a repeated group last came further into its request than any other since the last new group, microseconds.
    pub last_repeat_us: u64,
    /// When the last source came up for the first time, microseconds.
    pub last_first_up_us: u64,
    /// When the last pieces became known, or that there will be no more, microseconds.
    pub last_known_us: u64,
    /// Most bytes each source owed at once.
    pub outstanding_bytes_max: Vec<u64>,
    /// Most requests each source had open at once.
    pub requests_max: Vec<usize>,
    /// Most bytes reserved of the budget at once.
    pub reserved_bytes_max: u64,
    /// The planner's own account at the end.
    pub explanation: Explanation,
}
