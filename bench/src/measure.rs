//! One run of one contender, with the clock, the CPU time, the memory and the wire read beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::contenders::Job;
use crate::pair::{Pair, Wire};
use crate::site::Site;
use crate::tools::Tools;
use crate::worker::{self, Took};

/// How long a server may take until it prints its ticket: it may hash a large file first.
const TICKET_PATIENCE: Duration = Duration::from_secs(900);
/// How often memory is looked at, at first and at the least. Peaks only grow, so a long run need not be disturbed often.
const MEMORY_PERIOD: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(100)];

/// What one run gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Run {
    /// `ok`, or what went wrong.
    pub(crate) status: String,
    pub(crate) seconds: f64,
    pub(crate) near_cpu_us: u64,
    pub(crate) far_cpu_us: u64,
    pub(crate) wire: Wire,
    /// Sum of the peak resident sizes of an end's processes, if they were looked at.
    pub(crate) peaks_kib: Option<[u64; 2]>,
    /// Why timings cannot be believed; of shaped links only.
    pub(crate) invalid: Option<String>,
    /// Load of the machine over the last minute, before the run.
    pub(crate) load: f64,
    pub(crate) exit_code: i32,
}

impl Run {
    /// One that has ended well, and not brought what it should, has failed.
    pub(crate) fn check_arrived(&mut self, is_same: impl FnOnce() -> bool) {
        if self.status == "ok" && !is_same() {
            self.status = "what arrived differs".into();
        }
    }
}

/// Something that happens to a run on its way, given the time since its start.
pub(crate) type Meanwhile<'a> = dyn FnMut(Duration) + 'a;

/// Everything a run needs to know.
pub(crate) struct Ground<'a> {
    pub(crate) site: &'a Site,
    pub(crate) pair: &'a Pair,
    pub(crate) tools: &'a Tools,
    /// A run that takes longer has failed.
    pub(crate) patience: Duration,
}

/// A server of one run, which printed a ticket.
pub(crate) struct Serving {
    child: Child,
    pub(crate) ticket: String,
}

