//! The raw numbers, read back: for each cell and each contender the newest file that has them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use dray_lab::conditions::{self, Condition};
use serde_json::Value;

/// Everything that was measured.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub(crate) cells: Vec<Cell>,
    facts: BTreeMap<String, Value>,
}

/// One table.
#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) row: String,
    name: String,
    link: String,
    setting: String,
    /// What was measured on another machine is another table.
    machine: String,
    /// The newest file that says something of it.
    pub(super) file: String,
    pub(crate) entries: Vec<Entry>,
    missing: Vec<Missing>,
}

/// A rival that could not be had.
#[derive(Debug)]
struct Missing {
    file: String,
    contender: String,
    title: String,
    why: String,
}

/// One line of a table.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) contender: String,
    pub(crate) title: String,
    pub(crate) bytes: Option<u64>,
    /// Of every file.
    runs: Vec<Run>,
    /// The newest of them; only its runs are shown.
    file: String,
}

/// A ratio of two contenders' times.
#[derive(Debug)]
pub(crate) struct Paired {
    pub(crate) ratio: f64,
    /// The same with the rounds that were left out.
    pub(crate) of_all: f64,
    pub(crate) basis: Basis,
    pub(crate) file: String,
}

/// How many runs a figure rests on, how many of those the lab does not vouch for, how many were left out with their rounds, and how many failed beside them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Basis {
    pub(crate) runs: usize,
    pub(crate) invalid: usize,
    pub(crate) left_out: usize,
    pub(crate) failed: usize,
}

/// Rounds, or runs, without which a figure proves nothing.
pub(crate) const ROUNDS_MIN: usize = 5;

/// True if so many of all rounds may be left out: beyond a quarter, what is left may be what was chosen.
pub(crate) fn may_be_left_out(left_out: usize, all: usize) -> bool {
    left_out.saturating_mul(4) <= all
}

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    file: String,
    round: u64,
    pub(crate) status: String,
    pub(crate) seconds: f64,
    pub(crate) near_cpu_us: f64,
    pub(crate) far_cpu_us: f64,
    pub(crate) wire_in: f64,
    pub(crate) wire_out: f64,
    peaks: Option<[f64; 2]>,
    pub(crate) is_invalid: bool,
    /// Its round is left out.
    is_left_out: bool,
    load: f64,
    pub(crate) command: Option<String>,
    figures: Vec<(String, f64)>,
}

impl Numbers {
    pub(crate) fn read(folder: &Path) -> Result<Numbers, String> {
        let failed = |error: std::io::Error| format!("read {}: {error}", folder.display());
        let mut files: Vec<_> =
            fs::read_dir(folder).map_err(failed)?.flatten().map(|entry| entry.path()).collect();
        // Their names hold the time, so the last is the newest.
        files.sort();
        let mut numbers = Numbers { cells: Vec::new(), facts: BTreeMap::new() };
        for path in files {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if !name.starts_with("bench-") || !name.ends_with(".jsonl") {
                continue;
            }
            let text =
                fs::read_to_string(&path).map_err(|error| format!("read {}: {error}", path.display()))?;
            for line in text.lines() {
                let value: Value =
                    serde_json::from_str(line).map_err(|error| format!("{}: {error}", path.display()))?;
                numbers.take(&name, &value);
            }
        }
        numbers.leave_out();
        Ok(numbers)
    }

    /// Of these lines, each with its file.
    #[cfg(test)]
    pub(crate) fn of(lines: &[(&str, Value)]) -> Numbers {
        let mut numbers = Numbers { cells: Vec::new(), facts: BTreeMap::new() };
        lines.iter().for_each(|(file, line)| numbers.take(file, line));
        numbers.leave_out();
        numbers
    }

