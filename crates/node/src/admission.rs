//! Who may have what `put` shares, and what each side is told: a receiver hears nothing that it has not proven a right
//! to know, the user who shares hears everything, but not more often than can be read.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use dray_core::hash_tree::{Geometry, PairStore, Subtree};
use dray_core::message::{ObjectName, Open};
use dray_core::rights::Secret;
use dray_core::store::{Extent, Share, Standing, StoredObject};
use dray_core::{Error, ErrorKind, NodeId, Oid, Result};
use dray_transfer::direct::ClearTokens;
use dray_transfer::holder::{ClearGrantor, Held, Provider, RecipeCache, RecipeState, RecipeWish, StoredHeld};
use dray_transfer::recipe::Recipe;
use dray_transfer::transport::Security;

use crate::put::unix_s;
use crate::{Event, Observer, lock};

/// A node that comes back within this time is not announced again: it has several connections.
const ANNOUNCE_AGAIN: Duration = Duration::from_secs(60);
/// Nodes remembered for that.
const ANNOUNCED_MAX: usize = 1024;
/// A receiver that has no connection for this long has gone: a lost one comes back sooner.
const GONE_AFTER: Duration = Duration::from_secs(2);
/// Refusals told one by one in a second; the rest is counted.
const TURNED_AWAY_MAX: u32 = 10;

/// Serves one object to those who have a right to it.
pub(crate) struct Doorkeeper {
    pub(crate) object: Arc<dyn StoredObject>,
    pub(crate) share: Share,
    /// This node.
    pub(crate) node: NodeId,
    /// Tokens for clear-text data, if the configuration allows that.
    pub(crate) tokens: Option<Arc<ClearTokens>>,
    pub(crate) notices: Arc<Notices>,
    /// The object's recipe, for all receivers.
    pub(crate) recipe: Arc<RecipeCache>,
    /// Set when the object is no longer shared, for those who have it open.
    pub(crate) ended: Arc<AtomicBool>,
}

/// What the user is told, and what the receiver.
pub(crate) struct Refusal {
    pub(crate) reason: String,
    pub(crate) answer: Error,
}

/// Whether who asks `open` may have `shared`: an object, or a directory, and who may have it. `None` is an object that is not here, which
/// cannot be told from one to which the asker shows no right, not even by the time the answer takes.
pub(crate) fn admit(
    shared: Option<(ObjectName, &Share)>,
    node: NodeId,
    open: &Open,
    security: &Security,
) -> Result<(), Refusal> {
    // Both questions are asked of everybody.
    let decoy = Share { secret: Some(Secret::from_bytes([0; 16])), ..Share::default() };
    let (object, share) = shared.map_or((None, &decoy), |(object, share)| (Some(object), share));
    let is_named = object.is_some_and(|object| open.object == object);
    let is_proven = share.secret.as_ref().is_none_or(|secret| {
        let proof = security.expected_proof(secret, node, &open.object);
        open.proof.as_ref().is_some_and(|shown| proof.matches(shown))
    });
    if !is_named || !is_proven {
        let reason = match (is_named, &open.proof) {
            (false, _) => format!("{} is not shared here", open.object),
            (true, None) => "it showed no secret; the object is private".to_owned(),
            (true, Some(_)) => "its secret is wrong".to_owned(),
        };
        let answer = Error::new(ErrorKind::Refused, "no such object here, or the ticket's secret is wrong")
            .advise("use the whole ticket, as `dray put` printed it");
        return Err(Refusal { reason, answer });
    }
    let right = Right { end: share.expires_unix_s, ended: Arc::default() };
    right.check().map_err(|answer| Refusal { reason: answer.to_string(), answer })
}

impl Doorkeeper {
    fn right(&self) -> Right {
        Right { end: self.share.expires_unix_s, ended: self.ended.clone() }
    }
}

