//! A file system of one file, served by a thread of this process. Protocol: `linux/fuse.h`, version 7.
//!
//! The file is the root of its file system, mounted on a file, so that there are no names.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

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
/// Nothing of an open file is cached.
const DIRECT_IO: u32 = 1;

const ENOSYS: i32 = 38;
const EIO: i32 = 5;

/// Bytes before the arguments of a request.
const HEADER_BYTES: usize = 40;
/// Bytes of the arguments of a write before what is written.
const WRITE_BYTES: usize = 40;
/// Longest write or read, bytes.
const IO_BYTES_MAX: usize = 1 << 20;
/// Version 7.31, big writes, pages a request by number.
const MINOR: u32 = 31;
const FLAGS: u32 = 1 << 5 | 1 << 22;

/// Waits for the end of process `$1`, then gives up the requests of connection `$2`. Who is killed while a thread of his own waits for the file does not end before: the thread waits
/// for the server, and the server's descriptor for the thread. Only where it is still mounted at `$3`: then nobody else has its number, which is given anew.
const WATCH: &str = r#"
trap '' INT TERM HUP
while readlink "/proc/$1/exe" >/dev/null 2>&1; do sleep 0.5; done
awk -v number="0:$2" -v place="$3" '$3 == number && $5 == place { found = 1 } END { exit !found }' /proc/self/mountinfo || exit 0
at=/sys/fs/fuse/connections
[ -e "$at/$2/abort" ] || ! mount -t fusectl fusectl "$at" || mounted=1
[ ! -e "$at/$2/abort" ] || echo 1 >"$at/$2/abort"
[ -z "$mounted" ] || umount "$at"
"#;

/// What the bytes of a served file are.
pub trait Backing: Send + 'static {
    /// Its size, which stays.
    fn size_bytes(&self) -> u64;

    /// True if the kernel asks again for what it has read before.
    fn is_uncached(&self) -> bool {
        false
    }

    /// Reads up to as many bytes as `bytes` has; how many.
    ///
    /// # Errors
    ///
    /// Whatever the reader is to see.
    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<usize>;

    /// Writes all of `bytes`.
    ///
    /// # Errors
    ///
    /// Whatever the writer is to see.
    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Lets so many bytes read as zeros.
    ///
    /// # Errors
    ///
    /// Whatever the writer is to see.
    fn zero(&mut self, offset: u64, len: u64) -> io::Result<()>;

    /// Makes durable what was written.
    ///
    /// # Errors
    ///
    /// Whatever the writer is to see.
    fn flush(&mut self) -> io::Result<()>;
}

/// The file, served until it is unmounted.
#[derive(Debug)]
pub struct Served {
    device: File,
    thread: JoinHandle<()>,
    watch: Child,
}

impl Served {
    /// Serves `backing` as the file `mount`, which is made.
    ///
    /// # Errors
    ///
    /// There is no `/dev/fuse`, it cannot be mounted, or there is no thread to be had.
    pub fn start(backing: impl Backing, mount: &Path) -> io::Result<Served> {
        let device = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
        File::create(mount)?;
        // The kernel is told the descriptor by its number, which is that of standard input in `mount`.
        let output = Command::new("mount")
            .args(["-i", "-t", "fuse", "-o", "fd=0,rootmode=100600,user_id=0,group_id=0", "dray-lab-disk"])
            .arg(mount)
            .stdin(Stdio::from(device.try_clone()?))
            .output()?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(io::Error::other(format!("mount {}: {said}", mount.display())));
        }
        let server = Server { device: device.try_clone()?, backing };
        let thread = std::thread::Builder::new().name("disk".into()).spawn(move || server.run())?;
        let connection = rustix::fs::minor(fs::metadata(mount)?.dev());
        let watch = Command::new("sh")
            .args(["-c", WATCH, "watch", &std::process::id().to_string(), &connection.to_string()])
            .arg(fs::canonicalize(mount)?)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Not with the group that it watches over.
            .process_group(0)
            .spawn()?;
        Ok(Served { device, thread, watch })
    }

    /// Lets the kernel forget what it keeps of the file. It has written everything.
    ///
    /// # Errors
    ///
    /// The file is not mounted any more.
    pub fn forget_cached(&self) -> io::Result<()> {
        // A message without a request, its code where errors stand, of inode 1 from 0 to the end.
        let mut out = words(&[40, INVALIDATE, 0, 0]);
        out.extend([1_u64, 0, 0].iter().flat_map(|long| long.to_ne_bytes()));
        (&self.device).write_all(&out)
    }

    /// Waits for the end, after the file was unmounted. False if the thread has panicked.
    pub fn join(mut self) -> bool {
        drop(self.device);
        let _ = self.watch.kill();
        let _ = self.watch.wait();
        self.thread.join().is_ok()
    }
}

