//! `dray doctor`: looks at what a transfer depends on and says what is not as it should be.

use std::net::IpAddr;
use std::path::Path;
use std::process::Command;

use dray_core::Error;
use dray_transfer::direct::{Listener, is_local};
use rustix::fs::Access;

use crate::config::{ConfigFile, Paths};
use crate::{Config, Node};

/// With less room than this, the outboard of a file of 64 GiB would not fit.
const FREE_MIB_MIN: u64 = 64;

/// One thing looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What.
    pub what: String,
    /// Whether it is as it should be.
    pub is_good: bool,
    /// What was found, and what to do if it is not good.
    pub detail: String,
}

impl Finding {
    fn new(what: &str, is_good: bool, detail: impl Into<String>) -> Finding {
        Finding { what: what.into(), is_good, detail: detail.into() }
    }

    fn bad(what: &str, error: &Error) -> Finding {
        let advice = error.advice().map(|advice| format!("; {advice}")).unwrap_or_default();
        Finding::new(what, false, format!("{error}{advice}"))
    }
}

impl Node {
    /// Looks at configuration, data directory, identity, network, ssh and CPU.
    pub fn doctor() -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut is_configured = true;
        let config = match Config::load() {
            Ok(config) => {
                let file = &config.paths.config_file;
                let origin = if file.exists() { "" } else { "defaults; your own would be in " };
                findings.push(Finding::new("configuration", true, format!("{origin}{}", file.display())));
                config
            }
            Err(error) => {
                is_configured = false;
                findings.push(Finding::bad("configuration", &error));
                // What does not depend on it is looked at all the same.
                let defaults = |paths| Config::new(paths, &ConfigFile::default());
                match Paths::from_environment().and_then(defaults) {
                    Ok(config) => config,
                    Err(_) => return findings,
                }
            }
        };
        let data_dir = config.paths.data_dir.clone();
        match Node::open(config) {
            Ok(node) => {
                findings.push(data_directory(&data_dir));
                findings.push(Finding::new("identity", true, format!("node {}", node.id())));
                if is_configured {
                    let listening =
                        Listener::bind(node.tls.clone(), node.config.port).and_then(|bound| bound.port());
                    findings.push(match listening {
                        Ok(port) => Finding::new("listening", true, format!("TCP port {port} can be had")),
                        Err(error) => Finding::bad("listening", &error),
                    });
                }
            }
            Err(error) => findings.push(Finding::bad("data directory", &error)),
        }
        findings.push(addresses());
        findings.push(ssh());
        findings.push(aes());
        findings
    }
}

/// A directory that is there: whether it can be written, and how much.
fn data_directory(dir: &Path) -> Finding {
    let advice = "set DRAY_DATA_DIR to a directory that you may write";
    let shown = dir.display();
    let looked = rustix::fs::access(dir, Access::WRITE_OK).and_then(|()| rustix::fs::statvfs(dir));
    let (is_good, detail) = match looked {
        Err(error) => (false, format!("{shown} cannot be written ({error}); {advice}")),
        Ok(space) => match space.f_bavail.saturating_mul(space.f_frsize) >> 20 {
            mib @ FREE_MIB_MIN.. => (true, format!("{shown} ({mib} MiB free)")),
            mib => (false, format!("{shown} has {mib} MiB free; free some there, or {advice}")),
        },
    };
    Finding::new("data directory", is_good, detail)
}

fn addresses() -> Finding {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let usable: Vec<IpAddr> =
        all.iter().map(if_addrs::Interface::ip).filter(|address| !is_local(*address)).collect();
    if usable.is_empty() {
        let detail = "none that others can reach: connect this machine to a network; until then a ticket made \
                      here works here only, with `dray get --local`";
        return Finding::new("addresses", false, detail);
    }
    let listed = usable.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let kind = match (usable.iter().any(IpAddr::is_ipv4), usable.iter().any(IpAddr::is_ipv6)) {
        (true, false) => " (no IPv6; enough where the other side has IPv4)",
        (false, true) => " (no IPv4; enough where the other side has IPv6)",
        _ => "",
    };
    Finding::new("addresses", true, format!("{listed}{kind}"))
}

fn ssh() -> Finding {
    match Command::new("ssh").arg("-V").output() {
        Ok(output) if output.status.success() => {
            Finding::new("ssh", true, String::from_utf8_lossy(&output.stderr).trim().to_owned())
        }
        Ok(output) => Finding::new(
            "ssh",
            false,
            format!(
                "`ssh -V` failed ({}); `dray cp` to other hosts needs a working ssh client",
                output.status
            ),
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Finding::new(
            "ssh",
            false,
            "no ssh in PATH: install an ssh client (Debian: openssh-client) for `dray cp` to other hosts; put and \
             get work without",
        ),
        Err(error) => Finding::new("ssh", false, format!("cannot be run: {error}")),
    }
}

fn aes() -> Finding {
    #[cfg(target_arch = "x86_64")]
    let has = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let has = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has = false;
    // Nothing that anybody could mend.
    let detail = if has { "AES in hardware" } else { "no AES in hardware: encryption takes more CPU time" };
    Finding::new("CPU", true, detail)
}
