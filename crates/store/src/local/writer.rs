//! Taking the bytes of a new owned object: spooled and hashed as they come, then made durable and renamed.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::sync::Arc;

use dray_core::Result;
use dray_core::hash_tree::IncrementalHasher;
use dray_core::store::{ObjectWriter, StoredObject};

use super::LocalStore;
use super::extents::io_at;
use super::place::TempFile;

/// Buffer in front of each file; pairs come 64 bytes at a time.
const BUFFER_BYTES: usize = 256 * 1024;

pub(super) struct LocalWriter {
    store: LocalStore,
    data: TempFile,
    data_out: BufWriter<File>,
    outboard: TempFile,
    outboard_out: BufWriter<File>,
    hasher: IncrementalHasher,
}

impl LocalWriter {
    pub(super) fn new(store: LocalStore) -> Result<LocalWriter> {
        let (data, outboard) = (store.place().temp()?, store.place().temp()?);
        let out = |temp: &TempFile| {
            let handle = temp.file().try_clone().map_err(|error| io_at("write", temp.path(), error))?;
            Ok(BufWriter::with_capacity(BUFFER_BYTES, handle))
        };
        let (data_out, outboard_out) = (out(&data)?, out(&outboard)?);
        Ok(LocalWriter {
            store,
            data,
            data_out,
            outboard,
            outboard_out,
            hasher: IncrementalHasher::default(),
        })
    }
}

impl ObjectWriter for LocalWriter {
    fn write(&mut self, data: &[u8]) -> Result<()> {
        let LocalWriter { data: data_temp, data_out, outboard, outboard_out, hasher, .. } = self;
        data_out.write_all(data).map_err(|error| io_at("write", data_temp.path(), error))?;
        hasher.update(data, &mut |pair| {
            outboard_out.write_all(pair).map_err(|error| io_at("write", outboard.path(), error))
        })
    }

    fn commit(self: Box<Self>) -> Result<Arc<dyn StoredObject>> {
        let LocalWriter { store, data, mut data_out, outboard, mut outboard_out, hasher } = *self;
        let (size_bytes, oid) = hasher.finish(&mut |pair| {
            outboard_out.write_all(pair).map_err(|error| io_at("write", outboard.path(), error))
        })?;
        data_out.flush().map_err(|error| io_at("write", data.path(), error))?;
        outboard_out.flush().map_err(|error| io_at("write", outboard.path(), error))?;
        store.keep_owned(oid, size_bytes, data, outboard)
    }
}
