//! A real OpenSSH server on a host of the lab, with its own configuration, host key and one client key.

use std::fs;
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::lab::{Host, run_tool};

/// A running server. The lab ends it with the namespace.
#[derive(Debug)]
pub struct Sshd {
    dir: PathBuf,
}

impl Sshd {
    pub(crate) fn start(host: &Host) -> Sshd {
        // Where sshd confines its unprivileged half; not settable by configuration.
        fs::create_dir_all("/run/sshd").expect("create /run/sshd");
        let dir = host.dir().join("sshd");
        fs::create_dir(&dir).expect("directory of sshd");
        let path = |name: &str| dir.join(name).into_os_string().into_string().expect("lab paths are text");
        for key in ["host-key", "client-key"] {
            run_tool(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &path(key)]);
        }
        write_script(host, Path::new(&path("session")), SHELL);
        write_script(host, Path::new(&path("as-host")), "cd \"$HOME\" || exit 1\nexec \"$@\"\n");
        // Port 22 admits the client key to a shell of this host, port 2222 the keys of `restricted_options`.
        // SHLVL: bash, as a login shell's child, would run what the machine's own user has in ~/.bashrc, whatever that prints.
        // KexAlgorithms: with sntrup761, which OpenSSH 9 takes by itself, each login costs a tenth of a second of processor.
        let configuration = format!(
            "Port 22\nPort {RESTRICTED_PORT}\nHostKey {}\nPidFile {}\nAuthorizedKeysFile {}\n\
             StrictModes no\nUsePAM no\nPermitRootLogin yes\nMaxStartups 100\nPrintMotd no\nSetEnv SHLVL=1\n\
             KexAlgorithms curve25519-sha256\n\
             Match LocalPort 22\nAuthorizedKeysFile {}\nForceCommand {}\n",
            path("host-key"),
            path("pid"),
            path("restricted-keys"),
            path("client-key.pub"),
            path("session"),
        );
        fs::write(path("config"), configuration).expect("write the configuration of sshd");
        run_tool(&[
            "ip",
            "netns",
            "exec",
            host.namespace(),
            "/usr/sbin/sshd",
            "-f",
            &path("config"),
            "-E",
            &path("log"),
        ]);
        await_listener(host, SocketAddr::from((host.address(), 22)));
        Sshd { dir }
    }

    /// Options with which a client logs in without asking anybody.
    pub fn client_options(&self) -> Vec<String> {
        self.options_with("client-key")
    }

    /// Options of a client whose key is admitted, on a port of its own, with `command=COMMAND` and `restrict` in its line of
    /// `authorized_keys`.
    pub fn restricted_options(&self, name: &str, command: &str) -> Vec<String> {
        let key = self.dir.join(name);
        let text = key.to_str().expect("lab paths are text");
        run_tool(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", text]);
        let public = fs::read_to_string(key.with_extension("pub")).expect("public key");
        let as_host = self.dir.join("as-host");
        let line = format!("restrict,command=\"{} {command}\" {public}", as_host.display());
        let keys = self.dir.join("restricted-keys");
        let mut file = fs::File::options().create(true).append(true).open(keys).expect("authorized keys");
        file.write_all(line.as_bytes()).expect("authorized keys");
        let mut options = self.options_with(name);
        options.extend(["-P".into(), RESTRICTED_PORT.to_string()]);
        options
    }

    /// The same login as one text, for what takes a remote shell (`-e`, `RSYNC_RSH`).
    pub fn restricted_command(&self, name: &str, command: &str) -> String {
        let options = self.restricted_options(name, command);
        // That of scp.
        let word = |word: &String| if word == "-P" { "-p".into() } else { format!("'{word}'") };
        format!("ssh {}", options.iter().map(word).collect::<Vec<_>>().join(" "))
    }

    /// Lets every session from now on be `body`, a script in the environment of the host; its usual one is
    /// [`SHELL`].
    pub fn set_session(&self, host: &Host, body: &str) {
        write_script(host, &self.dir.join("session"), body);
    }

    /// The file with the key of [`Sshd::client_options`].
    pub fn client_key(&self) -> PathBuf {
        self.dir.join("client-key")
    }

    /// Logins that were let in so far.
    pub fn logins(&self) -> usize {
        self.log().matches("Accepted publickey").count()
    }

    /// Process ids of what serves one client each.
    pub fn sessions(&self, host: &Host) -> Vec<u32> {
        let listener = fs::read_to_string(self.dir.join("pid")).unwrap_or_default();
        let all = ["sshd", "sshd-session"].map(|name| host.pids_of(name)).concat();
        all.into_iter().filter(|pid| pid.to_string() != listener.trim()).collect()
    }

    fn options_with(&self, key: &str) -> Vec<String> {
        let key = self.dir.join(key).into_os_string().into_string().expect("lab paths are text");
        let mut options = vec!["-i".into(), key];
        for option in [
            "IdentitiesOnly=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "ConnectTimeout=10",
        ] {
            options.extend(["-o".into(), option.into()]);
        }
        options
    }

    /// What the server logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }
}

/// The usual session: a shell that runs what it is asked to.
pub const SHELL: &str = "cd \"$HOME\" || exit 1\nexec /bin/sh -c \"${SSH_ORIGINAL_COMMAND:-exec /bin/sh}\"\n";
/// Where keys with a forced command are admitted.
const RESTRICTED_PORT: u16 = 2222;

/// Sessions run with the environment of the host, not with that of root on this machine.
fn write_script(host: &Host, path: &Path, body: &str) {
    let mut script = String::from("#!/bin/sh\n");
    for (name, value) in host.environment() {
        script += &format!("export {name}='{}'\n", value.display());
    }
    script += body;
    fs::write(path, script).expect("write the session script");
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("make the session script executable");
}

/// Waits until something on `host` accepts connections at `address`.
pub fn await_listener(host: &Host, address: SocketAddr) {
    host.enter(|| {
        let deadline = Instant::now() + Duration::from_secs(10);
        while let Err(error) = TcpStream::connect(address) {
            assert!(Instant::now() < deadline, "nobody listens at {address}: {error}");
            std::thread::sleep(Duration::from_millis(5));
        }
    });
}
