//! Disks and processors: things that do one piece of work after the other at a rate.

/// Nanoseconds for `bytes` at `bytes_per_s`.
pub(crate) fn span_ns(bytes: u64, bytes_per_s: u64) -> u64 {
    // The product of any size in use fits 128 bits, and a span beyond 2^64 ns is for ever.
    let span = u128::from(bytes) * 1_000_000_000 / u128::from(bytes_per_s.max(1));
    u64::try_from(span).unwrap_or(u64::MAX)
}

/// What a disk can do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DiskModel {
    /// Bytes per second, reading and writing alike.
    pub rate_bytes_per_s: u64,
    /// Nanoseconds to begin anywhere but where the last access ended.
    pub seek_ns: u64,
    /// Bytes that may wait in memory to be written before a writer has to wait (`vm.dirty_bytes`).
    pub dirty_bytes_max: u64,
    /// What was read or written before is read again from memory.
    pub is_cached: bool,
}

impl DiskModel {
    /// A solid-state disk.
    pub const FAST: DiskModel = DiskModel {
        rate_bytes_per_s: 1_000_000_000,
        seek_ns: 50_000,
        dirty_bytes_max: 64 << 20,
        is_cached: true,
    };
    /// A spinning disk whose data is not in memory.
    pub const SPINNING: DiskModel = DiskModel {
        rate_bytes_per_s: 120_000_000,
        seek_ns: 8_000_000,
        dirty_bytes_max: 64 << 20,
        is_cached: false,
    };
}

/// A disk with a queue.
#[derive(Debug)]
pub(crate) struct Disk {
    model: DiskModel,
    /// Everything takes so many times as long, for now.
    pub(crate) slowness: u64,
    free_ns: u64,
    next_offset: u64,
}

impl Disk {
    pub(crate) fn new(model: DiskModel) -> Disk {
        Disk { model, slowness: 1, free_ns: 0, next_offset: 0 }
    }

    /// Reads; returns when the bytes are there. A cached disk costs memory bandwidth, which is the processor's business.
    pub(crate) fn read(&mut self, now_ns: u64, offset: u64, bytes: u64) -> u64 {
        if self.model.is_cached && self.slowness == 1 { now_ns } else { self.access(now_ns, offset, bytes) }
    }

    /// Writes; returns when the writer may go on, which is at once while little waits to be written.
    pub(crate) fn write(&mut self, now_ns: u64, offset: u64, bytes: u64) -> u64 {
        let done_ns = self.access(now_ns, offset, bytes);
        let dirty_ns = span_ns(self.model.dirty_bytes_max, self.model.rate_bytes_per_s);
        now_ns.max(done_ns.saturating_sub(dirty_ns))
    }

    /// When everything that was written so far is on the disk.
    pub(crate) fn settled_ns(&self, now_ns: u64) -> u64 {
        self.free_ns.max(now_ns)
    }

    fn access(&mut self, now_ns: u64, offset: u64, bytes: u64) -> u64 {
        let seek_ns = if offset == self.next_offset { 0 } else { self.model.seek_ns };
        let work_ns = seek_ns.saturating_add(span_ns(bytes, self.model.rate_bytes_per_s));
        self.free_ns = self.free_ns.max(now_ns).saturating_add(work_ns.saturating_mul(self.slowness));
        self.next_offset = offset + bytes;
        self.free_ns
    }
}

/// A machine's processors: work goes to the one that is free first.
#[derive(Debug)]
pub(crate) struct Processors {
    bytes_per_s: u64,
    free_ns: Vec<u64>,
}

impl Processors {
    /// `cores` of them, each of which hashes and de- or encrypts `bytes_per_s`.
    pub(crate) fn new(cores: usize, bytes_per_s: u64) -> Processors {
        Processors { bytes_per_s, free_ns: vec![0; cores.max(1)] }
    }

    /// Works on `bytes`; returns when that is done.
    pub(crate) fn work(&mut self, now_ns: u64, bytes: u64) -> u64 {
        let work_ns = span_ns(bytes, self.bytes_per_s);
        match self.free_ns.iter_mut().min() {
            Some(free_ns) => {
                *free_ns = (*free_ns).max(now_ns).saturating_add(work_ns);
                *free_ns
            }
            None => now_ns.saturating_add(work_ns),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_does_one_thing_after_the_other() {
        let model = DiskModel { rate_bytes_per_s: 1_000, seek_ns: 5, dirty_bytes_max: 0, is_cached: false };
        let mut disk = Disk::new(model);
        assert_eq!(disk.read(0, 0, 1_000), 1_000_000_000);
        assert_eq!(disk.read(0, 1_000, 1_000), 2_000_000_000, "it waits, and need not seek");
        assert_eq!(disk.write(0, 0, 0), 2_000_000_005);
        let mut lazy = Disk::new(DiskModel { dirty_bytes_max: 1_500, ..model });
        assert_eq!(lazy.write(0, 0, 1_000), 0);
        assert_eq!(lazy.write(0, 1_000, 1_000), 500_000_000);
        assert_eq!(lazy.settled_ns(0), 2_000_000_000);
    }

    #[test]
    fn two_processors_work_side_by_side() {
        let mut both = Processors::new(2, 1_000_000_000);
        assert_eq!([both.work(0, 10), both.work(0, 10), both.work(0, 10)], [10, 10, 20]);
    }
}
