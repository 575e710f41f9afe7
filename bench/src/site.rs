//! The files of both ends: one folder tree on one file system, keys, configurations, and the data that is moved.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Bytes made at once.
const BLOCK_BYTES: usize = 1 << 20;
/// Files in a directory of a tree that is not flat.
const FILES_IN_DIRECTORY: u64 = 250;

/// Folders of both ends. What is below it goes when it is dropped.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) root: PathBuf,
    is_mount: bool,
}

/// What is moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    File { bytes: u64 },
    Tree { files: u64, bytes_each: u64, is_flat: bool },
}

impl What {
    pub(crate) fn bytes(self) -> u64 {
        match self {
            What::File { bytes } => bytes,
            What::Tree { files, bytes_each, .. } => files * bytes_each,
        }
    }

    pub(crate) fn is_tree(self) -> bool {
        matches!(self, What::Tree { .. })
    }

    /// Its name on disk and in the results.
    pub(crate) fn name(self) -> String {
        match self {
            What::File { bytes } => format!("file-{bytes}"),
            What::Tree { files, bytes_each, is_flat } => {
                format!("{}-{files}x{bytes_each}", if is_flat { "flat" } else { "tree" })
            }
        }
    }
}

impl Site {
    /// On a new tmpfs, or in a new folder of `parent`.
    pub(crate) fn new(parent: Option<&Path>) -> Result<Site, String> {
        let root = parent.unwrap_or(Path::new("/tmp")).join(format!("dray-bench.{}", std::process::id()));
        fs::create_dir_all(&root).map_err(|error| format!("make {}: {error}", root.display()))?;
        if parent.is_none() {
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "-o", "size=90%,mode=755", "dray-bench"]).arg(&root);
            run(&mut mount)?;
        }
        let site = Site { root, is_mount: parent.is_none() };
        for end in ["near", "far"] {
            for folder in ["in", "out", "home", "data", "state"] {
                let path = site.root.join(end).join(folder);
                fs::create_dir_all(&path).map_err(|error| format!("make {}: {error}", path.display()))?;
            }
        }
        for folder in ["bin", "etc"] {
            fs::create_dir_all(site.root.join(folder)).map_err(|error| format!("make {folder}: {error}"))?;
        }
        site.write("etc/default.toml", "")?;
        site.write("etc/clear.toml", "clear_text_data = true\n")?;
        site.write("etc/bittorrent.py", include_str!("bittorrent.py"))?;
        // Through these the near end orders a `put` and gets its ticket.
        for pipe in ["etc/ticket", "etc/ticket.go"] {
            run(Command::new("mkfifo").arg(site.root.join(pipe)))?;
        }
        for key in ["host", "client"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(site.root.join("etc").join(key));
            run(&mut keygen)?;
        }
        Ok(site)
    }

    pub(crate) fn path(&self, below: &str) -> String {
        self.root.join(below).to_string_lossy().into_owned()
    }

    pub(crate) fn write(&self, below: &str, text: &str) -> Result<(), String> {
        let path = self.root.join(below);
        fs::write(&path, text).map_err(|error| format!("write {}: {error}", path.display()))
    }

    /// Makes `what` at both ends, unless it is there. The bytes are those of BLAKE3's output stream for `seed`: nothing can
    /// compress them, and the next run has the same.
    pub(crate) fn make(&self, what: What, seed: u64) -> Result<(), String> {
        let name = what.name();
        let far = self.root.join("far/in").join(&name);
        if far.exists() {
            return Ok(());
        }
        let near = self.root.join("near/in").join(&name);
        let made = || -> io::Result<()> {
            let mut random = Random::new(seed, &name);
            match what {
                What::File { bytes } => {
                    random.write_file(&far, bytes)?;
                    fs::hard_link(&far, &near)
                }
                What::Tree { files, bytes_each, is_flat } => {
                    for number in 0..files {
                        let folder = if is_flat { 0 } else { number / FILES_IN_DIRECTORY };
                        let folder = far.join(format!("d{folder:05}"));
                        if number == 0 || !is_flat && number.is_multiple_of(FILES_IN_DIRECTORY) {
                            fs::create_dir_all(&folder)?;
                        }
                        random.write_file(&folder.join(format!("f{number:07}")), bytes_each)?;
                    }
                    Ok(())
                }
            }
        };
        made().map_err(|error| format!("make {name}: {error}; is the file system too small?"))?;
        if what.is_tree() {
            run(Command::new("cp").arg("-a").args([&far, &near]))?;
        }
        Ok(())
    }

    /// Takes `what` away again at both ends.
    pub(crate) fn remove(&self, what: What) {
        for end in ["near/in", "far/in"] {
            // What cannot be moved away on a disk lies there until the end.
            let _ = self.clear(&self.root.join(end).join(what.name()));
        }
    }

    /// Removes a file or a folder. On a disk, trees are only moved out of the way, for which it needs room for all of them: ext4 passes by every
    /// inode that was deleted within minutes, one by one for each that it gives out, so who came next would pay for that (20 s instead of 2.5
    /// were seen for 50,000 files).
    fn clear(&self, path: &Path) -> Result<(), String> {
        if self.is_mount || !holds_trees(path) {
            remove(path);
            return Ok(());
        }
        let spent = self.root.join("spent");
        let count = fs::create_dir_all(&spent).and_then(|()| fs::read_dir(&spent)).map(Iterator::count);
        count
            .and_then(|count| fs::rename(path, spent.join(count.to_string())))
            .map_err(|error| format!("move {} away: {error}", path.display()))
    }

    /// What earlier runs delivered and remembered would spare the next one its work.
    pub(crate) fn forget(&self) -> Result<(), String> {
        for below in ["near/out", "far/out", "near/data", "far/data", "near/state", "far/state"] {
            let path = self.root.join(below);
            self.clear(&path)?;
            fs::create_dir_all(&path).map_err(|error| format!("make {}: {error}", path.display()))?;
        }
        Ok(())
    }

    /// `tmpfs`, `ext4` and so on.
    pub(crate) fn file_system(&self) -> String {
        let output = Command::new("stat").args(["-f", "-c", "%T"]).arg(&self.root).output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        // What stat calls all of ext2, ext3 and ext4.
        text.unwrap_or_default().replace("ext2/ext3", "ext4")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if self.is_mount {
            let _ = Command::new("umount").arg("--lazy").arg(&self.root).status();
            let _ = fs::remove_dir(&self.root);
        } else {
            remove(&self.root);
        }
    }
}

