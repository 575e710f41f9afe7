//! Who takes part in a cell, and whose turn it is: one after the other, in an order that rotates from round to round.

use std::process::Command;

use crate::bench::Bench;
use crate::page;
use crate::site;
use crate::telling::Told;
use crate::tools::Tool;

/// Someone who takes part.
pub(crate) trait Entrant: Copy {
    /// Its name in the results.
    fn label(&self) -> String;
    /// What readers see.
    fn title(&self) -> String;
    /// Programs it needs besides ours.
    fn tools(&self) -> &'static [Tool];
    /// It is Drayman: it runs with each build.
    fn is_ours(&self) -> bool;
}

/// A cell in the results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) row: &'a str,
    pub(crate) cell: &'a str,
    /// Empty where no hosts take part.
    pub(crate) link: &'a str,
}

/// A turn of one of them.
#[derive(Debug)]
pub(crate) struct Turn<T> {
    pub(crate) who: T,
    label: String,
    title: String,
    pub(crate) round: u32,
    is_ours: bool,
}

impl<T> Turn<T> {
    /// What is said of its run.
    pub(crate) fn told(
        &self,
        bytes: Option<u64>,
        figures: Vec<(&'static str, f64)>,
        command: String,
    ) -> Told {
        let (label, title) = (self.label.clone(), self.title.clone());
        Told { is_ours: self.is_ours, label, title, round: self.round, bytes, figures, command }
    }
}

/// What cells had of their rounds.
struct Rounds<'a> {
    /// For each cell, those that it is compared with: a ratio is of runs in turn.
    beside: &'a [Vec<usize>],
    wanted: u32,
    had: Vec<Had>,
}

/// Rounds of a cell, and those in which the lab vouches for all runs, also for those that they are compared with.
#[derive(Clone, Copy, Default)]
struct Had {
    all: u32,
    vouched_for: u32,
}

impl Rounds<'_> {
    fn lacks(&self, cell: usize) -> bool {
        let Had { all, vouched_for } = self.had[cell];
        let left_out = (all - vouched_for) as usize;
        vouched_for < self.wanted || !page::may_be_left_out(left_out, all as usize)
    }

    /// Cells that have a turn in the next round.
    fn taking_part(&self) -> Vec<usize> {
        let cells = 0..self.beside.len();
        let is_needed =
            |cell: usize| cells.clone().any(|other| self.beside[other].contains(&cell) && self.lacks(other));
        cells.clone().filter(|cell| self.lacks(*cell) || is_needed(*cell)).collect()
    }

    /// These cells had a turn, and all runs of some of them are vouched for.
    fn end_round(&mut self, taken: &[usize], vouched_for: &[bool]) {
        for &cell in taken {
            let is_whole = vouched_for[cell] && self.beside[cell].iter().all(|beside| vouched_for[*beside]);
            self.had[cell].all += 1;
            self.had[cell].vouched_for += u32::from(is_whole);
        }
    }
}

impl Bench {
    /// Runs rounds from `first` on until `wanted` of them, beside round 0 that warms up, have nothing but runs that the lab vouches for, and are three quarters of all: at most twice as many.
    pub(crate) fn rounds(
        &mut self,
        first: u32,
        wanted: u32,
        mut one: impl FnMut(&mut Bench, u32) -> Result<(), String>,
    ) -> Result<(), String> {
        self.rounds_of(first, wanted, &[Vec::new()], |bench, _, round| one(bench, round))
    }

    /// The same for several cells, which have a turn in each round as long as they, or others that are compared with them, lack rounds. `beside` has, for each cell, those that it is compared with.
    pub(crate) fn rounds_of(
        &mut self,
        first: u32,
        wanted: u32,
        beside: &[Vec<usize>],
        mut one: impl FnMut(&mut Bench, usize, u32) -> Result<(), String>,
    ) -> Result<(), String> {
        let last = if self.options.is_smoke { wanted } else { wanted.saturating_mul(2) };
        let mut rounds = Rounds { beside, wanted, had: vec![Had::default(); beside.len()] };
        for round in first..=last {
            let mut vouched_for = vec![false; beside.len()];
            let taking = rounds.taking_part();
            if taking.is_empty() {
                break;
            }
            for &cell in &taking {
                self.is_vouched_for = true;
                one(self, cell, round)?;
                vouched_for[cell] = self.is_vouched_for;
            }
            if round > 0 {
                rounds.end_round(&taking, &vouched_for);
            }
        }
        Ok(())
    }