impl Ground<'_> {
    /// The environment of an end, for programs that keep things in the user's folders.
    pub(crate) fn environment(&self, command: &mut Command, end: &str, allows_clear: bool) {
        let config = if allows_clear { "etc/clear.toml" } else { "etc/default.toml" };
        command
            .env_clear()
            .env("PATH", format!("{}:{}", self.site.path("bin"), self.tools.path()))
            .env("LC_ALL", "C.UTF-8")
            .env("HOME", self.site.path(&format!("{end}/home")))
            .env("DRAY_DATA_DIR", self.site.path(&format!("{end}/data")))
            .env("XDG_STATE_HOME", self.site.path(&format!("{end}/state")))
            .env("DRAY_CONFIG", self.site.path(config))
            .env("DRAY_SOCKET", self.site.path(&format!("{end}/daemon.sock")))
            .current_dir(&self.site.root);
    }

    /// Starts a server at the far end and waits for its first line.
    pub(crate) fn serve(&self, argv: &[String], allows_clear: bool) -> Result<Serving, String> {
        self.serve_at("far", argv, allows_clear)
    }

    /// The same at either end.
    pub(crate) fn serve_at(&self, end: &str, argv: &[String], allows_clear: bool) -> Result<Serving, String> {
        let (host, cgroup) = match end {
            "near" => (&self.pair.near, &self.pair.near_cgroup),
            _ => (&self.pair.far, &self.pair.far_cgroup),
        };
        let mut command = self.pair.in_cgroup(cgroup, argv);
        self.environment(&mut command, end, allows_clear);
        let log = fs::File::create(self.site.root.join("serve.log"))
            .map_err(|error| format!("make a log: {error}"))?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log);
        let mut child = host.spawn(command).map_err(|error| format!("start {}: {error}", argv[0]))?;
        let (sender, receiver) = mpsc::channel();
        if let Some(stdout) = child.stdout.take() {
            std::thread::spawn(move || {
                let mut reader = BufReader::new(stdout);
                let mut line = String::new();
                let _ = reader.read_line(&mut line);
                let _ = sender.send(line);
                // Nobody may be stopped by a pipe that is full.
                let _ = std::io::copy(&mut reader, &mut std::io::sink());
            });
        }
        let line = receiver.recv_timeout(TICKET_PATIENCE).unwrap_or_default();
        if line.trim().is_empty() {
            let _ = child.kill();
            let _ = child.wait();
            let said = last_line(&self.site.root.join("serve.log"));
            return Err(format!("{} printed no ticket: {said}", argv[0]));
        }
        Ok(Serving { child, ticket: line.trim().to_owned() })
    }

    /// Runs `job`; the destination and what the ends remember are as the caller left them. Leftovers are ended, servers of the
    /// job too.
    pub(crate) fn run(
        &self,
        job: &Job,
        wants_memory: bool,
        meanwhile: Option<&mut Meanwhile<'_>>,
    ) -> Result<Run, String> {
        let mut serving = Vec::new();
        let mut argv = job.argv.clone();
        let daemon = ["dray", "serve", "--json"].map(str::to_owned).to_vec();
        let daemons = if job.has_daemons { &["far", "near"][..] } else { &[] };
        let servers = daemons.iter().map(|end| (*end, &daemon, false));
        // What a daemon says first is no ticket.
        for (end, server, has_ticket) in servers.chain(job.serve.iter().map(|serve| ("far", serve, true))) {
            match self.serve_at(end, server, job.allows_clear) {
                Ok(started) => {
                    if has_ticket {
                        argv.iter_mut().for_each(|word| *word = word.replace("TICKET", &started.ticket));
                    }
                    serving.push(started);
                }
                Err(why) => {
                    self.pair.end_leftovers();
                    return Ok(Run { status: why, exit_code: -1, ..Run::default() });
                }
            }
        }
        if job.only_ssh {
            self.pair.only_ssh(true)?;
        }
        let run = self.run_near(&argv, job.allows_clear, wants_memory, meanwhile);
        if job.only_ssh {
            self.pair.only_ssh(false)?;
        }
        self.pair.end_leftovers();
        for mut serving in serving {
            let _ = serving.child.wait();
        }
        run
    }

    /// The near end's command alone.
    pub(crate) fn run_near(
        &self,
        argv: &[String],
        allows_clear: bool,
        wants_memory: bool,
        mut meanwhile: Option<&mut Meanwhile<'_>>,
    ) -> Result<Run, String> {
        let result = self.site.root.join("timing");
        let _ = fs::remove_file(&result);
        let log_path = self.site.root.join("near.log");
        let log = fs::File::create(&log_path).map_err(|error| format!("make a log: {error}"))?;
        let mut command = self.pair.timed_at_near(&result, argv);
        self.environment(&mut command, "near", allows_clear);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let mut run = Run { load: load(), ..Run::default() };
        let before = self.pair.far_processes();
        let wire = self.pair.wire_start()?;
        let is_over = AtomicBool::new(false);
        let peaks = std::thread::scope(|scope| -> Result<Option<[u64; 2]>, String> {
            let watcher = wants_memory.then(|| scope.spawn(|| watch_memory(self.pair, &is_over)));
            let outcome = self.wait(command, &mut meanwhile);
            is_over.store(true, Ordering::Relaxed);
            let peaks = watcher.and_then(|watcher| watcher.join().ok());
            outcome.map(|()| peaks)
        })?;
        let took = Took::read(&result);
        self.pair.settle(&before);
        let (wire, invalid) = self.pair.wire_since(wire)?;
        let near_cpu = worker::cpu_us(&self.pair.near_cgroup);
        let far_cpu = worker::cpu_us(&self.pair.far_cgroup);
        (run.wire, run.invalid, run.peaks_kib) = (wire, invalid, peaks);
        match took {
            Some(took) => {
                run.seconds = took.seconds;
                run.near_cpu_us = near_cpu.saturating_sub(took.near_cpu_before);
                run.far_cpu_us = far_cpu.saturating_sub(took.far_cpu_before);
                run.exit_code = took.code;
                run.status = match took.code {
                    0 => "ok".into(),
                    code => format!("exit code {code}: {}", last_line(&log_path)),
                };
            }
            None => {
                run.exit_code = -1;
                run.status = format!("not done after {} s", self.patience.as_secs());
            }
        }
        Ok(run)
    }

    /// Until the command ends, or patience does.
    fn wait(&self, command: Command, meanwhile: &mut Option<&mut Meanwhile<'_>>) -> Result<(), String> {
        let started = Instant::now();
        let mut child = self
            .pair
            .near
            .spawn(command)
            .map_err(|error| format!("start this program on a host: {error}"))?;
        loop {
            let ended = child.try_wait().map_err(|error| format!("wait: {error}"))?;
            if ended.is_some() {
                return Ok(());
            }
            if started.elapsed() > self.patience {
                for pid in self.pair.near_processes() {
                    crate::pair::signal(pid, rustix::process::Signal::KILL);
                }
                let _ = child.wait();
                return Ok(());
            }
            if let Some(meanwhile) = meanwhile {
                meanwhile(started.elapsed());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Serving {
    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it ends by itself, with success.
    pub(crate) fn wait(mut self, patience: Duration) -> Result<(), String> {
        let begun = Instant::now();
        while begun.elapsed() < patience {
            match self.child.try_wait().map_err(|error| format!("wait: {error}"))? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(format!("{status} after {:?}", self.ticket)),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        let why = format!("not done {} s after {:?}", patience.as_secs(), self.ticket);
        self.end();
        Err(why)
    }

    /// Ends it.
    pub(crate) fn end(mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The sum of `VmHWM` of each end's processes; servers that only wait belong to nobody's run.
fn watch_memory(pair: &Pair, is_over: &AtomicBool) -> [u64; 2] {
    let started = Instant::now();
    let mut peaks: [BTreeMap<u32, u64>; 2] = Default::default();
    while !is_over.load(Ordering::Relaxed) {
        let far: BTreeSet<u32> = pair.far_processes().difference(&pair.waiting).copied().collect();
        for (end, processes) in [pair.near_processes(), far].into_iter().enumerate() {
            for pid in processes {
                if let Some(kib) = status_kib(pid, "VmHWM:") {
                    let peak = peaks[end].entry(pid).or_default();
                    *peak = kib.max(*peak);
                }
            }
        }
        let [first, last] = MEMORY_PERIOD;
        std::thread::sleep((started.elapsed() / 50).clamp(first, last));
    }
    peaks.map(|end| end.values().sum())
}

fn status_kib(pid: u32, name: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    // This program itself, before it has become the command.
    if text.starts_with("Name:\tdray-bench") {
        return None;
    }
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().strip_suffix(" kB")?.parse().ok()
}

pub(crate) fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0)
}

pub(crate) fn last_line(log: &Path) -> String {
    let text = fs::read(log).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("").chars().take(300).collect()
}