    /// A round in which the lab does not vouch for every run of a table is left out of it, where enough others are left. For all of them: what a run takes of the machine is among what makes it
    /// INVALID, so that nobody is to be shown by the runs that went well with him.
    fn leave_out(&mut self) {
        for cell in &mut self.cells {
            let mut files: BTreeMap<String, BTreeMap<u64, bool>> = BTreeMap::new();
            for run in cell.entries.iter().flat_map(|entry| &entry.runs).filter(|run| run.round > 0) {
                let rounds = files.entry(run.file.clone()).or_default();
                *rounds.entry(run.round).or_default() |= run.is_invalid;
            }
            for run in cell.entries.iter_mut().flat_map(|entry| &mut entry.runs) {
                let Some(rounds) = files.get(&run.file) else { continue };
                let vouched_for = rounds.values().filter(|is_invalid| !**is_invalid).count();
                run.is_left_out = vouched_for >= ROUNDS_MIN && rounds.get(&run.round) == Some(&true);
            }
        }
    }

    fn take(&mut self, file: &str, line: &Value) {
        if let Some(facts) = line.get("facts") {
            self.facts.insert(file.to_owned(), facts.clone());
            return;
        }
        let facts = self.facts.get(file);
        let setting = facts.map(setting_of).unwrap_or_default();
        let machine = facts.map(machine_of).unwrap_or_default();
        let text = |key: &str| line[key].as_str().unwrap_or("").to_owned();
        let (row, name, link) = (text("row"), text("cell"), link_of(&text("link")));
        let found = self.cells.iter().position(|cell| {
            cell.is(&row, &name, &link) && (&cell.setting, &cell.machine) == (&setting, &machine)
        });
        let at = found.unwrap_or_else(|| {
            let (entries, missing) = (Vec::new(), Vec::new());
            self.cells.push(Cell {
                row,
                name,
                link,
                setting,
                machine,
                file: String::new(),
                entries,
                missing,
            });
            self.cells.len() - 1
        });
        let cell = &mut self.cells[at];
        file.clone_into(&mut cell.file);
        let contender = text("contender");
        if line["missing"] == true {
            let (title, why) = (text("title"), text("status"));
            cell.missing.push(Missing { file: file.to_owned(), contender, title, why });
            return;
        }
        let at = cell.entries.iter().position(|entry| entry.contender == contender).unwrap_or_else(|| {
            let entry = Entry {
                contender: contender.clone(),
                title: String::new(),
                bytes: None,
                runs: Vec::new(),
                file: file.to_owned(),
            };
            cell.entries.push(entry);
            cell.entries.len() - 1
        });
        let entry = &mut cell.entries[at];
        file.clone_into(&mut entry.file);
        cell.missing.retain(|missing| missing.contender != contender);
        entry.title = text("title");
        entry.bytes = line["bytes"].as_u64();
        entry.runs.push(Run::parse(file, line));
    }

    /// Where the numbers of a cell come from.
    pub(crate) fn origin(&self, cell: &Cell) -> String {
        let files: BTreeSet<&str> = cell.entries.iter().map(|entry| entry.file.as_str()).collect();
        let mut lines = Vec::new();
        for file in files {
            let facts = self.facts.get(file).unwrap_or(&Value::Null);
            let text = |key: &str| facts[key].as_str().unwrap_or("").to_owned();
            let loads: Vec<f64> = cell
                .entries
                .iter()
                .filter(|entry| entry.file == file)
                .flat_map(|entry| &entry.runs)
                .map(|run| run.load)
                .collect();
            let least = loads.iter().copied().fold(f64::INFINITY, f64::min);
            let most = loads.iter().copied().fold(0.0, f64::max);
            let list = |key: &str| {
                let all = facts[key].as_object().into_iter().flatten();
                all.map(|(name, version)| {
                    let version = version.as_str().unwrap_or("");
                    if version.contains(name.as_str()) {
                        version.to_owned()
                    } else {
                        format!("{name} {version}")
                    }
                })
                .collect::<Vec<_>>()
                .join(", ")
            };
            let note = text("note");
            let words = match text("words") {
                words if words.is_empty() => words,
                words => format!("`cargo xtask bench {words}`, "),
            };
            lines.push(format!(
                "`bench/results/{file}`: {words}{}, {}, {} cores, {} MiB, {}, congestion control {}, {}, fsync {}, seed {}, commit {}; load of the \
                 machine {least:.1} to {most:.1}{}{note}. {}; {}.",
                text("date"),
                text("cpu"),
                facts["cores"],
                facts["memory_mib"],
                text("kernel"),
                text("congestion_control"),
                text("file_system"),
                text("fsync"),
                facts["seed"],
                text("commit"),
                if note.is_empty() { "" } else { "; " },
                list("dray"),
                list("versions"),
            ));
        }
        lines.join("\n")
    }
}

