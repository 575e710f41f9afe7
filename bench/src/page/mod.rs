//! Renders `docs/performance.md` and its plots from the raw numbers. Nothing is left out: rows that lose, runs that failed
//! and rivals that could not be had are there.

mod numbers;
mod plot;
mod receiver;
mod targets;

use std::fmt::Write;
use std::fs;
use std::path::Path;

use numbers::{Cell, Numbers, Run, median};
pub(crate) use numbers::{amount, may_be_left_out};

const HEAD: &str = include_str!("head.txt");
/// What was tried, written by hand.
const ATTEMPTS: &str = "bench/attempts.md";
const PLOTS: &str = "docs/plots";

/// Writes the page and the plots of the repository at `root`.
pub(crate) fn render(root: &Path) -> Result<String, String> {
    let numbers = Numbers::read(&root.join("bench/results"))?;
    let plots = root.join(PLOTS);
    let _ = fs::remove_dir_all(&plots);
    fs::create_dir_all(&plots).map_err(|error| format!("make {}: {error}", plots.display()))?;
    let attempts =
        fs::read_to_string(root.join(ATTEMPTS)).map_err(|error| format!("read {ATTEMPTS}: {error}"))?;
    let mut page = HEAD.to_owned();
    page += &targets::section(&numbers);
    for row in crate::rows::ALL {
        let cells: Vec<&Cell> = numbers.cells.iter().filter(|cell| cell.row == row.name).collect();
        let _ = write!(page, "\n## {}: {}\n", row.name, row.about);
        if cells.is_empty() {
            page += "\nNot measured yet.\n";
        }
        // What was measured on a machine that is gone stands behind.
        let (newest, older): (Vec<&Cell>, Vec<&Cell>) =
            cells.into_iter().partition(|cell| cell.is_newest(&numbers));
        for cell in newest.into_iter().chain(older) {
            page += &section(cell, &numbers, root)?;
        }
    }
    page += "\n";
    page += attempts.trim_end();
    page += "\n";
    let path = root.join("docs/performance.md");
    fs::write(&path, &page).map_err(|error| format!("write {}: {error}", path.display()))?;
    Ok(format!("{} cells in {}\n", numbers.cells.len(), path.display()))
}

