//! A file system of one file, served by a thread of the test: the kernel's loop driver makes a disk of the file, so that each
//! write and each flush of that disk passes by here and is written down. Protocol: `linux/fuse.h`, version 7.
//!
//! The kernel has no other means that is there everywhere: the device mapper's log of writes and null_blk are modules that
//! many kernels lack. The file is the root of its file system, mounted on a file, so that there are no names.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::log::WriteLog;

const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const READ: u32 = 15;
const WRITE: u32 = 16;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FSYNC: u32 = 20;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const DESTROY: u32 = 38;
const FALLOCATE: u32 = 43;
/// Requests without an answer: forget, interrupt, forget many.
const UNANSWERED: [u32; 3] = [2, 36, 42];

/// A notice that what is cached of an inode is void.
const INVALIDATE: u32 = 2;

const ENOSYS: i32 = 38;
const EIO: i32 = 5;

/// How long a byte takes: 60 MB/s.
const NS_PER_BYTE: u64 = 16;
/// Bytes before the arguments of a request.
const HEADER_BYTES: usize = 40;
/// Longest write or read, bytes.
const IO_BYTES_MAX: usize = 1 << 20;
/// Version 7.31, big writes, pages a request by number.
const MINOR: u32 = 31;
const FLAGS: u32 = 1 << 5 | 1 << 22;

/// What the file is, as of now.
#[derive(Debug)]
pub(super) struct Contents {
    /// Where its bytes are.
    pub(super) backing: File,
    /// Written down while there is one.
    pub(super) log: Option<Arc<Mutex<WriteLog>>>,
}

/// The file, served until it is unmounted.
#[derive(Debug)]
pub(super) struct Service {
    device: File,
    contents: Arc<Mutex<Contents>>,
    thread: JoinHandle<()>,
}

impl Service {
    /// Serves `contents` as the file `mount`.
    pub(super) fn start(contents: Contents, mount: &Path) -> Service {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse").expect("open /dev/fuse");
        let copy = || device.try_clone().expect("descriptor of /dev/fuse");
        File::create(mount).expect("file to mount on");
        // The kernel is told the descriptor by its number, which is that of standard input in `mount`.
        let output = Command::new("mount")
            .args(["-i", "-t", "fuse", "-o", "fd=0,rootmode=100600,user_id=0,group_id=0", "dray-e2e-disk"])
            .arg(mount)
            .stdin(Stdio::from(copy()))
            .output()
            .expect("run mount");
        assert!(output.status.success(), "mount the disk: {}", String::from_utf8_lossy(&output.stderr));
        let contents = Arc::new(Mutex::new(contents));
        let server = Server { device: copy(), contents: Arc::clone(&contents) };
        let thread = std::thread::Builder::new().name("disk".into()).spawn(move || server.run());
        Service { device, contents, thread: thread.expect("thread of the disk") }
    }

    /// From now on the file is this, for a kernel that has written everything.
    pub(super) fn replace(&self, contents: Contents) {
        *self.contents.lock().expect("contents of the disk") = contents;
        // Forget what is cached: a message without a request, its code where errors stand, of inode 1 from 0 to the end.
        let mut out = words(&[40, INVALIDATE, 0, 0]);
        out.extend([1_u64, 0, 0].iter().flat_map(|long| long.to_ne_bytes()));
        (&self.device).write_all(&out).expect("forget what is cached of the disk");
    }

    /// Waits for the end, after the file was unmounted.
    pub(super) fn join(self) {
        drop(self.device);
        self.thread.join().expect("the disk");
    }
}

struct Server {
    device: File,
    contents: Arc<Mutex<Contents>>,
}

impl Server {
    fn run(mut self) {
        let mut request = vec![0; IO_BYTES_MAX + 4096];
        loop {
            match self.device.read(&mut request) {
                Ok(len) if len >= HEADER_BYTES => self.answer(&request[..len]),
                // Interrupted requests, and none to read any more.
                Err(error) if [4, 11, 2].contains(&error.raw_os_error().unwrap_or(0)) => {}
                // ENODEV: unmounted.
                _ => return,
            }
        }
    }