/// Whether there is a directory in `folder`.
fn holds_trees(folder: &Path) -> bool {
    let is_directory = |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| entry.path().is_dir());
    fs::read_dir(folder).is_ok_and(|entries| entries.into_iter().any(is_directory))
}

/// Whether two files, or two trees with times, modes and owners, are the same.
pub(crate) fn is_same(from: &Path, to: &Path) -> bool {
    if from.is_dir() {
        let mut rsync = Command::new("rsync");
        rsync.args(["-an", "--checksum", "--delete", "--itemize-changes"]);
        rsync.arg(format!("{}/", from.display())).arg(format!("{}/", to.display()));
        rsync.output().is_ok_and(|output| output.status.success() && output.stdout.is_empty())
    } else {
        Command::new("cmp").arg("-s").args([from, to]).status().is_ok_and(|status| status.success())
    }
}

/// Removes a file or a folder; what is not there is gone.
pub(crate) fn remove(path: &Path) {
    let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
}

/// Runs a command of the preparation to its end; its standard output.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|error| format!("start {name}: {error}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(format!("{name} {:?}: {}: {said}", command.get_args(), output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Incompressible bytes, the same for the same seed.
pub(crate) struct Random {
    stream: blake3::OutputReader,
    block: Vec<u8>,
}

impl Random {
    pub(crate) fn new(seed: u64, name: &str) -> Random {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&seed.to_le_bytes()).update(name.as_bytes());
        Random { stream: hasher.finalize_xof(), block: vec![0; BLOCK_BYTES] }
    }

    /// A number from 0 to 1.
    pub(crate) fn share(&mut self) -> f64 {
        let mut bytes = [0; 4];
        self.stream.fill(&mut bytes);
        f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX)
    }

    pub(crate) fn write_file(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        let mut file = fs::File::create(path)?;
        let mut left = bytes;
        while left > 0 {
            let part = left.min(BLOCK_BYTES as u64) as usize;
            self.stream.fill(&mut self.block[..part]);
            file.write_all(&self.block[..part])?;
            left -= part as u64;
        }
        Ok(())
    }
}
