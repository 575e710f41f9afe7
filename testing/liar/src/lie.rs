//! What lies there are, what they are called, and when they begin.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dray_core::limits::GROUP_BYTES;

use crate::Trace;

/// What is done to the frames of an honest holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// Nothing.
    None,
    /// One bit of every n-th group is inverted.
    Flip,
    /// One bit of every frame of parents is inverted.
    Parents,
    /// Answers to comparisons are made up.
    Compared,
    /// Data are announced as holes.
    Hole,
    /// The object is said to be a byte longer.
    WrongSize,
    /// Requests are answered with: the file changed.
    Changed,
    /// Requests are answered with: come again later.
    Busy,
    /// Requests are answered with a fault of 60 KiB of text, with control characters in it.
    HugeFault,
    /// The object is refused, though the secret is right.
    Refused,
    /// Answers end one frame early.
    Short,
    /// Answers have one frame of data more than was asked for.
    Long,
    /// The data of an answer never end.
    EndlessData,
    /// The object is said to be open again and again.
    EndlessOpened,
    /// Comparisons that nobody asked for are answered, without end.
    EndlessCompared,
    /// The object's recipe is said to be lost again and again.
    EndlessFaults,
    /// Recipes that nobody asked for are named, without end.
    EndlessDescribed,
    /// Answers are sent twice.
    Twice,
    /// Requests that nobody made are answered.
    Unasked,
    /// Answers carry the number of the next request.
    OtherRequest,
    /// The head of a frame announces 16 MiB.
    BadFrame,
    /// Bytes that are no frames.
    Garbage,
    /// The connection is closed within a frame.
    HangUp,
    /// Nothing more is said.
    Mute,
    /// Not even the hello is said.
    MuteAtOnce,
    /// One byte is sent every [`DRIP_MS`](Lie::DRIP_MS) milliseconds.
    Drip,
    /// The recipe is that of other bytes, which the command line names, and consistent in itself.
    Recipe,
    /// Nodes of the recipe are altered.
    GarbageNodes,
    /// Nodes of the recipe never come; everything else does.
    MuteNodes,
    /// The root of the recipe never comes; everything else does.
    MuteDescribed,
    /// Data is said to be zeros.
    Zeros,
    /// No lie, but slow where it may be: of the recipe's nodes all but the first two wait until data has been sent.
    LateNodes,
    /// The same as [`Lie::Zeros`], without the parents that would show at once that it is not.
    BareZeros,
}

impl Lie {
    /// Time between two bytes of [`Lie::Drip`].
    pub const DRIP_MS: u64 = 200;

    /// All of them, and what they are called.
    pub const ALL: [(Lie, &str); 33] = [
        (Lie::None, "none"),
        (Lie::Flip, "flip"),
        (Lie::Parents, "parents"),
        (Lie::Compared, "compared"),
        (Lie::Hole, "hole"),
        (Lie::WrongSize, "wrong-size"),
        (Lie::Changed, "changed"),
        (Lie::Busy, "busy"),
        (Lie::HugeFault, "huge-fault"),
        (Lie::Refused, "refused"),
        (Lie::Short, "short"),
        (Lie::Long, "long"),
        (Lie::EndlessData, "endless-data"),
        (Lie::EndlessOpened, "endless-opened"),
        (Lie::EndlessCompared, "endless-compared"),
        (Lie::EndlessFaults, "endless-faults"),
        (Lie::EndlessDescribed, "endless-described"),
        (Lie::Twice, "twice"),
        (Lie::Unasked, "unasked"),
        (Lie::OtherRequest, "other-request"),
        (Lie::BadFrame, "bad-frame"),
        (Lie::Garbage, "garbage"),
        (Lie::HangUp, "hang-up"),
        (Lie::Mute, "mute"),
        (Lie::MuteAtOnce, "mute-at-once"),
        (Lie::Drip, "drip"),
        (Lie::Recipe, "recipe"),
        (Lie::GarbageNodes, "garbage-nodes"),
        (Lie::MuteNodes, "mute-nodes"),
        (Lie::MuteDescribed, "mute-described"),
        (Lie::Zeros, "zeros"),
        (Lie::LateNodes, "late-nodes"),
        (Lie::BareZeros, "bare-zeros"),
    ];
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = Lie::ALL.iter().find(|(lie, _)| lie == self);
        f.write_str(found.map_or("", |(_, name)| name))
    }
}