/// The one name of a link, which older numbers call by its rate and round trip.
fn link_of(name: &str) -> String {
    match conditions::parse(name) {
        Ok(Condition { name, .. }) if name != conditions::GIVEN => name.to_owned(),
        _ => name.to_owned(),
    }
}

fn machine_of(facts: &Value) -> String {
    format!("{}, {} cores", facts["cpu"].as_str().unwrap_or("unknown"), facts["cores"])
}

fn setting_of(facts: &Value) -> String {
    let mut words = vec![facts["file_system"].as_str().unwrap_or("").to_owned()];
    words.push(match facts["fsync"].as_str() {
        Some("none") | None => "no fsync".to_owned(),
        Some(other) => format!("fsync {other}"),
    });
    if facts["pinned"] == true {
        words.push("each end on a core of its own".to_owned());
    }
    if facts["is_congestion_chosen"] == true {
        words.push(format!("{} at both ends", facts["congestion_control"].as_str().unwrap_or("")));
    }
    words.join(", ")
}

impl Cell {
    pub(crate) fn title(&self) -> String {
        let link = if self.has_link() { format!("{}, ", self.link) } else { String::new() };
        format!("{}, {link}{}", self.what(), self.setting)
    }

    /// What it was measured on.
    pub(crate) fn machine(&self) -> &str {
        &self.machine
    }

    /// True if it was measured with the same settings on the same machine.
    pub(crate) fn is_set_as(&self, other: &Cell) -> bool {
        (&self.setting, &self.machine) == (&other.setting, &other.machine)
    }

    /// True for the same task, measured on another machine.
    pub(crate) fn is_elsewhere(&self, other: &Cell) -> bool {
        self.is(&other.row, &other.name, &other.link)
            && self.setting == other.setting
            && self.machine != other.machine
    }

    /// True if nobody measured this later on another machine.
    pub(crate) fn is_newest(&self, numbers: &Numbers) -> bool {
        !numbers.cells.iter().any(|other| other.is_elsewhere(self) && other.file > self.file)
    }

    /// Who could not be had when it was measured last, and why.
    pub(crate) fn missing(&self) -> BTreeSet<(&str, &str)> {
        let newest = self.missing.iter().filter(|missing| missing.file == self.file);
        newest.map(|missing| (missing.title.as_str(), missing.why.as_str())).collect()
    }

    /// The task in words.
    fn what(&self) -> String {
        let (name, again) = match self.name.strip_suffix("-again") {
            Some(name) => (name, ", nothing changed since"),
            None => (self.name.as_str(), ""),
        };
        let text = match name.split_once('-') {
            Some(("file", bytes)) => {
                bytes.parse().map_or_else(|_| name.to_owned(), |bytes: f64| amount(bytes))
            }
            Some((kind @ ("tree" | "flat"), rest)) => match rest.split_once('x') {
                Some((files, bytes)) => {
                    let bytes = bytes.parse().map(amount).unwrap_or_default();
                    format!("{files} files of {bytes}{}", if kind == "flat" { " in one folder" } else { "" })
                }
                None => name.to_owned(),
            },
            _ => name.to_owned(),
        };
        text + again
    }

    /// For a file name.
    pub(crate) fn slug(&self) -> String {
        let text = format!("{}-{}-{}-{}-{}", self.row, self.name, self.link, self.setting, self.machine);
        let words =
            text.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        words.collect::<Vec<_>>().join("-").to_lowercase()
    }

    pub(crate) fn is_shaped(&self) -> bool {
        !matches!(self.link.as_str(), "unshaped" | "")
    }

    pub(crate) fn is(&self, row: &str, name: &str, link: &str) -> bool {
        self.row == row && (name.is_empty() || self.name == name) && (link.is_empty() || self.link == link)
    }

    /// Its name in the results.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// False of one in which no hosts take part.
    pub(crate) fn has_link(&self) -> bool {
        !self.link.is_empty()
    }

