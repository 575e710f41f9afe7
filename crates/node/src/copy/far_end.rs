//! The far end of a copy: `ssh HOST …` as a child process, or the same program here when both ends are local; and when
//! there was no conversation, the words for why.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use dray_core::text::one_line;
use dray_core::{Error, ErrorKind, Result};
use dray_transfer::transport::{OpeningBytes, PipeChannel};

use rustix::process::{Pid, WaitOptions, waitpid};

use super::deploy::{Deployment, NO_SHELL};
use super::local::patience;
use super::ssh::{SshOptions, ssh};
use super::ssh_words::{SshWords, last_line, why};
use crate::{Event, Observer, Stop, lock};

/// First byte of every conversation: the head of a control frame.
const CONTROL: u8 = dray_core::frame::FrameKind::Control as u8;
/// How long a far end that has let go may take to end.
const END_PATIENCE: Duration = Duration::from_secs(3);
/// How long one may take that nobody asks anything of any more.
const LEAVE_PATIENCE: Duration = Duration::from_millis(200);
/// Characters shown of what something else than dray said.
pub(super) const SHOWN_CHARS: usize = 120;

/// A line that another program printed, as it is shown.
fn shown(line: &str) -> String {
    one_line(line).chars().take(SHOWN_CHARS).collect()
}

/// The far end, running.
pub(super) struct FarEnd {
    child: Child,
    /// For messages.
    pub(super) host: String,
    options: SshOptions,
    opening: OpeningBytes,
    /// What ssh says; `None` without ssh.
    words: Option<SshWords>,
    /// It may carry other connections of its user (`ControlMaster`).
    may_be_shared: bool,
    /// How long it may take to end once all is done; `None` while it is not.
    done: Option<Duration>,
}

/// Those that were left because they carry other connections of their user, and end after them.
static LEFT: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Forgets those that have ended: a process that runs for long shall not collect them.
fn reap_left() {
    let mut left = lock(&LEFT);
    left.retain(|pid| matches!(waitpid(Some(*pid), WaitOptions::NOHANG), Ok(None)));
}

/// What to do about a far end that is gone.
const GOES_ON: &str = "the same command again goes on: what is in place is not sent again";

impl FarEnd {
    /// Starts ssh to `host`, or this very program if there is none.
    pub(super) fn start(
        host: Option<&OsStr>,
        options: &SshOptions,
        observer: &dyn Observer,
        stop: &Stop,
    ) -> Result<(FarEnd, PipeChannel)> {
        let deployment =
            if host.is_some() && options.deploy { Some(Deployment::of_this_program(stop)?) } else { None };
        let (mut command, may_be_shared) = match host {
            Some(host) => {
                let far_command =
                    deployment.as_ref().map_or_else(|| options.far_command(), Deployment::far_command);
                let (mut command, may_be_shared) = ssh(host, options, &far_command, stop);
                command.stderr(Stdio::piped());
                (command, may_be_shared)
            }
            None => {
                let own = std::env::current_exe().map_err(|error| Error::io("find this program", error))?;
                let mut command = Command::new(own);
                command.arg("remote");
                (command, false)
            }
        };
        let host = host.map_or_else(|| "this host".to_owned(), |host| host.to_string_lossy().into_owned());
        let program = command.get_program().to_owned();
        let failed = |error| {
            let what = format!("cannot start {}: {error}", program.to_string_lossy());
            let error = Error::new(ErrorKind::Unreachable, what);
            if program == "ssh" {
                error.advise("install an ssh client (Debian: openssh-client)")
            } else {
                error
            }
        };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let words = child.stderr.take().map(|pipe| SshWords::pass_on(pipe.into())).transpose()?;
        let (Some(input), Some(output)) = (child.stdout.take(), child.stdin.take()) else {
            return Err(Error::new(ErrorKind::Internal, "ssh has no pipes"));
        };
        let mut channel = PipeChannel::new(OwnedFd::from(input), OwnedFd::from(output)).map_err(failed)?;
        let mut far = FarEnd {
            child,
            host,
            options: options.clone(),
            opening: OpeningBytes::default(),
            words,
            may_be_shared,
            done: None,
        };
        if let Some(deployment) = deployment {
            let host = far.host.clone();
            let note = |text| observer.event(Event::Note(text));
            if let Err(error) =
                deployment.carry_out(&mut channel, &host, &note, &mut || far.kill(), patience(), stop)
            {
                drop(channel);
                if stop.is_set() {
                    return Err(error);
                }
                let error = far.explain(error, false);
                return Err(match error.what().ends_with(NO_SHELL) {
                    true => {
                        let shown = far.ssh_line();
                        error.advise(format!(
                            "the login there runs no commands; `{shown} true` shows the same"
                        ))
                    }
                    false => error,
                });
            }
        }
        far.opening = channel.keep_opening();
        Ok((far, channel))
    }