impl FromStr for Lie {
    type Err = String;

    fn from_str(text: &str) -> Result<Lie, String> {
        let found = Lie::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(lie, _)| *lie).ok_or_else(|| {
            let names: Vec<&str> = Lie::ALL.iter().map(|(_, name)| *name).collect();
            format!("no lie is called {text:?}; there are: {}", names.join(", "))
        })
    }
}

/// One liar, over all its connections.
pub struct Liar {
    pub(crate) lie: Lie,
    after_bytes: u64,
    every: u64,
    sent_bytes: AtomicU64,
    sent_groups: AtomicU64,
    sent_nodes: AtomicU64,
    has_lied: AtomicBool,
    confess: Box<dyn Fn(Lie) + Send + Sync>,
    pub(crate) trace: Option<Arc<Trace>>,
}

impl Liar {
    /// Tells `lie` from the first frame on, to which it applies.
    pub fn new(lie: Lie) -> Liar {
        Liar {
            lie,
            after_bytes: 0,
            every: 1,
            sent_bytes: AtomicU64::new(0),
            sent_groups: AtomicU64::new(0),
            sent_nodes: AtomicU64::new(0),
            has_lied: AtomicBool::new(false),
            confess: Box::new(|_| {}),
            trace: None,
        }
    }

    /// Answers truly until so many bytes have been sent, over all connections.
    #[must_use]
    pub fn after_bytes(self, after_bytes: u64) -> Liar {
        Liar { after_bytes, ..self }
    }

    /// [`Lie::Flip`] alters every n-th group only.
    #[must_use]
    pub fn every(self, every: u64) -> Liar {
        Liar { every: every.max(1), ..self }
    }

    /// `confess` hears of the first lie that is told.
    #[must_use]
    pub fn confessing(self, confess: impl Fn(Lie) + Send + Sync + 'static) -> Liar {
        Liar { confess: Box::new(confess), ..self }
    }

    /// What receivers say is written to `trace`.
    #[must_use]
    pub fn traced(self, trace: Arc<Trace>) -> Liar {
        Liar { trace: Some(trace), ..self }
    }

    /// Says that the lie is told now.
    pub(crate) fn tell(&self) {
        if !self.has_lied.swap(true, Ordering::AcqRel) {
            (self.confess)(self.lie);
        }
    }

    /// Whether the time of lies about bytes has come.
    pub(crate) fn is_due(&self) -> bool {
        self.sent_bytes.load(Ordering::Acquire) >= self.after_bytes
    }

    /// Whether a node of the recipe has to wait, of which this is one more.
    pub(crate) fn holds_node(&self) -> bool {
        self.sent_nodes.fetch_add(1, Ordering::AcqRel) >= 2 && !self.has_sent_data()
    }

    /// Whether data has been sent, over any connection.
    pub(crate) fn has_sent_data(&self) -> bool {
        self.sent_bytes.load(Ordering::Acquire) > 0
    }

    /// Notes data that are about to leave.
    pub(crate) fn sends(&self, bytes: usize) {
        self.sent_bytes.fetch_add(bytes as u64, Ordering::AcqRel);
    }

    /// Alters every n-th group of `data`, the first byte of which begins a group.
    pub(crate) fn flip(&self, data: &mut [u8]) {
        for group in data.chunks_mut(GROUP_BYTES as usize) {
            if self.sent_groups.fetch_add(1, Ordering::AcqRel).is_multiple_of(self.every) {
                group[group.len() / 2] ^= 4;
                self.tell();
            }
        }
    }
}

impl fmt::Debug for Liar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Liar({})", self.lie)
    }
}