impl Provider for Doorkeeper {
    fn open(&self, open: &Open, security: Option<&Security>) -> Result<Arc<dyn Held>> {
        let security =
            security.ok_or_else(|| Error::new(ErrorKind::Refused, "this channel proves nobody"))?;
        let shared = Some((ObjectName::Oid(self.object.oid()), &self.share));
        if let Err(refusal) = admit(shared, self.node, open, security) {
            self.notices.turned_away(refusal.reason);
            return Err(refusal.answer);
        }
        self.notices.serving(security.peer, self.object.oid());
        let name = self.share.name.clone().map(|name| name.to_vec());
        Ok(Arc::new(Admitted {
            held: StoredHeld::new(self.object.clone(), name).with_recipe(self.recipe.clone()),
            right: self.right(),
            pairs: ToldPairs { object: self.object.clone(), notices: self.notices.clone() },
            visit: Notices::visit(&self.notices, security.peer, self.object.size_bytes()),
        }))
    }

    fn clear_data(&self) -> Option<ClearGrantor> {
        self.tokens.as_ref().and_then(|tokens| tokens.grant().ok())
    }
}

/// The end of a right.
#[derive(Clone)]
pub(crate) struct Right {
    /// Seconds since 1970.
    pub(crate) end: Option<u64>,
    pub(crate) ended: Arc<AtomicBool>,
}

impl Right {
    /// `Refused` once it has ended.
    pub(crate) fn check(&self) -> Result<()> {
        if self.ended.load(Ordering::Acquire) {
            return Err(Error::new(ErrorKind::Refused, "what the ticket names is no longer shared")
                .advise("ask for it to be put again, and for the new ticket"));
        }
        if self.end.is_some_and(|end| unix_s() >= end) {
            return Err(
                Error::new(ErrorKind::Refused, "the ticket has expired").advise("ask for a new ticket")
            );
        }
        Ok(())
    }
}

/// The object in the hands of one receiver: for as long as its right lasts, and without a word about this machine.
struct Admitted {
    held: StoredHeld,
    right: Right,
    pairs: ToldPairs,
    visit: Visit,
}

