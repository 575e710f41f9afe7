//! One transfer: stands between the sources, the planner, the hash tree and the place where bytes rest.
//!
//! Sources call in from their own threads with each group; the group is proven (or its value kept), written and
//! accounted for right there. The planner is locked for a few instructions at a time and never across I/O.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use dray_core::hash_tree::{Collector, Cv, Geometry, PairStore, Subtree, Verifier};
use dray_core::limits::{PROGRESS_TIMEOUT_MS, UNIT_GROUPS};
use dray_core::message::ObjectName;
use dray_core::permit::Budget;
use dray_core::range::RangeSet;
use dray_core::recipe::{RecipeId, RecipeRoot};
use dray_core::source::{Flow, RequestId, Source, SourceCall, SourceEvent, SourceEvents, SourceId};
use dray_core::store::PartialObject;
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_engine::planner::{
    DeliveryMode, Planner, PlannerCommand, PlannerConfig, SourceState, SourceStats, Strategy, WindowLimits,
};

use crate::lock;
use crate::observer::Stop;
use crate::search::Pressure;
use arrival::is_mismatch;
use at_work::AtWork;

mod arrival;
mod at_work;
mod explain;
mod seal;
#[cfg(test)]
mod tests;
mod update;

pub(crate) use update::OlderVersion;

/// Without any progress of anybody for this long, a transfer fails.
const GIVE_UP_US: u64 = 25_000_000;
/// If nobody looked at the clock for this long, this process was stopped.
const STOPPED_FROM_US: u64 = 3_000_000;

/// Where groups go.
pub(crate) enum Sink {
    /// Into an object at rest, in any order.
    Rest(Arc<dyn PartialObject>),
    /// To a consumer that takes them in order (standard output).
    Stream(Stream),
}

/// What the bytes are held against.
pub(crate) enum Truth {
    /// The OID.
    Proven(Verifier<Arc<dyn PairStore>>),
    /// The origin's word; the root is compared at the end.
    Vouched(Collector<Arc<dyn PairStore>>),
    /// The OID, where bytes come from a source; the root over everything is compared with it at the end, because other
    /// bytes come from an older version of the object.
    Updated {
        /// Proves what is fetched.
        verifier: Verifier<Arc<dyn PairStore>>,
        /// Takes the values of everything.
        collector: Collector<Arc<dyn PairStore>>,
    },
}

impl Truth {
    /// For an update to `oid`: `delivery` takes the values of everything, what is proven stays in memory.
    pub(crate) fn updated(geometry: Geometry, oid: Oid, delivery: Arc<dyn PairStore>) -> Result<Truth> {
        let proven: Arc<dyn PairStore> = Arc::new(update::SparsePairs::default());
        Ok(Truth::Updated {
            verifier: Verifier::new(geometry, oid, proven)?,
            collector: Collector::new(geometry, delivery),
        })
    }

    fn verifier(&self) -> Option<&Verifier<Arc<dyn PairStore>>> {
        match self {
            Truth::Proven(verifier) | Truth::Updated { verifier, .. } => Some(verifier),
            Truth::Vouched(_) => None,
        }
    }

    fn collector(&self) -> Option<&Collector<Arc<dyn PairStore>>> {
        match self {
            Truth::Vouched(collector) | Truth::Updated { collector, .. } => Some(collector),
            Truth::Proven(_) => None,
        }
    }
}

/// What a transfer begins with.
pub(crate) enum Start {
    /// Everything that is wanted is fetched.
    Whole,
    /// [`Transfer::update`] says what is fetched.
    Update,
    /// Nothing, until [`Transfer::want_more`] is called.
    Gradual,
}

/// Groups that came before their turn.
#[derive(Default)]
pub(crate) struct Stream {
    waiting: Mutex<BTreeMap<u64, Vec<u8>>>,
    arrived: Condvar,
}

