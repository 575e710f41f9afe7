//! What is told of a run: a line of the results, and its gist on standard output.

use serde_json::{Value, json};

use crate::bench::Bench;
use crate::measure::Run;
use crate::turns::Place;

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

impl Bench {
    /// Writes a run.
    pub(crate) fn tell(&mut self, place: &Place<'_>, run: &Run, told: Told) -> Result<(), String> {
        self.is_vouched_for &= run.invalid.is_none();
        let mut line = line(place, run);
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

    /// Says that something could not be measured, and why; once for each cell.
    pub(crate) fn miss(
        &mut self,
        place: &Place<'_>,
        label: &str,
        title: &str,
        why: &str,
    ) -> Result<(), String> {
        let Place { row, cell, link } = place;
        if !self.named_missing.insert((format!("{row} {cell} {link}"), label.to_owned())) {
            return Ok(());
        }
        self.results.write(&json!({
            "row": row, "cell": cell, "link": link, "contender": label, "title": title, "status": why, "missing": true,
        }))
    }

    /// Keeps a line and shows its gist.
    #[allow(clippy::print_stdout, reason = "a command says how far it is")]
    fn write(&mut self, is_ours: bool, line: Value) -> Result<(), String> {
        let text = |key: &str| line[key].as_str().unwrap_or("").to_owned();
        println!("{}", gist(&line));
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
}

/// What is shown of a run. One whose timings cannot be believed is INVALID, as on the page.
fn gist(line: &Value) -> String {
    let text = |key: &str| line[key].as_str().unwrap_or("");
    let status = match (text("status"), line["invalid"].as_str()) {
        (status, None) => status.to_owned(),
        ("ok", Some(why)) => format!("INVALID: {why}"),
        (status, Some(why)) => format!("{status}; INVALID: {why}"),
    };
    format!(
        "{:<6} {:<22} {:<12} {:<22} round {:<2} {:>10.4} s  load {:.1}  {status}",
        text("row"),
        text("cell"),
        text("link"),
        text("contender"),
        line["round"].as_u64().unwrap_or(1),
        line["seconds"].as_f64().unwrap_or(0.0),
        line["load"].as_f64().unwrap_or(0.0),
    )
}

/// What every line of a run has.
fn line(place: &Place<'_>, run: &Run) -> Value {
    let mut line = json!({
        "row": place.row,
        "cell": place.cell,
        "link": place.link,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A run whose timings the lab does not vouch for is not shown as one that went well.
    #[test]
    fn an_invalid_run_is_shown_as_one() {
        let shown = |status: &str, invalid: Option<&str>| {
            let run = Run { status: status.into(), invalid: invalid.map(str::to_owned), ..Run::default() };
            let place = Place { row: "P1", cell: "cell", link: "lan" };
            gist(&line(&place, &run)).split_once("load 0.0  ").unwrap().1.to_owned()
        };
        assert_eq!(shown("ok", None), "ok");
        assert_eq!(shown("ok", Some("the engine was late")), "INVALID: the engine was late");
        assert_eq!(shown("exit 5", Some("the engine was late")), "exit 5; INVALID: the engine was late");
        assert_eq!(shown("exit 5", None), "exit 5");
    }
}