impl Held for Admitted {
    fn geometry(&self) -> Geometry {
        self.held.geometry()
    }
    fn oid(&self) -> Option<Oid> {
        self.held.oid()
    }
    fn name(&self) -> Option<Vec<u8>> {
        self.held.name()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        self.right.check()?;
        self.pairs.notices.tell(self.held.read_at(offset, out))
    }
    fn extent_at(&self, offset: u64, end: u64) -> Result<Extent> {
        self.right.check()?;
        self.pairs.notices.tell(self.held.extent_at(offset, end))
    }
    fn standing(&self) -> Standing {
        self.held.standing()
    }
    fn mismatch(&self) -> Error {
        let error = self.held.mismatch();
        self.pairs.notices.trouble(&error);
        for_strangers(error.kind())
    }
    fn recheck(&self, groups: Subtree) -> Result<bool> {
        let is_mended = self.pairs.notices.tell(self.held.recheck(groups))?;
        if is_mended {
            self.pairs.notices.warn(
                "the hash tree kept beside the data was damaged; it has been built again from the data"
                    .into(),
            );
        }
        Ok(is_mended)
    }
    fn pairs(&self) -> Option<&dyn PairStore> {
        Some(&self.pairs)
    }
    fn raw_file(&self) -> Option<BorrowedFd<'_>> {
        self.held.raw_file()
    }
    fn compare(&self, subtrees: &[Subtree]) -> Result<Vec<u8>> {
        self.right.check()?;
        self.pairs.notices.tell(self.held.compare(subtrees))
    }
    fn ended(&self) -> Option<Error> {
        self.right.check().err()
    }
    fn recipe(self: Arc<Self>, wish: &mut RecipeWish) -> Result<RecipeState> {
        self.right.check()?;
        // Whoever makes it has the object, and not the visit: that ends with the connection.
        let right = self.right.clone();
        let notices = self.pairs.notices.clone();
        let on_trouble = move |error: &Error| notices.trouble(error);
        Ok(self.held.recipe_while(wish, move || right.check().is_ok(), on_trouble))
    }
    fn made_recipe(&self, wish: &mut RecipeWish) -> Result<Option<Arc<Recipe>>> {
        self.right.check()?;
        self.held.made_recipe(wish)
    }
    fn sent(&self, bytes: u64) {
        self.visit.sent_bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The object's outboard, with errors fit for strangers.
struct ToldPairs {
    object: Arc<dyn StoredObject>,
    notices: Arc<Notices>,
}

impl PairStore for ToldPairs {
    fn read_pairs(&self, first_index: u64, out: &mut [u8]) -> Result<()> {
        self.notices.tell(self.object.pairs().read_pairs(first_index, out))
    }
    fn write_at(&self, _: u64, _: &[u8]) -> Result<()> {
        Err(Error::new(ErrorKind::Internal, "what is served is not written"))
    }
}

/// Tells the user who is served and who is not.
pub(crate) struct Notices {
    observer: Arc<dyn Observer>,
    state: Mutex<NoticesState>,
}

#[derive(Default)]
struct NoticesState {
    announced: HashMap<NodeId, Instant>,
    visitors: HashMap<NodeId, Visitor>,
    refusals: Limiter,
    last_trouble: Option<String>,
}

/// A receiver that was let in.
#[derive(Default)]
struct Visitor {
    /// What it holds open.
    open: usize,
    /// What was sent to it over all its connections.
    sent_bytes: Arc<AtomicU64>,
    /// The object's size.
    size_bytes: u64,
    /// Why a connection of it broke, if none came since.
    lost: Option<String>,
    /// When its last connection ended.
    left: Option<Instant>,
}

/// One receiver holds the object open; ended when this is dropped.
struct Visit {
    notices: Arc<Notices>,
    node: NodeId,
    sent_bytes: Arc<AtomicU64>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        if let Some(visitor) = self.notices.state().visitors.get_mut(&self.node) {
            visitor.open = visitor.open.saturating_sub(1);
            visitor.left = (visitor.open == 0).then(Instant::now);
        }
    }
}