/// A transfer in progress. Shared by the sources' threads and the thread that waits for it.
pub(crate) struct Transfer {
    geometry: Geometry,
    truth: Truth,
    sink: Sink,
    planner: Mutex<Planner>,
    /// Held from when the planner gives a command until its source has it: sources hear them in the planner's order.
    commands: Mutex<()>,
    sources: Mutex<BTreeMap<SourceId, Arc<dyn Source>>>,
    at_work: AtWork,
    requests: Mutex<HashMap<RequestId, Request>>,
    units: Mutex<HashMap<u64, Unit>>,
    state: Mutex<State>,
    changed: Condvar,
    clock: Instant,
    awake: Mutex<Awake>,
    /// For another round of the same transfer.
    config: PlannerConfig,
    wanted_units: AtomicU64,
    stored_units: AtomicU64,
    done_bytes: AtomicU64,
    /// Groups of an update that are fetched, and how many of them are stored.
    wanted_groups: AtomicU64,
    fetched_groups: AtomicU64,
    /// Bytes that sources brought, wanted or not. Blocks of zeros do not count: they may have come as runs of no
    /// bytes.
    brought_bytes: AtomicU64,
    /// Bytes of an update that the older version had, or the object itself elsewhere; and those that other files had.
    local_bytes: AtomicU64,
    other_bytes: AtomicU64,
    repeated_bytes: AtomicU64,
    /// Groups of an update that are put together from what is here and what comes.
    rests: Mutex<Option<update::Rests>>,
    /// What is less urgent waits for it.
    pressure: Arc<Pressure>,
    told: Mutex<explain::Told>,
    /// Wanted units that the planner does not know yet.
    later: Mutex<RangeSet>,
}

/// How much of the time this process ran.
#[derive(Default)]
struct Awake {
    seen_us: u64,
    stopped_us: u64,
}

struct Request {
    source: SourceId,
    groups: Subtree,
    known_depth: usize,
    /// What each group must hash to; unknown until the parents have come.
    leaves: Option<Arc<Vec<Cv>>>,
    /// That was computed here, of zeros.
    is_zero: bool,
}

/// Progress of a unit whose groups have not all come.
struct Unit {
    stored: u32,
    leaves: [Cv; UNIT_GROUPS as usize],
}

#[derive(Default)]
struct State {
    /// A failure that no source can mend: the disk is full, a bug.
    fatal: Option<Error>,
    /// Whom the question went to; only its answer counts.
    asked: Option<SourceId>,
    sealed: Option<Oid>,
    compared: Option<Vec<u8>>,
    /// Who was asked for the recipe's root and has not answered.
    describing: Vec<SourceId>,
    /// The recipe's root, or that none of those who were asked has one.
    described: Option<Option<RecipeRoot>>,
    /// Nodes of the recipe that came and were not looked at.
    nodes: Vec<(RecipeId, Vec<u8>)>,
    /// Sums that came and were not looked at, by the number of their question; nothing if the source tells none.
    sums: Vec<(u32, Option<Vec<u8>>)>,
    /// Why a source went down last: what to say if nobody is left to confirm the end.
    last_down: Option<Error>,
    suggested_name: Option<Vec<u8>>,
    holder_size: Option<u64>,
    news: Vec<(SourceId, Option<Loss>)>,
    /// Who told the recipe that an update followed, if nothing else can be wrong with what was made by it.
    recipe_of: Option<SourceId>,
    /// What the user should know.
    warnings: Vec<String>,
}

/// How a source was lost.
pub(crate) struct Loss {
    /// Why.
    pub(crate) reason: String,
    /// The planner closed it for what it did.
    pub(crate) is_barred: bool,
    /// That was: it sent what is not of the object.
    pub(crate) has_lied: bool,
}

