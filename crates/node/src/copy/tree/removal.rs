//! What is in place leaves its source (`--remove-source-files`): the sender remembers what it told until the receiver says what became of it.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex};

use dray_core::limits::{SYNC_IN_PLACE_ENTRIES, SYNC_REMOVALS_MAX, TREE_PULL_RUNS_MAX, TREE_WANTED_MAX};
use dray_core::message::{EntryFailed, InPlace, InPlaceRun, Tree, sync_flag, tree_flag};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::tree::{Origin, Remover, ToldEntry, Walked, Walker};
use dray_transfer::tree::Removes;

use super::entries_told;
use super::source::entry_failed;
use super::sync::has;
use crate::lock;

/// True if what is in place leaves its source.
pub(super) fn removes(tree: &Tree) -> bool {
    has(tree, sync_flag::REMOVE_SOURCES) && tree.flags & tree_flag::DRY_RUN == 0
}

/// What does not go together with removing sources, whose names may be the only ones left of what a run brought: `Usage` if it is asked for.
#[derive(Clone, Copy, Default)]
pub(super) struct Beside {
    pub(super) deletes: bool,
    pub(super) hard_links: bool,
    pub(super) backup: bool,
    pub(super) fake: bool,
    /// Several sources, whose entries may come to one place.
    pub(super) meets: bool,
}

impl Beside {
    /// Of what stands in a first message; nothing if it removes no sources.
    fn of(tree: &Tree) -> Beside {
        let Some(wish) = tree.sync.as_deref().filter(|wish| wish.flags & sync_flag::REMOVE_SOURCES != 0)
        else {
            return Beside::default();
        };
        Beside {
            deletes: wish.flags & (sync_flag::DELETE | sync_flag::DELETE_EXCLUDED) != 0,
            hard_links: tree.flags & tree_flag::HARD_LINKS != 0,
            backup: wish.backup.is_some(),
            fake: wish.fake.is_some(),
            meets: false,
        }
    }

    /// What to do does not cross the wire, so it stands in what is said.
    pub(super) fn require_none(self) -> Result<()> {
        let what = match self {
            Beside { deletes: true, .. } => {
                "--delete: what a run moved SRC lacks, and the next run would delete it at DST; run it without --delete"
            }
            Beside { hard_links: true, .. } => {
                "-H: which names are one file cannot be told while names of it go; leave out -H, or remove SRC after a run with it"
            }
            Beside { backup: true, .. } => {
                "--backup: a backup would take the place of what an earlier run moved to the same name; run it without --backup"
            }
            Beside { fake: true, .. } => {
                "--fake-super: what attributes of rsync stand for is not all kept, and would be nowhere else; leave out either of them"
            }
            Beside { meets: true, .. } => {
                "several SRC whose entries may come to one place: the next run would take what is left of one for newer than what this one \
                 moved there from another; run it for each SRC, into a directory of its own"
            }
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Usage, format!("--remove-source-files does not go with {what}")))
    }
}

/// `Usage` if `tree` removes sources, which go under `names`, and asks for what is not safe with that.
pub(super) fn require_safe(tree: &Tree, names: &[Vec<u8>]) -> Result<()> {
    let removes = has(tree, sync_flag::REMOVE_SOURCES);
    Beside { meets: removes && may_meet(names), ..Beside::of(tree) }.require_none()
}

/// True if entries of several sources, which go under `names`, may come to one place: what is in one without a name may come to any.
fn may_meet(names: &[Vec<u8>]) -> bool {
    let mut seen = HashSet::new();
    names.len() > 1 && names.iter().any(|name| name.is_empty() || !seen.insert(name))
}

/// What was told and may go.
pub(super) struct Removal {
    told: Mutex<Told>,
}

struct Told {
    /// By number, ascending; `None` once it is gone.
    entries: VecDeque<(u64, Option<ToldEntry>)>,
    /// Entries that there was no room to remember, and whether that was said.
    lost: u64,
    remover: Remover,
}

