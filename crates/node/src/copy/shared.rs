//! Copying one file within a file system that lets files share their blocks. It is the delivery of any copy, with its lock, names and
//! end, but for how the bytes come: at once, as a snapshot of the source, which is hashed before it gets its name.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use dray_core::message::{CopyRole, ObjectName, Offer};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::{Delivery, SourceFile, may_share};

use super::CopyOptions;
use super::local::advised;
use super::origin::{forget, offer_of};
use super::reach::{Target, home_path};
use super::receive::{destination, finish_options, open_delivery_once};
use crate::explain::{Role, Snapshot, SourceSnapshot, Watch};
use crate::get::split;
use crate::{Delivered, Event, Node, Observer, SourceShare, Stop, lock};

/// Where the bytes come from, for people.
const LABEL: &str = "shared blocks";

/// A copy that can be tried this way.
struct Attempt {
    source: SourceFile,
    id: [u8; 32],
    offer: Offer,
    target: Target,
    delivery: Delivery,
}

impl Node {
    /// Copies `source` by sharing its blocks. `None` where that cannot be, for whatever reason: nothing has been told or left then, and the
    /// ordinary copy does it, or says why not.
    pub(super) fn copy_shared(
        &self,
        source: &Path,
        destination: &Path,
        options: &CopyOptions,
        watch: &Watch,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<Option<Delivered>> {
        // A limit is obeyed where bytes are moved, so they are.
        if options.rate_bytes.is_some() {
            return Ok(None);
        }
        let Some(attempt) = self.attempt(source, destination) else { return Ok(None) };
        let Attempt { source: file, id, offer, target, delivery } = &attempt;
        let (total_bytes, path) = (offer.size_bytes, target.own_path());
        let done = Arc::new(AtomicU64::new(0));
        // One that fails is told, too; where nothing is shared the ordinary copy begins anew.
        watch_shared(watch, source, &path, total_bytes, done.clone());
        if !delivery.share(file)? {
            return Ok(None);
        }
        let name = if destination.as_os_str().is_empty() { Path::new(".") } else { destination };
        observer.event(Event::Started { name: Some(name.to_owned()), total_bytes, resumed_bytes: 0 });
        let told = Rising::default();
        let progress = |hashed_bytes| {
            told.tell(hashed_bytes, |done_bytes| {
                done.store(done_bytes, Ordering::Relaxed);
                watch.tick();
                let sources = vec![SourceShare { label: LABEL.into(), bytes: done_bytes, stalls: 0 }];
                observer.event(Event::Progress { done_bytes, total_bytes, sources });
            });
        };
        let finish = finish_options(offer, target, options.preserve, options.fsync);
        let oid = delivery
            .hash(&progress, &|| stop.is_set())
            .and_then(|oid| delivery.finish(finish).map(|()| oid))
            .map_err(|error| match error.kind() {
                ErrorKind::Interrupted => Error::new(ErrorKind::Interrupted, "interrupted")
                    .advise("run the same command again: nothing was kept of this one"),
                _ => advised(error, None, CopyRole::Receive),
            })?;
        forget(id, &self.config.paths.data_dir);
        Ok(Some(Delivered {
            oid,
            size_bytes: total_bytes,
            path: Some(path),
            resumed_bytes: 0,
            sent_bytes: None,
        }))
    }

    /// Opens both ends; `None` where the ordinary copy is to say why not.
    fn attempt(&self, source: &Path, wish: &Path) -> Option<Attempt> {
        let source = SourceFile::open(source).ok()?;
        // Nothing can be shared of an empty file.
        let identity = Some(source.identity()).filter(|identity| identity.size_bytes > 0)?;
        // Read as the other end of a copy reads it.
        let target = destination(&home_path(wish.as_os_str()), source.path().file_name()?, None).ok()?;
        let (directory, _) = split(&target.path).ok()?;
        if !may_share(source.file(), directory) {
            return None;
        }
        let id = identity.provisional_id(&self.id());
        let offer = offer_of(&source, ObjectName::Provisional(id)).ok()?;
        let delivery = open_delivery_once(&target, offer.object, offer.size_bytes).ok()?;
        Some(Attempt { source, id, offer, target, delivery })
    }
}

/// What several threads tell of one figure, each of them late at times: only what is more than was told.
#[derive(Default)]
struct Rising(Mutex<u64>);

impl Rising {
    fn tell(&self, value: u64, tell: impl FnOnce(u64)) {
        let mut told = lock(&self.0);
        if value > *told {
            *told = value;
            tell(value);
        }
    }
}

/// Tells of it to whoever asks what runs here.
fn watch_shared(watch: &Watch, source: &Path, path: &Path, size_bytes: u64, done: Arc<AtomicU64>) {
    let figures = move || {
        let done_bytes = done.load(Ordering::Relaxed);
        let way = SourceSnapshot {
            label: LABEL.to_owned(),
            share: 1.0,
            delivered_bytes: done_bytes,
            ..SourceSnapshot::default()
        };
        Some(Snapshot { size_bytes, done_bytes, sources: vec![way], ..Snapshot::default() })
    };
    watch.begin(Role::Receiving, &source.to_string_lossy(), None, Box::new(figures));
    watch.set_path(path);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue "progress that a person reads": it never goes back, whichever thread speaks last.
    #[test]
    fn progress_never_goes_back() {
        let (rising, told) = (Rising::default(), Mutex::new(Vec::new()));
        std::thread::scope(|scope| {
            for start in 0..4_u64 {
                let (rising, told) = (&rising, &told);
                scope.spawn(move || {
                    for value in (start..4000).step_by(4) {
                        rising.tell(value, |value| lock(told).push(value));
                    }
                });
            }
        });
        let told = told.into_inner().unwrap();
        assert!(told.windows(2).all(|pair| pair[0] < pair[1]) && told.last() == Some(&3999));
    }
}