impl Transfer {
    /// A transfer of the units `wanted`; `resumed_bytes` of the object are there already. What is under way at once is
    /// reserved in `budget`.
    pub(crate) fn new(
        truth: Truth,
        sink: Sink,
        wanted: RangeSet,
        resumed_bytes: u64,
        budget: Budget,
        delivery: DeliveryMode,
        start: Start,
    ) -> Arc<Transfer> {
        let geometry = match &truth {
            Truth::Proven(verifier) | Truth::Updated { verifier, .. } => verifier.geometry(),
            Truth::Vouched(collector) => collector.geometry(),
        };
        // Of an update, single groups are fetched, and which is not known yet.
        let is_update = matches!(start, Start::Update);
        let wanted_units = wanted.count();
        let (now, later) = match start {
            Start::Whole => (wanted, RangeSet::new()),
            Start::Update => (RangeSet::new(), RangeSet::new()),
            Start::Gradual => (RangeSet::new(), wanted),
        };
        let config = PlannerConfig {
            geometry,
            piece_groups: if is_update { 1 } else { UNIT_GROUPS },
            is_open: is_update || !later.is_empty(),
            delivery,
            window: WindowLimits { max_bytes: budget.limit_bytes(), ..WindowLimits::default() },
            budget,
            strategy: Strategy::default(),
            progress_timeout_us: PROGRESS_TIMEOUT_MS * 1000,
            give_up_us: GIVE_UP_US,
            last_request: 0,
        };
        Arc::new(Transfer {
            geometry,
            truth,
            sink,
            wanted_units: AtomicU64::new(wanted_units),
            planner: Mutex::new(Planner::new(config.clone(), now)),
            commands: Mutex::default(),
            later: Mutex::new(later),
            config,
            wanted_groups: AtomicU64::new(0),
            fetched_groups: AtomicU64::new(0),
            brought_bytes: AtomicU64::new(0),
            local_bytes: AtomicU64::new(0),
            other_bytes: AtomicU64::new(0),
            repeated_bytes: AtomicU64::new(0),
            rests: Mutex::default(),
            pressure: Arc::default(),
            told: Mutex::default(),
            sources: Mutex::default(),
            at_work: AtWork::default(),
            requests: Mutex::default(),
            units: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
            clock: Instant::now(),
            awake: Mutex::default(),
            stored_units: AtomicU64::new(0),
            done_bytes: AtomicU64::new(resumed_bytes),
        })
    }

    /// Adds a source. It must report to [`Transfer::events`].
    pub(crate) fn add_source(&self, id: SourceId, source: Arc<dyn Source>) {
        lock(&self.planner).add_source(id, source.describe());
        self.pressure.watch(&source);
        lock(&self.sources).insert(id, source);
    }

    /// The sink for the events of this transfer's sources. Holds the transfer only weakly: sources that outlive it
    /// are told to stop.
    pub(crate) fn events(self: &Arc<Transfer>) -> Arc<dyn SourceEvents> {
        Arc::new(Events(Arc::downgrade(self)))
    }

    /// Bytes safely here.
    pub(crate) fn done_bytes(&self) -> u64 {
        self.done_bytes.load(Ordering::Relaxed)
    }

