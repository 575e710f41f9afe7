//! `cargo xtask tests`: every test of the workspace as a process of its own, as many side by side as they bear, with the time of each.
//!
//! `cargo test` runs one test program after the other, so that a program waits for its slowest test while the machine is idle; and it
//! builds a package with other features when it is named alone than with the rest. Here everything is built once, together. Most
//! end-to-end tests wait: for a link with a rate, for time limits. They lie side by side, many more than there are cores; those that
//! measure ([`alone`]) come last, two or one at a time. `cargo-nextest` does most of this and would have to be installed wherever the tests run.

mod alone;
mod place;
mod pool;
pub(crate) mod programs;
mod times;
mod turn;
mod unsteady;

use std::process::ExitCode;
use std::time::Instant;

use super::say;
use alone::ALONE;
use pool::{Company, Ended};
use programs::Program;

pub(crate) const USAGE: &str =
    "usage: cargo xtask tests [-p PACKAGE]… [--exclude PACKAGE]… [--jobs N] [--through COMMAND] [NAME…]

  NAME…              only tests whose package, program or name contains one of these
  -p PACKAGE         only tests of these packages
  --exclude PACKAGE  no tests of these
  --jobs N           tests side by side (default: the number of cores)
  --through COMMAND  what starts the tests, such as 'sudo'; they are built without it
";

/// Packages whose tests run real programs on a real network stack.
const LAB_PACKAGES: [&str; 2] = ["dray-e2e", "dray-lab"];
/// Packages some of whose tests have both ends of a transfer in threads, over real sockets and pipes and by the machine's clock.
const CLOCK_PACKAGES: [&str; 2] = ["dray-node", "dray-transfer"];
/// How many of the slowest are told.
const SLOWEST: usize = 10;

/// What is to be done.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wish {
    packages: Vec<String>,
    excluded: Vec<String>,
    jobs: Option<usize>,
    through: Vec<String>,
    names: Vec<String>,
}

impl Wish {
    fn parse(arguments: &[String]) -> Result<Wish, String> {
        let mut wish = Wish::default();
        let mut words = arguments.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().cloned().ok_or(format!("{word} takes a value\n{USAGE}"));
            match word.as_str() {
                "-p" => wish.packages.push(value()?),
                "--exclude" => wish.excluded.push(value()?),
                "--through" => wish.through = value()?.split_whitespace().map(str::to_owned).collect(),
                "--jobs" => {
                    let jobs = value()?.parse().ok().filter(|jobs| (1..=64).contains(jobs));
                    wish.jobs = Some(jobs.ok_or(format!("--jobs takes a number from 1 to 64\n{USAGE}"))?);
                }
                flag if flag.starts_with('-') => {
                    return Err(format!("tests does not understand {flag:?}\n{USAGE}"));
                }
                name => wish.names.push(name.to_owned()),
            }
        }
        Ok(wish)
    }

    fn is_wanted(&self, test: &Test) -> bool {
        let full = test.full_name();
        self.names.is_empty() || self.names.iter().any(|name| full.contains(name))
    }
}

/// One test.
#[derive(Clone, Debug)]
struct Test {
    program: Program,
    name: String,
}

impl Test {
    /// Package, program and name, as output and the file of times have them.
    fn full_name(&self) -> String {
        format!("{} {} {}", self.program.package, self.program.name, self.name)
    }

