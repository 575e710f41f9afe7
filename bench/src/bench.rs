//! A cell of a table: several contenders, in turn, at the same task between the same two ends.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use dray_lab::Turn;
use serde_json::{Value, json};

use crate::contenders::{self, Contender, Job, Task, Way};
use crate::measure::{Ground, Run};
use crate::options::Options;
use crate::pair::{Between, Pair};
use crate::results::Results;
use crate::site::{self, Site, What};
use crate::tools::Tools;

/// A run that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(900);
/// The same in a smoke test.
const SMOKE_PATIENCE: Duration = Duration::from_secs(20);

/// Time of a large file over a link with a rate, in shares of what the payload needs at that rate and 10 round trips.
pub(crate) const TO_IDEAL: &str = "÷ (payload at line rate + 10 round trips)";
/// Time of a small one.
const ROUND_TRIPS: &str = "round trips";
/// Up to here round trips are what counts.
const SMALL_BYTES: u64 = 1 << 20;
/// Headers: an MTU of 1500 carries 1448 bytes of TCP.
const HEADERS: f64 = 1500.0 / 1448.0;

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
    /// Contenders that are not here and of which the results say so.
    named_missing: BTreeSet<(String, String)>,
}

/// A cell.
pub(crate) struct Cell<'a> {
    pub(crate) row: &'static str,
    pub(crate) what: What,
    /// All is there already, and nothing has changed.
    pub(crate) is_again: bool,
    /// Names of contenders, without the direction.
    pub(crate) names: &'a [&'a str],
    pub(crate) ways: &'a [Way],
    /// One round more, before the others, of which only the memory counts. Without it memory is of the first round.
    pub(crate) warms_up: bool,
    pub(crate) pairs: u32,
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

    /// The size of a row that has one: the user's first, or its own.
    pub(crate) fn size(&self, own: u64) -> u64 {
        let sizes = self.options.sizes.as_deref().unwrap_or_default();
        sizes.first().copied().unwrap_or(own)
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
    pub(crate) fn use_build(&self, build: &PathBuf) -> Result<(), String> {
        let link = self.site.root.join("bin/dray");
        site::remove(&link);
        std::os::unix::fs::symlink(build, &link).map_err(|error| format!("link {}: {error}", link.display()))
    }

    /// Runs a cell and writes its numbers.
    pub(crate) fn cell(&mut self, pair: &Pair, cell: &Cell<'_>) -> Result<(), String> {
        self.site.make(cell.what, self.options.seed)?;
        let entries = self.entries(pair, cell)?;
        let first = if cell.warms_up && !self.options.is_smoke { 0 } else { 1 };
        for round in first..=cell.pairs {
            for turn in 0..entries.len() {
                let (contender, build) = &entries[(turn + round as usize) % entries.len()];
                self.cell_run(pair, cell, contender, *build, round, round == first)?;
            }
        }
        self.site.forget()
    }

    /// Who takes part: the contender and the number of the build it uses.
    fn entries(&mut self, pair: &Pair, cell: &Cell<'_>) -> Result<Vec<(Contender, usize)>, String> {
        let mut entries = Vec::new();
        let wanted: Vec<&Contender> = contenders::ALL
            .iter()
            .filter(|contender| {
                let id = contender.id();
                cell.names.contains(&contender.name)
                    && cell.ways.contains(&contender.way)
                    && (contender.takes_trees || !cell.what.is_tree())
                    && (contender.can_sync || !self.options.syncs)
                    && self.wants(&id)
            })
            .collect();
        for contender in wanted {
            if let Some((tool, why)) =
                contender.tools.iter().find_map(|tool| Some((*tool, self.tools.missing(tool)?)))
            {
                let status = format!("{tool}: {why}");
                if self
                    .named_missing
                    .insert((format!("{} {}", cell.row, cell_name(cell)), contender.title.to_owned()))
                {
                    self.results.write(&json!({
                        "row": cell.row, "cell": cell_name(cell), "link": pair.between.name(),
                        "contender": contender.id(), "title": contender.title, "status": status, "missing": true,
                    }))?;
                }
                continue;
            }
            let builds = if contender.is_ours() { self.builds.len() } else { 1 };
            entries.extend((0..builds).map(|build| (*contender, build)));
        }
        Ok(entries)
    }

    fn cell_run(
        &mut self,
        pair: &Pair,
        cell: &Cell<'_>,
        contender: &Contender,
        build: usize,
        round: u32,
        wants_memory: bool,
    ) -> Result<(), String> {
        let name = cell.what.name();
        let (source, target) = if contender.way == Way::Pull { ("far", "near") } else { ("near", "far") };
        let task = Task {
            what: cell.what,
            from: self.site.root.join(source).join("in").join(&name),
            to: self.site.root.join(target).join("out").join(&name),
            syncs: self.options.syncs,
        };
        self.use_build(&self.builds[build].1.clone())?;
        self.site.forget()?;
        if cell.is_again {
            site::run(std::process::Command::new("cp").arg("-a").args([&task.from, &task.to]))?;
        }
        let job = contenders::job(contender, &task, &self.site, pair);
        let mut run = self.ground(pair).run(&job, wants_memory, None)?;
        if run.status == "ok" && !site::is_same(&task.from, &task.to) {
            run.status = "what arrived differs".into();
        }
        let command = contenders::shown(contender, &job, &task, &self.site, pair);
        let mut line = self.line(cell.row, &cell_name(cell), pair.between.name(), &run);
        line["contender"] = json!(self.label(contender, build));
        line["title"] = json!(self.title(contender, build));
        line["bytes"] = json!(cell.what.bytes());
        line["round"] = json!(round);
        line["command"] = json!(command);
        line["figures"] = json!(link_figures(pair.between, cell.what, run.seconds));
        self.write(contender.is_ours(), line)
    }

    /// What every line of a run has.
    fn line(&self, row: &str, cell: &str, link: &str, run: &Run) -> Value {
        let mut line = json!({
            "row": row,
            "cell": cell,
            "link": link,
            "status": run.status,
            "seconds": run.seconds,
            "near_cpu_us": run.near_cpu_us,
            "far_cpu_us": run.far_cpu_us,
            "wire_in_bytes": run.wire.received,
            "wire_out_bytes": run.wire.sent,
            "load": run.load,
        });
        if let Some([near, far]) = run.peaks_kib {
            line["near_peak_kib"] = json!(near);
            line["far_peak_kib"] = json!(far);
        }
        if let Some(why) = &run.invalid {
            line["invalid"] = json!(why);
        }
        line
    }

    /// Keeps a line and shows its gist.
    #[allow(clippy::print_stdout, reason = "a command says how far it is")]
    pub(crate) fn write(&mut self, is_ours: bool, line: Value) -> Result<(), String> {
        let text = |key: &str| line[key].as_str().unwrap_or("").to_owned();
        println!(
            "{:<6} {:<22} {:<12} {:<22} round {:<2} {:>10.4} s  load {:.1}  {}",
            text("row"),
            text("cell"),
            text("link"),
            text("contender"),
            line["round"].as_u64().unwrap_or(1),
            line["seconds"].as_f64().unwrap_or(0.0),
            line["load"].as_f64().unwrap_or(0.0),
            text("status"),
        );
        let is_good = text("status") == "ok";
        if is_good && (is_ours || text("row") == "roofline") {
            self.successes += 1;
        } else if is_ours {
            self.failures.push(format!(
                "{} {} {}: {}",
                text("row"),
                text("cell"),
                text("contender"),
                text("status")
            ));
        }
        self.results.write(&line)
    }

    /// The contender's name in the results.
    pub(crate) fn label(&self, contender: &Contender, build: usize) -> String {
        self.with_build(contender.id(), "@", contender, build)
    }

    fn title(&self, contender: &Contender, build: usize) -> String {
        let way = match contender.way {
            _ if !contenders::ALL
                .iter()
                .any(|other| other.name == contender.name && other.way != contender.way) =>
            {
                ""
            }
            Way::Pull => ", from the far host",
            Way::Push => ", to the far host",
        };
        self.with_build(format!("{}{way}", contender.title), ", build ", contender, build)
    }

    fn with_build(&self, text: String, between: &str, contender: &Contender, build: usize) -> String {
        if contender.is_ours() && self.builds.len() > 1 {
            return format!("{text}{between}{}", self.builds[build].0);
        }
        text
    }

    /// Whether the user wants a contender of this name.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.options.only.is_empty() || self.options.only.iter().any(|only| name.starts_with(only.as_str()))
    }

    /// Writes a run of a row that does more than move something once.
    pub(crate) fn tell(
        &mut self,
        row: &str,
        cell: &str,
        pair: &Pair,
        run: &Run,
        told: Told,
    ) -> Result<(), String> {
        self.tell_on(row, cell, pair.between.name(), run, told)
    }

    /// The same of a row in which no pair of hosts takes part; `link` is then empty.
    pub(crate) fn tell_on(
        &mut self,
        row: &str,
        cell: &str,
        link: &str,
        run: &Run,
        told: Told,
    ) -> Result<(), String> {
        let mut line = self.line(row, cell, link, run);
        line["contender"] = json!(told.label);
        line["title"] = json!(told.title);
        line["round"] = json!(told.round);
        line["figures"] = json!(told.figures);
        if let Some(bytes) = told.bytes {
            line["bytes"] = json!(bytes);
        }
        if !told.command.is_empty() {
            line["command"] = json!(told.command);
        }
        self.write(told.is_ours, line)
    }

    /// Says that something could not be measured, and why.
    pub(crate) fn miss(
        &mut self,
        row: &str,
        cell: &str,
        link: &str,
        title: &str,
        why: &str,
    ) -> Result<(), String> {
        if !self.named_missing.insert((format!("{row} {cell}"), title.to_owned())) {
            return Ok(());
        }
        self.results.write(&json!({
            "row": row, "cell": cell, "link": link, "contender": title, "title": title, "status": why, "missing": true,
        }))
    }

    /// The command of a job, with folders and addresses of the test made readable.
    pub(crate) fn readable(&self, job: &Job, pair: &Pair) -> String {
        contenders::readable(&job.argv, &self.site, pair)
    }
}

