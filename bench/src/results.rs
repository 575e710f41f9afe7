//! Raw numbers: one JSON object a line, the first of which says what they depend on.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::site::Site;
use crate::tools::Tools;

/// A file of results that is being written.
#[derive(Debug)]
pub(crate) struct Results {
    file: fs::File,
    pub(crate) path: PathBuf,
    /// Lines written, without the facts.
    pub(crate) lines: usize,
}

/// What the user chose that the numbers depend on.
pub(crate) struct Setting<'a> {
    pub(crate) is_pinned: bool,
    pub(crate) congestion: Option<&'a str>,
    pub(crate) syncs: bool,
    pub(crate) seed: u64,
    pub(crate) note: &'a str,
    /// What was asked for, which another run can be asked for, too.
    pub(crate) words: &'a [String],
    pub(crate) builds: &'a [(String, PathBuf)],
}

impl Results {
    pub(crate) fn create(
        folder: &Path,
        site: &Site,
        tools: &Tools,
        setting: &Setting<'_>,
    ) -> Result<Results, String> {
        fs::create_dir_all(folder).map_err(|error| format!("make {}: {error}", folder.display()))?;
        let now = said("date", &["-u", "+%Y%m%dT%H%M%SZ"]);
        // The time first, so that names sort by it; two may begin within a second.
        let path = folder.join(format!("bench-{now}-{}.jsonl", std::process::id()));
        let file =
            fs::File::create_new(&path).map_err(|error| format!("make {}: {error}", path.display()))?;
        let mut results = Results { file, path, lines: 0 };
        results.write(&json!({ "facts": facts(site, tools, setting) }))?;
        results.lines = 0;
        Ok(results)
    }

    pub(crate) fn write(&mut self, line: &Value) -> Result<(), String> {
        self.lines += 1;
        writeln!(self.file, "{line}").map_err(|error| format!("write {}: {error}", self.path.display()))
    }
}

fn facts(site: &Site, tools: &Tools, setting: &Setting<'_>) -> Value {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let cpu = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let memory = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:")?.trim().split(' ').next()?.parse::<u64>().ok());
    let control = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
    let root = crate::repository().to_string_lossy().into_owned();
    let commit = said("git", &["-C", &root, "rev-parse", "--short", "HEAD"]);
    let is_dirty = !said("git", &["-C", &root, "status", "--porcelain", "--untracked-files=no"]).is_empty();
    let builds: serde_json::Map<String, Value> = setting
        .builds
        .iter()
        .map(|(name, program)| {
            let version = said(&program.to_string_lossy(), &["--version"]);
            let hash = said("b3sum", &["--no-names", &program.to_string_lossy()]);
            (name.clone(), json!(format!("{version}, blake3:{}", hash.get(..16).unwrap_or(""))))
        })
        .collect();
    json!({
        "date": said("date", &["-u", "+%F %H:%M"]),
        "cpu": cpu.unwrap_or("unknown"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory_mib": memory.unwrap_or(0) / 1024,
        "kernel": said("uname", &["-sr"]),
        "congestion_control": setting.congestion.unwrap_or(control.trim()),
        "is_congestion_chosen": setting.congestion.is_some(),
        "file_system": site.file_system(),
        "fsync": if setting.syncs { "at the end" } else { "none" },
        "pinned": setting.is_pinned,
        "seed": setting.seed,
        "lab_seed": std::env::var("LAB_SEED").unwrap_or_else(|_| "default".into()),
        "commit": format!("{commit}{}", if is_dirty { " with changes" } else { "" }),
        "dray": builds,
        "versions": tools.versions(),
        "note": setting.note,
        "words": crate::contenders::joined(setting.words),
    })
}

/// The first line that a command prints, or nothing.
fn said(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    text.lines().next().unwrap_or("").trim().to_owned()
}
