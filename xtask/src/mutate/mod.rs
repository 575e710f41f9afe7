//! `cargo xtask mutate`: breaks the product on purpose, one line at a time, in a copy of the repository, and runs the test that
//! must notice. A test that stays green proves less than it says.

mod list;

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;

use super::group::{self, Exit};
use super::suite::programs::{self, Program};
use super::{repository, say, target_folder};
use list::{MUTATIONS, Mutation};

pub(crate) const USAGE: &str = "usage: cargo xtask mutate [NAME… | --random N [--seed N]] [--green] [--list]

  NAME…        only these mutations (default: all)
  --random N   N of them, chosen by chance
  --seed N     what chance goes by (default: the time; it is printed)
  --green      their tests have just passed here, unbroken: not once more
  --list       print their names
";

/// See [`USAGE`].
const GREEN: &str = "--green";
/// A test that takes longer than this hangs, which is red as well; building it takes the time that it takes.
const PATIENCE: Duration = Duration::from_secs(300);

/// What came of a test.
#[derive(PartialEq, Eq, Debug)]
enum Outcome {
    Green,
    Red,
    /// It could not be run: what cargo said.
    Broken(String),
}

pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, String> {
    let Some(chosen) = choose(arguments)? else {
        let names: Vec<&str> = MUTATIONS.iter().map(|mutation| mutation.name).collect();
        return say(&format!("{}\n", names.join("\n"))).map(|()| ExitCode::SUCCESS);
    };
    let copy = own_folder().join("repository");
    copy_repository(&repository(), &copy)?;
    let mut failed = 0;
    let mut known_green = BTreeSet::new();
    if arguments.iter().any(|word| word == GREEN) {
        known_green.extend(chosen.iter().map(Mutation::proven_by));
    }
    for mutation in &chosen {
        let begun = Instant::now();
        let verdict = judge(mutation, &copy, &mut known_green)?;
        let is_caught = verdict == "caught";
        failed += usize::from(!is_caught);
        let seconds = begun.elapsed().as_secs();
        say(&format!("mutate: {}: {verdict} by {} ({seconds} s)\n", mutation.name, mutation.test))?;
    }
    say(&format!("mutate: {} mutations, {} caught\n", chosen.len(), chosen.len() - failed))?;
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The mutations to try; `None` if they are to be listed.
fn choose(arguments: &[String]) -> Result<Option<Vec<Mutation>>, String> {
    let (mut chosen, mut random, mut seed) = (Vec::new(), None, None);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().and_then(|value| value.parse::<u64>().ok());
            value.ok_or(format!("{word} takes a number\n{USAGE}"))
        };
        match word.as_str() {
            "--list" => return Ok(None),
            "--random" => random = Some(number()?),
            "--seed" => seed = Some(number()?),
            GREEN => {}
            name => {
                let found = MUTATIONS.iter().find(|mutation| mutation.name == name);
                chosen.push(*found.ok_or(format!("no mutation is called {name:?}; see --list\n{USAGE}"))?);
            }
        }
    }
    let Some(count) = random else {
        return Ok(Some(if chosen.is_empty() { MUTATIONS.to_vec() } else { chosen }));
    };
    if !chosen.is_empty() {
        return Err(format!("--random chooses by itself: leave the names out\n{USAGE}"));
    }
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let seed = seed.unwrap_or_else(now);
    say(&format!("mutate: --random {count} --seed {seed}\n"))?;
    Ok(Some(sample(count, seed)))
}

/// `count` different mutations that follow from `seed`, for as long as the toolchain is the same.
fn sample(count: u64, seed: u64) -> Vec<Mutation> {
    let mut left = MUTATIONS.to_vec();
    let mut chosen = Vec::new();
    while (chosen.len() as u64) < count && !left.is_empty() {
        let mut hasher = DefaultHasher::new();
        (seed, left.len()).hash(&mut hasher);
        chosen.push(left.swap_remove((hasher.finish() % left.len() as u64) as usize));
    }
    chosen
}

