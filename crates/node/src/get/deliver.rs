//! Into a file: beside its destination first, and renamed when all of it is proven. The folder was opened once, and
//! everything after is relative to it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dray_core::hash_tree::{PairStore, Verifier};
use dray_core::limits::NAME_BYTES_MAX;
use dray_core::message::ObjectName;
use dray_core::range::RangeSet;
use dray_core::store::PartialObject;
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_engine::planner::DeliveryMode;
use dray_store::local::{Delivery, DeliveryOptions, FinishOptions};
use dray_transfer::direct::{DialConfig, probe};
use rustix::fs::{AtFlags, Mode, OFlags};

use super::{Fetch, Wanted, report, resumed, start_sources};
use crate::at_hand::{self, AtHand};
use crate::elsewhere::Prospect;
use crate::explain::{Role, figures_of};
use crate::search::{self, Scope};
use crate::transfer::{OlderVersion, Sink, Start, Transfer, Truth, short_name};
use crate::{Delivered, Event, Observer, Stop};

/// A directory to write into.
#[derive(Debug)]
pub(crate) struct Folder {
    fd: OwnedFd,
    /// What it is called, for messages and records.
    path: PathBuf,
}

impl Folder {
    /// Opens the directory at `path`.
    pub(super) fn open(path: &Path) -> Result<Folder> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| {
            Error::io(format!("cannot open directory {path:?}"), error.into())
                .or_advise("make it first, or choose a directory that you may enter")
        })?;
        Ok(Folder { fd, path: path.to_owned() })
    }

    /// One that is open already, called `path`.
    pub(crate) fn of(fd: OwnedFd, path: PathBuf) -> Folder {
        Folder { fd, path }
    }

    /// The same one once more.
    pub(crate) fn again(&self) -> Result<Folder> {
        let fd = self.fd.try_clone();
        let fd = fd.map_err(|error| Error::file(format!("use directory {:?}", self.path), error))?;
        Ok(Folder { fd, path: self.path.clone() })
    }

    /// Whether it is on the same file system as `path`.
    pub(super) fn is_on(&self, path: &Path) -> bool {
        let there = rustix::fs::stat(path);
        matches!((rustix::fs::fstat(&self.fd), there), (Ok(here), Ok(there)) if here.st_dev == there.st_dev)
    }

    /// Whether `path` leads to what is in it under that name. It may not, if the folder was opened elsewhere or moved since.
    fn is_at(&self, path: &Path) -> bool {
        let here = path.file_name().map(|name| rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW));
        let there = rustix::fs::statat(rustix::fs::CWD, path, AtFlags::SYMLINK_NOFOLLOW);
        matches!((here, there), (Some(Ok(here)), Ok(there)) if (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino))
    }

    /// Whether something has this name in it, be it a link that leads nowhere.
    fn has(&self, name: &OsStr) -> bool {
        rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).is_ok()
    }
}