    /// True of a cell of the same row, measured in the same way.
    pub(crate) fn is_beside(&self, other: &Cell) -> bool {
        (&self.row, &self.link) == (&other.row, &other.link) && self.is_set_as(other)
    }

    /// Fastest first; those without a time at the end.
    pub(crate) fn sorted(&self) -> Vec<&Entry> {
        let mut entries: Vec<&Entry> = self.entries.iter().collect();
        entries.sort_by(|a, b| a.seconds().unwrap_or(f64::MAX).total_cmp(&b.seconds().unwrap_or(f64::MAX)));
        entries
    }

    /// The rival of that name in the direction of `entry`.
    pub(crate) fn rival(&self, entry: &Entry, name: &str) -> Option<&Entry> {
        let way = if entry.contender.contains("-push") { "push" } else { "pull" };
        self.entries.iter().find(|other| other.contender == format!("{name}-{way}"))
    }

    pub(crate) fn entry(&self, contender: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.contender == contender)
    }

    /// Rows of ours that are slower than rsync over ssh, and those that were never measured in turn with it.
    pub(crate) fn beside_ssh(&self) -> (Vec<&str>, Vec<&str>) {
        let (mut slower, mut alone) = (Vec::new(), Vec::new());
        for entry in self.entries.iter().filter(|entry| entry.is_ours()) {
            match entry.paired(self.rival(entry, "rsync-ssh")) {
                None => alone.push(entry.title.as_str()),
                Some(paired) if paired.ratio > 1.0 => slower.push(entry.title.as_str()),
                Some(_) => {}
            }
        }
        (slower, alone)
    }

    /// Figures of this cell beyond those that all have, in the order they were told.
    pub(crate) fn figure_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for (name, _) in self.entries.iter().flat_map(Entry::newest).flat_map(|run| &run.figures) {
            if !names.contains(name) {
                names.push(name.clone());
            }
        }
        names
    }
}

impl Entry {
    pub(crate) fn is_ours(&self) -> bool {
        self.contender.starts_with("dray")
    }

    /// The newest runs, also the first one of a cell that warms up.
    pub(crate) fn newest(&self) -> impl DoubleEndedIterator<Item = &Run> {
        self.runs.iter().filter(|run| run.file == self.file)
    }

    /// Those that count.
    pub(crate) fn counted(&self) -> impl Iterator<Item = &Run> {
        self.newest().filter(|run| run.round > 0)
    }

    /// Those that succeeded: what they counted is so on a busy machine, too.
    pub(crate) fn succeeded(&self) -> impl Iterator<Item = &Run> {
        self.counted().filter(|run| run.status == "ok")
    }

    /// The same without the rounds that are left out: those whose times count.
    pub(crate) fn good(&self) -> impl Iterator<Item = &Run> {
        self.succeeded().filter(|run| !run.is_left_out)
    }