/// What becomes of one mutation; the copy is as it was afterwards.
fn judge(
    mutation: &Mutation,
    copy: &Path,
    known_green: &mut BTreeSet<[&'static str; 3]>,
) -> Result<String, String> {
    let path = copy.join(mutation.file);
    let text = fs::read_to_string(&path).map_err(|error| format!("read {}: {error}", mutation.file))?;
    let mutated = mutate(mutation, &text)?;
    // Before it is broken it must be green, or red proves nothing.
    if known_green.insert(mutation.proven_by()) {
        match run_test(mutation, copy, PATIENCE)? {
            Outcome::Green => {}
            Outcome::Red => return Ok("NOT TRIED: red as it is,".into()),
            Outcome::Broken(why) => return Ok(format!("NOT TRIED: cargo says: {why},")),
        }
    }
    let write =
        |text: &str| fs::write(&path, text).map_err(|error| format!("write {}: {error}", mutation.file));
    write(&mutated)?;
    let outcome = run_test(mutation, copy, PATIENCE);
    write(&text)?;
    Ok(match outcome? {
        Outcome::Red => "caught".into(),
        Outcome::Green => "NOT CAUGHT".into(),
        Outcome::Broken(why) => format!("NOT TRIED: cargo says: {why},"),
    })
}

/// The file with the mutation in it.
fn mutate(mutation: &Mutation, text: &str) -> Result<String, String> {
    match text.matches(mutation.from).count() {
        1 => Ok(text.replacen(mutation.from, mutation.to, 1)),
        count => {
            let Mutation { name, file, from, .. } = mutation;
            Err(format!(
                "{name}: {from:?} stands {count} times in {file}, not once; mend xtask/src/mutate/list.rs"
            ))
        }
    }
}

/// Builds the test of a mutation, then runs it for at most `limit`.
fn run_test(mutation: &Mutation, copy: &Path, limit: Duration) -> Result<Outcome, String> {
    match build_test(mutation, copy)? {
        Ok(program) => run_program(&program, mutation.test, &copy.join("mutate.out"), limit),
        Err(why) => Ok(Outcome::Broken(why)),
    }
}

/// The copy and what is built of it.
fn own_folder() -> PathBuf {
    target_folder().join("mutations")
}

/// The program with the test in it, or why it cannot be built: a compiler that was killed proves nothing of a test, nor does a wait for
/// somebody else's build.
fn build_test(mutation: &Mutation, copy: &Path) -> Result<Result<Program, String>, String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.current_dir(copy).args(["test", "--locked", "--offline", "--package", mutation.package]);
    match mutation.program {
        "--lib" => command.arg("--lib"),
        program => command.args(["--test", program]),
    };
    command.args(["--no-run", "--message-format", "json-render-diagnostics"]);
    // Not where ordinary builds are: cargo tells packages apart by their place in the workspace, so it would take what was built of the copy, or
    // of a mutation, for what stands in the repository.
    command.env("CARGO_TARGET_DIR", own_folder().join("target")).stdin(Stdio::null());
    let output = command.output().map_err(|error| format!("start cargo: {error}"))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let why = text.lines().find(|line| line.starts_with("error")).unwrap_or("it failed").to_owned();
        return Ok(Err(why));
    }
    let programs = programs::read(&String::from_utf8_lossy(&output.stdout))?;
    let count = programs.len();
    let mut programs = programs.into_iter();
    match (programs.next(), count) {
        (Some(program), 1) => Ok(Ok(program)),
        _ => Ok(Err(format!("{count} test programs, not one"))),
    }
}

/// Runs `test` of a program. What takes longer than `limit` hangs, and is killed with all that it started.
fn run_program(program: &Program, test: &str, output: &Path, limit: Duration) -> Result<Outcome, String> {
    let failed = |error: io::Error| format!("{}: {error}", output.display());
    let file = fs::File::create(output).map_err(failed)?;
    let both = file.try_clone().map_err(failed)?;
    let mut command = Command::new(&program.path);
    command.arg(test).current_dir(&program.folder);
    command.env("CARGO_MANIFEST_DIR", &program.folder).env("CARGO_PKG_NAME", &program.package);
    command.stdin(Stdio::null()).stdout(file).stderr(both);
    let exit = group::run(&mut command, limit, &[]);
    let exit = exit.map_err(|error| format!("{}: {error}", program.path.display()))?;
    let text = String::from_utf8_lossy(&fs::read(output).map_err(failed)?).into_owned();
    Ok(judge_exit(&exit, &text, test))
}