impl Fetch<'_> {
    /// Into the file `name` in `folder`, which is replaced; without a name, into one that the sender suggests, where
    /// an existing file is not replaced.
    pub(super) fn deliver(self, folder: &Folder, name: Option<&OsStr>) -> Result<Delivered> {
        let Fetch { node, request, oid, geometry, config, at_hand, watch, observer, stop, .. } = self;
        let dir = folder.path.as_path();
        let object = ObjectName::Oid(oid);
        // Before anything is begun: what the user named may not be there.
        let scope =
            request.search.as_deref().map(|named| Scope::named(named, folder.fd.as_fd())).transpose()?;
        node.config.search_policy.tell_if_off(request.search.as_deref(), observer);
        // Until the sender has suggested a name, the temporary file carries the object's.
        let working = name.map_or_else(|| OsString::from(&oid.hex()[..16]), OsStr::to_owned);
        let opened = Delivery::open_in(
            folder.again()?.fd,
            &dir.join(&working),
            object,
            geometry.size_bytes(),
            DeliveryOptions::default(),
        );
        let delivery = Arc::new(opened.map_err(|error| match name {
            // The name that the object has for now is none that the user gave.
            None if error.kind() == ErrorKind::Refused && error.is_retryable() => {
                held_in(dir).with_retryable(true)
            }
            _ => error,
        })?);
        let pairs: Arc<dyn PairStore> = delivery.clone();
        let verifier = Verifier::new(geometry, oid, pairs)?;
        let marked = delivery.marked_units();
        // Nothing is looked for where nothing was left: the size may be a lie.
        let intact = match marked.count() {
            0 => Vec::new(),
            _ => verifier.recover(&|unit| marked.contains(unit))?,
        };
        // What an earlier run marked without proving it was put together by an update. Like that run, this one takes it as it
        // is; the root over everything decides.
        let is_unproven =
            (intact.len() as u64) < marked.count() && OlderVersion::is_usual(geometry.size_bytes());
        let mut there = RangeSet::new();
        if is_unproven {
            there = marked.clone();
        } else {
            for unit in &intact {
                there.insert(*unit..*unit + 1);
            }
        }
        let (mut wanted, mut damaged) = (RangeSet::new(), marked);
        wanted.insert(0..geometry.units());
        for units in there.iter() {
            wanted.remove(units.clone());
            damaged.remove(units);
        }
        delivery.unmark_units(&damaged)?;
        let resumed_bytes = resumed(geometry, there.iter().flatten());
        // Where nothing is left to fetch, or all is at hand, nobody would be asked for anything, and so not for a name either.
        let is_nobody_asked = at_hand.is_some() || wanted.is_empty();
        let told_before = match at_hand.as_ref().and_then(AtHand::name) {
            Some(known) => Some(known.to_vec()),
            None if name.is_none() && is_nobody_asked => ask_for_name(&config, object, observer),
            None => None,
        };
        if name.is_none() && is_nobody_asked {
            let known = usable_name(told_before.as_deref(), &oid);
            if folder.has(&known) {
                // Before everything is copied, and left here.
                if resumed_bytes == 0 {
                    let _ = delivery.discard();
                }
                return Err(taken(&dir.join(known)).context(format_args!("get {}", short_name(&object))));
            }
        }
        // What an earlier run proved is worth more than what a similar file may have.
        let older = match name {
            Some(name) if !request.whole_file && intact.is_empty() && at_hand.is_none() => {
                OlderVersion::open(folder.fd.as_fd(), Path::new(name), geometry.size_bytes())
            }
            _ => None,
        };
        let repeated_permille = match &request.wanted {
            Wanted::Ticket(ticket) if !request.whole_file && intact.is_empty() && at_hand.is_none() => {
                ticket.repeated_permille
            }
            _ => 0,
        };
        let older = older.or_else(|| OlderVersion::none(geometry.size_bytes(), repeated_permille));
        let prospect = match !request.whole_file && intact.is_empty() && at_hand.is_none() {
            true => node.elsewhere(folder.fd.as_fd(), geometry.size_bytes(), name.map(OsStr::as_bytes)),
            false => Prospect::None,
        };
        // Who does not answer is not told anything either: that would take as long again.
        let is_index_mute = matches!(prospect, Prospect::Mute);
        let older = OlderVersion::beside(older, prospect.files());
        // What an earlier run left stays, and the rest may be elsewhere.
        let scope = scope.filter(|_| at_hand.is_none() && !wanted.is_empty());
        let budget = node.budget();
        let disk = node.search_in(scope, older.as_ref(), &budget, |older| search::Target {
            name: name.map_or_else(Vec::new, |name| name.as_bytes().to_vec()),
            size_bytes: geometry.size_bytes(),
            mtime_s: None,
            older,
        });
        let older = OlderVersion::searching(older, disk).map(|older| older.shared_with(&delivery));
        let truth = match older.is_some() || is_unproven {
            true => Truth::updated(geometry, oid, delivery.clone())?,
            false => Truth::Proven(verifier),
        };
        let start = if older.is_some() { Start::Update } else { Start::Whole };
        let to_fetch = wanted.clone();
        let transfer = Transfer::new(
            truth,
            Sink::Rest(delivery.clone()),
            wanted,
            resumed_bytes,
            budget,
            DeliveryMode::OutOfOrder,
            start,
        );
        watch.begin(Role::Receiving, &oid.to_string(), None, figures_of(&transfer, resumed_bytes));
        if let Some(name) = name {
            watch.set_path(&dir.join(name));
        }
        observer.event(Event::Started {
            name: name.map(|name| dir.join(name)),
            total_bytes: geometry.size_bytes(),
            resumed_bytes,
        });
        // Who wants everything fetched has a reason to think little of the record that is there.
        let is_remembered =
            at_hand.is_none() && !request.whole_file && at_hand::is_remembered(geometry.size_bytes());
        let mut others = start_sources(node, &transfer, object, at_hand, config)?;
        let final_name = || match name {
            Some(name) => name.to_owned(),
            None => usable_name(transfer.suggested_name().or_else(|| told_before.clone()).as_deref(), &oid),
        };
        let (either, mut is_taken) = (Stop::new(), false);
        let result = transfer.run(older.as_ref(), &to_fetch, &either, &mut || {
            report(&transfer, observer);
            watch.tick();
            others.dial_if_needed(&transfer);
            // Better to refuse as soon as the name is known than when all has come.
            let is_asked = transfer.suggested_name().is_some();
            is_taken = name.is_none() && is_asked && folder.has(&final_name());
            if is_taken || stop.is_set() {
                either.set();
            }
        });
        let result = result.and_then(|()| {
            transfer
                .seal(&either, &mut || {
                    report(&transfer, observer);
                    watch.tick();
                    others.dial_if_needed(&transfer);
                    if stop.is_set() {
                        either.set();
                    }
                })
                .map(|_| ())
        });
        report(&transfer, observer);
        if name.is_none() && transfer.suggested_name().is_some() {
            watch.set_path(&dir.join(final_name()));
        }
        let result = if is_taken {
            transfer.keep_last_words();
            transfer.close();
            if resumed_bytes == 0 {
                // What came before the name was known is little, and nobody asked for it to be kept.
                let _ = delivery.discard();
            }
            Err(taken(&dir.join(final_name())))
        } else {
            result
        };
        let result = result.and_then(|()| {
            let final_name = final_name();
            if name.is_none() && folder.has(&final_name) {
                return Err(taken(&dir.join(final_name)));
            }
            let suggested = transfer.suggested_name().or_else(|| told_before.clone());
            if let Some(why) = suggested.filter(|_| name.is_none()).and_then(|name| unusable(&name)) {
                observer.event(Event::Warning(format!(
                    "{why}: saved as {final_name:?}; -o NAME saves under a name of your own"
                )));
            }
            let options = FinishOptions {
                fsync: request.fsync,
                // A name that came from the peer replaces nothing.
                keep_existing: name.is_none(),
                rename_to: Some(final_name.clone()),
                ..FinishOptions::default()
            };
            delivery.finish(options)?;
            let path = dir.join(final_name);
            if is_remembered && folder.is_at(&path) {
                // Best effort: without it, the object is fetched again some day.
                let store = node.store()?;
                let _ = store.refer_to(&path, &oid, geometry.size_bytes(), &*delivery);
                if !is_index_mute {
                    node.tell_index(folder.fd.as_fd(), geometry.size_bytes());
                }
            }
            Ok(path)
        });
        watch.freeze();
        transfer.close();
        if result.is_err() && delivery.marked_units().is_empty() {
            // Nothing to go on from; threads of a source may still hold it, so it is not left to the last of them.
            let _ = delivery.discard();
        }
        let path = result.map_err(|error| error.context(format_args!("get {}", short_name(&object))))?;
        Ok(Delivered {
            oid,
            size_bytes: geometry.size_bytes(),
            path: Some(path),
            resumed_bytes,
            sent_bytes: None,
        })
    }
}

