//! What a daemon keeps, and why: pins, and objects that may be dropped when room is needed (D10, D13, design decision 11).
//! An object that only commands put has no retention: nothing here drops it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dray_core::limits::OBJECT_BYTES_MAX;
use dray_core::store::{Share, StoredObject};
use dray_core::{Error, ErrorKind, Oid, Result};
use minicbor::{Decode, Encode};
use rustix::fs::OFlags;

use super::extents::{identity, io_at, read_full_at, require_end};
use super::landing::{LONG_BYTES, Landing};
use super::record::Record;
use super::{LocalStore, LocalWriter, record};

/// Bytes copied at a time.
const COPY_BYTES: usize = 1 << 20;

/// Why an object is kept.
#[derive(Clone, PartialEq, Eq, Debug, Default, Encode, Decode)]
#[cbor(map)]
pub struct Retention {
    /// Since when it is shared until that is ended by name, seconds since 1970; `None` if it is not.
    #[n(0)]
    pub pinned_unix_s: Option<u64>,
    /// When it was last used, seconds since 1970: what was not used for longest is dropped first.
    #[n(1)]
    pub used_unix_s: u64,
    /// Who may have it from the daemon; `None` if it is only kept. Apart from the share of commands, so that a command
    /// that shares the same object in other ways changes nothing here.
    #[n(2)]
    pub share: Option<Share>,
}

/// An object with a retention.
#[derive(Clone, Debug)]
pub struct Retained {
    /// Its name.
    pub oid: Oid,
    /// Its size.
    pub size_bytes: u64,
    /// The user's file it lies in, if it is borrowed.
    pub borrowed_path: Option<PathBuf>,
    /// Why it is kept.
    pub retention: Retention,
    /// A daemon took its bytes in, and no command has since: they may be removed to make room.
    pub is_disposable: bool,
}

impl Retained {
    fn of(record: Record) -> Retained {
        Retained {
            oid: record.oid,
            size_bytes: record.size_bytes,
            borrowed_path: record.borrowed_path(),
            is_disposable: record.is_disposable(),
            retention: record.retention.unwrap_or_default(),
        }
    }
}

impl LocalStore {
    /// Every object with a retention, or that may be removed, in no particular order; and why of some it is not known whether they are
    /// among them.
    pub fn retained(&self) -> Result<(Vec<Retained>, Vec<Error>)> {
        let (mut retained, mut unknown) = (Vec::new(), Vec::new());
        for oid in self.place().object_names()? {
            let path = self.place().object(&oid).record;
            let read = record::read_small(&path)
                .and_then(|bytes| bytes.map(|bytes| Record::from_bytes(&bytes, &oid)).transpose());
            match read {
                Ok(Some(record)) if record.retention.is_some() || record.is_disposable() => {
                    retained.push(Retained::of(record));
                }
                // A folder without a record is no object.
                Ok(_) => {}
                Err(error) => unknown.push(error.context(format_args!("{path:?}"))),
            }
        }
        Ok((retained, unknown))
    }

    /// Sets why an object is kept, durably where a pin begins or ends, and returns what is known of it. `NotFound` if it is not here.
    pub fn retain(&self, oid: &Oid, retention: Option<Retention>) -> Result<Retained> {
        self.change_kept(oid, |record| {
            let is_durable = must_outlive_a_crash(record.retention.as_ref(), retention.as_ref());
            record.retention = retention;
            is_durable
        })
    }

    /// Ends who may have an object, by whomever that was said, and sets why it is still kept: in one write, durably. `NotFound` if it is not
    /// here.
    pub fn end_share(&self, oid: &Oid, left: Option<Retention>) -> Result<Retained> {
        self.change_kept(oid, |record| {
            (record.share, record.retention) = (None, left);
            true
        })
    }

    /// Forgets why an object was kept on which nobody counts any more. A crash may undo that: who finds it then finds nobody that
    /// counts on it. `NotFound` if it is not here.
    pub fn lapse(&self, oid: &Oid) -> Result<Retained> {
        self.change_kept(oid, |record| {
            record.retention = None;
            false
        })
    }

    /// `change` says whether what it does must be durable.
    fn change_kept(&self, oid: &Oid, change: impl FnOnce(&mut Record) -> bool) -> Result<Retained> {
        if self.place().lock_shared(oid)?.is_none() {
            return Err(super::not_found(oid));
        }
        let lock = self.place().lock(oid)?;
        let mut record = self.require_record(oid, &lock)?;
        let before = record.clone();
        let is_durable = change(&mut record);
        if record != before {
            self.write_record(&record, &lock, is_durable)?;
            if is_durable {
                super::sync_directories(&self.place().object(oid).folder)?;
            }
        }
        Ok(Retained::of(record))
    }

