//! What is the same for all rows: the options, the site, the programs and the results.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::contenders::{self, Job};
use crate::measure::Ground;
use crate::options::Options;
use crate::pair::{Between, Pair};
use crate::results::Results;
use crate::site::{self, Site};
use crate::tools::Tools;

/// A run that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(900);
/// The same in a smoke test.
const SMOKE_PATIENCE: Duration = Duration::from_secs(20);

/// Everything that is the same for all rows.
pub(crate) struct Bench {
    pub(crate) options: Options,
    pub(crate) site: Site,
    pub(crate) tools: Tools,
    pub(crate) builds: Vec<(String, PathBuf)>,
    pub(crate) results: Results,
    /// Runs of Drayman that failed.
    pub(crate) failures: Vec<String>,
    /// Runs of Drayman, and parts of the roofline, that succeeded.
    pub(crate) successes: usize,
    /// What could not be measured, and of which the results say so: row and cell, and whose run it would have been.
    pub(crate) named_missing: BTreeSet<(String, String)>,
    /// The lab vouches for every run of this cell in this round so far.
    pub(crate) is_vouched_for: bool,
}

impl Bench {
    pub(crate) fn new(
        options: Options,
        site: Site,
        tools: Tools,
        builds: Vec<(String, PathBuf)>,
        results: Results,
    ) -> Bench {
        Bench {
            options,
            site,
            tools,
            builds,
            results,
            failures: Vec::new(),
            successes: 0,
            named_missing: BTreeSet::new(),
            is_vouched_for: true,
        }
    }

    pub(crate) fn pair(&self, between: Between) -> Result<Pair, String> {
        let congestion = self.options.congestion.as_deref();
        Pair::new(&self.site, &self.tools, between, self.options.is_pinned, congestion)
    }

    pub(crate) fn ground<'a>(&'a self, pair: &'a Pair) -> Ground<'a> {
        let patience = if self.options.is_smoke { SMOKE_PATIENCE } else { PATIENCE };
        Ground { site: &self.site, pair, tools: &self.tools, patience }
    }

    /// Sizes of single files: the user's, or the row's own.
    pub(crate) fn sizes(&self, own: &[u64]) -> Vec<u64> {
        if self.options.is_smoke {
            return vec![200_000];
        }
        self.options.sizes.clone().unwrap_or_else(|| own.to_vec())
    }

    /// The size of a row that has one: the user's first, or its own; `None` where the user wants no single files.
    pub(crate) fn size(&self, own: u64) -> Option<u64> {
        match &self.options.sizes {
            Some(sizes) => sizes.first().copied(),
            None => Some(own),
        }
    }

    /// Numbers of files in trees.
    pub(crate) fn files(&self, own: &[u64]) -> Vec<u64> {
        if self.options.is_smoke {
            return vec![20];
        }
        self.options.files.clone().unwrap_or_else(|| own.to_vec())
    }

    /// Links: those of the user, or the row's own.
    pub(crate) fn links(&self, own: &[&str]) -> Result<Vec<Between>, String> {
        let names = match &self.options.links {
            Some(links) => links.clone(),
            None => own.iter().map(|name| (*name).to_owned()).collect(),
        };
        names.iter().map(|name| crate::pair::between(name)).collect()
    }

    pub(crate) fn pairs(&self) -> u32 {
        if self.options.is_smoke { 1 } else { self.options.pairs }
    }

    /// Lets `build` be the `dray` of both ends.
    pub(crate) fn use_build(&self, build: &Path) -> Result<(), String> {
        let link = self.site.root.join("bin/dray");
        site::remove(&link);
        std::os::unix::fs::symlink(build, &link).map_err(|error| format!("link {}: {error}", link.display()))
    }

    /// Whether the user wants a contender of this name.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.options.only.is_empty() || self.options.only.iter().any(|only| name.starts_with(only.as_str()))
    }

    /// Whether the user wants a cell of this name, of which a list leaves commas out.
    pub(crate) fn wants_cell(&self, name: &str) -> bool {
        let name = name.replace(',', "");
        self.options.cells.is_empty() || self.options.cells.iter().any(|cell| name.starts_with(cell.as_str()))
    }

    /// The command of a job, with folders and addresses of the test made readable.
    pub(crate) fn readable(&self, job: &Job, pair: &Pair) -> String {
        contenders::readable(&job.argv, &self.site, pair)
    }
}