/// The name the sender suggests, asked for on a connection of its own. Without an answer the file is there all the
/// same, under the object's name.
fn ask_for_name(config: &DialConfig, object: ObjectName, observer: &dyn Observer) -> Option<Vec<u8>> {
    match probe(config, object, &|| false) {
        Ok(opened) => opened.name.map(|name| name.to_vec()),
        Err(error) => {
            let text = format!("nobody says what the file is called, so it gets the object's name: {error}");
            observer.event(Event::Warning(text));
            None
        }
    }
}

fn held_in(dir: &Path) -> Error {
    let place = if dir == Path::new(".") { "the current directory".into() } else { format!("{dir:?}") };
    Error::new(ErrorKind::Refused, format!("another dray is receiving this object into {place}"))
        .advise("wait for it or stop it")
}

fn taken(path: &Path) -> Error {
    Error::new(ErrorKind::Refused, format!("{path:?} exists and is not replaced"))
        .advise("move it away, or name the file to write with -o FILE")
}

/// What the sender suggests, if it is one plain component that hides nothing; else the object's own name.
fn usable_name(suggested: Option<&[u8]>, oid: &Oid) -> OsString {
    match suggested.filter(|name| unusable(name).is_none()) {
        Some(name) => OsStr::from_bytes(name).to_owned(),
        None => OsString::from(&oid.hex()[..16]),
    }
}

/// Why a name that a sender suggests is not taken, if it is not.
fn unusable(name: &[u8]) -> Option<String> {
    let told = OsStr::from_bytes(name);
    let is_plain =
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.contains(&b'/') && !name.contains(&0);
    match is_plain {
        false => Some(format!("the sender calls the file {told:?}, which is no name")),
        true if name.starts_with(b".") => Some(format!(
            "the sender calls the file {told:?}, and a hidden file is made only where you ask for it"
        )),
        true => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suggested_name_stays_in_its_directory() {
        let oid = Oid::of(b"x");
        assert_eq!(usable_name(Some(b"a b\n\xff"), &oid), OsStr::from_bytes(b"a b\n\xff"));
        for bad in [&b""[..], b".", b"..", b"../x", b"/etc/passwd", b"a/b", b"a\0b", b".bashrc", &[b'x'; 256]]
        {
            assert_eq!(usable_name(Some(bad), &oid), OsStr::new(&oid.hex()[..16]));
            assert!(unusable(bad).is_some());
        }
    }
}