/// What the end of a test program says of its test.
fn judge_exit(exit: &Exit, text: &str, test: &str) -> Outcome {
    let lines_end = |word: &str| text.lines().any(|line| line.starts_with("test ") && line.contains(word));
    match exit.status.code() {
        _ if exit.is_killed => Outcome::Red,
        Some(0) if lines_end("... ok") => Outcome::Green,
        Some(0) => Outcome::Broken(format!("no test is called {test}")),
        Some(_) if lines_end("FAILED") => Outcome::Red,
        // A panic while it panics, a stack that is too small: the process ends itself. Somebody else's SIGKILL, as of a machine without
        // memory, is no word of the test.
        None if exit.status.signal() != Some(Signal::KILL.as_raw()) => Outcome::Red,
        _ => Outcome::Broken(format!("the test program ended with {}", exit.status)),
    }
}

/// Copies what git knows of and what is new; files that are equal are left alone, so that they are not built again.
fn copy_repository(from: &Path, to: &Path) -> Result<(), String> {
    let listed = Command::new("git")
        .current_dir(from)
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .map_err(|error| format!("start git: {error}"))?;
    if !listed.status.success() {
        return Err(format!("git ls-files: {}", String::from_utf8_lossy(&listed.stderr)));
    }
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names: BTreeSet<&str> = listed.split('\0').filter(|name| !name.is_empty()).collect();
    for name in &names {
        let (source, copy) = (from.join(name), to.join(name));
        let failed = |error: io::Error| format!("copy {name}: {error}");
        // Removed and not committed yet.
        let Ok(bytes) = fs::read(&source) else { continue };
        if fs::read(&copy).is_ok_and(|known| known == bytes) {
            continue;
        }
        fs::create_dir_all(copy.parent().unwrap_or(to)).map_err(failed)?;
        fs::write(&copy, bytes).map_err(failed)?;
    }
    remove_others(to, to, &names)
}

/// Removes what an earlier copy had and the repository has no more.
fn remove_others(root: &Path, folder: &Path, names: &BTreeSet<&str>) -> Result<(), String> {
    let failed = |error: io::Error| format!("read {}: {error}", folder.display());
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
        if path.is_dir() {
            remove_others(root, &path, names)?;
        } else if !names.contains(name.as_str()) {
            fs::remove_file(&path).map_err(|error| format!("remove {name}: {error}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A mutation whose line has moved would be found only when chance chooses it.
    #[test]
    fn every_mutation_still_applies_and_is_in_the_table() {
        let page = fs::read_to_string(repository().join("docs/testing.md")).unwrap();
        for mutation in MUTATIONS {
            let text = fs::read_to_string(repository().join(mutation.file)).unwrap();
            assert_ne!(mutate(&mutation, &text).unwrap(), text);
            let row = format!("| `{}` |", mutation.name);
            let found = page.lines().find(|line| line.starts_with(&row));
            assert!(found.is_some_and(|line| line.contains(mutation.test)), "{row} … {}", mutation.test);
        }
    }

    #[test]
    fn chance_follows_from_its_seed() {
        let names = |seed| sample(3, seed).iter().map(|mutation| mutation.name).collect::<BTreeSet<_>>();
        assert_eq!(names(1), names(1));
        assert_eq!(names(1).len(), 3);
        assert!((2..20).any(|seed| names(seed) != names(1)));
        assert_eq!(sample(1000, 1).len(), MUTATIONS.len());
    }

    /// Only a word of the test, or its silence, is red: not what the machine does to it, nor a compiler that fails.
    #[test]
    fn red_is_what_a_test_says() {
        let run = |script: &str, limit: Duration| {
            let exit = group::run(Command::new("sh").args(["-c", script]), limit, &[]).unwrap();
            move |text: &str| judge_exit(&exit, text, "a")
        };
        let long = Duration::from_secs(600);
        assert_eq!(run("exit 0", long)("test a ... ok"), Outcome::Green);
        assert!(matches!(run("exit 0", long)("running 0 tests"), Outcome::Broken(_)));
        assert_eq!(run("exit 101", long)("test a ... FAILED"), Outcome::Red);
        assert_eq!(run("kill -ABRT $$", long)(""), Outcome::Red);
        assert_eq!(run("sleep 1000", Duration::from_millis(100))(""), Outcome::Red);
        assert!(matches!(run("kill -KILL $$", long)(""), Outcome::Broken(_)));
        assert!(matches!(run("exit 1", long)("error: cannot list"), Outcome::Broken(_)));
    }
}