    /// Lets go of an object that nobody keeps any more: removes it if a daemon took its bytes in and no command has since, else
    /// forgets its retention alone. Looks at the record of this very moment. Says whether it was removed.
    pub fn let_go(&self, oid: &Oid) -> Result<bool> {
        if self.place().lock_shared(oid)?.is_none() {
            return Ok(false);
        }
        let lock = self.place().lock(oid)?;
        let Some(mut record) = self.read_record(oid, &lock)? else { return Ok(false) };
        if record.is_disposable() {
            return self.place().object(oid).remove(&lock);
        }
        if record.retention.take().is_some() {
            // Nobody counts on it, and a crash brings nobody back.
            self.write_record(&record, &lock, false)?;
        }
        Ok(false)
    }

    /// Removes the folders of objects that have no record: a kill left them in the middle of a put, and nobody was promised anything.
    /// Those whose lock is held are left for another time. How many bytes that gave back.
    pub fn remove_unrecorded(&self) -> Result<u64> {
        let at_once = self.clone().with_patience(Duration::ZERO);
        let mut bytes = 0;
        for oid in at_once.place().object_names()? {
            if !at_once.place().object(&oid).record.exists() {
                bytes += at_once.remove_if_unrecorded(&oid)?;
            }
        }
        Ok(bytes)
    }

    /// Looks again under the lock, which whoever puts holds from the first name in the folder to the record.
    fn remove_if_unrecorded(&self, oid: &Oid) -> Result<u64> {
        let paths = self.place().object(oid);
        let Ok(lock) = self.place().lock(oid) else { return Ok(0) };
        let record = std::fs::symlink_metadata(&paths.record);
        if !record.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
            return Ok(0);
        }
        let bytes = std::fs::symlink_metadata(&paths.data).map_or(0, |data| data.len());
        paths.remove(&lock)?;
        Ok(bytes)
    }

    /// Begins to take in bytes that may be removed again to make room, once nobody keeps them.
    pub fn take_in(&self) -> Result<LocalWriter> {
        LocalWriter::new(self.clone(), true)
    }

    /// Takes an open file of somebody else. If a name leads to it, it is referred to in place, as
    /// [`dray_core::store::Store::put_file`] does; a file without a name (unlinked, or in memory) is copied. `Usage` if it is no regular file or
    /// not open for reading. Its position does not count. `landing` is of this put alone.
    pub fn put_descriptor(
        &self,
        file: File,
        progress: &(dyn Fn(u64) + Sync),
        is_stopped: &(dyn Fn() -> bool + Sync),
        landing: &Landing<'_>,
    ) -> Result<Arc<dyn StoredObject>> {
        let link = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let path = std::fs::read_link(&link).map_err(|error| io_at("find the name of", &link, error))?;
        let metadata = file.metadata().map_err(|error| io_at("read", &path, error))?;
        let bad = |what: &str| {
            Err(Error::new(ErrorKind::Usage, format!("{path:?} {what}"))
                .advise("hand over a regular file that is open for reading; send other bytes as data"))
        };
        if !metadata.is_file() {
            return bad("is no regular file");
        }
        let flags = rustix::fs::fcntl_getfl(&file).map_err(|error| io_at("read", &path, error))?;
        if flags.contains(OFlags::PATH) || flags & OFlags::RWMODE == OFlags::WRONLY {
            return bad("is not open for reading");
        }
        if metadata.size() > OBJECT_BYTES_MAX {
            return bad("has more bytes than an object can have");
        }
        let before = identity(&metadata);
        if before.size_bytes == 0 {
            require_end(&file, &path, 0)?;
        }
        let is_named = std::fs::metadata(&path)
            .is_ok_and(|named| (named.dev(), named.ino()) == (metadata.dev(), metadata.ino()));
        // Looking for holes moves a position, and that of a descriptor handed over is its owner's, too. Where it may not be
        // opened again (it came from a process with more rights), moving is the lesser evil.
        let file = File::open(&link).unwrap_or(file);
        if is_named {
            return self.put_opened(file, before, &path, progress, is_stopped, landing);
        }
        self.copy_in(&file, &path, before.size_bytes, progress, is_stopped, landing)
    }

    fn copy_in(
        &self,
        file: &File,
        path: &Path,
        size_bytes: u64,
        progress: &(dyn Fn(u64) + Sync),
        is_stopped: &(dyn Fn() -> bool + Sync),
        landing: &Landing<'_>,
    ) -> Result<Arc<dyn StoredObject>> {
        let mut writer = self.take_in()?;
        let mut buffer = vec![0; COPY_BYTES];
        let mut done_bytes = 0;
        while done_bytes < size_bytes {
            if is_stopped() {
                return Err(Error::new(
                    ErrorKind::Interrupted,
                    format!("interrupted while {path:?} was read"),
                ));
            }
            // At most the length of the buffer, so the cast cannot truncate.
            let piece = &mut buffer[..(size_bytes - done_bytes).min(COPY_BYTES as u64) as usize];
            let filled = read_full_at(file, done_bytes, piece).map_err(|error| io_at("read", path, error))?;
            if !filled {
                return Err(super::hashing::changed_while_hashed(path));
            }
            writer.write(piece)?;
            done_bytes += piece.len() as u64;
            progress(done_bytes);
        }
        let mut incoming = writer.finish()?;
        // In its place it may be although its last step fails.
        landing.takes_in(incoming.oid());
        landing.until_unlocked(&|| size_bytes < LONG_BYTES || is_stopped(), || incoming.keep())
    }
}

