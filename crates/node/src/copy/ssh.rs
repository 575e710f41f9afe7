//! How ssh is called: the options it is given, the ciphers it is asked for, and the command it runs on the far host.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::Stop;

/// How long ssh may take to say what it would do.
const CIPHERS_PATIENCE: Duration = Duration::from_secs(1);

/// What ssh is told besides the host; the same letters as scp's.
#[derive(Clone, Debug, Default)]
pub struct SshOptions {
    /// The ssh to run instead of the one in `PATH`.
    pub program: Option<OsString>,
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
    /// `-4` or `-6`: only addresses of that family.
    pub family: Option<AddressFamily>,
    /// `-C`: what goes through ssh is compressed by ssh. Without it the configuration decides.
    pub compress: bool,
    /// Program to run there instead of the `dray` that is found there.
    pub remote_dray: Option<OsString>,
    /// Copy this program there first, unless it is there.
    pub deploy: bool,
    /// The command line that would do so, for errors.
    pub deploy_command: Option<String>,
}

/// A family of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddressFamily {
    /// IPv4.
    Inet,
    /// IPv6.
    Inet6,
}

/// Finds dray where the `PATH` of a command over ssh often does not lead, and what `--deploy` once left for this system
/// and CPU: hosts of several kinds may share a home directory. Every login shell hands it to sh as one word: there is no quote, line end, backslash or exclamation mark in it.
const FIND_AND_RUN: &str = concat!(
    "PATH=$PATH:$HOME/.local/bin:$HOME/.cargo/bin:/usr/local/bin:/opt/dray/bin; ",
    "command -v dray >/dev/null 2>&1 && exec dray remote; ",
    "for f in \"${XDG_CACHE_HOME:-$HOME/.cache}\"/dray/bin/",
    env!("CARGO_PKG_VERSION"),
    "-\"$(uname -s)-$(uname -m)\"-*/dray; do [ -x \"$f\" ] && exec \"$f\" remote; done; exit 127",
);

impl SshOptions {
    /// How somebody at a shell calls ssh to `host` with the same options.
    pub(super) fn command_line(&self, host: &str) -> String {
        let mut command = self.program();
        add_options(&mut command, self);
        let shown = |word: &OsStr| {
            let text = word.to_string_lossy();
            let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:@,%[]".contains(&byte);
            match !text.is_empty() && text.bytes().all(is_plain) {
                true => text.into_owned(),
                false => quote(word).to_string_lossy().into_owned(),
            }
        };
        let words = [command.get_program()].into_iter().chain(command.get_args()).chain([OsStr::new(host)]);
        words.map(shown).collect::<Vec<_>>().join(" ")
    }

    /// To be given its arguments.
    fn program(&self) -> Command {
        Command::new(self.program.as_deref().unwrap_or(OsStr::new("ssh")))
    }

    /// The program that was named to run there; `None` if it is to be found.
    pub(super) fn named_program(&self) -> Option<&OsStr> {
        self.remote_dray.as_deref().filter(|name| *name != "dray")
    }

    /// What the far host's shell is given to start the far end.
    pub(super) fn far_command(&self) -> OsString {
        match self.named_program() {
            Some(program) => {
                // As with rsync it may have words in front of it ("sudo dray"); a path is one word whatever is in it.
                let has_words = |words: &Vec<OsString>| {
                    words.first().is_some_and(|first| !first.as_bytes().contains(&b'/'))
                };
                let named = words(program.as_bytes()).filter(has_words);
                let named = named.unwrap_or_else(|| vec![program.to_owned()]);
                let quoted = named.iter().map(|word| quote(word)).chain([OsString::from("remote")]);
                quoted.collect::<Vec<_>>().join(OsStr::new(" "))
            }
            None => shell_script(FIND_AND_RUN),
        }
    }
}

/// Splits a command line as rsync does: at spaces, but for those in quotes; `None` if a quote has no end.
pub fn words(text: &[u8]) -> Option<Vec<OsString>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<Vec<u8>>, None);
    for &byte in text {
        match (quote, byte) {
            (Some(open), byte) if open == byte => quote = None,
            (None, b'\'' | b'"') => {
                quote = Some(byte);
                word.get_or_insert_default();
            }
            (None, b' ') => words.extend(word.take().map(OsString::from_vec)),
            _ => word.get_or_insert_default().push(byte),
        }
    }
    words.extend(word.map(OsString::from_vec));
    quote.is_none().then_some(words)
}

