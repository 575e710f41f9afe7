//! `--deploy`: this program copies itself into the far host's cache over the ssh channel on which the copy then goes on.
//!
//! One login does it all: the far host's sh looks whether the program is there, and if not reads it from the channel with
//! nothing but POSIX tools, has it check itself against its hash, gives it its name and becomes it. Each build has a
//! directory of its own, so that nothing of another version is overwritten.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dray_core::text::one_line;
use dray_core::{Error, ErrorKind, Oid, Result};
use dray_transfer::transport::{Channel, PipeChannel, read_exact_until};

use super::far_end::SHOWN_CHARS;
use super::ssh::shell_script;
use crate::Stop;

/// What each line of the far host's sh begins with; what comes before such a line is noise of its start-up files.
const MARK: &str = "dray-deploy-1 ";
/// What is said first. As long as the head of a frame, so that a dray which runs there whatever was asked for, with a key
/// that has a forced command, answers as well: with a fault.
const QUESTION: &[u8; dray_core::frame::FRAME_HEAD_BYTES] = b"deploy?\n";
/// Longest line that is listened to.
const LINE_BYTES_MAX: usize = 4096;
/// Noise that is passed over.
const NOISE_BYTES_MAX: usize = 256 * 1024;
/// The far host neither takes bytes nor says anything for so long: it is given up.
const SILENCE_MAX: Duration = Duration::from_secs(25);
/// Names tried for the new file: another host that shares the directory may have the same process ids.
const NAMES_MAX: u32 = 9;
/// Bytes handed to ssh at once.
const PIECE_BYTES: usize = 64 * 1024;

/// This program, ready to be copied.
pub(super) struct Deployment {
    file: File,
    size_bytes: u64,
    oid: Oid,
}