/// What is said of a run beside its numbers.
pub(crate) struct Told {
    pub(crate) is_ours: bool,
    pub(crate) label: String,
    pub(crate) title: String,
    pub(crate) round: u32,
    pub(crate) bytes: Option<u64>,
    pub(crate) figures: Vec<(&'static str, f64)>,
    pub(crate) command: String,
}

/// What a time means on a link.
fn link_figures(between: Between, what: What, seconds: f64) -> Vec<(&'static str, f64)> {
    let Between::Link(condition) = between else { return Vec::new() };
    let round_trip = condition.round_trip().as_secs_f64();
    match (what.bytes(), condition.up.rate) {
        (bytes, _) if bytes < SMALL_BYTES => vec![(ROUND_TRIPS, seconds / round_trip)],
        (bytes, Some(rate)) if !what.is_tree() => {
            let ideal = bytes as f64 * HEADERS * 8.0 / rate.bits_per_second() as f64 + 10.0 * round_trip;
            vec![(TO_IDEAL, seconds / ideal)]
        }
        _ => Vec::new(),
    }
}

fn cell_name(cell: &Cell<'_>) -> String {
    format!("{}{}", cell.what.name(), if cell.is_again { "-again" } else { "" })
}

/// The turn of what measures, as the calibrations of the lab take it: none of them runs beside another, nor beside a test that needs a lab.
pub(crate) fn lock_machine() -> Result<Turn, String> {
    Turn::take(true).map_err(|error| format!("lock dray-e2e.lock among temporary files: {error}"))
}
