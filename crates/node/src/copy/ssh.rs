//! Starting the far end: `ssh HOST dray remote`, or the same program here when both ends are local.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use dray_core::{Error, ErrorKind, Result};
use dray_transfer::transport::PipeChannel;

use crate::Stop;

/// How long ssh may take to say what it would do.
const CIPHERS_PATIENCE: Duration = Duration::from_secs(1);

/// What ssh is told besides the host; the same letters as scp's.
#[derive(Clone, Debug, Default)]
pub struct SshOptions {
    /// `-P PORT`.
    pub port: Option<u16>,
    /// `-i FILE`, any number.
    pub identities: Vec<OsString>,
    /// `-J HOST`.
    pub jump: Option<OsString>,
    /// `-o OPTION`, any number.
    pub options: Vec<OsString>,
    /// `-F FILE`.
    pub config: Option<OsString>,
    /// Program to run there instead of `dray`.
    pub remote_dray: Option<OsString>,
}

impl SshOptions {
    fn program(&self) -> &OsStr {
        self.remote_dray.as_deref().unwrap_or(OsStr::new("dray"))
    }
}

/// The far end, running.
pub(super) struct FarEnd {
    child: Child,
    /// For messages.
    pub(super) host: String,
    program: String,
    /// Options for scp to go the same way.
    scp: String,
}

impl FarEnd {
    /// Starts ssh to `host`, or this very program if there is none.
    pub(super) fn start(
        host: Option<&OsStr>,
        options: &SshOptions,
        stop: &Stop,
    ) -> Result<(FarEnd, PipeChannel)> {
        let mut command = match host {
            Some(host) => ssh(host, options, stop),
            None => {
                let own = std::env::current_exe().map_err(|error| Error::io("find this program", error))?;
                let mut command = Command::new(own);
                command.arg("remote");
                command
            }
        };
        let host = host.map_or_else(|| "this host".to_owned(), |host| host.to_string_lossy().into_owned());
        let failed = |error| {
            Error::new(ErrorKind::Unreachable, format!("cannot start ssh: {error}"))
                .advise("install an ssh client (Debian: openssh-client)")
        };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().map_err(failed)?;
        let (Some(input), Some(output)) = (child.stdout.take(), child.stdin.take()) else {
            return Err(Error::new(ErrorKind::Internal, "ssh has no pipes"));
        };
        let channel = PipeChannel::new(OwnedFd::from(input), OwnedFd::from(output)).map_err(failed)?;
        let program = options.program().to_string_lossy().into_owned();
        Ok((FarEnd { child, host, program, scp: scp_options(options) }, channel))
    }

    /// After the conversation broke: the error that explains it, from how the far end ended, and from whether anything
    /// was heard from it that a `dray` may say.
    pub(super) fn explain(&mut self, error: Error, is_heard: bool) -> Error {
        if error.kind() == ErrorKind::Protocol {
            return error.or_advise(format!(
                "is `{}` on {} dray, of a version that goes with this one?",
                self.program, self.host
            ));
        }
        if error.kind() != ErrorKind::Unreachable {
            return error;
        }
        match self.wait(Duration::from_secs(3)) {
            Some(127) => Error::new(
                ErrorKind::NotFound,
                format!("{} has no program `{}`", self.host, self.program),
            )
            .advise(format!(
                "copy this one there, for example: scp {}{} {}:.local/bin/dray — or name it with --remote-dray",
                self.scp,
                std::env::current_exe().map_or_else(|_| "dray".into(), |own| own.display().to_string()),
                self.host
            )),
            Some(255) => Error::new(ErrorKind::Unreachable, format!("ssh to {} failed", self.host))
                .advise(
                    "ssh's own message stands above; if there is none, your key or the host's is refused (does `ssh` \
                     alone get there?), or dray was killed there",
                ),
            Some(code) if code != 0 => {
                let kind = ErrorKind::from_exit_code(code).unwrap_or(ErrorKind::Unreachable);
                if is_heard {
                    Error::new(kind, format!("dray on {} ended with exit code {code}", self.host))
                } else {
                    let (program, host) = (&self.program, &self.host);
                    let what = format!("`{program}` on {host} ended with exit code {code} without a word");
                    Error::new(kind, what).advise(format!(
                        "is it dray? Then `dray doctor` on {host} may say why; --remote-dray names another"
                    ))
                }
            }
            Some(_) if !is_heard => Error::new(
                ErrorKind::Protocol,
                format!("`{}` on {} ended without a word: it is not dray", self.program, self.host),
            )
            .advise("name the dray there with --remote-dray"),
            _ => error.context(format_args!("{} went away", self.host)),
        }
        .with_retryable(true)
    }

