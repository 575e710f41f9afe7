//! The file that the disk is made of: what it is changes with the power, and what it is told is written down.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use dray_lab::disk::Backing;

use super::log::WriteLog;

/// How long a byte takes: 60 MB/s.
const NS_PER_BYTE: u64 = 16;

/// What the file is, as of now.
#[derive(Debug)]
pub(super) struct Contents {
    /// Where its bytes are.
    pub(super) backing: File,
    /// Written down while there is one.
    pub(super) log: Option<Arc<Mutex<WriteLog>>>,
}

/// The same, for its server and for whoever puts something else in its place.
#[derive(Clone, Debug)]
pub(super) struct Current(Arc<Mutex<Contents>>);

impl Current {
    pub(super) fn new(contents: Contents) -> Current {
        Current(Arc::new(Mutex::new(contents)))
    }

    /// From now on the file is this.
    pub(super) fn replace(&self, contents: Contents) {
        *self.now() = contents;
    }

    fn now(&self) -> MutexGuard<'_, Contents> {
        self.0.lock().expect("contents of the disk")
    }
}

impl Contents {
    fn note(&self, note: impl FnOnce(&mut WriteLog)) {
        if let Some(log) = &self.log {
            note(&mut log.lock().expect("log of the disk"));
        }
    }
}

impl Backing for Current {
    fn size_bytes(&self) -> u64 {
        self.now().backing.metadata().expect("size of the disk").size()
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.now().backing.read_at(bytes, offset)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let contents = self.now();
        // As slow as a disk, so that much happens while much is being written.
        if contents.log.is_some() {
            std::thread::sleep(Duration::from_nanos(bytes.len() as u64 * NS_PER_BYTE));
        }
        contents.backing.write_all_at(bytes, offset)?;
        contents.note(|log| log.write(offset, bytes));
        Ok(())
    }

    fn zero(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let contents = self.now();
        contents.backing.write_all_at(&vec![0; len as usize], offset)?;
        contents.note(|log| log.zero(offset, len));
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.now().note(WriteLog::flush);
        Ok(())
    }
}