impl Deployment {
    /// Hashes this program.
    pub(super) fn of_this_program(stop: &Stop) -> Result<Deployment> {
        let failed = |error| Error::io("read this program", error);
        // Opened once, so that what is sent is what was hashed; and the running program itself where the system names it,
        // for another may have its path by now.
        let mut file = File::open("/proc/self/exe")
            .or_else(|_| std::env::current_exe().and_then(File::open))
            .map_err(failed)?;
        let (mut hasher, mut size_bytes, mut piece) = (blake3::Hasher::new(), 0, vec![0; PIECE_BYTES]);
        loop {
            if stop.is_set() {
                return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
            }
            match file.read(&mut piece) {
                Ok(0) => break,
                Ok(count) => {
                    hasher.update(&piece[..count]);
                    size_bytes += count as u64;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(failed(error)),
            }
        }
        file.rewind().map_err(failed)?;
        Ok(Deployment { file, size_bytes, oid: Oid::from_blake3(*hasher.finalize().as_bytes()) })
    }

    /// What the far host is asked to run. Its answers are lines: `ready` and the conversation follows; `wants` and its
    /// system, and it waits for `send` and the bytes; `failed` or `unusable` and why, and it ends.
    ///
    /// `dd` never waits for more than is still to come: each of its reads takes at least one byte and at most a block.
    /// The new file checks itself before it gets its name, which is the only thing that makes it be found. Until then it has
    /// one that nobody else has, also where hosts share the directory. What killed deployments left a day ago is
    /// removed, where there is a `find`. The program that is left running has the umask that the login gave.
    pub(super) fn far_command(&self) -> OsString {
        let (size, oid) = (self.size_bytes, self.oid);
        let (version, build) = (env!("CARGO_PKG_VERSION"), &self.oid.hex()[..16]);
        shell_script(&format!(
            "read -r q; say() {{ echo \"{MARK}$*\"; }}; fail() {{ rm -f \"$t\"; say \"$@\"; exit 1; }}; \
             s=$(uname -s) m=$(uname -m) t=; b=\"${{XDG_CACHE_HOME:-$HOME/.cache}}/dray/bin\"; \
             d=\"$b/{version}-$s-$m-{build}\"; f=\"$d/dray\"; \
             if [ -x \"$f\" ]; then say ready; exec \"$f\" remote; fi; \
             say wants \"$s $m\"; read -r go; [ \"$go\" = send ] || exit 1; u=$(umask); umask 077; \
             e=$(mkdir -p \"$d\" 2>&1) || fail failed $e; \
             find \"$b\" -name \".new.*\" -type f -mtime +0 -exec rm -f {{}} + 2>/dev/null; \
             i=0; until t=\"$d/.new.$$.$i\"; e=$( (set -C; : > \"$t\") 2>&1); \
             do t=; i=$((i + 1)); [ \"$i\" -lt {NAMES_MAX} ] || fail failed $e; done; \
             n=0; while [ \"$n\" -lt {size} ]; do c=$(( ({size} - n) / 65536 )); [ \"$c\" -gt 0 ] || c=1; \
             e=$(dd bs=65536 count=\"$c\" 2>&1 >> \"$t\") || fail failed $e; \
             m=$(wc -c < \"$t\"); [ \"$m\" -gt \"$n\" ] || fail failed the rest never came; n=$m; done; \
             chmod 700 \"$t\"; e=$(\"$t\" verify \"$t\" {oid} 2>&1 < /dev/null); r=$?; \
             [ \"$r\" = 0 ] || fail unusable \"$r\" $e; \
             e=$(mv -f \"$t\" \"$f\" 2>&1) || fail failed $e; say ready; umask \"$u\"; exec \"$f\" remote"
        ))
    }

    /// Talks to the far host's sh until dray runs there. `kill` ends ssh, which ends any wait for it.
    pub(super) fn carry_out(
        &self,
        channel: &mut PipeChannel,
        host: &str,
        note: &dyn Fn(String),
        kill: &mut dyn FnMut(),
        patience: Duration,
        stop: &Stop,
    ) -> Result<()> {
        channel.write_all(QUESTION).map_err(|error| Error::io("connection lost", error))?;
        let answer = next_answer(channel, host, patience, stop)?;
        let Some(system) = answer.strip_prefix("wants ") else { return outcome(&answer, host) };
        if system != own_system() {
            let what = format!("{host} is {}, and this program is for {}", one_line(system), own_system());
            return Err(Error::new(ErrorKind::Unsupported, what)
                .advise("install the dray that is built for it there, or name one with --remote-dray"));
        }
        note(format!("copying this program to {host} ({} KiB)", self.size_bytes.div_ceil(1024)));
        if let Err(lost) = self.send(channel, kill, stop) {
            // Whoever stops listening has said why, if it could.
            let said = next_answer(channel, host, Duration::ZERO, stop);
            return Err(said
                .and_then(|answer| outcome(&answer, host))
                .err()
                .filter(has_reason)
                .unwrap_or(lost));
        }
        outcome(&next_answer(channel, host, SILENCE_MAX, stop)?, host)
    }

    /// Sends the program. Far ends that stop reading are given up.
    fn send(&self, channel: &mut PipeChannel, kill: &mut dyn FnMut(), stop: &Stop) -> Result<()> {
        let sent = AtomicU64::new(0);
        let mut is_mute = false;
        let result = thread::scope(|scope| {
            let sending = scope.spawn(|| {
                let lost = |error| Error::io("connection lost", error);
                channel.write_all(b"send\n").map_err(lost)?;
                let mut piece = vec![0; PIECE_BYTES];
                let mut left = self.size_bytes;
                while left > 0 {
                    let len = left.min(PIECE_BYTES as u64);
                    let piece = &mut piece[..usize::try_from(len).unwrap_or(0)];
                    (&self.file)
                        .read_exact(piece)
                        .map_err(|error| Error::file("read this program", error))?;
                    channel.write_all(piece).map_err(lost)?;
                    left -= len;
                    sent.store(self.size_bytes - left, Ordering::Release);
                }
                Ok(())
            });
            let (mut seen, mut since) = (0, Instant::now());
            while !sending.is_finished() {
                let now = sent.load(Ordering::Acquire);
                if now != seen {
                    (seen, since) = (now, Instant::now());
                }
                is_mute |= since.elapsed() > SILENCE_MAX;
                if stop.is_set() || is_mute {
                    kill();
                }
                thread::sleep(Duration::from_millis(5));
            }
            sending.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a thread failed")))
        });
        if stop.is_set() {
            return Err(Error::new(ErrorKind::Interrupted, "interrupted"));
        }
        if is_mute {
            return Err(Error::new(ErrorKind::TimedOut, "it took no more of this program for too long"));
        }
        result
    }
}

/// False for an error that only says that nothing more came.
fn has_reason(error: &Error) -> bool {
    !matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::TimedOut)
}

/// What the far host says last: that it is done, or why not.
fn outcome(answer: &str, host: &str) -> Result<()> {
    let (word, rest) = answer.split_once(' ').unwrap_or((answer, ""));
    let rest = one_line(rest);
    match word {
        "ready" => Ok(()),
        "failed" => Err(not_stored(&rest, host)),
        "unusable" => {
            let (code, why) = rest.split_once(' ').unwrap_or((&rest, ""));
            Err(not_run(code, why, host))
        }
        _ => Err(Error::new(
            ErrorKind::Protocol,
            format!("{host} answered {:?} to --deploy", one_line(answer)),
        )),
    }
}

fn not_stored(why: &str, host: &str) -> Error {
    let what = format!("this program cannot be copied to {host}: {why}");
    if ["No space left", "quota exceeded"].iter().any(|sign| why.contains(sign)) {
        return Error::new(ErrorKind::NoSpace, what)
            .advise(format!("free some space in ~/.cache on {host}, or set XDG_CACHE_HOME there"));
    }
    let kind = if why.contains("never came") { ErrorKind::Unreachable } else { ErrorKind::Refused };
    Error::new(kind, what)
        .advise(format!("your user must be able to write ~/.cache on {host}, or XDG_CACHE_HOME there"))
}

