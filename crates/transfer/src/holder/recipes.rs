//! Recipes that a holder makes for its receivers. To make one the whole object is read, so a recipe is made once for all who
//! ask, by one of a few threads, in bounded memory, and only as long as somebody waits for it.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::chunker::Profile;
use dray_core::limits::{RECIPES_BYTES_MAX, RECIPES_MAKING_MAX};
use dray_core::{Error, ErrorKind, Result};

use crate::recipe::Recipe;

/// How long it is remembered that a recipe could not be made: until then nobody has the object read for it again.
const FAILED_FOR: Duration = Duration::from_secs(60);
/// How long a recipe is still made when nobody waits for it: who lost its connection comes back.
const UNWANTED_FOR: Duration = Duration::from_secs(10);
/// Memory that a recipe in the making is charged for each chunk: 37 bytes of nodes, and what the table and allocations of
/// nodes with few entries take.
const CHUNK_CHARGE_BYTES: u64 = 48;

/// What a holder says when it is asked for a recipe.
#[derive(Debug)]
pub enum RecipeState {
    /// There is none, or no room for it now.
    None,
    /// It is being made; to be asked again.
    Making,
    /// Here it is.
    Made(Arc<Recipe>),
}

/// One receiver's wish for a recipe. It is made, and stays here, as long as this is there.
#[derive(Debug, Default)]
pub struct RecipeWish(Option<Wisher>);

#[derive(Debug)]
struct Wisher(Arc<RecipeCache>);

impl Drop for Wisher {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.wishers -= 1;
        state.left = Instant::now();
    }
}

/// What all recipes of a process may take: memory, and threads that make them.
#[derive(Debug)]
pub(crate) struct RecipeBudget {
    making_max: usize,
    bytes_max: u64,
    failed_for: Duration,
    unwanted_for: Duration,
    making: AtomicUsize,
    bytes: AtomicU64,
    /// Caches that have made one, some of which may be dropped by now.
    made: Mutex<Vec<Weak<RecipeCache>>>,
}

impl RecipeBudget {
    /// At most `making_max` are made at a time, and all together take at most `bytes_max`.
    fn new(making_max: usize, bytes_max: u64) -> RecipeBudget {
        RecipeBudget {
            making_max,
            bytes_max,
            failed_for: FAILED_FOR,
            unwanted_for: UNWANTED_FOR,
            making: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            made: Mutex::default(),
        }
    }

    /// That of this process: [`RECIPES_MAKING_MAX`] and [`RECIPES_BYTES_MAX`].
    pub(crate) fn of_process() -> Arc<RecipeBudget> {
        static BUDGET: LazyLock<Arc<RecipeBudget>> =
            LazyLock::new(|| Arc::new(RecipeBudget::new(RECIPES_MAKING_MAX, RECIPES_BYTES_MAX)));
        BUDGET.clone()
    }

    fn take_turn(self: &Arc<Self>) -> Option<Turn> {
        let one_more = |making| (making < self.making_max).then_some(making + 1);
        self.making.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_more).ok()?;
        Some(Turn(self.clone()))
    }

    fn made(&self) -> MutexGuard<'_, Vec<Weak<RecipeCache>>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn register(&self, cache: &Arc<RecipeCache>) {
        let mut made = self.made();
        made.retain(|other| other.strong_count() > 0 && !std::ptr::eq(other.as_ptr(), &raw const **cache));
        made.push(Arc::downgrade(cache));
    }

    /// Drops the recipe that nobody has wished for longest; false if all are wished for.
    fn drop_idle(&self) -> bool {
        let caches: Vec<Arc<RecipeCache>> = self.made().iter().filter_map(Weak::upgrade).collect();
        let mut idle: Vec<_> = caches.iter().filter_map(|cache| Some((cache.idle_since()?, cache))).collect();
        idle.sort_unstable_by_key(|(since, _)| *since);
        idle.iter().any(|(_, cache)| cache.drop_if_idle())
    }
}