    /// After the conversation broke: the error that explains it, from what came instead of it, from how the far end
    /// ended, and from whether anything was heard from it that a `dray` may say.
    pub(super) fn explain(&mut self, error: Error, is_heard: bool) -> Error {
        if let Some(text) = self.said_instead() {
            return self.something_else(&text);
        }
        let host = &self.host;
        if error.kind() == ErrorKind::Unsupported && error.what().contains("version") {
            return error.context(format_args!("dray on {host} is another version")).advise(self.deploy());
        }
        if error.kind() == ErrorKind::Protocol {
            return error
                .or_advise(format!("is what answers on {host} dray, of a version that goes with this one?"));
        }
        if error.kind() == ErrorKind::TimedOut {
            return error.context(host).or_advise(format!(
                "does `{}` alone get there? The same command again goes on where this one stopped",
                self.ssh_line()
            ));
        }
        if error.kind() != ErrorKind::Unreachable {
            return error;
        }
        let code = self.wait(END_PATIENCE);
        let said = self.words.as_mut().map(SshWords::all).unwrap_or_default();
        let host = &self.host;
        let program = self
            .options
            .named_program()
            .map_or_else(|| "dray".to_owned(), |name| format!("`{}`", name.to_string_lossy()));
        // The one shell that has another code for it (csh).
        let is_missing = code == Some(1) && !is_heard && said.contains("Command not found");
        match if is_missing { Some(127) } else { code } {
            Some(127) => Error::new(ErrorKind::NotFound, format!("{host} has no {}", self.what_it_lacks()))
                .advise(self.deploy()),
            Some(126) => Error::new(ErrorKind::Refused, format!("{program} on {host} cannot be run"))
                .advise("is it a program for that machine, and may your user run it there? --remote-dray names another"),
            // It was there, and is not any more; ssh may have a word for that.
            Some(255) if is_heard && self.words.is_some() => {
                let last = last_line(&said).map(|line| format!(" ({})", shown(line)));
                let last = last.unwrap_or_default();
                let what = format!("the connection to {host} was lost{last}");
                Error::new(ErrorKind::Unreachable, what).advise(GOES_ON)
            }
            Some(255) if self.words.is_some() => why(host, &self.options, &said),
            // It heard a signal, and did not get to say so.
            Some(130) => {
                let what = format!("dray on {host} was interrupted");
                Error::new(ErrorKind::Unreachable, what).advise(GOES_ON)
            }
            // Before a word only what ends a process from outside: one that breaks by itself breaks again.
            Some(code @ 129..=159) if is_heard || matches!(code, 129 | 137 | 143) => {
                let what = format!("dray on {host}, or ssh here, was killed (signal {})", code - 128);
                Error::new(ErrorKind::Unreachable, what).advise(GOES_ON)
            }
            Some(code) if code != 0 => {
                let kind = ErrorKind::from_exit_code(code).unwrap_or(ErrorKind::Unreachable);
                if is_heard {
                    // Its own words were lost on the way.
                    let why = if kind == ErrorKind::NoSpace { ": no space is left where it writes" } else { "" };
                    Error::new(kind, format!("dray on {host} ended with exit code {code}{why}"))
                } else {
                    let what = format!("{program} on {host} ended with exit code {code} without a word");
                    Error::new(kind, what).advise(format!(
                        "is it dray? Then `dray doctor` on {host} may say why; --remote-dray names another"
                    ))
                }
            }
            Some(_) if !is_heard => Error::new(
                ErrorKind::Protocol,
                format!("{program} on {host} ended without a word: it is not dray"),
            )
            .advise("name the dray there with --remote-dray"),
            _ => error.context(format_args!("{host} went away")),
        }
        .with_retryable(true)
    }

    /// What came in the place of a conversation, if something did.
    fn said_instead(&self) -> Option<String> {
        let opening = self.opening.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(opening.first(), None | Some(&CONTROL)) {
            return None;
        }
        let text = String::from_utf8_lossy(&opening).into_owned();
        let line = text.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        Some(shown(line))
    }

    /// The shell, or what stands in its place, printed something first.
    fn something_else(&mut self, text: &str) -> Error {
        // A program that refuses logins says so and ends; a start-up file that prints is followed by dray.
        let is_refusal = self.wait(END_PATIENCE) == Some(1);
        let host = &self.host;
        let what = format!("{host} printed {text:?} where dray was to speak");
        if is_refusal {
            Error::new(ErrorKind::Refused, what).advise(format!(
                "either the login there runs no commands (`{} true` shows the same), or another program is \
                     called dray there (--remote-dray names the right one)",
                self.ssh_line()
            ))
        } else {
            Error::new(ErrorKind::Protocol, what).advise(format!(
                "`{} true` must print nothing: let start-up files of the shell there (.bashrc, .cshrc) print \
                 only in interactive shells",
                self.ssh_line()
            ))
        }
    }

    /// How ssh was called, to be tried by hand.
    pub(super) fn ssh_line(&self) -> String {
        self.options.command_line(&self.host)
    }

    fn what_it_lacks(&self) -> String {
        match self.options.named_program() {
            Some(name) => format!("program `{}`", name.to_string_lossy()),
            None => {
                "dray, neither in PATH nor in ~/.local/bin, ~/.cargo/bin, /usr/local/bin or /opt/dray/bin"
                    .into()
            }
        }
    }

    /// The command that brings this program there.
    fn deploy(&self) -> String {
        match &self.options.deploy_command {
            Some(command) => format!("this brings this dray there first: {command}"),
            None => "the same command with --deploy brings this dray there first".into(),
        }
    }

    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// All went well. An ssh that does not end now carries other connections of its user (`ControlMaster` without `ControlPersist`),
    /// and ends after them.
    pub(super) fn done(&mut self) {
        self.done = Some(LEAVE_PATIENCE);
    }

    /// The same, and it need not say goodbye, which takes a round trip.
    pub(super) fn let_go(&mut self) {
        self.done = Some(Duration::ZERO);
    }

    /// Waits for the end, at most `patience`; the exit code if it came.
    pub(super) fn wait(&mut self, patience: Duration) -> Option<i32> {
        let deadline = Instant::now() + patience;
        loop {
            match self.child.try_wait() {
                // As shells have it where a signal ended it.
                Ok(Some(status)) => {
                    return Some(status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0)));
                }
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        if self.wait(self.done.unwrap_or(LEAVE_PATIENCE)).is_some() {
            return;
        }
        if self.done.is_some() && self.may_be_shared {
            lock(&LEFT).push(Pid::from_child(&self.child));
            reap_left();
        } else {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