/// The copy was stored whole and does not run, by the exit code that sh gave it.
fn not_run(code: &str, why: &str, host: &str) -> Error {
    let refused = |what: String| Error::new(ErrorKind::Refused, what);
    match code {
        "126" => refused(format!("{host} runs no programs from ~/.cache: {why}")).advise(
            "its file system may be mounted noexec: set XDG_CACHE_HOME there to a place that is not, or install dray \
             there and name it with --remote-dray",
        ),
        "4" => Error::new(ErrorKind::VerificationFailed, format!("what arrived on {host} is not this program: {why}"))
            .advise("try again; if it happens twice, the disk there may be failing"),
        _ => Error::new(ErrorKind::Unsupported, format!("this program does not run on {host}: {why}")).advise(
            "its C library may be another one: a dray linked statically runs everywhere (docs/operating.md says how to \
             build it), or install one built there",
        ),
    }
}

/// The next line that is meant for us, without the mark.
fn next_answer(channel: &mut PipeChannel, host: &str, patience: Duration, stop: &Stop) -> Result<String> {
    let deadline = Instant::now() + patience;
    let mut heard_bytes = 0;
    let mut noise = None;
    while heard_bytes < NOISE_BYTES_MAX {
        let mut line = Vec::new();
        // A byte at a time: what follows the line is for somebody else.
        loop {
            let mut byte = [0];
            if let Err(error) = read_exact_until(channel, &mut byte, deadline, &|| stop.is_set()) {
                let said =
                    noise.or_else(|| printed(&line)).filter(|_| error.kind() == ErrorKind::Unreachable);
                return Err(said.map_or(error, |said| said_instead(host, &said)));
            }
            heard_bytes += 1;
            if byte[0] == b'\n' || heard_bytes == NOISE_BYTES_MAX {
                break;
            }
            if line.is_empty() && byte[0] == dray_core::frame::FrameKind::Control as u8 {
                let what = format!("{host} starts dray itself, whatever it is asked to run");
                return Err(Error::new(ErrorKind::Refused, what)
                    .advise("your key has a forced command there: leave --deploy out"));
            }
            if line.len() < LINE_BYTES_MAX {
                line.push(byte[0]);
            }
        }
        noise = noise.or_else(|| printed(&line));
        let line = String::from_utf8_lossy(&line);
        if let Some((_, answer)) = line.split_once(MARK) {
            return Ok(answer.trim_end().to_owned());
        }
    }
    Err(Error::new(ErrorKind::Protocol, format!("{host} prints and prints and does not come to the point"))
        .advise("let start-up files of the shell there print only in interactive shells"))
}

/// A line as it is shown; `None` if there is nothing to be seen in it.
fn printed(line: &[u8]) -> Option<String> {
    let line = one_line(String::from_utf8_lossy(line).trim());
    (!line.is_empty()).then(|| line.chars().take(SHOWN_CHARS).collect())
}

/// How the error ends of a host whose login runs something else than a shell.
pub(super) const NO_SHELL: &str = "where a shell was to answer";

/// What the login there runs in the place of a shell said this, and ended. The caller knows how ssh was called, for the advice.
fn said_instead(host: &str, said: &str) -> Error {
    Error::new(ErrorKind::Refused, format!("{host} printed {said:?} {NO_SHELL}"))
}

/// This program's system, as `uname -s` and `uname -m` have it.
fn own_system() -> String {
    let system = if cfg!(target_os = "macos") { "Darwin" } else { "Linux" };
    let machine = match (std::env::consts::ARCH, system) {
        ("aarch64", "Darwin") => "arm64",
        ("x86", _) => "i686",
        (machine, _) => machine,
    };
    format!("{system} {machine}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The script survives every login shell, and this machine is the one that it was built for.
    #[test]
    fn the_script_is_plain() {
        let stop = Stop::new();
        let command = Deployment::of_this_program(&stop).unwrap().far_command().into_string().unwrap();
        let script = command.strip_prefix("sh -c '").unwrap().strip_suffix('\'').unwrap();
        assert!(!script.contains(['\'', '\n', '\\', '!', '`']), "{script}");
        let uname = std::process::Command::new("uname").arg("-sm").output().unwrap().stdout;
        assert_eq!(String::from_utf8(uname).unwrap().trim(), own_system());
    }

    /// Issue "clear words": what sh reports becomes the right exit code.
    #[test]
    fn answers_become_errors() {
        assert!(outcome("ready", "h").is_ok());
        for (answer, code, part) in [
            ("failed dd: error writing: No space left on device", 7, "No space left"),
            ("failed mkdir: cannot create directory: Read-only file system", 6, "Read-only"),
            ("failed the rest never came", 5, "never came"),
            ("unusable 126 sh: 1: /h/.cache/dray: Permission denied", 6, "Permission denied"),
            ("unusable 4 dray: it is another", 4, "not this program"),
            ("unusable 1 dray: version `GLIBC_2.38' not found", 6, "GLIBC_2.38"),
            ("unusable 127", 6, "does not run"),
            ("what", 5, "what"),
        ] {
            let error = outcome(answer, "h").unwrap_err();
            assert_eq!(error.kind().exit_code(), code, "{error}");
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