/// Bytes of memory that recipes take in this process.
pub(crate) fn recipe_bytes() -> u64 {
    RecipeBudget::of_process().bytes.load(Ordering::Acquire)
}

/// One of the threads that make recipes.
#[derive(Debug)]
struct Turn(Arc<RecipeBudget>);

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.making.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Memory of one recipe, charged to the budget.
#[derive(Debug)]
struct Charge {
    budget: Arc<RecipeBudget>,
    bytes: u64,
}

impl Charge {
    /// Makes it `bytes`; false if there is no room, even without the recipes that nobody wishes for.
    fn set(&mut self, bytes: u64) -> bool {
        while bytes > self.bytes {
            let more = bytes - self.bytes;
            let with_more = |all: u64| all.checked_add(more).filter(|all| *all <= self.budget.bytes_max);
            if self.budget.bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, with_more).is_ok() {
                self.bytes = bytes;
            } else if !self.budget.drop_idle() {
                return false;
            }
        }
        self.budget.bytes.fetch_sub(self.bytes - bytes, Ordering::AcqRel);
        self.bytes = bytes;
        true
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// The recipe of one object, made when it is first asked for.
#[derive(Debug)]
pub struct RecipeCache {
    budget: Arc<RecipeBudget>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Receivers that wait for it or were given it, and are still here.
    wishers: usize,
    /// When the last of them left.
    left: Instant,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Empty,
    Making,
    Made {
        recipe: Arc<Recipe>,
        /// Given back with it.
        _charge: Charge,
    },
    /// It could not be made, then.
    Failed(Instant),
}

impl State {
    /// It is made, nobody wishes for it, and nobody has it.
    fn is_idle(&self) -> bool {
        let is_let_go = matches!(&self.stage, Stage::Made { recipe, .. } if Arc::strong_count(recipe) == 1);
        is_let_go && self.wishers == 0
    }
}

impl Default for RecipeCache {
    fn default() -> RecipeCache {
        RecipeCache::new(RecipeBudget::of_process())
    }
}

impl RecipeCache {
    /// Empty; what it takes is charged to `budget`.
    fn new(budget: Arc<RecipeBudget>) -> RecipeCache {
        let state = State { wishers: 0, left: Instant::now(), stage: Stage::Empty };
        RecipeCache { budget, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The recipe, if it is made; else has it made by `make` on a thread of its own, unless others did or too many are being made.
    /// Waits for nothing. If `make` fails there is none for a minute: who fetches the object instead hears what is wrong with it.
    pub fn ask(
        self: &Arc<Self>,
        wish: &mut RecipeWish,
        make: impl FnOnce(&mut RecipeMaker) -> Result<Recipe> + Send + 'static,
    ) -> RecipeState {
        let mut state = self.state();
        self.note(wish, &mut state);
        match &state.stage {
            Stage::Made { recipe, .. } => return RecipeState::Made(recipe.clone()),
            Stage::Making => return RecipeState::Making,
            Stage::Failed(since) if since.elapsed() < self.budget.failed_for => return RecipeState::None,
            Stage::Failed(_) | Stage::Empty => {}
        }
        let Some(turn) = self.budget.take_turn() else { return RecipeState::None };
        state.stage = Stage::Making;
        drop(state);
        let mut maker = RecipeMaker::new(self.clone(), turn);
        let work = move || {
            let result = make(&mut maker);
            maker.finish(result);
        };
        match thread::Builder::new().name("recipe".into()).spawn(work) {
            Ok(_) => RecipeState::Making,
            Err(_) => RecipeState::None,
        }
    }

    fn note(self: &Arc<Self>, wish: &mut RecipeWish, state: &mut State) {
        if wish.0.is_none() {
            state.wishers += 1;
            wish.0 = Some(Wisher(self.clone()));
        }
    }

    /// The recipe, if it is here now; then it stays as long as `wish`. Never has it made.
    pub fn made_for(self: &Arc<Self>, wish: &mut RecipeWish) -> Option<Arc<Recipe>> {
        let mut state = self.state();
        let Stage::Made { recipe, .. } = &state.stage else { return None };
        let recipe = recipe.clone();
        self.note(wish, &mut state);
        Some(recipe)
    }

    /// The object was put once more: what kept its recipe from being made may be over.
    pub fn forget_failure(&self) {
        let mut state = self.state();
        if matches!(state.stage, Stage::Failed(_)) {
            state.stage = Stage::Empty;
        }
    }

    /// The recipe, if it is here now.
    pub fn made(&self) -> Option<Arc<Recipe>> {
        match &self.state().stage {
            Stage::Made { recipe, .. } => Some(recipe.clone()),
            _ => None,
        }
    }

    /// Since when nobody has wished for what is here; `None` if somebody does, or there is nothing.
    fn idle_since(&self) -> Option<Instant> {
        let state = self.state();
        state.is_idle().then_some(state.left)
    }

    fn drop_if_idle(&self) -> bool {
        let mut state = self.state();
        let is_idle = state.is_idle();
        if is_idle {
            state.stage = Stage::Empty;
        }
        is_idle
    }
}

/// Makes one recipe, within the budget and as long as somebody wishes for it.
#[derive(Debug)]
pub struct RecipeMaker {
    cache: Arc<RecipeCache>,
    charge: Option<Charge>,
    /// What becomes of the cache if nothing else is said.
    end: Option<Stage>,
    _turn: Turn,
}

impl RecipeMaker {
    fn new(cache: Arc<RecipeCache>, turn: Turn) -> RecipeMaker {
        let charge = Some(Charge { budget: cache.budget.clone(), bytes: 0 });
        RecipeMaker { cache, charge, end: None, _turn: turn }
    }

    /// [`Recipe::read`], which ends with an error when nobody waits, `is_wanted` is false, or there is no room.
    pub fn read(
        &mut self,
        size_bytes: u64,
        profile: Profile,
        is_wanted: &dyn Fn() -> bool,
        read: &mut dyn FnMut(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Recipe> {
        let chunks = Cell::new(0u64);
        let mut read_on = |offset: u64, out: &mut [u8]| {
            self.go_on(is_wanted(), chunks.get())?;
            read(offset, out)
        };
        Recipe::read(size_bytes, profile, &mut read_on, &mut |_| chunks.set(chunks.get() + 1))
    }

    fn go_on(&mut self, is_wanted: bool, chunks: u64) -> Result<()> {
        let is_awaited = {
            let state = self.cache.state();
            state.wishers > 0 || state.left.elapsed() < self.cache.budget.unwanted_for
        };
        if !is_wanted || !is_awaited {
            self.end = Some(Stage::Empty);
            return Err(Error::new(ErrorKind::Interrupted, "nobody waits for the recipe any more"));
        }
        self.charge(chunks.saturating_mul(CHUNK_CHARGE_BYTES))
    }

    fn charge(&mut self, bytes: u64) -> Result<()> {
        if self.charge.as_mut().is_some_and(|charge| charge.set(bytes)) {
            return Ok(());
        }
        self.end = Some(Stage::Failed(Instant::now()));
        Err(Error::new(ErrorKind::Refused, "there is no memory for one more recipe"))
    }

    fn finish(&mut self, result: Result<Recipe>) {
        let fitting = result.and_then(|recipe| self.charge(recipe.bytes()).map(|()| recipe));
        // Dropped without an end, it has failed.
        if let (Ok(recipe), Some(charge)) = (fitting, self.charge.take()) {
            self.end = Some(Stage::Made { recipe: Arc::new(recipe), _charge: charge });
        }
    }
}

impl Drop for RecipeMaker {
    fn drop(&mut self) {
        let end = self.end.take().unwrap_or_else(|| Stage::Failed(Instant::now()));
        let is_made = matches!(end, Stage::Made { .. });
        self.cache.state().stage = end;
        if is_made {
            self.cache.budget.register(&self.cache);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    const SIZE_BYTES: u64 = 4 << 20;

    /// A budget whose recipes are unwanted at once when nobody waits.
    fn budget(making_max: usize, bytes_max: u64) -> Arc<RecipeBudget> {
        let unwanted_for = Duration::ZERO;
        Arc::new(RecipeBudget { unwanted_for, ..RecipeBudget::new(making_max, bytes_max) })
    }

    fn cache(budget: &Arc<RecipeBudget>) -> Arc<RecipeCache> {
        Arc::new(RecipeCache::new(budget.clone()))
    }

    /// Counts how often it is begun; reads once `gate` says so, and each piece only when it says so again.
    fn make(
        begun: &Arc<AtomicUsize>,
        gate: mpsc::Receiver<()>,
    ) -> impl FnOnce(&mut RecipeMaker) -> Result<Recipe> + Send + use<> {
        let begun = begun.clone();
        move |maker| {
            begun.fetch_add(1, Ordering::AcqRel);
            let mut state = 1u64;
            let mut fill = |_: u64, out: &mut [u8]| {
                let _ = gate.recv();
                out.fill_with(|| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (state >> 56) as u8
                });
                Ok(())
            };
            maker.read(SIZE_BYTES, Profile::default(), &|| true, &mut fill)
        }
    }

    fn open_gate() -> mpsc::Receiver<()> {
        mpsc::channel().1
    }

    /// Asks until it is made, or is not going to be.
    fn settle(cache: &Arc<RecipeCache>, wish: &mut RecipeWish, begun: &Arc<AtomicUsize>) -> RecipeState {
        loop {
            match cache.ask(wish, make(begun, open_gate())) {
                RecipeState::Making => thread::sleep(Duration::from_millis(1)),
                settled => return settled,
            }
        }
    }

    fn wait_for(condition: impl Fn() -> bool) {
        while !condition() {
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Threat model: however many ask, one thread makes the recipe of an object, and a few those of all; who comes too many hears
    /// that there is none.
    #[test]
    fn many_who_ask_have_it_made_once() {
        let budget = budget(2, u64::MAX);
        let begun = Arc::default();
        let gates: Vec<_> = (0..3).map(|_| mpsc::channel()).collect();
        let caches: Vec<_> = (0..3).map(|_| cache(&budget)).collect();
        let mut wishes: Vec<RecipeWish> = Vec::new();
        let mut states = Vec::new();
        // Each waits at its gate until all have asked.
        let mut closed = Vec::new();
        for ((opener, gate), cache) in gates.into_iter().zip(&caches) {
            closed.push(opener);
            let mut gate = Some(gate);
            for _ in 0..50 {
                let mut wish = RecipeWish::default();
                let gate = gate.take().unwrap_or_else(open_gate);
                states.push(matches!(cache.ask(&mut wish, make(&begun, gate)), RecipeState::None));
                wishes.push(wish);
            }
        }
        let refused = states.iter().filter(|is_none| **is_none).count();
        assert_eq!((refused, budget.making.load(Ordering::Acquire)), (50, 2));
        wait_for(|| begun.load(Ordering::Acquire) == 2);
        drop(closed);
        for (cache, wish) in caches.iter().zip(wishes.iter_mut().step_by(50)) {
            // A turn is given back after the recipe is to be seen.
            wait_for(|| budget.making.load(Ordering::Acquire) < 2);
            assert!(matches!(settle(cache, wish, &begun), RecipeState::Made(_)));
        }
        assert_eq!(begun.load(Ordering::Acquire), 3, "each was made once");
    }

    /// Threat model: an object that cannot be read through is not read again for each who asks, but for one a minute, or when it was
    /// put once more; and it can be fetched without a recipe meanwhile (design 9).
    #[test]
    fn a_failure_is_remembered() {
        let budget = budget(2, u64::MAX);
        let cache = cache(&budget);
        let failing = |begun: &Arc<AtomicUsize>| {
            let begun = begun.clone();
            move |_: &mut RecipeMaker| {
                begun.fetch_add(1, Ordering::AcqRel);
                Err(Error::new(ErrorKind::Changed, "it changed"))
            }
        };
        let begun = Arc::default();
        let fail = |failures: usize| {
            let mut refused = 0;
            while refused < 20 {
                match cache.ask(&mut RecipeWish::default(), failing(&begun)) {
                    RecipeState::Making => thread::sleep(Duration::from_millis(1)),
                    RecipeState::None => refused += 1,
                    made @ RecipeState::Made(_) => panic!("{made:?}"),
                }
            }
            assert_eq!(begun.load(Ordering::Acquire), failures);
            wait_for(|| budget.making.load(Ordering::Acquire) == 0);
        };
        fail(1);
        cache.forget_failure();
        fail(2);
        if let Stage::Failed(since) = &mut cache.state().stage {
            *since = Instant::now().checked_sub(FAILED_FOR).unwrap();
        }
        let mut wish = RecipeWish::default();
        assert!(matches!(settle(&cache, &mut wish, &begun), RecipeState::Made(_)));
        cache.forget_failure();
        assert!(cache.made().is_some(), "what was made stays");
    }

    /// Threat model: whoever asks and hangs up leaves no thread behind, and the next one starts afresh.
    #[test]
    fn nobody_reads_for_who_has_gone() {
        let budget = budget(1, u64::MAX);
        let cache = cache(&budget);
        let begun = Arc::default();
        let (gate, gated) = mpsc::channel();
        let mut wish = RecipeWish::default();
        cache.ask(&mut wish, make(&begun, gated));
        wait_for(|| begun.load(Ordering::Acquire) == 1);
        gate.send(()).unwrap();
        drop(wish);
        // It waits at the gate, or has found that nobody waits.
        let _ = gate.send(());
        wait_for(|| budget.making.load(Ordering::Acquire) == 0);
        assert!(gate.send(()).is_err(), "it was not read to its end");
        assert!(matches!(cache.state().stage, Stage::Empty));
        let mut wish = RecipeWish::default();
        assert!(matches!(settle(&cache, &mut wish, &begun), RecipeState::Made(_)));
        assert_eq!(begun.load(Ordering::Acquire), 2);
    }

    /// Limits: recipes take no more memory than they may. One that nobody wishes for gives way, one that somebody does stays; what
    /// is dropped is given back.
    #[test]
    fn memory_is_bounded() {
        let begun = Arc::default();
        let alone = budget(1, u64::MAX);
        let mut wish = RecipeWish::default();
        assert!(matches!(settle(&cache(&alone), &mut wish, &begun), RecipeState::Made(_)));
        let one = alone.bytes.load(Ordering::Acquire);
        // Chunks are somewhat longer than the average that their profile names.
        assert!(one > SIZE_BYTES / u64::from(Profile::default().average_bytes()) * 36 / 2, "{one}");
        drop(wish);
        assert_eq!(alone.bytes.load(Ordering::Acquire), 0);
        let budget = budget(4, 5 * one / 2);
        let caches: Vec<_> = (0..3).map(|_| cache(&budget)).collect();
        let mut wishes: Vec<RecipeWish> = (0..3).map(|_| RecipeWish::default()).collect();
        let ask = |index: usize, wishes: &mut Vec<RecipeWish>| {
            matches!(settle(&caches[index], &mut wishes[index], &begun), RecipeState::Made(_))
        };
        assert!(ask(0, &mut wishes) && ask(1, &mut wishes));
        assert!(!ask(2, &mut wishes), "there is no room for a third");
        assert!(caches[0].made().is_some() && caches[1].made().is_some());
        caches[2].state().stage = Stage::Empty;
        wishes[1] = RecipeWish::default();
        assert!(ask(2, &mut wishes));
        assert!(caches[1].made_for(&mut RecipeWish::default()).is_none(), "looking has nothing made");
        let is_made: Vec<bool> = caches.iter().map(|cache| cache.made().is_some()).collect();
        assert_eq!(is_made, [true, false, true]);
        assert!(budget.bytes.load(Ordering::Acquire) <= budget.bytes_max);
    }
}
