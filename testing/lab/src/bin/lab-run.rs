//! Runs commands between two hosts of a lab, in turn, and says what each took: time, CPU, bytes on the wire.
//!
//! The commands run on the host `near`; servers can be started on `far`. Both share the file system of this machine. Every
//! run is one JSON object on standard output; medians and the validity of the runs go to standard error, and so does what a
//! command after `--` prints.

use std::io::Write;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use dray_lab::{Host, Lab, LinkIds, Ran, Stats, conditions};

const HELP: &str = "\
Runs commands between two hosts of a network lab (needs root).

  lab-run --link LINK [OPTION]... --run NAME=COMMAND [--run NAME=COMMAND]...
  lab-run --link LINK [OPTION]... -- COMMAND [ARGUMENT]...

  --link LINK          RATE/ROUND-TRIP[/LOSS%], as in 100M/132ms or 10M/40ms/0.1%, or a name; --links lists them
  --run NAME=COMMAND   a shell command to time on the near host; several take turns
  --rounds N           how often each runs (1); who goes first changes each round
  --warm-up            one round more, before the others, that is not counted
  --far COMMAND        a shell command that keeps running on the far host, such as a server (may be repeated)
  --await PORT         begin when the far host accepts connections there
  --before COMMAND     a shell command on the near host before each run, not timed
  --check COMMAND      a shell command on the near host after each run; if it fails, the run has failed

What a command after -- prints goes to standard error; of others only the last line after a failure is kept.
Commands find the addresses of the hosts in $NEAR and $FAR, and the name of the run in $RUN.
Exit codes: 0 all runs succeeded, 1 a run or the lab failed, 2 usage.";

/// Most rounds; a day of one-second runs.
const ROUNDS_MAX: u32 = 100_000;
/// How long a server may take to listen.
const SERVER_PATIENCE: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Plan {
    link: Option<conditions::Condition>,
    runs: Vec<(String, Vec<String>)>,
    rounds: u32,
    warm_up: bool,
    /// What the commands print is shown.
    shows_output: bool,
    far: Vec<String>,
    port: Option<u16>,
    before: Option<String>,
    check: Option<String>,
}

