//! A disk with one head: what it reads and what it writes share one rate, and each jump costs a seek.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::{Backing, Served};

/// Bytes that may wait to be written before whoever writes waits himself: more memory than a disk's own, less than a machine's.
const DIRTY_BYTES_MAX: u64 = 16 << 20;
/// A head that had nothing to do for longer than that has no claim to go faster now.
const SLACK: Duration = Duration::from_millis(1);

/// How fast a disk is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Speed {
    /// Bytes a second, read and written together.
    pub bytes_per_s: u64,
    /// What a request takes more that does not begin where the last one has ended.
    pub seek: Duration,
}

/// The disk's head.
#[derive(Debug)]
struct Head {
    image: File,
    size_bytes: u64,
    speed: Speed,
    /// Where the last request ended.
    position: u64,
    /// When it ended.
    due: Instant,
}

impl Head {
    /// Waits until `len` bytes have passed at `offset`.
    fn pass(&mut self, offset: u64, len: u64) {
        let mut takes = time_of(len, self.speed);
        if offset != self.position {
            takes += self.speed.seek;
        }
        self.position = offset + len;
        let now = Instant::now();
        self.due = self.due.max(now.checked_sub(SLACK).unwrap_or(now)) + takes;
        std::thread::sleep(self.due.saturating_duration_since(now));
    }
}

fn time_of(len: u64, speed: Speed) -> Duration {
    Duration::from_secs_f64(len as f64 / speed.bytes_per_s.max(1) as f64)
}

