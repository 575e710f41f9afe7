//! What a receiver may have already, before a file comes: the five initial states of dsync's paper, of which it gives only the names.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::site::{Random, remove};

/// Files that have nothing to do with what comes, and their bytes together in shares of it.
const USELESS_FILES: u64 = 40;
const USELESS_SHARE: u64 = 2;
/// Longest piece of a half that is another one.
const PIECE_BYTES: u64 = 1 << 20;

/// What lies at the receiver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// Nothing.
    Empty,
    /// Files of other names and sizes with nothing in common, half of them in the destination's directory, twice as much as comes.
    Useless,
    /// The file itself where it goes, but for one hundredth in one place.
    Similar99,
    /// The same, but every other MiB is another one.
    Similar50,
    /// As `Similar99`, but in a directory beside.
    Sibling,
}

impl State {
    pub(super) const ALL: [State; 5] =
        [State::Empty, State::Useless, State::Similar99, State::Similar50, State::Sibling];

    /// What readers see.
    pub(super) fn name(self) -> &'static str {
        match self {
            State::Empty => "Empty",
            State::Useless => "Useless",
            State::Similar99 => "Similar-99",
            State::Similar50 => "Similar-50",
            State::Sibling => "Sibling",
        }
    }

    /// Those that the page compares it with, round by round.
    fn compared_with(self) -> &'static [State] {
        match self {
            State::Empty => &[],
            State::Useless | State::Similar99 | State::Similar50 => &[State::Empty],
            State::Sibling => &[State::Empty, State::Similar99],
        }
    }
}

/// For each of `states` the places of those that it is compared with.
pub(super) fn beside(states: &[State]) -> Vec<Vec<usize>> {
    let places = |others: &[State]| {
        others.iter().filter_map(|other| states.iter().position(|state| state == other)).collect()
    };
    states.iter().map(|state| places(state.compared_with())).collect()
}

/// Where the file goes, below `home`.
pub(super) fn destination(home: &Path) -> PathBuf {
    home.join("project/new/image")
}

/// Brings `home` into `state`: `source` is what will come.
pub(super) fn prepare(state: State, home: &Path, source: &Path, seed: u64) -> io::Result<()> {
    let project = home.join("project");
    remove(&project);
    let directories = [project.join("new"), project.join("beside")];
    directories.iter().try_for_each(fs::create_dir_all)?;
    let bytes = source.metadata()?.len();
    match state {
        State::Empty => Ok(()),
        State::Useless => {
            let mut random = Random::new(seed, "useless");
            (0..USELESS_FILES).try_for_each(|number| {
                let directory = &directories[number as usize % directories.len()];
                // From nothing to twice the average.
                let own = bytes * USELESS_SHARE * 2 * number / (USELESS_FILES * USELESS_FILES);
                random.write_file(&directory.join(format!("other-{number}")), own)
            })
        }
        State::Similar99 | State::Sibling => {
            let at = if state == State::Sibling { 1 } else { 0 };
            change(source, &directories[at].join("image"), bytes / 100, bytes, seed)
        }
        State::Similar50 => {
            let piece = PIECE_BYTES.min(bytes / 4);
            change(source, &directories[0].join("image"), piece, 2 * piece, seed)
        }
    }
}

/// A copy of `source` in which `piece` bytes of every `period` are others: the first ones behind a half of what stays.
fn change(source: &Path, copy: &Path, piece: u64, period: u64, seed: u64) -> io::Result<()> {
    let bytes = fs::copy(source, copy)?;
    let file = File::options().write(true).open(copy)?;
    let others = copy.with_extension("others");
    let mut random = Random::new(seed, "others");
    for start in (0..bytes).step_by(period.max(1) as usize) {
        random.write_file(&others, piece)?;
        let at = start + (period - piece) / 2;
        if at + piece <= bytes {
            file.write_all_at(&fs::read(&others)?, at)?;
        }
    }
    remove(&others);
    // An older version was written earlier.
    let earlier = file.metadata()?.modified()? - std::time::Duration::from_secs(86_400);
    file.set_modified(earlier)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Y26: how much of what comes each state has, and where.
    #[test]
    fn states_have_what_their_names_say() {
        let home = std::env::temp_dir().join(format!("dray-bench-states.{}", std::process::id()));
        fs::create_dir_all(&home).unwrap();
        let (source, bytes) = (home.join("source"), 8 << 20);
        Random::new(1, "source").write_file(&source, bytes as u64).unwrap();
        let wanted = fs::read(&source).unwrap();
        for state in State::ALL {
            prepare(state, &home, &source, 1).unwrap();
            let to = destination(&home);
            let sibling = home.join("project/beside/image");
            let (there, share) = match state {
                State::Empty | State::Useless => (None, 0),
                State::Similar99 => (Some(to.clone()), 99),
                State::Similar50 => (Some(to.clone()), 50),
                State::Sibling => (Some(sibling), 99),
            };
            assert_eq!(to.exists(), there.as_ref() == Some(&to), "{state:?}");
            let files = |below: &str| fs::read_dir(home.join("project").join(below)).unwrap().count();
            let useless = if state == State::Useless { 20 } else { 0 };
            assert!(files("new") >= useless && files("beside") >= useless);
            let Some(path) = there else { continue };
            let found = fs::read(path).unwrap();
            assert_eq!(found.len(), bytes);
            let same = wanted.iter().zip(&found).filter(|(wanted, found)| wanted == found).count();
            // A byte of 256 is the same by chance.
            assert!((same * 100).abs_diff(bytes * share) <= bytes, "{state:?}: {same}");
        }
        remove(&home);
    }
}