impl Notices {
    pub(crate) fn new(observer: Arc<dyn Observer>) -> Notices {
        Notices { observer, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, NoticesState> {
        lock(&self.state)
    }

    fn serving(&self, node: NodeId, oid: Oid) {
        let now = Instant::now();
        let mut state = self.state();
        state.announced.retain(|_, last| now.duration_since(*last) < ANNOUNCE_AGAIN);
        if state.announced.len() >= ANNOUNCED_MAX {
            state.announced.clear();
        }
        let is_new = state.announced.insert(node, now).is_none();
        drop(state);
        if is_new {
            self.observer.event(Event::Serving { node: node.to_string(), oid });
        }
    }

    fn visit(notices: &Arc<Notices>, node: NodeId, size_bytes: u64) -> Visit {
        let mut sent_bytes = Arc::default();
        let mut state = notices.state();
        if state.visitors.len() < ANNOUNCED_MAX || state.visitors.contains_key(&node) {
            let visitor = state.visitors.entry(node).or_default();
            (visitor.open, visitor.lost, visitor.left) = (visitor.open + 1, None, None);
            visitor.size_bytes = size_bytes;
            sent_bytes = visitor.sent_bytes.clone();
        }
        drop(state);
        Visit { notices: notices.clone(), node, sent_bytes }
    }

    /// A connection of `node` broke.
    pub(crate) fn lost(&self, node: NodeId, error: &Error) {
        if let Some(visitor) = self.state().visitors.get_mut(&node) {
            visitor.lost = Some(error.to_string());
        }
    }

    /// Tells of the receivers that have gone; at the `end` of the share, of those too that may come back, and of those
    /// that are cut off.
    fn tell_gone(&self, end: bool) {
        let is_gone = |visitor: &Visitor| visitor.left.is_some_and(|left| left.elapsed() >= GONE_AFTER);
        let gone: Vec<_> = self.state().visitors.extract_if(|_, visitor| end || is_gone(visitor)).collect();
        for (node, mut visitor) in gone {
            if visitor.open > 0 {
                visitor.lost = Some("sharing ended while it was connected".to_owned());
            }
            self.observer.event(Event::Served {
                node: node.to_string(),
                sent_bytes: visitor.sent_bytes.load(Ordering::Relaxed),
                size_bytes: visitor.size_bytes,
                lost: visitor.lost,
            });
        }
    }

    /// Nobody has the object open, and nobody is remembered who had.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state().visitors.is_empty()
    }

    /// The share has ended; says how many receivers that cuts off.
    pub(crate) fn finish(&self) {
        let cut_off = self.state().visitors.values().filter(|visitor| visitor.open > 0).count();
        self.tell_gone(true);
        match cut_off {
            0 => {}
            1 => self.warn("1 receiver was cut off by this end".into()),
            many => self.warn(format!("{many} receivers were cut off by this end")),
        }
    }

    /// A receiver was refused.
    pub(crate) fn turned_away(&self, reason: String) {
        self.tick();
        if self.state().refusals.take(Instant::now()) {
            self.observer.event(Event::TurnedAway { reason });
        }
    }

    /// Says how many refusals were not told, once their second is over, and which receivers have gone; called now and
    /// then. False if there are refusals left to tell.
    pub(crate) fn tick(&self) -> bool {
        self.tell_gone(false);
        let mut state = self.state();
        let held_back = state.refusals.overdue(Instant::now());
        let is_all_told = state.refusals.held_back == 0;
        drop(state);
        if let Some(count) = held_back {
            self.observer.event(Event::TurnedAway { reason: format!("{count} more in one second") });
        }
        is_all_told
    }

    /// A warning about the share as a whole.
    pub(crate) fn warn(&self, text: String) {
        self.observer.event(Event::Warning(text));
    }

    /// Tells the user all of an error, once, and leaves what a stranger may know: the kind, and no path.
    pub(crate) fn tell<T>(&self, result: Result<T>) -> Result<T> {
        result.map_err(|error| {
            self.trouble(&error);
            for_strangers(error.kind())
        })
    }

    /// It could be sent: if it cannot once more, that is told once more.
    pub(crate) fn well(&self) {
        self.state().last_trouble = None;
    }

    /// The object cannot be sent as it is: told once, with what to do.
    pub(crate) fn trouble(&self, error: &Error) {
        let text = match error.advice() {
            Some(advice) => format!("{error}; {advice}"),
            None => error.to_string(),
        };
        let is_new = self.state().last_trouble.replace(text.clone()).as_ref() != Some(&text);
        if is_new {
            self.warn(text);
        }
    }
}

fn for_strangers(kind: ErrorKind) -> Error {
    match kind {
        ErrorKind::Changed => Error::new(kind, "the file was changed after it was put")
            .advise("ask for it to be put again, and for the new ticket"),
        ErrorKind::Damaged | ErrorKind::VerificationFailed => {
            Error::new(ErrorKind::Damaged, "the holder's copy is damaged")
                .advise("ask for it to be put again")
        }
        _ => Error::new(ErrorKind::Damaged, "the holder cannot read its copy")
            .advise("ask whoever runs `dray put` what it says"),
    }
}

/// Lets a few pass in a second and counts the others.
#[derive(Default)]
struct Limiter {
    began: Option<Instant>,
    passed: u32,
    held_back: u64,
}

impl Limiter {
    const WINDOW: Duration = Duration::from_secs(1);

    fn take(&mut self, now: Instant) -> bool {
        if self.began.is_none_or(|began| now.duration_since(began) >= Self::WINDOW) {
            (self.began, self.passed) = (Some(now), 0);
        }
        let passes = self.passed < TURNED_AWAY_MAX;
        if passes {
            self.passed += 1;
        } else {
            self.held_back += 1;
        }
        passes
    }

