//! What ssh itself says on standard error: passed on as it comes, kept, and read for why there is no connection.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use dray_core::text::one_line;
use dray_core::{Error, ErrorKind, Result};
use rustix::event::{PollFd, PollFlags};

use super::ssh::SshOptions;
use crate::lock;

/// Bytes kept of what ssh says: the last ones say why it ended.
const KEPT_BYTES: usize = 8 * 1024;

/// Standard error of a running ssh. Passed on until [`SshWords::all`] is asked for or this is dropped: a connection that
/// ssh keeps open in the background for others (`ControlPersist`) holds the pipe, so its end is not waited for.
pub(super) struct SshWords {
    kept: Arc<Mutex<Vec<u8>>>,
    /// Closed to end the thread.
    go_on: Option<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl SshWords {
    /// Begins to pass on what comes from `pipe`.
    pub(super) fn pass_on(pipe: OwnedFd) -> Result<SshWords> {
        let failed = |error: rustix::io::Errno| Error::io("listen to ssh", error.into());
        rustix::io::ioctl_fionbio(&pipe, true).map_err(failed)?;
        let (over, go_on) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(failed)?;
        let kept = Arc::new(Mutex::new(Vec::new()));
        let ours = kept.clone();
        let thread = std::thread::spawn(move || {
            let mut chunk = [0; 4096];
            loop {
                match rustix::io::read(&pipe, &mut chunk) {
                    Ok(0) => return,
                    Ok(n) => {
                        let _ = std::io::stderr().write_all(&chunk[..n]);
                        let mut kept = lock(&ours);
                        kept.extend_from_slice(&chunk[..n]);
                        let excess = kept.len().saturating_sub(KEPT_BYTES);
                        kept.drain(..excess);
                    }
                    Err(rustix::io::Errno::INTR) => {}
                    Err(rustix::io::Errno::AGAIN) => {
                        let mut fds = [PollFd::new(&pipe, PollFlags::IN), PollFd::new(&over, PollFlags::IN)];
                        match rustix::event::poll(&mut fds, None) {
                            // Told to end, and nothing left to read.
                            Ok(_) if fds[0].revents().is_empty() => return,
                            Ok(_) | Err(rustix::io::Errno::INTR) => {}
                            Err(_) => return,
                        }
                    }
                    Err(_) => return,
                }
            }
        });
        Ok(SshWords { kept, go_on: Some(go_on), thread: Some(thread) })
    }

    /// Everything it said that is in the pipe by now; to be called once it has ended.
    pub(super) fn all(&mut self) -> String {
        self.end();
        String::from_utf8_lossy(&lock(&self.kept)).into_owned()
    }

    fn end(&mut self) {
        drop(self.go_on.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for SshWords {
    fn drop(&mut self) {
        self.end();
    }
}

/// What to look for in ssh's words, what it means, and what to do. OpenSSH's messages are not translated.
const MEANINGS: [(&[&str], ErrorKind, &str, &str); 8] = [
    (
        &["REMOTE HOST IDENTIFICATION HAS CHANGED"],
        ErrorKind::Refused,
        "its host key is not the one that is known",
        "find out why before anything else: somebody may stand between. If the host was set up anew, remove its old key as \
         ssh says above (a file and a line, or `ssh-keygen -R` with both)",
    ),
    (
        &["Host key verification failed", "No matching host key fingerprint"],
        ErrorKind::Refused,
        "its host key is not known here",
        "log in once with `ssh HOST` and compare the fingerprint that it shows",
    ),
    (
        &["Permission denied (", "Too many authentication failures", "No more authentication methods"],
        ErrorKind::Refused,
        "it refuses the login",
        "is the user name right, and the key (cp: -i FILE; sync: -e 'ssh -i FILE')? `ssh HOST` must get in",
    ),
    (
        &["Could not resolve hostname"],
        ErrorKind::Unreachable,
        "its name is not known",
        "is it spelt right? A local file with a colon in its name is written ./NAME",
    ),
    (
        &["Connection refused"],
        ErrorKind::Unreachable,
        "nothing listens at its ssh port",
        "is sshd running there, and the port right (cp: -P PORT; sync: -e 'ssh -p PORT')?",
    ),
    (
        &["timed out", "No route to host", "Network is unreachable"],
        ErrorKind::Unreachable,
        "nothing answers at its address",
        "is the host up and the network between, and does a firewall let ssh through?",
    ),
    (
        &[
            "Bad configuration option",
            "Bad owner or permissions on",
            "keyword ",
            "Can't open user config file",
        ],
        ErrorKind::Usage,
        "ssh does not take its options or configuration",
        "mend what ssh names above",
    ),
    (
        &["kex_exchange_identification", "Connection closed by", "Connection reset by"],
        ErrorKind::Unreachable,
        "it closed the connection",
        "sshd there lets nobody in at the moment, or not from here; its log says why",
    ),
];

/// Advice in which `HOST` stands for the host, and `ssh HOST` for how ssh was called.
fn advised(advice: &str, host: &str, options: &SshOptions) -> String {
    let parts: Vec<String> = advice.split("ssh HOST").map(|part| part.replace("HOST", host)).collect();
    parts.join(&options.command_line(host))
}

/// The last line in which ssh said something.
pub(super) fn last_line(words: &str) -> Option<&str> {
    words.lines().map(str::trim).rfind(|line| !line.is_empty())
}

/// Why ssh to `host`, which said `words`, came to nothing.
pub(super) fn why(host: &str, options: &SshOptions, words: &str) -> Error {
    for (signs, kind, meaning, advice) in MEANINGS {
        if let Some(line) = words.lines().find(|line| signs.iter().any(|sign| line.contains(sign))) {
            let told = one_line(if kind == ErrorKind::Refused { "" } else { line.trim() });
            let told = if told.is_empty() { String::new() } else { format!(" ({told})") };
            return Error::new(kind, format!("ssh to {host}: {meaning}{told}"))
                .advise(advised(advice, host, options));
        }
    }
    let what = match last_line(words) {
        Some(line) => format!("ssh to {host} failed: {}", one_line(line)),
        None => format!("ssh to {host} failed"),
    };
    Error::new(ErrorKind::Unreachable, what).advise(format!(
        "does `{}` alone get there? If ssh says nothing, dray may have been killed there",
        options.command_line(host)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue "clear words for … host key changed, login refused": each has a kind, hence an exit code, and says what
    /// to do.
    #[test]
    fn ssh_is_understood() {
        for (words, kind, part) in [
            (
                "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.\n",
                6,
                "not the one",
            ),
            ("Host key verification failed.\r\n", 6, "not known here"),
            ("root@h: Permission denied (publickey,password).\r\n", 6, "refuses the login"),
            (
                "ssh: Could not resolve hostname nowhere: Name or service not known\r\n",
                5,
                "name is not known",
            ),
            ("ssh: connect to host h port 9: Connection refused\r\n", 5, "nothing listens"),
            ("ssh: connect to host h port 22: Connection timed out\r\n", 5, "nothing answers"),
            ("/c: line 1: Bad configuration option: nonsense\n", 2, "options"),
            ("kex_exchange_identification: Connection closed by remote host\r\n", 5, "closed"),
            ("something new\n\n", 5, "failed: something new"),
            ("", 5, "ssh to h failed"),
        ] {
            let error = why("h", &SshOptions::default(), words);
            assert_eq!(error.kind().exit_code(), kind, "{words}");
            assert!(error.to_string().contains(part) && !error.to_string().contains("HOST"), "{error}");
            assert!(error.advice().is_some_and(|advice| !advice.contains("HOST")), "{error}");
        }
    }

    /// What is to be tried by hand has the options of the command: without them it is another host, or another login.
    #[test]
    fn ssh_is_called_as_it_was() {
        let options = SshOptions {
            port: Some(2222),
            identities: vec!["/k/my HOST key".into()],
            options: vec!["User=me".into()],
            ..SshOptions::default()
        };
        let line = "`ssh -p 2222 -i '/k/my HOST key' -o User=me h`";
        for words in ["root@h: Permission denied (publickey).\n", "Host key verification failed.\n", "new\n"]
        {
            let error = why("h", &options, words);
            assert!(error.advice().is_some_and(|advice| advice.contains(line)), "{error:?}");
        }
    }

    /// All that was said is there once ssh has ended, also if something else still holds the pipe.
    #[test]
    fn words_are_complete_without_an_end_of_file() {
        let (pipe, far) = rustix::pipe::pipe().unwrap();
        let mut words = SshWords::pass_on(pipe).unwrap();
        let held = far.try_clone().unwrap();
        rustix::io::write(&far, b"ssh speaks\n").unwrap();
        drop(far);
        assert_eq!(words.all(), "ssh speaks\n");
        drop(held);
    }
}
