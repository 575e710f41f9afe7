//! Programs run on a host with a time limit, and what there is to know of them afterwards: output, exit code, peak
//! memory, bytes read.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::lab::Host;
use crate::sweep;

/// Time after which a program is killed and its test fails, unless it says otherwise.
pub const TIME_LIMIT: Duration = Duration::from_secs(60);

/// Output kept of a stream; more than a test looks at.
const OUTPUT_BYTES_MAX: usize = 64 << 20;

/// A program about to run.
#[derive(Debug)]
pub struct Program<'a> {
    host: &'a Host,
    argv: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: PathBuf,
    input: Vec<u8>,
    input_file: Option<PathBuf>,
    output_file: Option<PathBuf>,
    user: Option<u32>,
    time_limit: Duration,
}

impl<'a> Program<'a> {
    pub(crate) fn new(host: &'a Host, name: &OsStr) -> Program<'a> {
        Program {
            host,
            argv: vec![name.to_owned()],
            environment: host
                .environment()
                .into_iter()
                .map(|(name, value)| (name.into(), value.into()))
                .collect(),
            directory: host.dir().join("files"),
            input: Vec::new(),
            input_file: None,
            output_file: None,
            user: None,
            time_limit: TIME_LIMIT,
        }
    }

    /// Adds an argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.argv.push(arg.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<T: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = T>) -> Self {
        self.argv.extend(args.into_iter().map(|arg| arg.as_ref().to_owned()));
        self
    }

    /// Sets a variable; a later one wins.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Directory it runs in; the host's `files` otherwise.
    pub fn directory(mut self, path: &Path) -> Self {
        self.directory = path.to_owned();
        self
    }

    /// What it finds on standard input; nothing otherwise.
    pub fn input(mut self, bytes: &[u8]) -> Self {
        self.input = bytes.to_owned();
        self
    }

    /// File that is its standard input.
    pub fn input_file(mut self, path: &Path) -> Self {
        self.input_file = Some(path.to_owned());
        self
    }

    /// File that receives its standard output, which is then not kept.
    pub fn output_file(mut self, path: &Path) -> Self {
        self.output_file = Some(path.to_owned());
        self
    }

    /// Runs it as this user and group, without capabilities.
    pub fn user(mut self, id: u32) -> Self {
        self.user = Some(id);
        self
    }

    /// Time after which it is killed and the test fails.
    pub fn time_limit(mut self, limit: Duration) -> Self {
        self.time_limit = limit;
        self
    }

    /// Runs it to its end.
    pub fn run(self) -> Outcome {
        self.start().wait()
    }

    /// Starts it.
    pub fn start(self) -> Running {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.host.namespace()]);
        if let Some(id) = self.user {
            let id = id.to_string();
            command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups", "--"]);
        }
        let standard_input = match &self.input_file {
            Some(path) => File::open(path).expect("open standard input").into(),
            None if self.input.is_empty() => Stdio::null(),
            None => Stdio::piped(),
        };
        let standard_output = match &self.output_file {
            Some(path) => File::create(path).expect("create standard output").into(),
            None => Stdio::piped(),
        };
        command
            .args(&self.argv)
            .env_clear()
            .envs(self.environment)
            .current_dir(&self.directory)
            .stdin(standard_input)
            .stdout(standard_output)
            .stderr(Stdio::piped());
        let label =
            self.argv.iter().map(|arg| arg.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
        let tells_events = Path::new(&self.argv[0]).file_name() == Some(OsStr::new("dray"))
            && self.argv.iter().any(|arg| arg == "--json");
        let mut child = command.spawn().unwrap_or_else(|error| panic!("start {label}: {error}"));
        if let Some(mut pipe) = child.stdin.take() {
            let input = self.input;
            // Ends by itself: the pipe breaks when the program goes.
            std::thread::spawn(move || pipe.write_all(&input));
        }
        let stdout = Stream::read(child.stdout.take());
        let stderr = Stream::read(child.stderr.take());
        let watch = Watch::start(child.id());
        let deadline = Instant::now() + self.time_limit;
        let (started, is_reaped) = (Instant::now(), false);
        Running { label, child, stdout, stderr, watch, started, deadline, is_reaped, tells_events }
    }
}