    /// How many were held back in a second that is over.
    fn overdue(&mut self, now: Instant) -> Option<u64> {
        let is_over = self.began.is_some_and(|began| now.duration_since(began) >= Self::WINDOW);
        (is_over && self.held_back > 0).then(|| std::mem::take(&mut self.held_back))
    }
}

#[cfg(test)]
mod tests {
    use dray_core::rights::Secret;
    use dray_core::rights::{Proof, ProofContext};
    use dray_core::store::Store;
    use dray_store::local::LocalStore;

    use super::*;

    const HOLDER: [u8; 32] = [1; 32];

    struct Bed {
        dir: tempfile::TempDir,
        doorkeeper: Doorkeeper,
        heard: Arc<Mutex<Vec<Event>>>,
        security: Security,
    }

    impl Bed {
        fn new(secret: Option<Secret>, expires_unix_s: Option<u64>) -> Bed {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("a private place");
            std::fs::write(&path, vec![7; 300_000]).unwrap();
            let store = LocalStore::open(&dir.path().join("store")).unwrap();
            let object = store.put_file(&path, &|_| {}).unwrap();
            let heard: Arc<Mutex<Vec<Event>>> = Arc::default();
            let hearing = heard.clone();
            let notices = Notices::new(Arc::new(move |event| hearing.lock().unwrap().push(event)));
            let doorkeeper = Doorkeeper {
                recipe: Arc::default(),
                ended: Arc::default(),
                object,
                share: Share { secret, expires_unix_s, ..Share::default() },
                node: NodeId::from_bytes(HOLDER),
                tokens: None,
                notices: Arc::new(notices),
            };
            let security = Security { peer: NodeId::from_bytes([2; 32]), exporter: [3; 32] };
            Bed { dir, doorkeeper, heard, security }
        }

        fn open(&self, object: ObjectName, secret: Option<Secret>) -> Result<Arc<dyn Held>> {
            let proof = secret.map(|secret| {
                let context = ProofContext {
                    exporter: self.security.exporter,
                    holder: NodeId::from_bytes(HOLDER),
                    receiver: self.security.peer,
                };
                Proof::new(&secret, &context, &object, 0..u64::MAX).as_bytes().to_vec().into()
            });
            self.doorkeeper.open(&Open { handle: 1, object, proof }, Some(&self.security))
        }

        fn object(&self) -> ObjectName {
            ObjectName::Oid(self.doorkeeper.object.oid())
        }

        fn heard(&self) -> Vec<Event> {
            std::mem::take(&mut *self.heard.lock().unwrap())
        }
    }

    fn refused(result: Result<Arc<dyn Held>>) -> (ErrorKind, String, Option<String>) {
        let error = result.err().unwrap();
        (error.kind(), error.to_string(), error.advice().map(str::to_owned))
    }

    /// Threat model: who has not proven the secret cannot tell "not here" from "not for you" from "no longer".
    #[test]
    fn a_stranger_hears_one_answer_only() {
        let (right, wrong) = (Secret::from_bytes([4; 16]), Secret::from_bytes([5; 16]));
        let mut answers = Vec::new();
        for expires_unix_s in [None, Some(1)] {
            let bed = Bed::new(Some(right), expires_unix_s);
            let other = ObjectName::Oid(Oid::of(b"another"));
            answers.push(refused(bed.open(bed.object(), None)));
            answers.push(refused(bed.open(bed.object(), Some(wrong))));
            answers.push(refused(bed.open(other, None)));
            answers.push(refused(bed.open(other, Some(right))));
            // The user is told which it was.
            let reasons: Vec<String> = bed.heard().iter().map(|event| format!("{event:?}")).collect();
            for (reason, word) in reasons.iter().zip(["no secret", "is wrong", "not shared", "not shared"]) {
                assert!(reason.contains(word), "{reason}");
            }
        }
        assert_eq!(answers[0].0, ErrorKind::Refused);
        answers.dedup();
        assert_eq!(answers.len(), 1, "{answers:?}");
        let expired = Bed::new(Some(right), Some(1));
        let told = refused(expired.open(expired.object(), Some(right)));
        assert!(told.0 == ErrorKind::Refused && told.1.contains("expired"), "{told:?}");
        let public = Bed::new(None, None);
        assert!(public.open(public.object(), None).is_ok());
        assert_eq!(refused(public.open(ObjectName::Oid(Oid::of(b"another")), None)), answers[0]);
    }

