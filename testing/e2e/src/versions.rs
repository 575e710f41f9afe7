//! A tree as it was and as it is to be, and what a run of `dray sync --delete` that was cut off may leave of the two.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::Host;
use crate::actions::assert_same_tree;
use crate::data::{self, MIB};
use crate::live::tool;
use crate::twins::{set_times, write};

/// Files of [`Versions::of`] that are told soon and take long.
pub const BACKLOG: usize = 6;

/// Both versions of a tree.
#[derive(Debug)]
pub struct Versions {
    /// As it was.
    pub old: PathBuf,
    /// As it is to be.
    pub new: PathBuf,
}

/// How far a run may have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Something did not come: nothing is deleted.
    Coming,
    /// Everything has come: what the source has not may be gone, and nothing else.
    Deleting,
}

impl Versions {
    /// In `place`: what is alike, changed (small, and large in part), new, gone, moved, and of another kind; and files that come before all that
    /// and are new, `backlog` bytes each.
    pub fn of(place: &Path, backlog: u64) -> Versions {
        let (old, new) = (place.join("old"), place.join("new"));
        for number in 0..BACKLOG {
            fs::create_dir_all(new.join("a")).unwrap();
            data::write_random(&new.join(format!("a/{number}")), backlog, 900 + number as u64);
        }
        for number in 0..40_u64 {
            for root in [&old, &new] {
                write(&root.join(format!("same/{number:02}")), &data::random_bytes(3000, number), 0);
            }
            // Some have the same size, some not.
            let longer = if number % 4 == 0 { 0 } else { number };
            let bytes = |seed, len: u64| data::random_bytes(len as usize, seed);
            write(&old.join(format!("small/{number:02}")), &bytes(100 + number, 3000), 0);
            write(&new.join(format!("small/{number:02}")), &bytes(200 + number, 3000 + longer), 5);
            write(&old.join(format!("gone/{number:02}")), &bytes(300 + number, 500), 0);
            write(&new.join(format!("new/{number:02}")), &bytes(400 + number, 500), 0);
        }
        for number in 0..3 {
            let mut bytes = data::random_bytes(2 * MIB as usize, 500 + number);
            write(&old.join(format!("large/{number}")), &bytes, 0);
            let middle = data::random_bytes(MIB as usize / 2, 600 + number);
            bytes[MIB as usize..][..middle.len()].copy_from_slice(&middle);
            write(&new.join(format!("large/{number}")), &bytes, 5);
        }
        write(&old.join("before/moved"), &data::random_bytes(300_000, 700), 0);
        write(&new.join("now/moved"), &data::random_bytes(300_000, 700), 0);
        write(&new.join("z"), &data::random_bytes(200_000, 701), 0);
        for extra in ["extra", "same/extra", "small/extra", "large/extra", "deep/only/old"] {
            write(&old.join(extra), extra.as_bytes(), 0);
        }
        write(&old.join("to-directory"), b"was a file", 0);
        write(&new.join("to-directory/inner"), b"inner", 0);
        write(&old.join("to-file/inner"), b"was in a directory", 0);
        write(&new.join("to-file"), b"a file now", 0);
        symlink("same", old.join("link")).unwrap();
        symlink("small", new.join("link")).unwrap();
        set_times(&old, 0);
        set_times(&new, 9);
        Versions { old, new }
    }

    /// A new copy of the old one.
    pub fn copy(&self, to: &Path) {
        tool(&["cp", "-a", self.old.to_str().unwrap(), to.to_str().unwrap()]);
    }

    /// Panics unless everything at `copy` is wholly old or wholly new, nothing is gone but what may be, and nothing else is there but what an
    /// unfinished run goes on from; how many paths are new. Of those in `changing` some other state may be there, too.
    #[track_caller]
    pub fn assert_old_or_new(&self, copy: &Path, phase: Phase, changing: &[&str]) -> usize {
        let (old, new) = (data::names_below(&self.old), data::names_below(&self.new));
        let is_changing = |path: &Path| changing.iter().any(|other| path == Path::new(other));
        for path in &old {
            let is_to_go = fs::symlink_metadata(self.new.join(path)).is_err();
            // A file makes way for a directory at once.
            let makes_way = self.new.join(path).is_dir() && !self.old.join(path).is_dir();
            let may_be_gone = makes_way || (is_to_go && phase == Phase::Deleting);
            let is_there = fs::symlink_metadata(copy.join(path)).is_ok();
            assert!(is_there || may_be_gone, "{} is gone from {}", path.display(), copy.display());
        }
        let mut renewed = 0;
        for path in data::names_below(copy) {
            let state = State::of(&copy.join(&path));
            if data::is_resume_state(path.file_name().unwrap()) {
                continue;
            }
            let below_left =
                path.ancestors().skip(1).any(|above| above.file_name().is_some_and(data::is_ours));
            if below_left {
                continue;
            }
            let [was, is] = [&self.old, &self.new].map(|root| State::of(&root.join(&path)));
            let is_known = state == was || state == is || is_changing(&path);
            assert!(is_known, "{} in {} is neither old nor new: {state}", path.display(), copy.display());
            renewed += usize::from(state == is && state != was);
        }
        if phase == Phase::Deleting {
            for path in &new {
                let (is, there) = (State::of(&self.new.join(path)), State::of(&copy.join(path)));
                let makes_way = self.old.join(path).is_dir() && !self.new.join(path).is_dir();
                assert!(
                    is == there || makes_way,
                    "{} is deleted from before {}",
                    copy.display(),
                    path.display()
                );
            }
        }
        renewed
    }

    /// Panics unless `copy` is the new one, to the last bit, and nothing else is there.
    #[track_caller]
    pub fn assert_arrived(&self, host: &Host, copy: &Path) {
        host.program("diff").args(["-r", "--no-dereference"]).arg(&self.new).arg(copy).run().expect(0);
        assert_eq!(data::names_below(copy), data::names_below(&self.new));
        assert_same_tree(host, &self.new, copy, None);
    }
}

/// What stands at a path.
#[derive(PartialEq, Eq)]
enum State {
    Nothing,
    Directory,
    Link(PathBuf),
    File(Vec<u8>),
}

impl State {
    fn of(path: &Path) -> State {
        let Ok(found) = fs::symlink_metadata(path) else { return State::Nothing };
        if found.is_dir() {
            State::Directory
        } else if found.is_symlink() {
            State::Link(fs::read_link(path).unwrap())
        } else {
            State::File(fs::read(path).unwrap())
        }
    }
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            State::Nothing => write!(f, "nothing"),
            State::Directory => write!(f, "a directory"),
            State::Link(to) => write!(f, "a link to {}", to.display()),
            State::File(bytes) => write!(f, "a file of {} bytes", bytes.len()),
        }
    }
}