/// A program that runs. Dropped, it is killed.
#[derive(Debug)]
pub struct Running {
    label: String,
    child: Child,
    stdout: Stream,
    stderr: Stream,
    watch: Watch,
    started: Instant,
    deadline: Instant,
    is_reaped: bool,
    /// It is a `dray` that was asked for JSON.
    tells_events: bool,
}

impl Running {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        sweep::signal(self.pid(), signal);
    }

    /// True once it has ended.
    pub fn has_ended(&self) -> bool {
        let Some(pid) = i32::try_from(self.pid()).ok().and_then(Pid::from_raw) else { return true };
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.is_reaped || !matches!(rustix::process::waitid(WaitId::Pid(pid), options), Ok(None))
    }

    /// The first line on standard output, waited for; panics if the program ends without one.
    pub fn first_line(&self) -> String {
        self.line_with(|_| true)
    }

    /// The first line on standard output that `fits`, waited for; panics if the program ends without one.
    pub fn line_with(&self, mut fits: impl FnMut(&str) -> bool) -> String {
        self.await_line(&mut fits)
            .unwrap_or_else(|| panic!("ended without the line that was waited for: {self}"))
    }

    /// Waits for a line on standard output; false if the program ends without one.
    pub fn wait_until_line(&self) -> bool {
        self.await_line(&mut |_| true).is_some()
    }

    fn await_line(&self, fits: &mut dyn FnMut(&str) -> bool) -> Option<String> {
        loop {
            // In this order: what was printed before the end counts.
            let is_complete = self.stdout.is_complete();
            let line = self.stdout.lines().into_iter().find(|line| fits(line));
            if line.is_some() || is_complete {
                return line;
            }
            assert!(Instant::now() < self.deadline, "no such line on standard output in time: {self}");
            self.stdout.await_more();
        }
    }

    /// Waits until `condition` holds; panics if the program ends first or its time is up. Returns false only if
    /// `may_end` and it ended.
    pub fn wait_until(&self, may_end: bool, mut condition: impl FnMut() -> bool) -> bool {
        loop {
            let begun = Instant::now();
            if condition() {
                return true;
            }
            if self.has_ended() {
                assert!(may_end, "ended before what was waited for: {self}");
                return condition();
            }
            assert!(Instant::now() < self.deadline, "what was waited for did not happen: {self}");
            // Some conditions start a program or look at all processes: others want the processor, too.
            std::thread::sleep((2 * begun.elapsed()).max(Duration::from_micros(500)));
        }
    }

    /// Kills it with SIGKILL and waits.
    pub fn kill(self) -> Outcome {
        self.signal(Signal::KILL);
        self.wait()
    }

    /// Asks it to end as Ctrl-C does; or with SIGTERM, where the tests were started with SIGINT ignored, and so every
    /// process they start.
    pub fn interrupt(&self) {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).map(str::trim);
        let ignored = ignored.and_then(|hex| u64::from_str_radix(hex, 16).ok()).unwrap_or(0);
        let is_ignored = ignored >> (Signal::INT.as_raw() - 1) & 1 == 1;
        self.signal(if is_ignored { Signal::TERM } else { Signal::INT });
    }

    /// Asks it to end with SIGTERM and waits.
    pub fn terminate(self) -> Outcome {
        self.signal(Signal::TERM);
        self.wait()
    }

    /// Waits for its end; past its time limit it is killed and the test fails. The events of a `dray --json` must be those of
    /// [`crate::events`].
    pub fn wait(mut self) -> Outcome {
        while !self.has_ended() {
            if Instant::now() > self.deadline {
                self.signal(Signal::KILL);
                let _ = self.child.wait();
                self.is_reaped = true;
                panic!("killed after {:?}: {self}", self.started.elapsed());
            }
            // One that takes long is looked at more seldom: many tests wait side by side.
            let pause = self.started.elapsed() / 100;
            std::thread::sleep(pause.clamp(Duration::from_millis(1), Duration::from_millis(10)));
        }
        // Still a zombie: its counters can be read for the last time.
        let read_chars = read_chars(self.pid()).unwrap_or_else(|| self.watch.last().read_chars);
        let status = self.child.wait().expect("status of a child");
        self.is_reaped = true;
        let elapsed = self.started.elapsed();
        let stdout = self.stdout.finish();
        if self.tells_events {
            // Of one that was killed, the last line may be cut.
            let end = stdout.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
            crate::events::check(&String::from_utf8_lossy(&stdout[..end]));
        }
        Outcome {
            label: std::mem::take(&mut self.label),
            status,
            stdout,
            stderr: self.stderr.finish(),
            peak_memory_bytes: self.watch.stop().peak_memory_bytes,
            read_chars,
            elapsed,
        }
    }
}