    /// The same trouble is told once, and again if it went in between: a disk that is unplugged a second time.
    #[test]
    fn trouble_that_comes_back_is_told_again() {
        let told: Arc<Mutex<Vec<Event>>> = Arc::default();
        let hearing = told.clone();
        let notices = Notices::new(Arc::new(move |event| lock(&hearing).push(event)));
        let error = Error::new(ErrorKind::Changed, "it is gone");
        notices.trouble(&error);
        notices.trouble(&error);
        assert_eq!(lock(&told).len(), 1);
        notices.well();
        notices.trouble(&error);
        assert_eq!(lock(&told).len(), 2);
    }

    /// The user hears once that a receiver has gone, however many connections it had, and whether it was lost; a
    /// connection that came back instead of a broken one is no loss.
    #[test]
    fn who_has_gone_is_told_once() {
        let bed = Bed::new(None, None);
        let notices = &bed.doorkeeper.notices;
        let served = |bed: &Bed| -> Vec<Option<bool>> {
            let lost = |event| match event {
                Event::Served { lost, .. } => Some(Some(lost.is_some())),
                _ => None,
            };
            bed.heard().into_iter().filter_map(lost).collect()
        };
        let gone = |bed: &Bed| {
            notices.finish();
            served(bed)
        };
        let reset = Error::new(ErrorKind::Unreachable, "connection reset");
        let lanes = [bed.open(bed.object(), None).unwrap(), bed.open(bed.object(), None).unwrap()];
        notices.tick();
        assert_eq!(served(&bed), [], "still here");
        drop(lanes);
        assert_eq!(gone(&bed), [Some(false)]);
        assert_eq!(gone(&bed), [], "told once");
        drop(bed.open(bed.object(), None).unwrap());
        notices.lost(bed.security.peer, &reset);
        notices.tick();
        assert_eq!(bed.heard().len(), 0, "it may come back");
        drop(bed.open(bed.object(), None).unwrap());
        assert_eq!(gone(&bed), [Some(false)], "it came back");
        drop(bed.open(bed.object(), None).unwrap());
        notices.lost(bed.security.peer, &reset);
        assert_eq!(gone(&bed), [Some(true)]);
        let cut_off = bed.open(bed.object(), None).unwrap();
        assert_eq!(gone(&bed), [Some(true)], "the share ended under it");
        drop(cut_off);
        assert_eq!(gone(&bed), [], "told once");
    }

    /// The end of a connection does not say what a receiver has: what was sent to it in this visit is counted, over all
    /// its connections, and afresh for the next one.
    #[test]
    fn what_was_sent_is_counted() {
        let bed = Bed::new(None, None);
        let visit = |lanes: &[u64]| {
            let held: Vec<_> = lanes.iter().map(|_| bed.open(bed.object(), None).unwrap()).collect();
            held.iter().zip(lanes).for_each(|(held, bytes)| held.sent(*bytes));
            drop(held);
            bed.doorkeeper.notices.finish();
            let served = bed.heard().into_iter().find_map(|event| match event {
                Event::Served { sent_bytes, size_bytes, lost, .. } => Some((sent_bytes, size_bytes, lost)),
                _ => None,
            });
            served.unwrap()
        };
        assert_eq!(visit(&[0]), (0, 300_000, None));
        assert_eq!(visit(&[100_000, 5]), (100_005, 300_000, None));
        assert_eq!(visit(&[300_000]), (300_000, 300_000, None));
    }

