//! A machine whose power fails: a disk that writes down everything it is told, and disks as a loss of power at any moment may
//! have left them: every write up to the last flush, and any of those after it.
//!
//! The file system on it is a real one, which replays its journal when it is mounted again. "Another boot" is another boot id,
//! in a mount namespace of the test's own. What lies: power fails between two requests of the kernel, not within one; there are
//! no bad sectors, and no disk that says "flushed" and has not.

mod contents;
mod log;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use dray_lab::disk::Served;

use crate::data::Random;
use crate::gate;
use contents::{Contents, Current};
pub use log::{Loss, WriteLog};

/// Set in a test that has its own mount namespace.
const ISOLATED: &str = "DRAY_E2E_OWN_MOUNTS";
/// Where the system's boot id is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Whether disks that lose their power can be had here; says why not.
pub fn can_run() -> bool {
    gate::can_run() && (Path::new("/dev/fuse").exists() || gate::skip("there is no /dev/fuse"))
}

/// Runs the test called `name` again in a mount namespace of its own, which goes with it, and panics if it fails there. True in
/// that second run: then the caller goes on with the test. False also where it cannot run at all.
pub fn is_isolated(name: &str) -> bool {
    if std::env::var_os(ISOLATED).is_some() {
        return true;
    }
    if !can_run() {
        return false;
    }
    // Killed with this process, whatever ends it.
    let output = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", "--mount"])
        // Shared below here, so that what is unmounted goes from the namespaces of hosts, too.
        .args(["sh", "-c", "mount --make-rshared / && exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().expect("path of the test"))
        .args(["--exact", name, "--nocapture", "--include-ignored"])
        .env(ISOLATED, "1")
        .output()
        .expect("run a test in its own mount namespace");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    // A name that libtest does not know is a success to it.
    let has_run = text(&output.stdout).contains("test result: ok. 1 passed");
    assert!(output.status.success() && has_run, "{name}:\n{}{}", text(&output.stdout), text(&output.stderr));
    eprint!("{}", text(&output.stderr));
    false
}

/// A file system with a journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileSystem {
    /// With its usual options, but for a commit every second.
    Ext4,
    /// Sizes and names may get to the disk before the data, and a file that takes the place of another is not written first.
    Ext4Writeback,
    /// With its usual options.
    Xfs,
}

impl FileSystem {
    fn make(self, image: &Path) {
        let arguments: &[&str] = match self {
            FileSystem::Ext4 | FileSystem::Ext4Writeback => {
                &["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "nodiscard"]
            }
            FileSystem::Xfs => &["mkfs.xfs", "-q", "-K"],
        };
        run(arguments, &[image]);
    }

    fn options(self) -> &'static str {
        match self {
            FileSystem::Ext4 => "commit=1",
            FileSystem::Ext4Writeback => "commit=1,data=writeback,noauto_da_alloc",
            FileSystem::Xfs => "rw",
        }
    }
}

/// A disk that can lose its power.
#[derive(Debug)]
pub struct Disk {
    file_system: FileSystem,
    dir: PathBuf,
    mount: PathBuf,
    device: String,
    log: Arc<Mutex<WriteLog>>,
    current: Option<Current>,
    served: Option<Served>,
    random: Random,
    boots: u64,
    is_mounted: bool,
}

impl Disk {
    /// A new one of `size_bytes`, mounted on `mount`, which is made; `dir` is a place for its images. What is random follows
    /// from `seed`.
    pub fn new(file_system: FileSystem, dir: &Path, mount: &Path, size_bytes: u64, seed: u64) -> Disk {
        fs::create_dir_all(mount).expect("mount point");
        fs::create_dir_all(dir).expect("place for the images");
        let blank = dir.join("blank");
        File::create(&blank).and_then(|blank| blank.set_len(size_bytes)).expect("blank disk");
        file_system.make(&blank);
        let mut disk = Disk {
            file_system,
            dir: dir.to_owned(),
            mount: mount.to_owned(),
            device: String::new(),
            log: Arc::default(),
            current: None,
            served: None,
            random: Random::new(seed),
            boots: 0,
            is_mounted: false,
        };
        disk.boot();
        let recorded = disk.copy_of_blank("recorded");
        let file = dir.join("disk");
        let current = Current::new(Contents { backing: recorded, log: Some(Arc::clone(&disk.log)) });
        disk.served = Some(Served::start(current.clone(), &file).expect("serve the disk"));
        disk.current = Some(current);
        let device = run(&["losetup", "--find", "--show"], &[&file]);
        disk.device = String::from_utf8_lossy(&device).trim().to_owned();
        disk.mount();
        disk
    }

    /// What it was told so far.
    pub fn log(&self) -> MutexGuard<'_, WriteLog> {
        self.log.lock().expect("log of the disk")
    }

    /// This moment.
    pub fn now(&self) -> usize {
        self.log().len()
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    /// Other programs that work on this disk meanwhile: one makes a file of its own durable, with which the journal is written, so
    /// all names and sizes; if `all`, another one writes everything, while the first goes on. Without it nothing gets to the disk but what
    /// the program under test has put there, and what the file system needs to know of it.
    pub fn disturb(&self, all: bool) -> Disturbance {
        let is_over = Arc::new(AtomicBool::new(false));
        let mut random = self.random.clone();
        let kinds: &[bool] = if all { &[false, true] } else { &[false] };
        let start = |&is_all: &bool| {
            let (path, over) = (self.mount.join(if is_all { "all" } else { "other" }), Arc::clone(&is_over));
            let mut random = Random::new(random.next_word());
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(random.within(if is_all {
                        300..900
                    } else {
                        5..60
                    })));
                    fs::write(&path, random.next_word().to_ne_bytes()).expect("write another file");
                    let file = File::open(&path).expect("open another file");
                    if is_all {
                        rustix::fs::syncfs(&file).expect("sync the disk");
                    } else {
                        file.sync_all().expect("sync another file");
                    }
                }
            })
        };
        let threads = kinds.iter().map(start).collect();
        Disturbance { is_over, threads }
    }

    /// Ends the recording. No process may use the disk any more.
    pub fn stop(&mut self) {
        self.unmount();
    }

    /// Mounts, in another boot, what is left if the power went when the disk had been told `moment` things. Returns how
    /// many writes or sectors were lost.
    pub fn power_on(&mut self, moment: usize, loss: Loss) -> u64 {
        let left = self.copy_of_blank("left");
        let (current, served) = self.current.as_ref().zip(self.served.as_ref()).expect("a disk");
        let log = Arc::clone(&self.log);
        let lost = log.lock().expect("log of the disk").replay(&left, moment, loss, &mut self.random);
        // The same device: its number is in the state of files.
        current.replace(Contents { backing: left, log: None });
        served.forget_cached().expect("forget what is cached of the disk");
        self.boot();
        self.mount();
        lost
    }

    /// Takes away what [`Disk::power_on`] mounted. No process may use it any more.
    pub fn power_off(&mut self) {
        self.unmount();
    }

    /// A random moment of `range`.
    pub fn moment(&mut self, range: std::ops::Range<usize>) -> usize {
        self.random.within(range.start as u64..range.end as u64) as usize
    }

    fn copy_of_blank(&self, name: &str) -> File {
        let copy = self.dir.join(name);
        run(&["cp", "--sparse=always"], &[&self.dir.join("blank"), &copy]);
        File::options().read(true).write(true).open(&copy).expect("open an image")
    }

    /// Gives the system another boot id.
    fn boot(&mut self) {
        let id = self.dir.join("boot_id");
        self.boots += 1;
        fs::write(&id, format!("00000000-0000-4000-8000-{:012x}\n", self.boots)).expect("boot id");
        if self.boots == 1 {
            run(&["mount", "--bind"], &[&id, Path::new(BOOT_ID)]);
        }
    }

    fn mount(&mut self) {
        run(&["mount", "-o", self.file_system.options(), &self.device], &[&self.mount]);
        self.is_mounted = true;
    }

    fn unmount(&mut self) {
        if std::mem::take(&mut self.is_mounted) {
            run(&["umount"], &[&self.mount]);
        }
    }
}

/// The other programs of [`Disk::disturb`]; dropped, they end.
#[derive(Debug)]
pub struct Disturbance {
    is_over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Drop for Disturbance {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // After a panic, too; what does not go now goes with the namespace.
        let _ = Command::new("umount").arg("--lazy").arg(&self.mount).output();
        let _ = Command::new("losetup").arg("-d").arg(&self.device).output();
        let is_unmounted = Command::new("umount").arg(self.dir.join("disk")).output();
        if let Some(served) = self.served.take()
            && is_unmounted.is_ok_and(|output| output.status.success())
        {
            assert!(served.join() || std::thread::panicking(), "the disk");
        }
        let _ = Command::new("umount").arg(BOOT_ID).output();
    }
}

fn run(argv: &[&str], paths: &[&Path]) -> Vec<u8> {
    let output = Command::new(argv[0]).args(&argv[1..]).args(paths).output();
    let output = output.unwrap_or_else(|error| panic!("run {argv:?}: {error}"));
    assert!(output.status.success(), "{argv:?} {paths:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