    /// Size of the object.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.geometry.size_bytes()
    }

    /// Figures of every source.
    pub(crate) fn stats(&self) -> Vec<SourceStats> {
        lock(&self.planner).stats()
    }

    /// File name the holder suggested, if it did.
    pub(crate) fn suggested_name(&self) -> Option<Vec<u8>> {
        lock(&self.state).suggested_name.clone()
    }

    /// Sources that came up (`None`) or went down (why), since the last call.
    pub(crate) fn news(&self) -> Vec<(String, Option<Loss>)> {
        let news = std::mem::take(&mut lock(&self.state).news);
        let sources = lock(&self.sources);
        let label =
            |id: &SourceId| sources.get(id).map_or_else(String::new, |source| source.describe().label);
        news.into_iter().map(|(id, why)| (label(&id), why)).collect()
    }

    /// What the user should know, since the last call.
    pub(crate) fn warnings(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.state).warnings)
    }

    /// [`Transfer::wait`], with [`Transfer::update`] from `older` beside it if there is one; `wanted` are the units of this
    /// transfer.
    pub(crate) fn run(
        &self,
        older: Option<&OlderVersion>,
        wanted: &RangeSet,
        stop: &Stop,
        tick: &mut dyn FnMut(),
    ) -> Result<()> {
        let Some(older) = older else { return self.wait(stop, tick) };
        let over = Stop::new();
        std::thread::scope(|scope| {
            scope.spawn(|| self.update(older, wanted, &over));
            let result = self.wait(stop, tick);
            over.set();
            result
        })
    }

    /// Waits until every wanted byte is stored, or it can never be. `tick` runs about ten times a second.
    pub(crate) fn wait(&self, stop: &Stop, tick: &mut dyn FnMut()) -> Result<()> {
        let result = self.wait_inner(stop, tick);
        if result.is_err() {
            self.keep_last_words();
            self.close();
        }
        result
    }

    fn wait_inner(&self, stop: &Stop, tick: &mut dyn FnMut()) -> Result<()> {
        loop {
            self.hear_bytes();
            self.pump();
            tick();
            if stop.is_set() {
                return Err(interrupted());
            }
            if let Some(fatal) = &lock(&self.state).fatal {
                return Err(fatal.duplicate());
            }
            let outcome = lock(&self.planner).outcome();
            match outcome {
                Some(Err(error)) => return Err(error),
                // Delivered to this transfer is not yet stored: another thread may be writing its last group.
                Some(Ok(())) if self.is_stored() => return Ok(()),
                Some(Ok(())) | None => {}
            }
            let state = lock(&self.state);
            if state.fatal.is_none() && !self.is_stored() {
                drop(self.await_change(state, Duration::from_millis(100)));
            }
        }
    }

    fn is_stored(&self) -> bool {
        self.stored_units.load(Ordering::Acquire) == self.wanted_units.load(Ordering::Acquire)
    }

    /// Bytes that were not fetched because an older version had them.
    pub(crate) fn local_bytes(&self) -> u64 {
        self.local_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that were not fetched because other parts of the object are the same.
    pub(crate) fn repeated_bytes(&self) -> u64 {
        self.repeated_bytes.load(Ordering::Relaxed)
    }

    /// Bytes that were not fetched because other files had them.
    pub(crate) fn other_bytes(&self) -> u64 {
        self.other_bytes.load(Ordering::Relaxed)
    }

    /// Groups to fetch of an update, in ascending order.
    fn want_groups(&self, groups: Range<u64>) {
        self.wanted_groups.fetch_add(groups.end - groups.start, Ordering::AcqRel);
        lock(&self.planner).want(groups);
        self.pump();
    }

    /// True if every group to fetch of an update is stored.
    fn has_fetched_all(&self) -> bool {
        self.fetched_groups.load(Ordering::Acquire) == self.wanted_groups.load(Ordering::Acquire)
    }

    /// Lets go of the state until something changes, for `patience` at most, and takes it again.
    fn await_change<'a>(&self, state: MutexGuard<'a, State>, patience: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, patience).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Whether some source is up or may still come up.
    fn is_anybody_left(&self) -> bool {
        let over = |state| matches!(state, SourceState::Gone | SourceState::Barred);
        self.stats().iter().any(|stats| !over(stats.state))
    }

    /// Where the source stands; `None` if the planner does not know it.
    fn state_of(&self, id: SourceId) -> Option<SourceState> {
        self.stats().into_iter().find(|stats| stats.source == id).map(|stats| stats.state)
    }

    /// True if the source is up and not silent, or may soon be.
    pub(crate) fn is_promising(&self, id: SourceId) -> bool {
        matches!(self.state_of(id), Some(SourceState::Connecting | SourceState::Up))
    }

    fn is_up(&self, id: SourceId) -> bool {
        matches!(self.state_of(id), Some(SourceState::Up | SourceState::Stalled))
    }

    /// True if the origin's word is what proves its bytes.
    fn is_vouched(&self) -> bool {
        matches!(self.truth, Truth::Vouched(_))
    }

    /// The source to ask things of: none of `but`, up, not silent if there is such a one, lowest priority first.
    fn best_source(&self, but: &[SourceId]) -> Option<(SourceId, Arc<dyn Source>)> {
        let stats = lock(&self.planner).stats();
        let sources = lock(&self.sources);
        // A copy's spare is its control channel: without that the copy is over, while a direct path that vanished shows it
        // only after a time.
        let is_copy = self.is_vouched();
        let candidates = stats.into_iter().filter_map(|stats| {
            let is_silent = match stats.state {
                SourceState::Up => false,
                SourceState::Stalled => true,
                _ => return None,
            };
            let source = sources.get(&stats.source).filter(|_| !but.contains(&stats.source))?;
            let priority = source.describe().priority;
            let rank = (is_silent, if is_copy { u16::MAX - priority } else { priority });
            Some((rank, (stats.source, source.clone())))
        });
        candidates.min_by_key(|(rank, _)| *rank).map(|(_, candidate)| candidate)
    }

    /// Ends every source.
    pub(crate) fn close(&self) {
        let sources: Vec<_> = lock(&self.sources).values().cloned().collect();
        for source in sources {
            source.call(SourceCall::Close);
        }
    }

    /// Takes the next groups in order, if they have come (stream sink only), and tells the planner.
    pub(crate) fn take_next(&self, next_group: &mut u64, timeout: Duration) -> Option<Vec<u8>> {
        let Sink::Stream(stream) = &self.sink else { return None };
        let mut waiting = lock(&stream.waiting);
        if !waiting.contains_key(next_group) {
            let waited = stream.arrived.wait_timeout(waiting, timeout);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let bytes = waiting.remove(next_group)?;
        drop(waiting);
        *next_group += 1;
        if next_group.is_multiple_of(UNIT_GROUPS) {
            lock(&self.planner).handle_consumed(*next_group / UNIT_GROUPS);
            self.pump();
        }
        Some(bytes)
    }

    /// Takes a group, whichever has come (stream sink only).
    pub(crate) fn take_any(&self, timeout: Duration) -> Option<(u64, Vec<u8>)> {
        let Sink::Stream(stream) = &self.sink else { return None };
        let mut waiting = lock(&stream.waiting);
        if waiting.is_empty() {
            let waited = stream.arrived.wait_timeout(waiting, timeout);
            waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        waiting.pop_first()
    }

    /// Wants further units, each as long as `reserve` has something for it ([`Start::Gradual`]); they, and what it had.
    pub(crate) fn want_more<T>(&self, mut reserve: impl FnMut() -> Option<T>) -> Vec<(u64, T)> {
        let mut later = lock(&self.later);
        let mut wanted = Vec::new();
        while let Some(run) = later.next_from(0)
            && let Some(reserved) = reserve()
        {
            later.remove(run.start..run.start + 1);
            wanted.push((run.start, reserved));
        }
        if wanted.is_empty() {
            return wanted;
        }
        let mut planner = lock(&self.planner);
        for (unit, _) in &wanted {
            planner.want(*unit..*unit + 1);
        }
        if later.is_empty() {
            planner.want_no_more();
        }
        drop((planner, later));
        self.pump();
        wanted
    }

    /// Who waits in [`Transfer::take_next`] or [`Transfer::take_any`] looks again whether more can be wanted.
    pub(crate) fn wake_taker(&self) {
        if let Sink::Stream(stream) = &self.sink {
            stream.arrived.notify_all();
        }
    }

    /// The consumer takes nothing of the units before `unit`.
    pub(crate) fn skip_to(&self, unit: u64) {
        lock(&self.planner).handle_consumed(unit);
    }

    /// True if `group` waits to be taken (stream sink only).
    pub(crate) fn has_group(&self, group: u64) -> bool {
        matches!(&self.sink, Sink::Stream(stream) if lock(&stream.waiting).contains_key(&group))
    }

    /// Microseconds since the transfer began, without those in which this process did not run (stopped by a signal): no
    /// source is to blame for them. Somebody asks about ten times a second ([`Transfer::wait`]).
    fn now_us(&self) -> u64 {
        let elapsed_us = u64::try_from(self.clock.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut awake = lock(&self.awake);
        let gap_us = elapsed_us.saturating_sub(awake.seen_us);
        if gap_us >= STOPPED_FROM_US {
            awake.stopped_us += gap_us;
        }
        awake.seen_us = awake.seen_us.max(elapsed_us);
        elapsed_us.saturating_sub(awake.stopped_us)
    }

    /// Tells the planner what has come from each source, whole groups or not, and whose bytes are being stored.
    fn hear_bytes(&self) {
        let at_work = self.at_work.sources();
        let received = |(id, source): (&SourceId, &Arc<dyn Source>)| Some((*id, source.received_bytes()?));
        let received: Vec<(SourceId, u64)> = lock(&self.sources).iter().filter_map(received).collect();
        let (now_us, mut planner) = (self.now_us(), lock(&self.planner));
        for (id, bytes) in received {
            planner.handle_received(now_us, id, bytes);
        }
        for id in at_work {
            planner.handle_at_work(now_us, id);
        }
    }

    /// Carries out what the planner wants, until it wants nothing.
    fn pump(&self) {
        loop {
            // A Fetch that one thread has of the planner is not to reach its source behind the Cancel that another has a moment later.
            let _in_order = lock(&self.commands);
            let command = lock(&self.planner).poll(self.now_us());
            let (id, call) = match command {
                None => return,
                Some(PlannerCommand::Fetch { source, request, groups, recheck, permit }) => {
                    let verifier = self.truth.verifier();
                    let known_depth = verifier.map_or(0, |verifier| verifier.known_depth(groups));
                    lock(&self.requests).insert(
                        request,
                        Request { source, groups, known_depth, leaves: None, is_zero: false },
                    );
                    let known_depth = known_depth as u32;
                    let rests = lock(&self.rests);
                    let rest = rests.as_ref().filter(|_| groups.groups == 1 && !recheck);
                    let call = match rest.and_then(|rests| rests.have(groups.start)) {
                        Some(have) => {
                            let group = groups.start;
                            SourceCall::FetchRest { request, group, known_depth, have, permit }
                        }
                        None => SourceCall::Fetch { request, groups, known_depth, recheck, permit },
                    };
                    (source, call)
                }
                Some(PlannerCommand::Cancel { source, request }) => (source, SourceCall::Cancel { request }),
                Some(PlannerCommand::CloseSource { source }) => (source, SourceCall::Close),
            };
            let source = lock(&self.sources).get(&id).cloned();
            if let Some(source) = source {
                source.call(call);
            }
        }
    }

    fn fail(&self, error: Error) {
        lock(&self.state).fatal.get_or_insert(error);
        self.changed.notify_all();
    }

    fn handle(&self, source: SourceId, event: SourceEvent<'_>) -> Flow {
        let now_us = self.now_us();
        let mut flow = Flow::Continue;
        let _at_work = self.at_work.begin_with(source, &event);
        match event {
            SourceEvent::Up { size_bytes, name, round_trip_us } => {
                {
                    let mut state = lock(&self.state);
                    state.holder_size = Some(size_bytes);
                    // The first one to say a name is believed: of several, no later one changes it half-way.
                    if let (Some(name), None) = (name, &state.suggested_name) {
                        state.suggested_name = Some(name.to_vec());
                    }
                    state.news.push((source, None));
                }
                lock(&self.planner).handle_up(now_us, source, round_trip_us);
                self.changed.notify_all();
            }
            SourceEvent::Parents { request, pairs } => {
                let parents = self.parents(request, pairs);
                let now_us = self.now_us();
                let mut planner = lock(&self.planner);
                match parents {
                    Ok(true) => planner.handle_parents(now_us, source, request),
                    Ok(false) => flow = Flow::Cancel,
                    Err(error) if !is_mismatch(&error) => {
                        drop(planner);
                        self.fail(error);
                        flow = Flow::Cancel;
                    }
                    Err(_) => {
                        planner.handle_mismatch(now_us, source, request);
                        drop(planner);
                        self.refuse(request);
                        flow = Flow::Cancel;
                    }
                }
            }
            SourceEvent::Group { request, group, bytes, data } => {
                flow = self.group(now_us, source, request, group, bytes, data);
            }
            SourceEvent::Rest { request, group, bytes } => {
                flow = self.rest(now_us, source, request, group, bytes);
            }
            SourceEvent::Summed { number, sums } => {
                // No more than were asked for: a lane refuses what was not asked.
                lock(&self.state).sums.push((number, sums.map(<[u8]>::to_vec)));
                self.changed.notify_all();
            }
            SourceEvent::Done { request } => {
                lock(&self.requests).remove(&request);
                lock(&self.planner).handle_done(now_us, source, request);
            }
            SourceEvent::Failed { request, error } => {
                lock(&self.requests).remove(&request);
                lock(&self.planner).handle_failed(now_us, source, request, &error);
            }
            SourceEvent::Sealed { root } => {
                let mut state = lock(&self.state);
                if state.asked == Some(source) {
                    state.sealed = Some(root);
                }
                drop(state);
                self.changed.notify_all();
            }
            SourceEvent::Compared { pairs } => {
                let mut state = lock(&self.state);
                if state.asked == Some(source) {
                    state.compared = Some(pairs.to_vec());
                }
                drop(state);
                self.changed.notify_all();
            }
            SourceEvent::Described { root } => {
                let mut state = lock(&self.state);
                let is_asked = state.describing.contains(&source);
                state.describing.retain(|asked| *asked != source);
                if is_asked && root.is_some() {
                    // The first answer counts, and its nodes are asked of who gave it.
                    state.describing.clear();
                    state.asked = Some(source);
                    state.described = Some(root);
                } else if root.is_none() && state.describing.is_empty() && state.asked == Some(source) {
                    state.described = Some(None);
                }
                drop(state);
                self.changed.notify_all();
            }
            SourceEvent::Node { id, bytes } => {
                let mut state = lock(&self.state);
                // Never more than the reader asked for: a lane refuses what was not asked.
                if state.asked == Some(source) {
                    state.nodes.push((id, bytes.to_vec()));
                }
                drop(state);
                self.changed.notify_all();
            }
            SourceEvent::Down { error, gone } => {
                let reason = match &error {
                    Some(error) => error.to_string(),
                    None => lock(&self.planner).cause(source).unwrap_or_else(|| "closed".to_owned()),
                };
                lock(&self.requests).retain(|_, request| request.source != source);
                lock(&self.planner).handle_down(now_us, source, error.as_ref(), gone);
                let is_barred = self.state_of(source) == Some(SourceState::Barred);
                let has_lied = is_barred && lock(&self.planner).has_lied(source);
                let mut state = lock(&self.state);
                state.news.push((source, Some(Loss { reason, is_barred, has_lied })));
                state.asked.take_if(|asked| *asked == source);
                state.describing.retain(|asked| *asked != source);
                if error.is_some() {
                    state.last_down = error;
                }
                drop(state);
                self.changed.notify_all();
            }
        }
        self.pump();
        flow
    }
}

struct Events(Weak<Transfer>);

impl SourceEvents for Events {
    fn event(&self, source: SourceId, event: SourceEvent<'_>) -> Flow {
        match self.0.upgrade() {
            Some(transfer) => transfer.handle(source, event),
            None => Flow::Cancel,
        }
    }
}

fn interrupted() -> Error {
    Error::new(ErrorKind::Interrupted, "interrupted")
        .advise("run the same command again to go on where it stopped")
}

/// The name of what a transfer is about, for messages.
pub(crate) fn short_name(object: &ObjectName) -> String {
    match object {
        ObjectName::Oid(oid) => format!("blake3:{}…", &oid.hex()[..12]),
        ObjectName::Provisional(_) => "the file".to_owned(),
    }
}