    fn company(&self) -> Company {
        let here = (self.program.package.as_str(), self.program.name.as_str(), self.name.as_str());
        let mut alone =
            ALONE.iter().filter(|(package, program, name, _)| (*package, *program, *name) == here);
        match alone.next() {
            Some((.., why)) if alone::bears_another(why) => Company::One,
            Some(_) => Company::None,
            None => Company::Many,
        }
    }
}

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let wish = Wish::parse(arguments)?;
    let programs = programs::build()?;
    for package in wish.packages.iter().chain(&wish.excluded) {
        if !programs.iter().any(|program| program.package == *package) {
            return Err(format!("no package with tests is called {package:?}"));
        }
    }
    let (mut tests, mut ignored, mut known) = (Vec::new(), 0, Vec::new());
    for program in programs {
        let is_chosen = wish.packages.is_empty() || wish.packages.contains(&program.package);
        if !is_chosen || wish.excluded.contains(&program.package) {
            continue;
        }
        let found = program.tests()?;
        ignored += found.ignored;
        known.push((program.package.clone(), program.name.clone(), found.names.clone()));
        tests.extend(found.names.into_iter().map(|name| Test { program: program.clone(), name }));
    }
    alone::check(&known)?;
    tests.retain(|test| wish.is_wanted(test));
    if tests.is_empty() {
        return Err(format!("no test is called so: {:?}", wish.names));
    }
    // The slow ones first, so that none of them is left at the end while all but one core is idle.
    times::sort(&mut tests);
    let begun = Instant::now();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut ended = Vec::new();
    let place = place::Place::make(wish.jobs.unwrap_or(cores));
    for (company, jobs) in
        [(Company::Many, wish.jobs.unwrap_or(cores)), (Company::One, cores.min(2)), (Company::None, 1)]
    {
        let some: Vec<Test> = tests.iter().filter(|test| test.company() == company).cloned().collect();
        ended.extend(pool::run(&some, jobs, &wish.through, company, &place)?);
    }
    unsteady::run_again(&tests.iter().collect::<Vec<_>>(), &mut ended, &wish.through, &place)?;
    times::keep(&ended)?;
    report(&mut ended, ignored, begun)
}

/// Tells the slowest ones, what failed, and the sum in the form of cargo's own.
fn report(ended: &mut [Ended], ignored: usize, begun: Instant) -> Result<ExitCode, String> {
    ended.sort_by_key(|ended| std::cmp::Reverse(ended.time));
    let mut text = format!("\nthe slowest of {} tests:\n", ended.len());
    for ended in ended.iter().take(SLOWEST) {
        text.push_str(&format!("  {}\n", ended.line()));
    }
    let processor: f64 = ended.iter().map(|ended| ended.processor.as_secs_f64()).sum();
    text.push_str(&format!("processor time of all: {processor:.1} s\n"));
    let failed: Vec<_> = ended.iter().filter(|ended| !ended.is_ok).collect();
    text.push_str(&unsteady::told(ended)?);
    let skipped: Vec<_> = ended.iter().filter(|ended| !ended.skips.is_empty()).collect();
    for ended in &skipped {
        text.push_str(&format!("SKIP: {}: {}\n", ended.name, ended.skips.join("; ")));
    }
    for ended in &failed {
        text.push_str(&format!("failed: {}\n", ended.name));
    }
    text.push_str(&format!(
        "\ntest result: {}. {} passed; {} failed; {ignored} ignored; {} skipped; finished in {:.2}s\n",
        if failed.is_empty() { "ok" } else { "FAILED" },
        ended.iter().filter(|ended| ended.is_ok && ended.skips.is_empty()).count(),
        failed.len(),
        skipped.len(),
        begun.elapsed().as_secs_f64()
    ));
    say(&text)?;
    Ok(if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn wishes_are_understood() {
        let wish = Wish::parse(&words("-p a --exclude b --jobs 3 some")).unwrap();
        assert_eq!(wish.packages, ["a"]);
        assert_eq!(wish.excluded, ["b"]);
        assert_eq!((wish.jobs, wish.names), (Some(3), words("some")));
        let through = Wish::parse(&["--through".into(), "sudo --preserve-env=A".into()]).unwrap().through;
        assert_eq!(through, ["sudo", "--preserve-env=A"]);
        for slip in ["--jobs", "--jobs 0", "--jobs x", "--job 3", "-p"] {
            assert!(Wish::parse(&words(slip)).is_err(), "{slip}");
        }
    }
}