fn section(cell: &Cell, numbers: &Numbers, root: &Path) -> Result<String, String> {
    let mut text = format!("\n### {}\n\n", cell.title());
    if numbers.cells.iter().any(|other| other.is_elsewhere(cell)) {
        let earlier = if cell.is_newest(numbers) { "" } else { ", earlier" };
        let _ = writeln!(text, "On {}{earlier}.\n", cell.machine());
    }
    let figures = cell.figure_names();
    let is_transfer = cell.entries.iter().any(|entry| entry.bytes.is_some());
    let large = cell.entries.iter().filter_map(|entry| entry.bytes).any(|bytes| bytes >= 1 << 20);
    let (unit, scale, digits) = if large || !is_transfer { ("s", 1.0, 2) } else { ("ms", 1e3, 1) };
    let mut head: Vec<String> = vec![String::new(), format!("{unit}, median (min–max)")];
    if is_transfer {
        let cpu = if large { "CPU-s per GiB near / far" } else { "CPU ms near / far" };
        head.extend(
            ["÷ rsync daemon", "÷ rsync over ssh", cpu, "peak MiB near / far", "wire in / out"]
                .map(str::to_owned),
        );
    }
    head.extend(figures.iter().cloned());
    head.extend(["runs".to_owned(), "failed".to_owned()]);
    if cell.is_shaped() {
        head.extend(["INVALID", "left out"].map(str::to_owned));
    }
    let _ = writeln!(text, "| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
    for entry in cell.sorted() {
        let times: Vec<f64> = entry.good().map(|run| run.seconds * scale).collect();
        let title = if entry.is_ours() { format!("**{}**", entry.title) } else { entry.title.clone() };
        let mut cells = vec![title, spread(&times, digits)];
        if is_transfer {
            cells.push(ratio(entry.ratio_to(cell.rival(entry, "rsync-daemon"))));
            cells.push(ratio(entry.ratio_to(cell.rival(entry, "rsync-ssh"))));
            let per =
                if large { 1e6 * entry.bytes.unwrap_or(1 << 30) as f64 / (1_u64 << 30) as f64 } else { 1e3 };
            cells.push(both(
                entry.good(),
                |run| Some([run.near_cpu_us / per, run.far_cpu_us / per]),
                |v| format!("{v:.digits$}"),
            ));
            cells.push(
                entry.peaks().map_or("–".into(), |[near, far]| {
                    format!("{:.0} / {:.0}", near / 1024.0, far / 1024.0)
                }),
            );
            cells.push(both(entry.succeeded(), |run| Some([run.wire_in, run.wire_out]), amount));
        }
        for name in &figures {
            cells.push(match is_of_bytes(name) {
                true => {
                    let all: Vec<f64> = entry.succeeded().filter_map(|run| run.figure(name)).collect();
                    up_to(&all)
                }
                false => {
                    let good: Vec<f64> = entry.good().filter_map(|run| run.figure(name)).collect();
                    median(&good).map_or("–".into(), short)
                }
            });
        }
        cells.push(entry.counted().count().to_string());
        cells.push(entry.counted().filter(|run| run.status != "ok").count().to_string());
        if cell.is_shaped() {
            cells.push(entry.counted().filter(|run| run.is_invalid).count().to_string());
            cells.push(entry.basis().left_out.to_string());
        }
        let _ = writeln!(text, "| {} |", cells.join(" | "));
    }
    text += "\n";
    for entry in &cell.entries {
        let mut told: Vec<&str> = Vec::new();
        for run in entry.newest().filter(|run| run.status != "ok") {
            if !told.contains(&run.status.as_str()) {
                told.push(&run.status);
                let _ = writeln!(text, "* {}: {}", entry.title, run.status);
            }
        }
    }
    for (title, why) in cell.missing() {
        let _ = writeln!(text, "* not measured: {title}: {why}");
    }
    if is_transfer {
        let (slower, alone) = cell.beside_ssh();
        let others = cell.entries.iter().filter(|entry| entry.is_ours()).count() > alone.len();
        match slower.is_empty() {
            true if others => {
                text += "\nSlower than rsync over ssh: no row of Drayman that was measured in turn with it.\n"
            }
            true => {}
            false => {
                let _ = writeln!(text, "\nSlower than rsync over ssh: {}.", slower.join("; "));
            }
        }
        if !alone.is_empty() {
            let _ = writeln!(text, "\nNot measured in turn with rsync over ssh: {}.", alone.join("; "));
        }
    }
    // Where no hosts take part, counts are what matters.
    if cell.has_link() && cell.entries.iter().filter(|entry| entry.seconds().is_some()).count() > 1 {
        let name = format!("{}.svg", cell.slug());
        let path = root.join(PLOTS).join(&name);
        fs::write(&path, plot::bars(cell, unit, scale))
            .map_err(|error| format!("write {}: {error}", path.display()))?;
        let _ = writeln!(text, "\n![{}]({}/{name})", cell.title(), PLOTS.trim_start_matches("docs/"));
    }
    let _ = writeln!(text, "\n{}", numbers.origin(cell));
    let commands: Vec<String> = cell
        .entries
        .iter()
        .filter_map(|entry| {
            Some(format!("{:<22} {}", entry.contender, entry.newest().last()?.command.as_deref()?))
        })
        .collect();
    if !commands.is_empty() {
        let _ = writeln!(
            text,
            "\n<details><summary>Commands</summary>\n\n```\n{}\n```\n\n</details>",
            commands.join("\n")
        );
    }
    Ok(text)
}

fn spread(times: &[f64], digits: usize) -> String {
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    let most = times.iter().copied().fold(0.0, f64::max);
    median(times)
        .map_or("–".into(), |middle| format!("{middle:.digits$} ({least:.digits$}–{most:.digits$})"))
}

fn ratio(value: Option<f64>) -> String {
    value.map_or("–".into(), |value| format!("{value:.2}"))
}

/// True for a figure that is the same on a busy machine.
fn is_of_bytes(figure: &str) -> bool {
    ["MB ", "MiB "].iter().any(|unit| figure.starts_with(unit))
}

fn both<'a>(
    runs: impl Iterator<Item = &'a Run>,
    of: impl Fn(&Run) -> Option<[f64; 2]>,
    show: impl Fn(f64) -> String,
) -> String {
    let values: Vec<[f64; 2]> = runs.filter_map(of).collect();
    let column = |at: usize| median(&values.iter().map(|value| value[at]).collect::<Vec<_>>());
    match (column(0), column(1)) {
        (Some(near), Some(far)) => format!("{} / {}", show(near), show(far)),
        _ => "–".into(),
    }
}

/// The median, and the most where that shows as more.
fn up_to(values: &[f64]) -> String {
    let most = values.iter().copied().reduce(f64::max).map(short);
    match (median(values).map(short), most) {
        (Some(middle), Some(most)) if middle != most => format!("{middle} (to {most})"),
        (middle, _) => middle.unwrap_or_else(|| "–".into()),
    }
}

/// Three digits that count.
fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value == value.trunc() => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