    /// S6: a holder whose copy is damaged tells its own user too, once; the receiver hears of no path.
    #[test]
    fn damage_is_told_to_the_user() {
        let bed = Bed::new(None, None);
        let held = bed.open(bed.object(), None).unwrap();
        bed.heard();
        let errors = [held.mismatch(), held.mismatch()];
        let heard = bed.heard();
        assert_eq!(heard.len(), 1, "{heard:?}");
        let is_told = |text: &str| text.contains("a private place") && text.contains("put the file again");
        assert!(matches!(&heard[0], Event::Warning(text) if is_told(text)), "{heard:?}");
        for error in errors {
            assert!(error.kind() == ErrorKind::Changed && !error.to_string().contains('"'), "{error}");
        }
    }

    /// Design 14: a right that ends while bytes flow ends there, not at the next connection.
    #[test]
    fn a_right_that_ends_stops_what_is_open() {
        let bed = Bed::new(None, None);
        let admitted = |end| Admitted {
            held: StoredHeld::new(bed.doorkeeper.object.clone(), None),
            right: Right { end, ended: bed.doorkeeper.ended.clone() },
            pairs: ToldPairs {
                object: bed.doorkeeper.object.clone(),
                notices: bed.doorkeeper.notices.clone(),
            },
            visit: Notices::visit(&bed.doorkeeper.notices, bed.security.peer, 300_000),
        };
        let mut out = [0; 16];
        admitted(Some(unix_s() + 1000)).read_at(0, &mut out).unwrap();
        let ended = admitted(Some(unix_s()));
        assert_eq!(ended.read_at(0, &mut out).unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(ended.extent_at(0, 16).unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(ended.compare(&[]).unwrap_err().kind(), ErrorKind::Refused);
        assert!(ended.ended().is_some());
        // D10: so does the end of the share.
        let open = admitted(None);
        open.read_at(0, &mut out).unwrap();
        assert!(open.ended().is_none());
        bed.doorkeeper.ended.store(true, Ordering::Release);
        assert_eq!(open.read_at(0, &mut out).unwrap_err().kind(), ErrorKind::Refused);
        assert_eq!(open.extent_at(0, 16).unwrap_err().kind(), ErrorKind::Refused);
    }

    /// Threat model: an error of the holder's disk names no path to the receiver, and does to the user.
    #[test]
    fn a_fault_names_no_path() {
        let bed = Bed::new(None, None);
        let held = bed.open(bed.object(), None).unwrap();
        let path = bed.dir.path().join("a private place");
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(10).unwrap();
        bed.heard();
        for _ in 0..3 {
            let fault = held.read_at(200_000, &mut [0; 16]).unwrap_err();
            assert_eq!(fault.kind(), ErrorKind::Changed);
            let text = format!("{fault} {:?}", fault.advice());
            assert!(!text.contains("private") && !text.contains('/'), "{text}");
        }
        let heard = bed.heard();
        assert!(
            matches!(&heard[..], [Event::Warning(text)] if text.contains("a private place")),
            "{heard:?}"
        );
    }

    /// A receiver with eight connections is announced once, and a flood of refusals is counted, not printed.
    #[test]
    fn notices_can_be_read() {
        let bed = Bed::new(None, None);
        for _ in 0..8 {
            bed.open(bed.object(), None).unwrap();
        }
        assert_eq!(bed.heard().len(), 1);
        let mut limiter = Limiter::default();
        let start = Instant::now();
        let passed = (0..100).filter(|_| limiter.take(start)).count();
        assert_eq!((passed, limiter.overdue(start)), (10, None));
        let later = start + Duration::from_secs(1);
        assert_eq!(limiter.overdue(later), Some(90));
        assert_eq!(limiter.overdue(later), None);
        assert!(limiter.take(later));
    }
}