/// A script as a command line that every login shell understands.
pub(super) fn shell_script(script: &str) -> OsString {
    debug_assert!(!script.contains(['\'', '\n', '\\', '!']));
    format!("sh -c '{script}'").into()
}

/// ssh to `host`, to run `far_command` there; and whether it may carry other connections of its user, too.
pub(super) fn ssh(host: &OsStr, options: &SshOptions, far_command: &OsStr, stop: &Stop) -> (Command, bool) {
    let mut command = options.program();
    // No forwarding, no terminal, no escape characters: the channel carries bytes.
    command.args(["-x", "-a", "-T", "-oClearAllForwardings=yes", "-oEscapeChar=none"]);
    if options.compress {
        command.arg("-C");
    }
    add_options(&mut command, options);
    let (chosen, default) = configurations(host, options, stop);
    if let (Some(chosen), Some(default)) = (&chosen, &default)
        && let Some(ciphers) = fast_ciphers(chosen, default)
    {
        command.arg(format!("-oCiphers={ciphers}"));
    }
    command.arg("--").arg(host).arg(far_command);
    let master = chosen.as_deref().and_then(|chosen| setting(chosen, "controlmaster"));
    (command, master.is_some_and(|master| !matches!(master, "no" | "false")))
}

fn add_options(command: &mut Command, options: &SshOptions) {
    match options.family {
        Some(AddressFamily::Inet) => drop(command.arg("-4")),
        Some(AddressFamily::Inet6) => drop(command.arg("-6")),
        None => {}
    }
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

/// What `ssh -G` says of `host`, with all that was chosen, and without where that is of use.
fn configurations(host: &OsStr, options: &SshOptions, stop: &Stop) -> (Option<Vec<u8>>, Option<Vec<u8>>) {
    let ask = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()
    };
    let mut chosen = options.program();
    chosen.arg("-G");
    add_options(&mut chosen, options);
    let chosen = ask(chosen.arg("--").arg(host));
    let default =
        if has_aes() { ask(options.program().args(["-G", "-F", "none", "--"]).arg(host)) } else { None };
    // Both are waited for, whatever they say, but not for long: a configuration may run programs and ask name servers.
    let deadline = Instant::now() + CIPHERS_PATIENCE;
    let [chosen, default] =
        [chosen, default].map(|child| child.and_then(|child| printed_by(child, deadline, stop)));
    (chosen, default)
}

/// The ciphers that ssh would offer, AES-GCM first, unless somebody chose: a configuration that names any `Ciphers` for
/// this host, and an ssh that cannot say, are left alone.
///
/// ssh prefers ChaCha20-Poly1305, at the price of 0.4 s of CPU time a GiB and end more than AES-GCM where the CPU has
/// instructions for AES (ADR 5). A host that has no AES-GCM takes the next of the list, as ever.
fn fast_ciphers(chosen: &[u8], default: &[u8]) -> Option<String> {
    gcm_first(setting(chosen, "ciphers")?, setting(default, "ciphers")?)
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

/// The value of a setting in what `ssh -G` prints.
fn setting<'a>(configuration: &'a [u8], name: &str) -> Option<&'a str> {
    let text = std::str::from_utf8(configuration).ok()?;
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).map(str::trim)
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
    OsStringExt::from_vec(quoted)
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

    /// What starts the far end means the same to every login shell, whatever it does with quotes and history.
    #[test]
    fn the_start_is_one_word_to_every_shell() {
        assert!(!FIND_AND_RUN.contains(['\'', '\n', '\\', '!']), "{FIND_AND_RUN}");
        let options = SshOptions { remote_dray: Some("/opt/my dray".into()), ..SshOptions::default() };
        assert_eq!(options.far_command(), "'/opt/my dray' remote");
        // As users of rsync have it.
        let options = SshOptions { remote_dray: Some("sudo -u 'a b' dray".into()), ..options };
        assert_eq!(options.far_command(), "sudo -u 'a b' dray remote");
        let found = SshOptions { remote_dray: Some("dray".into()), ..SshOptions::default() }.far_command();
        assert!(found.to_str().unwrap().starts_with("sh -c 'PATH="), "{found:?}");
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
        assert_eq!(setting(printed.as_bytes(), "ciphers"), Some(default));
        assert_eq!(setting(b"host here\n\xff", "ciphers"), None);
    }
}