impl Removal {
    /// Of sources whose paths begin at `origin`, if `tree` asks for it.
    pub(super) fn of(tree: &Tree, origin: Origin) -> Option<Arc<Removal>> {
        let told = Told { entries: VecDeque::new(), lost: 0, remover: Remover::new(origin) };
        removes(tree).then(|| Arc::new(Removal { told: Mutex::new(told) }))
    }

    /// The entry of this number, which `walker` just told, may have to go.
    pub(super) fn note(&self, number: u64, step: &Walked, walker: &Walker) {
        if !matches!(step, Walked::Entry(entry, _) if !entry.is_directory()) {
            return;
        }
        let mut told = lock(&self.told);
        if told.entries.len() < SYNC_REMOVALS_MAX {
            told.entries.push_back((number, Some(walker.told_last())));
        } else {
            told.lost += 1;
        }
    }
}

impl Removes for Removal {
    fn remove(&self, in_place: &InPlace) -> (u64, Vec<EntryFailed>) {
        let mut told = lock(&self.told);
        let Told { entries, lost, remover } = &mut *told;
        let (mut count, mut failed) = (0, Vec::new());
        for run in &in_place.runs {
            let end = run.first.saturating_add(run.count);
            let mut at = entries.partition_point(|(number, _)| *number < run.first);
            while let Some((_, entry)) = entries.get_mut(at).filter(|(number, _)| *number < end) {
                at += 1;
                // Each is named once.
                let Some(entry) = entry.take() else { continue };
                match remover.remove(&entry) {
                    Ok(is_gone) => count += u64::from(is_gone),
                    Err(error) => failed.push(entry_failed(&entry.path(), &error)),
                }
            }
        }
        let is_over =
            |(number, entry): &(u64, Option<ToldEntry>)| *number < in_place.settled || entry.is_none();
        while entries.front().is_some_and(is_over) {
            entries.pop_front();
        }
        if in_place.is_last && *lost > 0 {
            let what = format!(
                "left here: {}, as more than {SYNC_REMOVALS_MAX} waited at a time for word from where they were brought",
                entries_told(*lost)
            );
            let error = Error::new(ErrorKind::Unsupported, what).advise("run it again");
            failed.push(entry_failed(".".as_ref(), &error));
        }
        (count, failed)
    }
}

/// At the receiver: which entries are in place, until that is said.
#[derive(Default)]
pub(super) struct Arrivals {
    is_on: bool,
    numbers: Vec<u64>,
    /// Below this everything was said.
    settled: u64,
    /// Entries that lacked something of what was to be kept, so far.
    troubles: u64,
}

impl Arrivals {
    /// If `tree` asks for it.
    pub(super) fn of(tree: &Tree) -> Arrivals {
        Arrivals { is_on: removes(tree), ..Arrivals::default() }
    }

    pub(super) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The entry of this number is in place. So many so far lack something: if this one does, its source stays.
    pub(super) fn came(&mut self, number: u64, troubles: u64) {
        let is_whole = troubles == std::mem::replace(&mut self.troubles, troubles);
        if self.is_on && is_whole {
            self.numbers.push(number);
        }
    }

    /// True if it is time to make durable what came; below `undecided` everything is settled.
    pub(super) fn is_due(&self, undecided: u64) -> bool {
        let came = self.numbers.len() as u64;
        self.is_on
            && (came >= SYNC_IN_PLACE_ENTRIES
                || undecided.saturating_sub(self.settled) >= 4 * SYNC_IN_PLACE_ENTRIES)
    }