    /// A round: gives a turn to everybody of `all` whom the user wants and whose programs are here, once with each build to ours. What was delivered and
    /// remembered before is forgotten each time.
    pub(crate) fn in_turn<T: Entrant>(
        &mut self,
        place: &Place<'_>,
        all: &[T],
        round: u32,
        mut run: impl FnMut(&mut Bench, &Turn<T>) -> Result<(), String>,
    ) -> Result<(), String> {
        if !self.wants_cell(place.cell) {
            return Ok(());
        }
        let mut taking = Vec::new();
        for who in all.iter().filter(|who| self.wants(&who.label())).copied().collect::<Vec<_>>() {
            if let Some(why) = self.tools.missing(who.tools()) {
                self.miss(place, &who.label(), &who.title(), &why)?;
                continue;
            }
            let builds = if who.is_ours() { self.builds.len() } else { 1 };
            taking.extend((0..builds).map(|build| (who, build)));
        }
        for turn in 0..taking.len() {
            let (who, build) = taking[(turn + round as usize) % taking.len()];
            let (name, path) = self.builds[build].clone();
            self.use_build(&path)?;
            self.site.forget()?;
            if self.options.syncs {
                // Who syncs a whole file system would wait for what others left to be written.
                site::run(Command::new("sync").arg("--file-system").arg(&self.site.root))?;
            }
            let (mut label, mut title, is_ours) = (who.label(), who.title(), who.is_ours());
            if is_ours && self.builds.len() > 1 {
                label += &format!("@{name}");
                title += &format!(", build {name}");
            }
            run(self, &Turn { who, label, title, round, is_ours })?;
        }
        self.site.forget()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cells that have turns in each round, up to twice as many as wanted; `is_vouched_for` tells of a cell and a round.
    fn turns(
        beside: &[Vec<usize>],
        wanted: u32,
        is_vouched_for: impl Fn(usize, u32) -> bool,
    ) -> Vec<Vec<usize>> {
        let mut rounds = Rounds { beside, wanted, had: vec![Had::default(); beside.len()] };
        let all = (1..=2 * wanted).map(|round| {
            let taking = rounds.taking_part();
            let vouched_for: Vec<bool> = (0..beside.len()).map(|cell| is_vouched_for(cell, round)).collect();
            rounds.end_round(&taking, &vouched_for);
            taking
        });
        all.take_while(|taking| !taking.is_empty()).collect()
    }

    /// A round is repeated for the cells that lack it, and those that they are compared with.
    #[test]
    fn cells_that_lack_rounds_are_repeated() {
        let beside = [vec![], vec![0], vec![0, 1], vec![]];
        assert_eq!(turns(&beside, 5, |_, _| true), vec![vec![0, 1, 2, 3]; 5]);
        // The last one alone, and the third with both that it is compared with.
        let seen = turns(&beside, 5, |cell, round| cell != 3 || round != 2);
        assert_eq!((seen.len(), &seen[5]), (6, &vec![3]));
        let seen = turns(&beside, 5, |cell, round| cell != 2 || round != 2);
        assert_eq!((seen.len(), &seen[5]), (6, &vec![0, 1, 2]));
        // Where what is compared with is not vouched for, the round does not count for either.
        let seen = turns(&beside, 5, |cell, round| cell != 1 || round != 2);
        assert_eq!((seen.len(), &seen[5]), (6, &vec![0, 1, 2]));
        let seen = turns(&beside, 5, |cell, _| cell != 3);
        assert_eq!((seen.len(), &seen[9]), (10, &vec![3]));
    }

    /// Two rounds of seven would be more left out than proves anything, so that there is an eighth.
    #[test]
    fn rounds_go_on_until_few_are_left_out() {
        let seen = |bad: &[u32]| turns(&[vec![]], 5, |_, round| !bad.contains(&round)).len();
        assert_eq!([&[][..], &[1], &[1, 2], &[1, 2, 8]].map(seen), [5, 6, 8, 10]);
    }
}
