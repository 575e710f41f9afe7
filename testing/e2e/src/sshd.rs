//! A real OpenSSH server on a host of the lab, with its own configuration, host key and one client key.

use std::fs;
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
        write_session_script(host, Path::new(&path("session")));
        let configuration = format!(
            "Port 22\nListenAddress {}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile {}\nForceCommand {}\n\
             StrictModes no\nUsePAM no\nPermitRootLogin yes\nMaxStartups 100\nPrintMotd no\n",
            host.address(),
            path("host-key"),
            path("client-key.pub"),
            path("pid"),
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
        let key = self.dir.join("client-key").into_os_string().into_string().expect("lab paths are text");
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

/// Sessions run with the environment of the host, not with that of root on this machine.
fn write_session_script(host: &Host, path: &Path) {
    let mut script = String::from("#!/bin/sh\n");
    for (name, value) in host.environment() {
        script += &format!("export {name}='{}'\n", value.display());
    }
    script += "cd \"$HOME\" || exit 1\nexec /bin/sh -c \"${SSH_ORIGINAL_COMMAND:-exec /bin/sh}\"\n";
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