#[allow(clippy::print_stdout, clippy::print_stderr, reason = "a command prints")]
fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1).peekable();
    match arguments.peek().map(String::as_str) {
        Some("--help" | "-h") => {
            println!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Some("--links") => {
            for condition in conditions::ALL {
                println!("{:<18} {}", condition.name, condition.why);
            }
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let plan = match Plan::parse(arguments) {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("lab-run: {why}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match plan.carry_out() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lab-run: {error}");
            ExitCode::FAILURE
        }
    }
}

impl Plan {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Plan, String> {
        let mut plan = Plan { rounds: 1, ..Plan::default() };
        while let Some(option) = arguments.next() {
            if option == "--" {
                plan.runs.push(("run".into(), arguments.by_ref().collect()));
                plan.shows_output = true;
                break;
            }
            if option == "--warm-up" {
                plan.warm_up = true;
                continue;
            }
            let value = arguments.next().ok_or_else(|| format!("{option} needs a value, or is no option"))?;
            match option.as_str() {
                "--link" => plan.link = Some(conditions::parse(&value)?),
                "--run" => {
                    let (name, command) =
                        value.split_once('=').ok_or_else(|| format!("--run {value}: use NAME=COMMAND"))?;
                    plan.runs.push((name.into(), shell(command)));
                }
                "--rounds" => {
                    let rounds = value.parse().ok().filter(|rounds| (1..=ROUNDS_MAX).contains(rounds));
                    plan.rounds = rounds
                        .ok_or_else(|| format!("--rounds {value}: use a number from 1 to {ROUNDS_MAX}"))?;
                }
                "--far" => plan.far.push(value),
                "--await" => {
                    plan.port = Some(value.parse().map_err(|error| format!("--await {value}: {error}"))?);
                }
                "--before" => plan.before = Some(value),
                "--check" => plan.check = Some(value),
                _ => return Err(format!("there is no option {option}")),
            }
        }
        if plan.link.is_none() {
            return Err("--link says what lies between the hosts".into());
        }
        if plan.runs.is_empty() || plan.runs.iter().any(|(_, command)| command.is_empty()) {
            return Err("there is nothing to run".into());
        }
        Ok(plan)
    }

    /// True if every run succeeded.
    #[allow(clippy::print_stdout, clippy::print_stderr, reason = "a command prints")]
    fn carry_out(&self) -> std::io::Result<bool> {
        let Some(link) = self.link else { return Ok(false) };
        let mut lab = Lab::new()?;
        let ids = lab.link("near", "far", link.up, link.down)?;
        let (near, far) = (lab.host("near")?, lab.host("far")?);
        let addresses = [lab.address(ids.a), lab.address(ids.b)];
        for command in &self.far {
            let mut command = prepared(&shell(command), addresses, "far");
            command.stdin(Stdio::null()).stdout(Stdio::null());
            far.spawn(command)?;
        }
        if let Some(port) = self.port {
            await_server(&far, (addresses[1], port).into())?;
        }
        let mut all_done: Vec<Vec<Done>> = self.runs.iter().map(|_| Vec::new()).collect();
        let first = if self.warm_up { 0 } else { 1 };
        for round in first..=self.rounds {
            for turn in 0..self.runs.len() {
                let at = (turn + round as usize) % self.runs.len();
                let done = self.run_once(&lab, &near, ids, addresses, at)?;
                println!("{}", done.json(&self.runs[at].0, round));
                std::io::stdout().flush()?;
                if round > 0 {
                    all_done[at].push(done);
                }
            }
        }
        for ((name, _), done) in self.runs.iter().zip(&all_done) {
            eprintln!("{}", summary(name, done));
        }
        Ok(all_done.iter().flatten().all(|done| done.failure.is_none()))
    }

    fn run_once(
        &self,
        lab: &Lab,
        near: &Host,
        ids: LinkIds,
        addresses: [IpAddr; 2],
        at: usize,
    ) -> std::io::Result<Done> {
        let (name, command) = &self.runs[at];
        if let Some(before) = &self.before {
            let ran = near.run(prepared(&shell(before), addresses, name))?;
            if !ran.status.success() {
                return Err(std::io::Error::other(format!("--before {}", ending(&ran))));
            }
        }
        lab.reset_stats()?;
        let ran = near.run(prepared(command, addresses, name))?;
        let stats = lab.stats()?;
        if self.shows_output {
            std::io::stderr().write_all(&[ran.stdout.as_slice(), &ran.stderr].concat())?;
        }
        let mut failure = (!ran.status.success()).then(|| ending(&ran));
        if let (Some(check), None) = (&self.check, &failure) {
            let checked = near.run(prepared(&shell(check), addresses, name))?;
            failure = (!checked.status.success()).then(|| format!("--check {}", ending(&checked)));
        }
        Ok(Done { elapsed: ran.elapsed, cpu: ran.cpu, failure, stats, ids })
    }
}

/// One run.
struct Done {
    elapsed: Duration,
    cpu: Duration,
    failure: Option<String>,
    stats: Stats,
    ids: LinkIds,
}

impl Done {
    fn json(&self, name: &str, round: u32) -> String {
        let (up, down) = (self.stats.pipes[self.ids.up.index()], self.stats.pipes[self.ids.down.index()]);
        let dropped = |pipe: dray_lab::PipeStats| pipe.lost_packets + pipe.dropped_full;
        let validity = self.stats.validity().err().unwrap_or_else(|| "valid".into());
        format!(
            "{{\"run\":{},\"round\":{round},\"seconds\":{:.6},\"near_cpu_seconds\":{:.2},\"up_bytes\":{},\"down_bytes\":{},\
             \"up_packets\":{},\"down_packets\":{},\"dropped_packets\":{},\"status\":{},\"validity\":{}}}",
            json(name),
            self.elapsed.as_secs_f64(),
            self.cpu.as_secs_f64(),
            up.carried_bytes,
            down.carried_bytes,
            up.carried_packets,
            down.carried_packets,
            dropped(up) + dropped(down),
            json(self.failure.as_deref().unwrap_or("ok")),
            json(&validity),
        )
    }
}

/// Medians of the runs that succeeded.
fn summary(name: &str, done: &[Done]) -> String {
    let good: Vec<&Done> = done.iter().filter(|done| done.failure.is_none()).collect();
    let mut seconds: Vec<f64> = good.iter().map(|done| done.elapsed.as_secs_f64()).collect();
    seconds.sort_by(f64::total_cmp);
    let invalid = done.iter().filter(|done| done.stats.validity().is_err()).count();
    let mut text = format!("{name}: {} of {} runs succeeded", good.len(), done.len());
    if let [least, .., most] | [least @ most] = seconds[..] {
        let median = (seconds[(seconds.len() - 1) / 2] + seconds[seconds.len() / 2]) / 2.0;
        let (up, down) = (good[0].ids.up.index(), good[0].ids.down.index());
        let mut wire: Vec<u64> = good
            .iter()
            .map(|done| done.stats.pipes[up].carried_bytes + done.stats.pipes[down].carried_bytes)
            .collect();
        wire.sort_unstable();
        text += &format!(
            "; median {median:.3} s ({least:.3} to {most:.3}), {} bytes on the wire",
            wire[wire.len() / 2]
        );
    }
    if invalid > 0 {
        text += &format!("; {invalid} INVALID");
    }
    text
}

fn shell(command: &str) -> Vec<String> {
    vec!["/bin/sh".into(), "-c".into(), command.into()]
}

fn prepared(argv: &[String], [near, far]: [IpAddr; 2], run: &str) -> Command {
    let mut command = Command::new(&argv[0]);
    command.args(&argv[1..]);
    command.env("NEAR", near.to_string()).env("FAR", far.to_string()).env("RUN", run);
    command
}

/// How a failed command ended, and the last line it said.
fn ending(ran: &Ran) -> String {
    let text = String::from_utf8_lossy(&ran.stderr);
    let said = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("");
    format!("{}: {said}", ran.status)
}

fn await_server(host: &Host, address: SocketAddr) -> std::io::Result<()> {
    host.enter(|| {
        let deadline = Instant::now() + SERVER_PATIENCE;
        loop {
            match TcpStream::connect(address) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    let why = format!("nothing listens at {address} of the far host: {error}");
                    return Err(std::io::Error::new(error.kind(), why));
                }
                Err(_) => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    })?
}

fn json(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter.is_control() => out.push(' '),
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Plan, String> {
        Plan::parse(words.iter().map(|word| (*word).to_owned()))
    }

    #[test]
    fn the_command_line_says_what_to_run() {
        let plan = parse(&["--link", "lan", "--rounds", "3", "--", "echo", "--link"]).unwrap();
        assert_eq!((plan.rounds, &plan.runs[0].1[..]), (3, &["echo".to_owned(), "--link".to_owned()][..]));
        let plan = parse(&["--run", "a=b=c", "--link", "t1", "--run", "d=e", "--await", "22"]).unwrap();
        assert_eq!((plan.runs.len(), plan.runs[0].1[2].as_str(), plan.port), (2, "b=c", Some(22)));
    }

    #[test]
    fn slips_are_refused() {
        for words in [
            &["--", "true"][..],
            &["--link", "lan"],
            &["--link", "lan", "--"],
            &["--link", "lan", "--run", "x"],
            &["--link", "lan", "--rounds", "0", "--", "true"],
            &["--link", "lan", "--await", "99999", "--", "true"],
            &["--link", "nowhere", "--", "true"],
            &["--link", "lan", "--colour", "red", "--", "true"],
            &["--link"],
        ] {
            assert!(parse(words).is_err(), "{words:?}");
        }
    }

    #[test]
    fn text_is_quoted() {
        assert_eq!(json("a \"b\"\n\\"), r#""a \"b\" \\""#);
    }
}