    /// Runs that succeeded in the file that `other` is shown from.
    pub(crate) fn good_beside<'a>(&'a self, other: &'a Entry) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(|run| run.file == other.file && run.round > 0 && run.status == "ok")
    }

    pub(crate) fn seconds(&self) -> Option<f64> {
        median(&self.good().map(|run| run.seconds).collect::<Vec<_>>())
    }

    /// The same with the rounds that are left out.
    pub(crate) fn seconds_of_all(&self) -> Option<f64> {
        median(&self.succeeded().map(|run| run.seconds).collect::<Vec<_>>())
    }

    /// What a run counted under this name: the median of all that succeeded.
    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        median(&self.succeeded().filter_map(|run| run.figure(name)).collect::<Vec<_>>())
    }

    /// The median of the ratios within a round, in the newest file that has both; `None` if they were never measured in turn.
    pub(crate) fn ratio_to(&self, rival: Option<&Entry>) -> Option<f64> {
        self.paired(rival).map(|paired| paired.ratio)
    }

    /// The same, and what it rests on.
    pub(crate) fn paired(&self, rival: Option<&Entry>) -> Option<Paired> {
        let rival = rival?;
        let good = |run: &&Run| run.round > 0 && run.status == "ok";
        let mut pairs: Vec<(&Run, &Run)> = Vec::new();
        for run in self.runs.iter().filter(good) {
            let mut others = rival.runs.iter().filter(good);
            let beside = others.find(|other| (&other.file, other.round) == (&run.file, run.round));
            pairs.extend(beside.map(|other| (run, other)));
        }
        let newest = pairs.iter().map(|(run, _)| run.file.clone()).max()?;
        pairs.retain(|(run, _)| run.file == newest);
        let ratio = |pairs: &[(&Run, &Run)]| {
            median(&pairs.iter().map(|(run, other)| run.seconds / other.seconds).collect::<Vec<_>>())
        };
        let (all, of_all) = (pairs.len(), ratio(&pairs)?);
        // Two tables that are compared may each have left out other rounds.
        let is_in = |(run, other): &(&Run, &Run)| !run.is_left_out && !other.is_left_out;
        if pairs.iter().filter(|pair| is_in(pair)).count() >= ROUNDS_MIN {
            pairs.retain(is_in);
        }
        let basis = Basis {
            runs: pairs.len(),
            invalid: pairs.iter().filter(|(run, other)| run.is_invalid || other.is_invalid).count(),
            left_out: all - pairs.len(),
            failed: self.runs.iter().filter(|run| run.file == newest && run.has_failed()).count(),
        };
        Some(Paired { ratio: ratio(&pairs)?, of_all, basis, file: newest })
    }

    /// What the medians of the newest runs rest on.
    pub(crate) fn basis(&self) -> Basis {
        Basis {
            runs: self.good().count(),
            invalid: self.good().filter(|run| run.is_invalid).count(),
            left_out: self.succeeded().count() - self.good().count(),
            failed: self.newest().filter(|run| run.has_failed()).count(),
        }
    }

    /// What counts of the newest runs rest on.
    pub(crate) fn basis_of_all(&self) -> Basis {
        let invalid = self.succeeded().filter(|run| run.is_invalid).count();
        Basis { runs: self.succeeded().count(), invalid, left_out: 0, ..self.basis() }
    }

    /// KiB, the most of any run that was watched.
    pub(crate) fn peaks(&self) -> Option<[f64; 2]> {
        self.newest().filter_map(|run| run.peaks).reduce(|a, b| [a[0].max(b[0]), a[1].max(b[1])])
    }
}

impl Run {
    fn parse(file: &str, line: &Value) -> Run {
        let number = |key: &str| line[key].as_f64().unwrap_or(0.0);
        let peaks = line["near_peak_kib"].as_f64().zip(line["far_peak_kib"].as_f64());
        let figures = line["figures"].as_array().into_iter().flatten();
        let figures =
            figures.filter_map(|pair| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_f64()?)));
        Run {
            file: file.to_owned(),
            round: line["round"].as_u64().unwrap_or(1),
            status: line["status"].as_str().unwrap_or("").to_owned(),
            seconds: number("seconds"),
            near_cpu_us: number("near_cpu_us"),
            far_cpu_us: number("far_cpu_us"),
            wire_in: number("wire_in_bytes"),
            wire_out: number("wire_out_bytes"),
            peaks: peaks.map(|(near, far)| [near, far]),
            is_invalid: line.get("invalid").is_some(),
            is_left_out: false,
            load: number("load"),
            command: line["command"].as_str().map(str::to_owned),
            figures: figures.collect(),
        }
    }

    fn has_failed(&self) -> bool {
        self.round > 0 && self.status != "ok"
    }

    pub(crate) fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|(own, _)| own == name).map(|(_, value)| *value)
    }
}

pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.get(sorted.len().checked_sub(1)? / 2)?, sorted.get(sorted.len() / 2)?);
    Some((low + high) / 2.0)
}