    /// Ends it at once.
    pub(super) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    /// Waits for the end, at most `patience`; the exit code if it came.
    pub(super) fn wait(&mut self, patience: Duration) -> Option<i32> {
        let deadline = Instant::now() + patience;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Some(status.code().unwrap_or(1)),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(5)),
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        if self.wait(Duration::from_millis(200)).is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

fn ssh(host: &OsStr, options: &SshOptions, stop: &Stop) -> Command {
    let mut command = Command::new("ssh");
    // No forwarding, no terminal, no escape characters: the channel carries bytes.
    command.args(["-x", "-a", "-T", "-oClearAllForwardings=yes", "-oEscapeChar=none", "-oCompression=no"]);
    add_options(&mut command, options);
    if let Some(ciphers) = fast_ciphers(host, options, stop) {
        command.arg(format!("-oCiphers={ciphers}"));
    }
    let mut remote = quote(options.program());
    remote.push(" remote");
    command.arg("--").arg(host).arg(remote);
    command
}

/// What scp has to be told to reach the same host, each option with a space behind it.
fn scp_options(options: &SshOptions) -> String {
    let mut words: Vec<OsString> = Vec::new();
    let mut add = |letter: &str, value: &OsStr| words.extend([letter.into(), quote(value)]);
    if let Some(config) = &options.config {
        add("-F", config);
    }
    if let Some(port) = options.port {
        add("-P", OsStr::new(&port.to_string()));
    }
    options.identities.iter().for_each(|identity| add("-i", identity));
    if let Some(jump) = &options.jump {
        add("-J", jump);
    }
    options.options.iter().for_each(|option| add("-o", option));
    words.iter().map(|word| format!("{} ", word.to_string_lossy())).collect()
}

fn add_options(command: &mut Command, options: &SshOptions) {
    if let Some(port) = options.port {
        command.arg("-p").arg(port.to_string());
    }
    for identity in &options.identities {
        command.arg("-i").arg(identity);
    }
    if let Some(jump) = &options.jump {
        command.arg("-J").arg(jump);
    }
    if let Some(config) = &options.config {
        command.arg("-F").arg(config);
    }
    for option in &options.options {
        command.arg("-o").arg(option);
    }
}

/// The ciphers that ssh would offer, AES-GCM first, unless somebody chose: a configuration that names any `Ciphers` for
/// this host, and an ssh that cannot say, are left alone.
///
/// ssh prefers ChaCha20-Poly1305, at the price of 0.4 s of CPU time a GiB and end more than AES-GCM where the CPU has
/// instructions for AES (ADR 5). A host that has no AES-GCM takes the next of the list, as ever.
fn fast_ciphers(host: &OsStr, options: &SshOptions, stop: &Stop) -> Option<String> {
    if !has_aes() {
        return None;
    }
    let ask = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()
    };
    let mut chosen = Command::new("ssh");
    chosen.arg("-G");
    add_options(&mut chosen, options);
    let chosen = ask(chosen.arg("--").arg(host));
    let default = ask(Command::new("ssh").args(["-G", "-F", "none", "--"]).arg(host));
    // Both are waited for, whatever they say, but not for long: a configuration may run programs and ask name servers.
    let deadline = Instant::now() + CIPHERS_PATIENCE;
    let [chosen, default] =
        [chosen, default].map(|child| child.and_then(|child| printed_by(child, deadline, stop)));
    gcm_first(ciphers(&chosen?)?, ciphers(&default?)?)
}