struct Server<B> {
    device: File,
    backing: B,
}

impl<B: Backing> Server<B> {
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
        let (error, body) = match self.carry_out(opcode, &request[HEADER_BYTES..]) {
            Ok(body) => (0, body),
            Err(error) => (-error.raw_os_error().unwrap_or(EIO), Vec::new()),
        };
        let mut out = Vec::with_capacity(16 + body.len());
        out.extend_from_slice(&((16 + body.len()) as u32).to_ne_bytes());
        out.extend_from_slice(&error.to_ne_bytes());
        out.extend_from_slice(&unique.to_ne_bytes());
        out.extend_from_slice(&body);
        // Fails only where the request was given up meanwhile.
        let _ = self.device.write(&out);
    }

    fn carry_out(&mut self, opcode: u32, arguments: &[u8]) -> io::Result<Vec<u8>> {
        match opcode {
            INIT => Ok(words(&[7, MINOR, 1 << 20, FLAGS, 12 | 12 << 16, IO_BYTES_MAX as u32, 1, 256])
                .into_iter()
                .chain([0; 32])
                .collect()),
            GETATTR | SETATTR => Ok(attributes(self.backing.size_bytes())),
            OPEN => {
                let flags = if self.backing.is_uncached() { DIRECT_IO } else { 0 };
                Ok(words(&[0, 0, flags, 0]))
            }
            READ => {
                let mut bytes = vec![0; (word(arguments, 16) as usize).min(IO_BYTES_MAX)];
                let len = self.backing.read(long(arguments, 8), &mut bytes)?;
                bytes.truncate(len);
                Ok(bytes)
            }
            WRITE => {
                let bytes = &arguments[WRITE_BYTES..];
                self.backing.write(long(arguments, 8), bytes)?;
                Ok(words(&[bytes.len() as u32, 0]))
            }
            FSYNC => self.backing.flush().map(|()| Vec::new()),
            // What is to read as zeros: holes that are punched, ranges of zeros.
            FALLOCATE => self.backing.zero(long(arguments, 8), long(arguments, 16)).map(|()| Vec::new()),
            STATFS => Ok(vec![0; 80]),
            RELEASE | FLUSH | DESTROY => Ok(Vec::new()),
            _ => Err(io::Error::from_raw_os_error(ENOSYS)),
        }
    }
}

fn attributes(size_bytes: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(104);
    // Valid for a day; the attributes: inode, size, blocks, three times.
    for long in [86_400, 0, 1, size_bytes, size_bytes / 512, 0, 0, 0] {
        out.extend_from_slice(&long.to_ne_bytes());
    }
    // Fractions of the times, mode, links, owner, group, device, block size, flags.
    out.extend_from_slice(&words(&[0, 0, 0, 0o100_600, 1, 0, 0, 0, 4096, 0]));
    out
}

/// The kernel sends whole requests; what is not there reads as 0.
fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |word| u32::from_ne_bytes(*word))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(<[u8]>::first_chunk).map_or(0, |long| u64::from_ne_bytes(*long))
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