/// Bytes for people.
pub(crate) fn amount(bytes: f64) -> String {
    for (unit, size) in [("TiB", 1_u64 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)] {
        let value = bytes / size as f64;
        if value >= 1.0 {
            return match value {
                value if value == value.trunc() => format!("{value:.0} {unit}"),
                value if value >= 100.0 => format!("{value:.0} {unit}"),
                value if unit == "GiB" => format!("{value:.3} {unit}"),
                value => format!("{value:.1} {unit}"),
            };
        }
    }
    format!("{bytes:.0} B")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(contender: &str, round: u64, seconds: f64) -> Value {
        json!({"row": "P1", "cell": "file-1024", "link": "unshaped", "contender": contender, "title": contender,
               "bytes": 1024, "round": round, "status": "ok", "seconds": seconds})
    }

    /// "Method": medians of ratios within a round, not the ratio of medians; the round that warms up does not count.
    #[test]
    fn ratios_are_those_within_a_round() {
        let numbers = Numbers::of(&[
            ("bench-1.jsonl", run("dray-cp-pull", 0, 90.0)),
            ("bench-1.jsonl", run("dray-cp-pull", 1, 1.0)),
            ("bench-1.jsonl", run("dray-cp-pull", 2, 4.0)),
            ("bench-1.jsonl", run("dray-cp-pull", 3, 9.0)),
            ("bench-1.jsonl", run("rsync-ssh-pull", 1, 2.0)),
            ("bench-1.jsonl", run("rsync-ssh-pull", 2, 4.0)),
            ("bench-1.jsonl", run("rsync-ssh-pull", 3, 3.0)),
        ]);
        let cell = &numbers.cells[0];
        let entry = cell.entry("dray-cp-pull").unwrap();
        assert_eq!((entry.seconds(), entry.ratio_to(cell.rival(entry, "rsync-ssh"))), (Some(4.0), Some(1.0)));
        assert_eq!(cell.beside_ssh(), (Vec::new(), Vec::new()));
    }

    #[test]
    fn the_newest_file_wins_and_ratios_need_one_file() {
        let numbers = Numbers::of(&[
            ("bench-1.jsonl", run("dray-cp-pull", 1, 1.0)),
            ("bench-1.jsonl", run("rsync-ssh-pull", 1, 2.0)),
            ("bench-2.jsonl", run("dray-cp-pull", 1, 5.0)),
            ("bench-2.jsonl", run("scp-pull", 1, 4.0)),
            ("bench-3.jsonl", run("curl-pull", 1, 5.0)),
        ]);
        let cell = &numbers.cells[0];
        let entry = cell.entry("dray-cp-pull").unwrap();
        let to = |rival: &str| entry.ratio_to(cell.entry(rival));
        assert_eq!(entry.seconds(), Some(5.0));
        assert_eq!((to("rsync-ssh-pull"), to("scp-pull"), to("curl-pull")), (Some(0.5), Some(1.25), None));
    }

    /// Where a rival was measured again later, a ratio is still that of the runs in turn.
    #[test]
    fn a_ratio_keeps_to_its_file() {
        let numbers = Numbers::of(&[
            ("bench-1.jsonl", run("dray-cp-pull", 1, 1.0)),
            ("bench-1.jsonl", run("rsync-ssh-pull", 1, 2.0)),
            ("bench-2.jsonl", run("rsync-ssh-pull", 1, 50.0)),
        ]);
        let cell = &numbers.cells[0];
        let entry = cell.entry("dray-cp-pull").unwrap();
        assert_eq!(entry.ratio_to(cell.rival(entry, "rsync-ssh")), Some(0.5));
        assert_eq!(cell.entry("rsync-ssh-pull").unwrap().seconds(), Some(50.0));
    }

    /// Rows that lose are shown.
    #[test]
    fn losers_are_named() {
        let numbers = Numbers::of(&[
            ("bench-1.jsonl", run("dray-cp-pull", 1, 3.0)),
            ("bench-1.jsonl", run("rsync-ssh-pull", 1, 2.0)),
        ]);
        assert_eq!(numbers.cells[0].beside_ssh(), (vec!["dray-cp-pull"], vec![]));
    }

    /// Nothing is said of rsync over ssh where it did not run.
    #[test]
    fn who_was_not_beside_is_named() {
        let numbers = Numbers::of(&[
            ("bench-1.jsonl", run("dray-cp-pull", 1, 3.0)),
            ("bench-2.jsonl", run("rsync-ssh-pull", 1, 2.0)),
        ]);
        assert_eq!(numbers.cells[0].beside_ssh(), (vec![], vec!["dray-cp-pull"]));
    }

    /// Machines are not mixed, and a rival that was had later is not missing any more.
    #[test]
    fn each_machine_has_its_table() {
        let facts = |cpu: &str| json!({"facts": {"cpu": cpu, "cores": 2}});
        let miss = json!({"row": "P1", "cell": "file-1024", "link": "unshaped", "contender": "syq-pull", "title": "syq",
                          "status": "not installed", "missing": true});
        let numbers = Numbers::of(&[
            ("bench-1.jsonl", facts("one")),
            ("bench-1.jsonl", run("dray-cp-pull", 1, 3.0)),
            ("bench-1.jsonl", miss.clone()),
            ("bench-2.jsonl", facts("other")),
            ("bench-2.jsonl", run("syq-pull", 1, 2.0)),
            ("bench-3.jsonl", facts("one")),
            ("bench-3.jsonl", run("syq-pull", 1, 2.0)),
        ]);
        let [first, second] = &numbers.cells[..] else { panic!("{:?}", numbers.cells) };
        assert!(first.is_elsewhere(second) && first.is_newest(&numbers) && !second.is_newest(&numbers));
        assert!(first.missing().is_empty());
        assert!(first.entry("dray-cp-pull").unwrap().paired(first.entry("syq-pull")).is_none());
        let numbers = Numbers::of(&[("bench-1.jsonl", facts("one")), ("bench-1.jsonl", miss)]);
        assert_eq!(numbers.cells[0].missing().into_iter().collect::<Vec<_>>(), [("syq", "not installed")]);
    }

    /// What a ratio rests on is told: pairs, those of them the lab does not vouch for, and failures.
    #[test]
    fn a_ratio_tells_its_basis() {
        let mut bad = run("dray-cp-pull", 2, 1.0);
        bad["invalid"] = json!("late");
        let mut failed = run("dray-cp-pull", 3, 1.0);
        failed["status"] = json!("exit 5");
        let numbers = Numbers::of(&[
            ("bench-1.jsonl", run("dray-cp-pull", 1, 1.0)),
            ("bench-1.jsonl", bad),
            ("bench-1.jsonl", failed),
            ("bench-1.jsonl", run("rsync-ssh-pull", 1, 2.0)),
            ("bench-1.jsonl", run("rsync-ssh-pull", 2, 2.0)),
            ("bench-1.jsonl", run("rsync-ssh-pull", 3, 2.0)),
        ]);
        let cell = &numbers.cells[0];
        let paired = cell.entry("dray-cp-pull").unwrap().paired(cell.entry("rsync-ssh-pull")).unwrap();
        assert_eq!(paired.basis, Basis { runs: 2, invalid: 1, left_out: 0, failed: 1 });
    }

    fn bad(contender: &str, round: u64, seconds: f64) -> Value {
        let mut bad = run(contender, round, seconds);
        bad["invalid"] = json!("late");
        bad
    }

    /// A round with a run that the lab does not vouch for is left out for everybody where five others are left, and for nobody else: whose own runs are valid keeps none of it, and whose are not
    /// loses no more than the others.
    #[test]
    fn a_round_is_left_out_for_all_where_enough_are_left() {
        let mut lines = vec![
            ("bench-1.jsonl", bad("dray-cp-pull", 1, 90.0)),
            ("bench-1.jsonl", run("rsync-ssh-pull", 1, 1.0)),
            ("bench-1.jsonl", run("dray-cp-pull", 2, 80.0)),
            ("bench-1.jsonl", bad("rsync-ssh-pull", 2, 1.0)),
        ];
        for round in 3..=6 {
            lines.push(("bench-1.jsonl", run("dray-cp-pull", round, 2.0)));
            lines.push(("bench-1.jsonl", run("rsync-ssh-pull", round, 4.0)));
        }
        let seen = |lines: &[(&str, Value)]| {
            let numbers = Numbers::of(lines);
            let cell = &numbers.cells[0];
            let entry = cell.entry("dray-cp-pull").unwrap();
            let paired = entry.paired(cell.entry("rsync-ssh-pull")).unwrap();
            (
                (paired.ratio, paired.of_all),
                paired.basis,
                entry.basis(),
                entry.good().map(|run| run.seconds).fold(0.0, f64::max),
            )
        };
        let four = seen(&lines);
        assert_eq!(four.1, Basis { runs: 6, invalid: 2, left_out: 0, failed: 0 });
        // Five runs of its own are vouched for, but only four rounds.
        assert_eq!((four.2, four.3), (Basis { runs: 6, invalid: 1, left_out: 0, failed: 0 }, 90.0));
        lines.push(("bench-1.jsonl", run("dray-cp-pull", 7, 2.0)));
        lines.push(("bench-1.jsonl", run("rsync-ssh-pull", 7, 4.0)));
        let five = seen(&lines);
        let without = Basis { runs: 5, invalid: 0, left_out: 2, failed: 0 };
        assert_eq!((five.0, five.1, five.2, five.3), ((0.5, 0.5), without, without, 2.0));
        // A third one's run is enough for that; and with all rounds the ratio is another one.
        lines.push(("bench-1.jsonl", run("dray-cp-pull", 8, 2.0)));
        lines.push(("bench-1.jsonl", run("rsync-ssh-pull", 8, 4.0)));
        lines.push(("bench-1.jsonl", bad("scp-pull", 7, 1.0)));
        for round in 9..=12 {
            lines.push(("bench-1.jsonl", bad("dray-cp-pull", round, 12.0)));
            lines.push(("bench-1.jsonl", run("rsync-ssh-pull", round, 4.0)));
        }
        let third = seen(&lines);
        assert_eq!(third.1, Basis { runs: 5, invalid: 0, left_out: 7, failed: 0 });
        assert_eq!(third.0, (0.5, 1.75));
    }

    /// Bytes are those of all runs.
    #[test]
    fn counts_hold_on_a_busy_machine() {
        let mut lines: Vec<(&str, Value)> =
            (1..=5).map(|round| ("bench-1.jsonl", run("dray-cp-pull", round, 2.0))).collect();
        lines.push(("bench-1.jsonl", bad("dray-cp-pull", 6, 2.0)));
        let numbers = Numbers::of(&lines);
        let entry = numbers.cells[0].entry("dray-cp-pull").unwrap();
        assert_eq!((entry.good().count(), entry.succeeded().count()), (5, 6));
        assert_eq!(entry.basis_of_all(), Basis { runs: 6, invalid: 1, left_out: 0, failed: 0 });
    }

    /// What is compared between two tables rests on rounds that count in both; where those are too few, on all that both have, and tells how many are INVALID.
    #[test]
    fn two_tables_are_compared_by_rounds_that_count_in_both() {
        let of = |cell: &str, mut line: Value| {
            line["cell"] = json!(cell);
            ("bench-1.jsonl", line)
        };
        let mut lines = Vec::new();
        for round in 1..=8 {
            lines.push(of(
                "one",
                if round > 2 { run("dray-cp-pull", round, 2.0) } else { bad("dray-cp-pull", round, 9.0) },
            ));
            lines.push(of(
                "other",
                if round < 8 { run("dray-cp-pull", round, 1.0) } else { bad("dray-cp-pull", round, 1.0) },
            ));
        }
        let seen = |lines: &[(&str, Value)]| {
            let numbers = Numbers::of(lines);
            let [one, other] = &numbers.cells[..] else { panic!("{:?}", numbers.cells) };
            one.entry("dray-cp-pull").unwrap().paired(other.entry("dray-cp-pull")).unwrap().basis
        };
        assert_eq!(seen(&lines), Basis { runs: 5, invalid: 0, left_out: 3, failed: 0 });
        lines.retain(|(_, line)| line["round"] != 5);
        assert_eq!(seen(&lines), Basis { runs: 7, invalid: 3, left_out: 0, failed: 0 });
    }

    #[test]
    fn bytes_are_readable() {
        let shown = [1024.0, 1536.0, 2147483648.0, 1099511627776.0, 7.0, 112459776.0].map(amount);
        assert_eq!(shown, ["1 KiB", "1.5 KiB", "2 GiB", "1 TiB", "7 B", "107 MiB"]);
    }
}