    fn answer(&mut self, request: &[u8]) {
        let (opcode, unique) = (word(request, 4), long(request, 8));
        if UNANSWERED.contains(&opcode) {
            return;
        }
        let answer = self.carry_out(opcode, &request[HEADER_BYTES..]);
        let (error, body) = match answer {
            Ok(body) => (0, body),
            Err(error) => (-error, Vec::new()),
        };
        let mut out = Vec::with_capacity(16 + body.len());
        out.extend_from_slice(&((16 + body.len()) as u32).to_ne_bytes());
        out.extend_from_slice(&error.to_ne_bytes());
        out.extend_from_slice(&unique.to_ne_bytes());
        out.extend_from_slice(&body);
        // Fails only where the request was given up meanwhile.
        let _ = self.device.write(&out);
    }

    fn carry_out(&self, opcode: u32, arguments: &[u8]) -> Result<Vec<u8>, i32> {
        let io = |error: std::io::Error| error.raw_os_error().unwrap_or(EIO);
        let contents = self.contents.lock().expect("contents of the disk");
        let backing = &contents.backing;
        let log = |note: &dyn Fn(&mut WriteLog)| {
            if let Some(log) = &contents.log {
                note(&mut log.lock().expect("log of the disk"));
            }
        };
        match opcode {
            INIT => Ok(words(&[7, MINOR, 1 << 20, FLAGS, 12 | 12 << 16, IO_BYTES_MAX as u32, 1, 256])
                .into_iter()
                .chain([0; 32])
                .collect()),
            GETATTR | SETATTR => Ok(attributes(backing)),
            OPEN => Ok(vec![0; 16]),
            READ => {
                let mut bytes = vec![0; (word(arguments, 16) as usize).min(IO_BYTES_MAX)];
                let len = backing.read_at(&mut bytes, long(arguments, 8)).map_err(io)?;
                bytes.truncate(len);
                Ok(bytes)
            }
            WRITE => {
                let (offset, bytes) = (long(arguments, 8), &arguments[40..]);
                // As slow as a disk, so that much happens while much is being written.
                if contents.log.is_some() {
                    std::thread::sleep(Duration::from_nanos(bytes.len() as u64 * NS_PER_BYTE));
                }
                backing.write_all_at(bytes, offset).map_err(io)?;
                log(&|log| log.write(offset, bytes));
                Ok(words(&[bytes.len() as u32, 0]))
            }
            FSYNC => {
                log(&WriteLog::flush);
                Ok(Vec::new())
            }
            // What is to read as zeros: holes that are punched, ranges of zeros.
            FALLOCATE => {
                let (offset, len) = (long(arguments, 8), long(arguments, 16));
                backing.write_all_at(&vec![0; len as usize], offset).map_err(io)?;
                log(&|log| log.zero(offset, len));
                Ok(Vec::new())
            }
            STATFS => Ok(vec![0; 80]),
            RELEASE | FLUSH | DESTROY => Ok(Vec::new()),
            _ => Err(ENOSYS),
        }
    }
}

fn attributes(backing: &File) -> Vec<u8> {
    let size = backing.metadata().expect("size of the disk").size();
    let mut out = Vec::with_capacity(104);
    // Valid for a day; the attributes: inode, size, blocks, three times.
    for long in [86_400, 0, 1, size, size / 512, 0, 0, 0] {
        out.extend_from_slice(&long.to_ne_bytes());
    }
    // Fractions of the times, mode, links, owner, group, device, block size, flags.
    out.extend_from_slice(&words(&[0, 0, 0, 0o100_600, 1, 0, 0, 0, 4096, 0]));
    out
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes[at..].first_chunk().expect("a whole request"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(*bytes[at..].first_chunk().expect("a whole request"))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