impl Backing for Head {
    fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    fn is_uncached(&self) -> bool {
        true
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<usize> {
        self.pass(offset, bytes.len() as u64);
        self.image.read_at(bytes, offset)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.pass(offset, bytes.len() as u64);
        self.image.write_all_at(bytes, offset)
    }

    fn zero(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let zeros = vec![0; len.min(1 << 20) as usize];
        let end = offset.saturating_add(len).min(self.size_bytes);
        let mut at = offset;
        while at < end {
            let part = (end - at).min(zeros.len() as u64);
            self.image.write_all_at(&zeros[..part as usize], at)?;
            at += part;
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How often a loop device is asked for.
const ATTACH_TRIES: u32 = 40;

/// An ext4 on such a disk, mounted. Dropped, it is gone.
#[derive(Debug)]
pub struct SlowDisk {
    served: Option<Served>,
    file: PathBuf,
    image: PathBuf,
    device: String,
    mount: PathBuf,
}

impl SlowDisk {
    /// A new one of `size_bytes`, mounted on `mount`, which is made; `dir` is a place for its image. In a mount namespace of the
    /// caller's own nothing of it is left, whatever ends the caller.
    ///
    /// # Errors
    ///
    /// There is no `/dev/fuse`, no loop device or no `mkfs.ext4`, or something cannot be mounted.
    pub fn new(dir: &Path, mount: &Path, size_bytes: u64, speed: Speed) -> io::Result<SlowDisk> {
        fs::create_dir_all(mount)?;
        let image = dir.join("slow.image");
        File::create(&image)?.set_len(size_bytes)?;
        run(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0", "-E", "lazy_itable_init=0"]).arg(&image))?;
        let head = Head {
            image: File::options().read(true).write(true).open(&image)?,
            size_bytes,
            speed,
            position: 0,
            due: Instant::now(),
        };
        let file = dir.join("slow.disk");
        let served = Some(Served::start(head, &file)?);
        let mut disk = SlowDisk { served, file, image, device: String::new(), mount: mount.to_owned() };
        disk.device = attach(&disk.file)?;
        disk.limit_dirty(true)?;
        run(Command::new("mount").args(["-o", "noatime"]).arg(&disk.device).arg(&disk.mount))?;
        // It is mounted: the device goes when that ends, whatever ends it.
        run(Command::new("losetup").arg("-d").arg(&disk.device))?;
        Ok(disk)
    }

    /// Writes what waits, and forgets what is in memory of the files below `directory`: the next reader waits for the disk.
    ///
    /// # Errors
    ///
    /// A file cannot be read.
    pub fn cool(&self, directory: &Path) -> io::Result<()> {
        rustix::fs::syncfs(File::open(&self.mount)?)?;
        forget(directory)
    }

    /// Bytes that were read from it so far, as the kernel counts them (`/sys/block/DEVICE/stat`).
    ///
    /// # Errors
    ///
    /// If they cannot be read.
    pub fn read_bytes(&self) -> io::Result<u64> {
        let name = self.device.trim_start_matches("/dev/");
        let counts = fs::read_to_string(format!("/sys/block/{name}/stat"))?;
        let sectors = counts.split_whitespace().nth(2).and_then(|count| count.parse::<u64>().ok());
        sectors.map(|sectors| sectors * 512).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// The kernel lets so much wait for a disk as memory allows; here as for a machine with little, whatever other disks have to do.
    fn limit_dirty(&self, is_on: bool) -> io::Result<()> {
        let name = self.device.trim_start_matches("/dev/");
        let numbers = fs::read_to_string(format!("/sys/class/block/{name}/dev"))?;
        let folder = PathBuf::from(format!("/sys/class/bdi/{}", numbers.trim()));
        let bytes = DIRTY_BYTES_MAX.to_string();
        // Whoever had this device before, and was killed, may have left what it was promised: no limit may be below that.
        let settings: &[(&str, &str)] = match is_on {
            true => {
                &[("min_bytes", "0"), ("strict_limit", "1"), ("max_bytes", &bytes), ("min_bytes", &bytes)]
            }
            false => &[("min_bytes", "0"), ("max_ratio", "100"), ("strict_limit", "0")],
        };
        settings.iter().try_for_each(|(name, value)| match fs::write(folder.join(name), value) {
            // Disks of others who were killed may have all that there is to be promised.
            Err(_) if *name == "min_bytes" => Ok(()),
            written => written,
        })
    }
}

impl Drop for SlowDisk {
    fn drop(&mut self) {
        // What does not go now goes with the namespace; but who is killed leaves the limit at the loop device.
        let quietly = |command: &mut Command| command.output().is_ok_and(|output| output.status.success());
        if !self.device.is_empty() {
            let _ = self.limit_dirty(false);
        }
        if !quietly(Command::new("umount").arg(&self.mount)) {
            quietly(Command::new("losetup").arg("-d").arg(&self.device));
        }
        let is_unmounted = quietly(Command::new("umount").arg(&self.file));
        if let Some(served) = self.served.take()
            && is_unmounted
        {
            served.join();
        }
        let _ = fs::remove_file(&self.file);
        let _ = fs::remove_file(&self.image);
    }
}

fn forget(directory: &Path) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            forget(&path)?;
        } else {
            rustix::fs::fadvise(File::open(&path)?, 0, None, rustix::fs::Advice::DontNeed)?;
        }
    }
    Ok(())
}

/// A loop device on `file`. Somebody else may have taken the one that was free a moment ago.
fn attach(file: &Path) -> io::Result<String> {
    let mut tries = 0;
    loop {
        match run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file)) {
            Ok(device) => return Ok(device.trim().to_owned()),
            Err(error) if tries == ATTACH_TRIES => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(50)),
        }
        tries += 1;
    }
}

fn run(command: &mut Command) -> io::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| io::Error::other(format!("start {name}: {error}")))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(io::Error::other(format!("{name}: {said}")));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A head goes on where it is, and pays for each jump.
    #[test]
    fn jumps_cost_a_seek() {
        let dir = std::env::temp_dir().join(format!("dray-lab-head.{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join("image");
        let image = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        image.set_len(1 << 20).unwrap();
        let speed = Speed { bytes_per_s: 1 << 30, seek: Duration::from_secs(3600) };
        let begun = Instant::now();
        let mut head = Head { image, size_bytes: 1 << 20, speed, position: 0, due: begun };
        head.write(0, &[7; 4096]).unwrap();
        head.write(4096, &[8; 4096]).unwrap();
        let ends = head.due;
        assert!(ends < begun + Duration::from_secs(60));
        // Not waited for: what the next one would take is told by when it is due.
        head.speed.seek = Duration::from_millis(20);
        let mut bytes = [0; 4096];
        assert_eq!(head.read(0, &mut bytes).unwrap(), 4096);
        assert!(head.due >= ends + Duration::from_millis(19) && bytes == [7; 4096]);
        assert_eq!(
            time_of(70_000_000, Speed { bytes_per_s: 70_000_000, seek: Duration::ZERO }),
            Duration::from_secs(1)
        );
        fs::remove_dir_all(dir).unwrap();
    }
}
