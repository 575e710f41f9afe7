//! Who takes part in a cell, and whose turn it is: one after the other, in an order that rotates from round to round.

use crate::bench::Bench;
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

impl Bench {
    /// Runs rounds from `first` on until `wanted` of them, beside round 0 that warms up, have nothing but runs that the lab vouches for: at most twice
    /// as many.
    pub(crate) fn rounds(
        &mut self,
        first: u32,
        wanted: u32,
        mut one: impl FnMut(&mut Bench, u32) -> Result<(), String>,
    ) -> Result<(), String> {
        let last = if self.options.is_smoke { wanted } else { wanted.saturating_mul(2) };
        let (mut round, mut vouched_for) = (first, 0);
        while vouched_for < wanted && round <= last {
            self.is_vouched_for = true;
            one(self, round)?;
            vouched_for += u32::from(self.is_vouched_for && round > 0);
            round += 1;
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
