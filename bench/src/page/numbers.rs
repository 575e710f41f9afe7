//! The raw numbers, read back: for each cell and each contender the newest file that has them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

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
    pub(crate) entries: Vec<Entry>,
    /// Rivals that could not be had, and why.
    pub(crate) missing: BTreeSet<(String, String)>,
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
        Ok(numbers)
    }

    fn take(&mut self, file: &str, line: &Value) {
        if let Some(facts) = line.get("facts") {
            self.facts.insert(file.to_owned(), facts.clone());
            return;
        }
        let setting = self.facts.get(file).map(setting_of).unwrap_or_default();
        let text = |key: &str| line[key].as_str().unwrap_or("").to_owned();
        let key = (text("row"), text("cell"), text("link"), setting);
        let found = self.cells.iter().position(|cell| {
            (&cell.row, &cell.name, &cell.link, &cell.setting) == (&key.0, &key.1, &key.2, &key.3)
        });
        let at = found.unwrap_or_else(|| {
            let (row, name, link, setting) = key;
            let (entries, missing) = (Vec::new(), BTreeSet::new());
            self.cells.push(Cell { row, name, link, setting, entries, missing });
            self.cells.len() - 1
        });
        let cell = &mut self.cells[at];
        if line["missing"] == true {
            cell.missing.insert((text("title"), text("status")));
            return;
        }
        let contender = text("contender");
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
        let title = text("title");
        cell.missing.retain(|(missing, _)| *missing != title);
        entry.title = title;
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
            lines.push(format!(
                "`bench/results/{file}`: {}, {}, {} cores, {} MiB, {}, congestion control {}, {}, fsync {}, seed {}, commit {}; load of the \
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

fn setting_of(facts: &Value) -> String {
    let mut words = vec![facts["file_system"].as_str().unwrap_or("").to_owned()];
    words.push(match facts["fsync"].as_str() {
        Some("none") | None => "no fsync".to_owned(),
        Some(other) => format!("fsync {other}"),
    });
    if facts["pinned"] == true {
        words.push("each end on a core of its own".to_owned());
    }
    words.join(", ")
}

impl Cell {
    pub(crate) fn title(&self) -> String {
        format!("{}, {}, {}", self.what(), self.link, self.setting)
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
        let text = format!("{}-{}-{}-{}", self.row, self.name, self.link, self.setting);
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

    pub(crate) fn slower_than_ssh(&self) -> Vec<String> {
        let ours = self.entries.iter().filter(|entry| entry.is_ours());
        let slow = ours
            .filter(|entry| entry.ratio_to(self.rival(entry, "rsync-ssh")).is_some_and(|ratio| ratio > 1.0));
        slow.map(|entry| entry.title.clone()).collect()
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

    /// Those that succeeded.
    pub(crate) fn good(&self) -> impl Iterator<Item = &Run> {
        self.counted().filter(|run| run.status == "ok")
    }

    /// Runs that succeeded in the file that `other` is shown from.
    pub(crate) fn good_beside<'a>(&'a self, other: &'a Entry) -> impl Iterator<Item = &'a Run> {
        self.runs.iter().filter(|run| run.file == other.file && run.round > 0 && run.status == "ok")
    }

    pub(crate) fn seconds(&self) -> Option<f64> {
        median(&self.good().map(|run| run.seconds).collect::<Vec<_>>())
    }

    /// The median of the ratios within a round, in the newest file that has both; `None` if they were never measured in turn.
    pub(crate) fn ratio_to(&self, rival: Option<&Entry>) -> Option<f64> {
        let rival = rival?;
        let counts = |run: &&Run| run.round > 0 && run.status == "ok";
        let mut pairs: Vec<(&str, f64)> = Vec::new();
        for run in self.runs.iter().filter(counts) {
            let beside = rival
                .runs
                .iter()
                .filter(counts)
                .find(|other| (&other.file, other.round) == (&run.file, run.round));
            pairs.extend(beside.map(|other| (run.file.as_str(), run.seconds / other.seconds)));
        }
        let newest = pairs.iter().map(|(file, _)| *file).max()?;
        let ratios: Vec<f64> =
            pairs.iter().filter(|(file, _)| *file == newest).map(|(_, ratio)| *ratio).collect();
        median(&ratios)
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
            load: number("load"),
            command: line["command"].as_str().map(str::to_owned),
            figures: figures.collect(),
        }
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

    fn numbers(lines: &[(&str, Value)]) -> Numbers {
        let mut numbers = Numbers { cells: Vec::new(), facts: BTreeMap::new() };
        lines.iter().for_each(|(file, line)| numbers.take(file, line));
        numbers
    }

    fn run(contender: &str, round: u64, seconds: f64) -> Value {
        json!({"row": "P1", "cell": "file-1024", "link": "unshaped", "contender": contender, "title": contender,
               "bytes": 1024, "round": round, "status": "ok", "seconds": seconds})
    }

    /// "Method": medians of ratios within a round, not the ratio of medians; the round that warms up does not count.
    #[test]
    fn ratios_are_those_within_a_round() {
        let numbers = numbers(&[
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
        assert!(cell.slower_than_ssh().is_empty());
    }

    #[test]
    fn the_newest_file_wins_and_ratios_need_one_file() {
        let numbers = numbers(&[
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
        let numbers = numbers(&[
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
        let numbers = numbers(&[
            ("bench-1.jsonl", run("dray-cp-pull", 1, 3.0)),
            ("bench-1.jsonl", run("rsync-ssh-pull", 1, 2.0)),
        ]);
        assert_eq!(numbers.cells[0].slower_than_ssh(), ["dray-cp-pull"]);
    }

    #[test]
    fn bytes_are_readable() {
        let shown = [1024.0, 1536.0, 2147483648.0, 1099511627776.0, 7.0, 112459776.0].map(amount);
        assert_eq!(shown, ["1 KiB", "1.5 KiB", "2 GiB", "1 TiB", "7 B", "107 MiB"]);
    }
}
