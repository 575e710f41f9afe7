//! Both plugins against the conformance suites of the testkit.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use dray_core::Oid;
use dray_core::message::ObjectName;
use dray_store::local::LocalStore;
use dray_store::local::delivery::{Delivery, DeliveryOptions};
use dray_store::memory::{MemoryPartial, MemoryStore};
use dray_testkit::partial_conformance::{self, PartialUnderTest};
use dray_testkit::store_conformance::{self, StoreUnderTest};

#[test]
fn memory_store() {
    store_conformance::check(&|| {
        let store = MemoryStore::new();
        StoreUnderTest { store: Arc::new(store.clone()), reopen: Box::new(move || Arc::new(store.clone())) }
    });
}

#[test]
fn local_store() {
    store_conformance::check(&|| {
        let dir = tempfile::tempdir().unwrap();
        let open = |root: &Path| -> Arc<LocalStore> {
            Arc::new(
                LocalStore::open(root).unwrap().with_clock(|| SystemTime::now() + Duration::from_secs(60)),
            )
        };
        StoreUnderTest { store: open(dir.path()), reopen: Box::new(move || open(dir.path())) }
    });
}

#[test]
fn memory_partial() {
    partial_conformance::check(&|| PartialUnderTest {
        open: Box::new(|size| Box::new(MemoryPartial::new(size).unwrap())),
        persistent: false,
        allocated_bytes: None,
    });
}

#[test]
fn delivery() {
    partial_conformance::check(&|| {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let (here, object) = (dir.clone(), ObjectName::Oid(Oid::of(b"any")));
        PartialUnderTest {
            open: Box::new(move |size| {
                let path = here.path().join("destination");
                Box::new(Delivery::open(&path, object, size, DeliveryOptions::default()).unwrap())
            }),
            persistent: true,
            allocated_bytes: Some(Box::new(move || {
                let files = std::fs::read_dir(dir.path()).unwrap();
                let files =
                    files.filter(|file| !file.as_ref().unwrap().path().to_str().unwrap().ends_with(".state"));
                files.map(|file| file.unwrap().metadata().unwrap().blocks() * 512).sum()
            })),
        }
    });
}