impl std::fmt::Display for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "`{}`\nstdout: {}\nstderr: {}",
            self.label,
            shown(&self.stdout.bytes()),
            shown(&self.stderr.bytes())
        )
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.is_reaped {
            self.signal(Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

/// What a program left.
#[derive(Debug)]
pub struct Outcome {
    label: String,
    status: ExitStatus,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Peak resident memory (`VmHWM`), sampled every few milliseconds.
    pub peak_memory_bytes: u64,
    /// Bytes it asked to read from files and pipes (`rchar` of `/proc/PID/io`).
    pub read_chars: u64,
    /// How long it ran.
    pub elapsed: Duration,
}

impl Outcome {
    /// Exit code; `None` if a signal ended it.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// Signal that ended it.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Standard output as text, without the line end.
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }

    /// Standard error as text.
    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// Panics unless it exited with `code`; then checks the manners of [`Outcome::assert_manners`].
    #[track_caller]
    pub fn expect(self, code: i32) -> Outcome {
        assert_eq!(self.code(), Some(code), "exit code: {self}");
        self.assert_manners();
        self
    }

    /// Panics if it panicked or was ended by a signal, if a success printed an error, or if a failure did not print
    /// exactly one, in at most four lines.
    #[track_caller]
    pub fn assert_manners(&self) {
        let text = self.stderr_text();
        assert_eq!(self.signal(), None, "ended by a signal: {self}");
        for word in ["panicked", "RUST_BACKTRACE", "stack overflow", "memory allocation of"] {
            assert!(!text.contains(word), "{word:?} on standard error: {self}");
        }
        let is_error = |line: &&str| {
            (line.starts_with("dray: ") && !line.starts_with("dray: warning: "))
                || line.starts_with("error: ")
        };
        let errors = text.lines().filter(is_error).count();
        if self.code() == Some(0) {
            assert_eq!(errors, 0, "an error on standard error of a success: {self}");
        } else {
            assert_eq!(errors, 1, "a failure prints exactly one error: {self}");
            // Entries of a tree that failed are listed, one a line.
            let counts = |line: &&str| !line.is_empty() && !line.starts_with("failed: ");
            let lines = text.lines().filter(counts).count();
            assert!(lines <= 4, "a failure prints at most four lines: {self}");
        }
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "`{}` {} after {:.2?}\nstdout: {}\nstderr: {}",
            self.label,
            self.status,
            self.elapsed,
            shown(&self.stdout),
            shown(&self.stderr)
        )
    }
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(4000)]).into_owned();
    if bytes.len() > 4000 { format!("{text}… ({} bytes)", bytes.len()) } else { text }
}

/// What is read from one pipe of a program, by a thread.
#[derive(Debug)]
struct Stream {
    shared: Arc<(Mutex<StreamState>, Condvar)>,
}