/// Whether the change must be durable: a pin is a promise, and a right that ended must not come back with the state before it.
fn must_outlive_a_crash(before: Option<&Retention>, after: Option<&Retention>) -> bool {
    let is_pin = [before, after].into_iter().flatten().any(|retention| retention.pinned_unix_s.is_some());
    let share = |retention: Option<&Retention>| retention.and_then(|retention| retention.share.clone());
    is_pin || ends_a_right(share(before).as_ref(), share(after).as_ref())
}

/// Whether somebody who had a right under `before` has it no more under `after`.
pub(super) fn ends_a_right(before: Option<&Share>, after: Option<&Share>) -> bool {
    let right = |share: &Share| (share.secret, share.expires_unix_s);
    before.is_some_and(|before| after.map(right) != Some(right(before)))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use dray_core::rights::Secret;
    use dray_core::store::Store;

    use super::*;

    fn bed() -> (tempfile::TempDir, LocalStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = LocalStore::open(&dir.path().join("store")).unwrap();
        (dir, store)
    }

    /// D9: a descriptor gives the OID that its bytes have, wherever it stands, and its file is referred to in place.
    #[test]
    fn a_descriptor_is_its_file() {
        let (dir, store) = bed();
        let path = dir.path().join("a file");
        std::fs::write(&path, vec![5; 200_000]).unwrap();
        let mut file = File::open(&path).unwrap();
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(77)).unwrap();
        let mut kept = file.try_clone().unwrap();
        let object = store.put_descriptor(file, &|_| {}, &|| false, &Landing::new(&|_| {})).unwrap();
        assert_eq!(object.oid(), Oid::of(&vec![5; 200_000]));
        assert!(object.is_borrowed());
        assert_eq!(std::io::Seek::stream_position(&mut kept).unwrap(), 77, "its position is its owner's");
        assert_eq!(store.list().unwrap()[0].borrowed_path.as_deref(), Some(&*path));
    }

    /// D9: what has no name any more is copied, since nothing else would find it again; and the name that somebody else
    /// has got since is not taken for it.
    #[test]
    fn a_file_without_a_name_is_copied() {
        let (dir, store) = bed();
        let path = dir.path().join("gone");
        std::fs::write(&path, b"the bytes").unwrap();
        let file = File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"of others").unwrap();
        let object = store.put_descriptor(file, &|_| {}, &|| false, &Landing::new(&|_| {})).unwrap();
        assert_eq!((object.oid(), object.is_borrowed()), (Oid::of(b"the bytes"), false));
    }

    /// Issue, "a client that asks for a path it cannot read": a descriptor is no way to make somebody else read.
    #[test]
    fn what_cannot_be_read_through_it_is_refused() {
        let (dir, store) = bed();
        let path = dir.path().join("file");
        std::fs::write(&path, b"secret").unwrap();
        let write_only = File::options().write(true).open(&path).unwrap();
        let by_path = File::options()
            .read(true)
            .custom_flags(i32::try_from(OFlags::PATH.bits()).unwrap())
            .open(&path)
            .unwrap();
        let (pipe, mut other) = std::io::pipe().unwrap();
        other.write_all(b"x").unwrap();
        let pipe = File::from(std::os::fd::OwnedFd::from(pipe));
        for file in
            [write_only, by_path, pipe, File::open(dir.path()).unwrap(), File::open("/dev/null").unwrap()]
        {
            let error = store.put_descriptor(file, &|_| {}, &|| false, &Landing::new(&|_| {})).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
            assert!(error.advice().is_some());
        }
        assert!(store.list().unwrap().is_empty());
    }

    /// D10, D13: why an object is kept outlives the process, and putting its bytes again does not change it.
    #[test]
    fn retention_is_remembered() {
        let (dir, store) = bed();
        let path = dir.path().join("file");
        std::fs::write(&path, b"bytes").unwrap();
        let oid = store.put_file(&path, &|_| {}).unwrap().oid();
        let retained = |store: &LocalStore| store.retained().unwrap().0;
        assert!(retained(&store).is_empty());
        let share = Some(Share { port: Some(7), ..Share::default() });
        let pinned = Retention { pinned_unix_s: Some(5), used_unix_s: 6, share };
        store.retain(&oid, Some(pinned.clone())).unwrap();
        store.put_file(&path, &|_| {}).unwrap();
        let mut writer = store.put().unwrap();
        writer.write(b"bytes").unwrap();
        writer.commit().unwrap();
        let again = retained(&LocalStore::open(&dir.path().join("store")).unwrap());
        assert_eq!((again[0].oid, &again[0].retention), (oid, &pinned));
        store.retain(&oid, None).unwrap();
        assert!(retained(&store).is_empty());
        assert_eq!(store.retain(&Oid::of(b"other"), None).unwrap_err().kind(), ErrorKind::NotFound);
    }

    fn put(store: &LocalStore, bytes: &[u8]) -> Oid {
        let mut writer = store.put().unwrap();
        writer.write(bytes).unwrap();
        writer.commit().unwrap().oid()
    }

    fn take_in(store: &LocalStore, bytes: &[u8]) -> Oid {
        let mut writer = store.take_in().unwrap();
        writer.write(bytes).unwrap();
        writer.finish().unwrap().keep().unwrap().oid()
    }

    /// Design 11, D13: what a command took in is removed by nobody but its user, whoever else has put the same bytes, before or
    /// after, and also where its copy was damaged meanwhile; what a daemon took in is, and is known to the next daemon.
    #[test]
    fn bytes_of_a_command_are_not_let_go() {
        let (dir, store) = bed();
        let retained = || store.retained().unwrap().0;
        let (before, after) = (put(&store, b"before"), take_in(&store, b"after"));
        assert_eq!(retained().len(), 1, "the one that may be removed");
        assert_eq!((take_in(&store, b"before"), put(&store, b"after")), (before, after));
        let damaged = put(&store, b"damaged");
        std::fs::write(store.place().object(&damaged).data, b"demaged").unwrap();
        take_in(&store, b"damaged");
        for oid in [before, after, damaged] {
            let kept =
                store.retain(&oid, Some(Retention { used_unix_s: 1, ..Retention::default() })).unwrap();
            assert!(!kept.is_disposable);
            assert!(!store.let_go(&oid).unwrap());
            assert!(store.open(&oid).is_ok() && store.place().object(&oid).data.exists());
        }
        assert!(retained().is_empty());
        // Served by a command from the daemon's copy: the ticket of that command stays good.
        let ours = take_in(&store, b"as a file");
        let path = dir.path().join("as a file");
        std::fs::write(&path, b"as a file").unwrap();
        assert!(!store.put_file(&path, &|_| {}).unwrap().is_borrowed());
        assert!(!store.let_go(&ours).unwrap() && retained().is_empty());
        let ours = take_in(&store, b"ours");
        assert!(store.retain(&ours, None).unwrap().is_disposable && retained().len() == 1);
        assert!(store.let_go(&ours).unwrap() && !store.let_go(&ours).unwrap());
        assert!(!store.place().object(&ours).folder.exists());
        // Of a user's file only what is known of it is forgotten.
        let path = dir.path().join("file");
        std::fs::write(&path, b"bytes").unwrap();
        let oid = store.put_file(&path, &|_| {}).unwrap().oid();
        assert!(!store.let_go(&oid).unwrap() && path.exists() && store.open(&oid).is_ok());
    }

    /// The same where only the user's file stood behind the record, which has its ticket, and where the record cannot be read.
    #[test]
    fn what_replaces_a_command_s_record_is_not_let_go() {
        let (dir, store) = bed();
        let path = dir.path().join("file");
        std::fs::write(&path, b"a file").unwrap();
        assert!(store.put_file(&path, &|_| {}).unwrap().is_borrowed());
        let file = take_in(&store, b"a file");
        let unreadable = put(&store, b"unreadable");
        std::fs::write(store.place().object(&unreadable).record, b"rubbish").unwrap();
        assert_eq!(take_in(&store, b"unreadable"), unreadable);
        for oid in [file, unreadable] {
            assert!(!store.let_go(&oid).unwrap());
            assert!(store.open(&oid).is_ok() && store.place().object(&oid).data.exists());
        }
    }

    /// Design 14, ADR 20: a right that ended does not come back after a power cut, be it pinned or not; a time of last use may.
    #[test]
    fn an_end_outlives_a_crash() {
        let share = Share { secret: Some(Secret::from_bytes([1; 16])), ..Share::default() };
        let shared = |share: &Share| Retention { share: Some(share.clone()), ..Retention::default() };
        let ended = Retention::default();
        let used = Retention { used_unix_s: 9, ..shared(&share) };
        let moved = shared(&Share { port: Some(7), ..share.clone() });
        let other = shared(&Share { secret: None, ..share.clone() });
        let shorter = shared(&Share { expires_unix_s: Some(9), ..share.clone() });
        let pinned = Retention { pinned_unix_s: Some(1), ..ended.clone() };
        let before = shared(&share);
        let is_durable = |after: Option<&Retention>| must_outlive_a_crash(Some(&before), after);
        assert!(is_durable(None) && is_durable(Some(&ended)));
        assert!(is_durable(Some(&other)) && is_durable(Some(&shorter)) && is_durable(Some(&pinned)));
        assert!(!is_durable(Some(&used)) && !is_durable(Some(&moved)));
        assert!(must_outlive_a_crash(Some(&pinned), None) && !must_outlive_a_crash(None, Some(&before)));
    }

    /// Design 11, D13: bytes that a kill left without a record count for nobody: they go, and put again they may be removed like any
    /// others that a daemon takes in. Those of a put that is under way stay.
    #[test]
    fn bytes_without_a_record_are_nobody_s() {
        let (_dir, store) = bed();
        let (killed, again, busy) =
            (take_in(&store, b"left by a kill"), take_in(&store, b"again"), take_in(&store, b"busy"));
        let kept = take_in(&store, b"kept");
        for oid in [killed, again, busy] {
            std::fs::remove_file(store.place().object(&oid).record).unwrap();
        }
        take_in(&store, b"again");
        assert!(store.retain(&again, None).unwrap().is_disposable);
        let held = store.place().lock(&busy).unwrap();
        assert_eq!(store.remove_unrecorded().unwrap(), b"left by a kill".len() as u64);
        let is_there = |oid: &Oid| store.place().object(oid).data.exists();
        assert_eq!([killed, again, busy, kept].map(|oid| is_there(&oid)), [false, true, true, true]);
        assert!(!store.place().object(&killed).folder.exists());
        drop(held);
        assert_eq!(store.remove_unrecorded().unwrap(), b"busy".len() as u64);
        // Its put may have ended between the first look and the lock.
        assert_eq!(store.remove_if_unrecorded(&kept).unwrap(), 0);
        assert!(is_there(&kept) && store.open(&kept).is_ok());
    }

    /// Design 11: what a command had the store keep is not unlinked for a file with the same bytes because its mode was changed; that
    /// file may go, and the bytes stay. Where they are others by now, the file is the better copy.
    #[test]
    fn touched_bytes_are_not_given_up_for_a_file() {
        let (dir, store) = bed();
        let path = dir.path().join("file");
        for (bytes, now) in [(b"as they were", b"as they were"), (b"as they once", b"as they went")] {
            let oid = put(&store, bytes);
            let data = store.place().object(&oid).data;
            std::fs::write(&data, now).unwrap();
            std::fs::set_permissions(&data, std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
            std::fs::write(&path, bytes).unwrap();
            let is_same = bytes == now;
            assert_eq!(store.put_file(&path, &|_| {}).unwrap().is_borrowed(), !is_same);
            std::fs::remove_file(&path).unwrap();
            assert_eq!((store.open(&oid).is_ok(), data.exists()), (is_same, is_same));
        }
    }

    /// What cannot be read may have been a pin, and is not passed over in silence.
    #[test]
    fn an_unreadable_record_is_told() {
        let (_dir, store) = bed();
        let (good, bad, gone) = (take_in(&store, b"good"), take_in(&store, b"bad"), take_in(&store, b"gone"));
        let record = store.place().object(&bad).record;
        std::fs::write(&record, b"rubbish").unwrap();
        std::fs::remove_file(store.place().object(&gone).record).unwrap();
        let (retained, unknown) = store.retained().unwrap();
        assert_eq!(retained.iter().map(|kept| kept.oid).collect::<Vec<_>>(), [good]);
        assert!(unknown.len() == 1 && unknown[0].to_string().contains(&bad.hex()), "{unknown:?}");
    }

    /// Design 9: a process that holds a lock and does not go on costs an error, not for ever.
    #[test]
    fn a_lock_is_not_waited_for_without_end() {
        let (dir, store) = bed();
        let oid = take_in(&store, b"bytes");
        let impatient = store.clone().with_patience(Duration::ZERO);
        assert!(impatient.open(&oid).is_ok());
        let held = store.place().lock(&oid).unwrap();
        for error in
            [impatient.open(&oid).err(), impatient.let_go(&oid).err(), impatient.retain(&oid, None).err()]
        {
            let error = error.unwrap();
            assert!(error.kind() == ErrorKind::TimedOut && error.is_retryable(), "{error}");
        }
        drop(held);
        assert!(impatient.let_go(&oid).unwrap());
        drop(dir);
    }

    /// Design 9: hours of hashing are not lost to a process that holds a lock longer than a request waits: the last step is tried
    /// again as long as somebody wants it, and only so long; of a small file at once no more.
    #[test]
    fn the_end_of_a_put_waits_for_a_lock() {
        let (dir, store) = bed();
        let store = store.with_patience(Duration::ZERO);
        for (round, is_named, is_wanted, size_bytes) in [
            (1, true, true, LONG_BYTES),
            (2, false, true, LONG_BYTES),
            (3, true, false, LONG_BYTES),
            (4, false, false, LONG_BYTES),
            (5, true, true, LONG_BYTES - 1),
            (6, false, true, LONG_BYTES - 1),
        ] {
            let path = dir.path().join(round.to_string());
            std::fs::write(&path, [round]).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            file.set_len(size_bytes).unwrap();
            let oid = super::super::hash_file(&path, &|_| {}, &|| false).unwrap().0;
            if !is_named {
                std::fs::remove_file(&path).unwrap();
            }
            let held = Mutex::new(Some(store.place().lock(&oid).unwrap()));
            let (is_hashed, asked) = (AtomicBool::new(false), AtomicU32::new(0));
            let progress = |done_bytes| {
                is_hashed.fetch_or(done_bytes == size_bytes, Ordering::Relaxed);
            };
            // As it is asked for the third time after all was hashed, the lock is free.
            let is_stopped = || {
                if is_hashed.load(Ordering::Relaxed) && asked.fetch_add(1, Ordering::Relaxed) >= 2 {
                    held.lock().unwrap().take();
                }
                !is_wanted && is_hashed.load(Ordering::Relaxed)
            };
            let result = store.put_descriptor(file, &progress, &is_stopped, &Landing::new(&|_| {}));
            let is_kept = is_wanted && size_bytes >= LONG_BYTES;
            assert_eq!(result.map(|object| object.oid()).ok(), is_kept.then_some(oid), "round {round}");
            assert_eq!(held.lock().unwrap().is_none(), is_kept, "round {round}");
        }
    }

    /// Design 12: a daemon makes room at the very moment in which a command puts the same bytes: whatever the order, what the
    /// command was given is in the store afterwards.
    #[test]
    fn what_a_command_put_is_not_let_go_in_between() {
        let (dir, store) = bed();
        let path = dir.path().join("file");
        std::fs::write(&path, b"the same bytes").unwrap();
        let (oid, is_over) = (Oid::of(b"the same bytes"), AtomicBool::new(false));
        let lost = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // Whatever the others do meanwhile: both may find it gone.
                    let kept = store.take_in().and_then(|mut writer| {
                        writer.write(b"the same bytes")?;
                        writer.finish()?.keep()
                    });
                    drop(kept);
                    let _ = store.let_go(&oid);
                }
            });
            let lost = (0..400).find_map(|_| {
                let put = store.put_file(&path, &|_| {});
                let lost = put.and_then(|_| store.open(&oid)).err();
                let _ = store.remove(&oid);
                lost
            });
            is_over.store(true, Ordering::Relaxed);
            lost
        });
        assert!(lost.is_none(), "{lost:?}");
    }
}
