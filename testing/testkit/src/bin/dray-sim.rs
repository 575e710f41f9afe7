//! Runs the simulator from the command line, as `cargo xtask sim` does: seed after seed, and for each failure how to run it again.

use std::io::Write;
use std::process::ExitCode;
use std::time::Instant;

use dray_testkit::sim::{Plan, Report, TraceLines, run};

const USAGE: &str =
    "usage: cargo xtask sim [--seeds N] [--from SEED] [--nodes N] [--swarm] [--size-mib N] [--trace]

  --seeds N      runs to make, one for each seed (default 100)
  --from SEED    the first seed (default 1)
  --nodes N      nodes that take part (default: as the seed decides; with --swarm 300)
  --swarm        no faults: everybody fetches the object and serves it from then on
  --size-mib N   size of a swarm's object, 64 at most (default 48)
  --trace        print what happens; for one seed
";

struct Arguments {
    seeds: u64,
    from: u64,
    nodes: Option<usize>,
    is_swarm: bool,
    size_mib: u64,
    is_traced: bool,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|word| matches!(word.as_str(), "--help" | "-h" | "help")) {
        say(USAGE);
        return ExitCode::SUCCESS;
    }
    let arguments = match parse(&words) {
        Ok(arguments) => arguments,
        Err(what) => {
            say(&format!("{what}\n{USAGE}"));
            return ExitCode::from(2);
        }
    };
    let (mut failed, mut done, mut ended, mut events) = (Vec::new(), 0, 0, 0);
    let begun = Instant::now();
    for seed in arguments.from..arguments.from.saturating_add(arguments.seeds) {
        let report = one(seed, &arguments);
        done += report.done();
        ended += report.ended.len();
        events += report.events;
        if arguments.seeds == 1 || !report.findings.is_empty() {
            say(&describe(&report, &arguments));
        }
        if !report.findings.is_empty() {
            failed.push(seed);
        }
    }
    say(&format!(
        "{} runs in {:.1} s, {events} events: {done} of {ended} receivers got the object, {} runs broke a promise\n",
        arguments.seeds,
        begun.elapsed().as_secs_f64(),
        failed.len()
    ));
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn parse(words: &[String]) -> Result<Arguments, String> {
    let mut arguments =
        Arguments { seeds: 100, from: 1, nodes: None, is_swarm: false, size_mib: 48, is_traced: false };
    let mut words = words.iter();
    while let Some(word) = words.next() {
        let mut number = |least: u64| {
            let value = words.next().and_then(|value| value.parse::<u64>().ok());
            value.filter(|value| *value >= least).ok_or(format!("{word} takes a number, {least} or more"))
        };
        match word.as_str() {
            "--seeds" => arguments.seeds = number(1)?,
            "--from" => arguments.from = number(0)?,
            "--nodes" => arguments.nodes = Some(usize::try_from(number(2)?).unwrap_or(usize::MAX).min(2000)),
            "--size-mib" => arguments.size_mib = number(1)?.min(64),
            "--swarm" => arguments.is_swarm = true,
            "--trace" => arguments.is_traced = true,
            _ => return Err(format!("{word:?} is not understood")),
        }
    }
    if arguments.is_traced && arguments.seeds != 1 {
        return Err("--trace is for one seed: add --seeds 1".to_owned());
    }
    Ok(arguments)
}

fn one(seed: u64, arguments: &Arguments) -> Report {
    let plan = if arguments.is_swarm {
        Plan::swarm(seed, arguments.nodes.unwrap_or(300), arguments.size_mib << 20)
    } else {
        Plan::mix(seed, arguments.nodes)
    };
    let lines = arguments.is_traced.then(|| {
        say(&format!("{plan:#?}\n"));
        let print: TraceLines = Box::new(|line: &str| say(&format!("{line}\n")));
        print
    });
    run(&plan, lines)
}

fn describe(report: &Report, arguments: &Arguments) -> String {
    let mut text = format!(
        "seed {}: {} of {} receivers got the object in {:.3} s of virtual time, {} events, trace {}\n",
        report.seed,
        report.done(),
        report.ended.len(),
        report.took_ns() as f64 / 1e9,
        report.events,
        report.trace_hash
    );
    for finding in &report.findings {
        text += &format!("  BROKEN: {finding}\n");
    }
    if !report.findings.is_empty() {
        let nodes = arguments.nodes.map_or_else(String::new, |nodes| format!(" --nodes {nodes}"));
        let swarm = if arguments.is_swarm {
            format!(" --swarm --size-mib {}", arguments.size_mib)
        } else {
            String::new()
        };
        let again = format!("cargo xtask sim --from {} --seeds 1{nodes}{swarm} --trace", report.seed);
        text += &format!("  again: {again}\n");
    }
    text
}

fn say(text: &str) {
    // Nowhere is left to report that standard output is closed.
    let _ = std::io::stdout().write_all(text.as_bytes());
}
