//! Plots: a bar for each median, a line from the fastest run to the slowest.

use std::fmt::Write;

use super::numbers::Cell;

const BAR_HEIGHT: f64 = 16.0;
const STEP: f64 = 24.0;
const LABELS_WIDTH: f64 = 380.0;
const BARS_WIDTH: f64 = 420.0;
const VALUES_WIDTH: f64 = 100.0;

/// The times of a cell.
pub(crate) fn bars(cell: &Cell, unit: &str, scale: f64) -> String {
    let entries: Vec<_> = cell.sorted().into_iter().filter(|entry| entry.seconds().is_some()).collect();
    let slowest = entries.iter().flat_map(|entry| entry.good()).map(|run| run.seconds).fold(1e-9, f64::max);
    let height = STEP * (entries.len() as f64 + 1.5);
    let width = LABELS_WIDTH + BARS_WIDTH + VALUES_WIDTH;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"8\" y=\"17\" font-weight=\"bold\">{}</text>\n",
        escaped(&format!("{}: {}", cell.row, cell.title()))
    );
    for (at, entry) in entries.iter().enumerate() {
        let top = STEP * (at as f64 + 1.25);
        let x = |seconds: f64| LABELS_WIDTH + seconds / slowest * BARS_WIDTH;
        let seconds = entry.seconds().unwrap_or(0.0);
        let least = entry.good().map(|run| run.seconds).fold(f64::INFINITY, f64::min);
        let most = entry.good().map(|run| run.seconds).fold(0.0, f64::max);
        let (colour, weight) = if entry.is_ours() { ("#1f6fb4", "bold") } else { ("#b8bec6", "normal") };
        let (middle, baseline) = (top + BAR_HEIGHT / 2.0, top + 12.5);
        let shown =
            if unit == "s" { format!("{:.2} s", seconds) } else { format!("{:.1} {unit}", seconds * scale) };
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{baseline:.1}\" text-anchor=\"end\" font-weight=\"{weight}\">{}</text>\n\
             <rect x=\"{LABELS_WIDTH}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{colour}\"/>\n\
             <line x1=\"{:.1}\" y1=\"{middle:.1}\" x2=\"{:.1}\" y2=\"{middle:.1}\" stroke=\"#222222\"/>\n\
             <text x=\"{:.1}\" y=\"{baseline:.1}\">{shown}</text>\n",
            LABELS_WIDTH - 8.0,
            escaped(&entry.title),
            x(seconds) - LABELS_WIDTH,
            x(least),
            x(most),
            x(most) + 6.0,
        );
    }
    svg + "</svg>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