/// What `child` prints, if it ends well by `deadline` and prints no more than a pipe holds.
fn printed_by(mut child: Child, deadline: Instant, stop: &Stop) -> Option<Vec<u8>> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => {
                let (mut printed, mut output) = (Vec::new(), child.stdout.take()?);
                // All of it is in the pipe by now; a program that the configuration left behind may hold the other end.
                rustix::io::ioctl_fionbio(&output, true).ok()?;
                let _ = output.read_to_end(&mut printed);
                return status.success().then_some(printed);
            }
            Ok(None) if Instant::now() < deadline && !stop.is_set() => {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return None;
            }
        }
    }
}

/// The list of ciphers in what `ssh -G` prints.
fn ciphers(configuration: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(configuration).ok()?;
    text.lines().find_map(|line| line.strip_prefix("ciphers ")).map(str::trim)
}

fn gcm_first(chosen: &str, default: &str) -> Option<String> {
    if chosen != default {
        return None;
    }
    let (gcm, other): (Vec<_>, Vec<_>) = default.split(',').partition(|name| name.contains("-gcm@"));
    (!gcm.is_empty()).then(|| [gcm, other].concat().join(","))
}

/// True if this CPU computes AES-GCM by instructions of its own.
fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes") && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// Quotes a word for the remote shell.
fn quote(word: &OsStr) -> OsString {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._-+~".contains(byte);
    if !word.is_empty() && word.as_bytes().iter().all(plain) {
        return word.to_owned();
    }
    let mut quoted = b"'".to_vec();
    for byte in word.as_bytes() {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            byte => quoted.push(*byte),
        }
    }
    quoted.push(b'\'');
    std::os::unix::ffi::OsStringExt::from_vec(quoted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remote_shell_sees_one_word() {
        assert_eq!(quote(OsStr::new("/opt/dray-1.0/dray")), "/opt/dray-1.0/dray");
        assert_eq!(quote(OsStr::new("a b")), "'a b'");
        assert_eq!(quote(OsStr::new("it's; rm -rf /")), "'it'\\''s; rm -rf /'");
        assert_eq!(quote(OsStr::new("")), "''");
    }

    /// Design 5: the command that an error prints reaches the host the way the failed one did.
    #[test]
    fn scp_goes_the_same_way() {
        let options = SshOptions {
            port: Some(2222),
            identities: vec!["my key".into()],
            jump: Some("gate".into()),
            config: Some("/c".into()),
            ..SshOptions::default()
        };
        assert_eq!(scp_options(&options), "-F /c -P 2222 -i 'my key' -J gate ");
        assert_eq!(scp_options(&SshOptions::default()), "");
    }

    /// Floor of the performance targets: over ssh too, nothing is slower than rsync. A cipher that somebody chose stays.
    #[test]
    fn gcm_comes_first_unless_somebody_chose() {
        let default =
            "chacha20-poly1305@openssh.com,aes128-ctr,aes128-gcm@openssh.com,aes256-gcm@openssh.com";
        let first = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr";
        assert_eq!(gcm_first(default, default).as_deref(), Some(first));
        assert_eq!(gcm_first("chacha20-poly1305@openssh.com", default), None);
        assert_eq!(gcm_first("aes128-ctr", "aes128-ctr"), None);
        let printed = format!("host here\nciphers {default}\nport 22\n");
        assert_eq!(ciphers(printed.as_bytes()), Some(default));
        assert_eq!(ciphers(b"host here\n\xff"), None);
    }
}