#[derive(Debug, Default)]
struct StreamState {
    bytes: Vec<u8>,
    is_complete: bool,
}

impl Stream {
    fn read(pipe: Option<impl Read + Send + 'static>) -> Stream {
        let state = StreamState { is_complete: pipe.is_none(), ..StreamState::default() };
        let shared = Arc::new((Mutex::new(state), Condvar::new()));
        if let Some(mut pipe) = pipe {
            let shared = Arc::clone(&shared);
            std::thread::spawn(move || {
                let mut buffer = vec![0; 64 * 1024];
                loop {
                    let len = pipe.read(&mut buffer).unwrap_or(0);
                    let mut state = shared.0.lock().expect("stream");
                    state.is_complete = len == 0;
                    let room = OUTPUT_BYTES_MAX - state.bytes.len().min(OUTPUT_BYTES_MAX);
                    state.bytes.extend_from_slice(&buffer[..len.min(room)]);
                    shared.1.notify_all();
                    if len == 0 {
                        return;
                    }
                }
            });
        }
        Stream { shared }
    }

    fn bytes(&self) -> Vec<u8> {
        self.shared.0.lock().expect("stream").bytes.clone()
    }

    fn is_complete(&self) -> bool {
        self.shared.0.lock().expect("stream").is_complete
    }

    /// Complete lines so far.
    fn lines(&self) -> Vec<String> {
        let state = self.shared.0.lock().expect("stream");
        let end = state.bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0);
        String::from_utf8_lossy(&state.bytes[..end]).lines().map(str::to_owned).collect()
    }

    fn await_more(&self) {
        let state = self.shared.0.lock().expect("stream");
        let _ = self.shared.1.wait_timeout(state, Duration::from_millis(50));
    }

    /// Everything up to the end of the pipe. A descendant may hold the pipe open after the program itself has gone;
    /// it gets two seconds.
    fn finish(&self) -> Vec<u8> {
        let state = self.shared.0.lock().expect("stream");
        let patience = Duration::from_secs(2);
        let waited = self.shared.1.wait_timeout_while(state, patience, |state| !state.is_complete);
        std::mem::take(&mut waited.expect("stream").0.bytes)
    }
}

/// What `/proc` says of a process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// `VmHWM`: peak resident memory.
    pub peak_memory_bytes: u64,
    /// `rchar`: bytes asked of files and pipes.
    pub read_chars: u64,
}

/// Looks at a process every 4 ms, and every 20 ms once it has lasted a second, until it is gone.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<(Mutex<Usage>, AtomicBool)>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    /// Starts looking at `pid`, which need not be a child.
    pub fn start(pid: u32) -> Watch {
        let shared = Arc::new((Mutex::new(Usage::default()), AtomicBool::new(false)));
        let theirs = Arc::clone(&shared);
        let begun = Instant::now();
        let thread = std::thread::spawn(move || {
            while !theirs.1.load(Ordering::Relaxed) {
                let Some(read_chars) = read_chars(pid) else { return };
                {
                    let mut usage = theirs.0.lock().expect("usage");
                    usage.read_chars = usage.read_chars.max(read_chars);
                    usage.peak_memory_bytes =
                        usage.peak_memory_bytes.max(peak_memory_bytes(pid).unwrap_or(0));
                }
                // What is looked at only grows.
                let pause = begun.elapsed() / 50;
                std::thread::sleep(pause.clamp(Duration::from_millis(4), Duration::from_millis(20)));
            }
        });
        Watch { shared, thread: Some(thread) }
    }

    /// The largest figures seen so far.
    pub fn last(&self) -> Usage {
        *self.shared.0.lock().expect("usage")
    }

    /// Stops looking and returns the largest figures seen.
    pub fn stop(&mut self) -> Usage {
        self.shared.1.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.last()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop();
    }
}

fn read_chars(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/io")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok())
}

fn peak_memory_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let kib: u64 = text
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB")?.parse().ok())?;
    Some(kib * 1024)
}