    /// True if nothing has to be made durable.
    pub(super) fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// What is said now that it is durable.
    pub(super) fn say(&mut self, undecided: u64, is_last: bool) -> Vec<InPlace> {
        let mut numbers = std::mem::take(&mut self.numbers);
        numbers.sort_unstable();
        numbers.dedup();
        let mut runs: Vec<InPlaceRun> = Vec::new();
        for number in numbers {
            match runs.last_mut() {
                Some(run) if run.first + run.count == number && run.count < TREE_WANTED_MAX => run.count += 1,
                _ => runs.push(InPlaceRun { first: number, count: 1 }),
            }
        }
        let mut said: Vec<InPlace> = runs
            .chunks(TREE_PULL_RUNS_MAX)
            // What is settled is so once all of them are said.
            .map(|runs| InPlace { runs: runs.to_vec(), settled: self.settled, is_last: false })
            .collect();
        self.settled = undecided;
        let runs = said.pop().map_or_else(Vec::new, |last| last.runs);
        said.push(InPlace { runs, settled: undecided, is_last });
        said
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S84: sources may meet if one of several has no name, or two have one.
    #[test]
    fn sources_meet_under_one_name_or_none() {
        for (names, meets) in [
            (&["", ""][..], true),
            (&["a", ""], true),
            (&["a", "b", "a"], true),
            (&["a", "b"], false),
            (&[""], false),
            (&[], false),
        ] {
            let names: Vec<Vec<u8>> = names.iter().map(|name| name.as_bytes().to_vec()).collect();
            assert_eq!(may_meet(&names), meets, "{names:?}");
        }
    }

    /// S84, memory: what there was no room to remember stays, and that is said once, with the last word, where it is so.
    #[test]
    fn what_could_not_be_remembered_stays_and_is_told() {
        for lost in [0, 3] {
            let told = Told { entries: VecDeque::new(), lost, remover: Remover::new(Origin::Anywhere) };
            let removal = Removal { told: Mutex::new(told) };
            let said = |is_last| InPlace { runs: Vec::new(), settled: 0, is_last };
            assert_eq!(removal.remove(&said(false)), (0, Vec::new()), "not yet");
            let (count, failed) = removal.remove(&said(true));
            let texts: Vec<&str> = failed.iter().map(|entry| &*entry.text).collect();
            assert_eq!((count, texts.len()), (0, usize::from(lost > 0)), "{texts:?}");
            assert!(texts.iter().all(|text| text.starts_with("left here: 3 entries")), "{texts:?}");
        }
    }

    /// S84: what came is said in ascending runs, in as many messages as it takes, and what is settled with the last of them; an entry that lacks something is not said to be in place.
    #[test]
    fn what_came_is_said_in_runs() {
        let mut arrivals = Arrivals { is_on: true, ..Arrivals::default() };
        let mut troubles = 0;
        for number in [5_u64, 3, 4, 9] {
            troubles += u64::from(number == 4);
            arrivals.came(number, troubles);
        }
        assert!(!arrivals.is_due(20));
        let runs = |said: &InPlace| said.runs.iter().map(|run| (run.first, run.count)).collect::<Vec<_>>();
        let said = arrivals.say(8, false);
        assert_eq!(said.len(), 1);
        assert_eq!(
            (runs(&said[0]), said[0].settled, said[0].is_last),
            (vec![(3, 1), (5, 1), (9, 1)], 8, false)
        );
        // Every second one: more runs than a message has room for.
        (0..TREE_PULL_RUNS_MAX as u64 + 1).for_each(|number| arrivals.came(100 + 2 * number, troubles));
        let said = arrivals.say(5000, true);
        assert_eq!(
            said.iter().map(|it| (it.runs.len(), it.settled, it.is_last)).collect::<Vec<_>>(),
            [(TREE_PULL_RUNS_MAX, 8, false), (1, 5000, true)]
        );
        assert!(arrivals.is_due(5000 + 4 * SYNC_IN_PLACE_ENTRIES) && arrivals.is_empty());
        assert_eq!(arrivals.say(5000, true).len(), 1, "the last word is said in any case");
        let mut off = Arrivals::default();
        off.came(1, 0);
        assert!(off.is_empty() && !off.is_due(1 << 40));
    }
}
