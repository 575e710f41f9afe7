//! `dray doctor`: looks at what a transfer depends on and says what is not as it should be.

use std::path::Path;
use std::process::Command;

use dray_transfer::direct::{Listener, is_local};

use crate::{Config, Node};

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
}

impl Node {
    /// Looks at configuration, data directory, identity, network, ssh and CPU.
    pub fn doctor() -> Vec<Finding> {
        let mut findings = Vec::new();
        let config = match Config::load() {
            Ok(config) => {
                findings.push(Finding::new(
                    "configuration",
                    true,
                    config.paths.config_file.display().to_string(),
                ));
                config
            }
            Err(error) => {
                findings.push(Finding::new("configuration", false, error.to_string()));
                return findings;
            }
        };
        findings.push(free_space(&config.paths.data_dir));
        match Node::open(config) {
            Ok(node) => {
                findings.push(Finding::new("identity", true, format!("node {}", node.id())));
                findings.push(match Listener::bind(node.tls.clone(), node.config.port) {
                    Ok(listener) => {
                        Finding::new("listening", true, format!("TCP port {}", listener.port().unwrap_or(0)))
                    }
                    Err(error) => Finding::new("listening", false, error.to_string()),
                });
            }
            Err(error) => findings.push(Finding::new("identity", false, error.to_string())),
        }
        findings.push(addresses());
        findings.push(match Command::new("ssh").arg("-V").output() {
            Ok(output) => {
                Finding::new("ssh", true, String::from_utf8_lossy(&output.stderr).trim().to_owned())
            }
            Err(error) => {
                Finding::new("ssh", false, format!("cannot be run ({error}); `dray cp host:…` needs it"))
            }
        });
        findings.push(aes());
        findings
    }
}

fn free_space(dir: &Path) -> Finding {
    let nearest = dir.ancestors().find(|dir| dir.exists()).unwrap_or(dir);
    match rustix::fs::statvfs(nearest) {
        Ok(space) => {
            let mib = space.f_bavail.saturating_mul(space.f_frsize) >> 20;
            Finding::new("data directory", mib > 64, format!("{} ({mib} MiB free)", dir.display()))
        }
        Err(error) => Finding::new("data directory", false, format!("{}: {error}", dir.display())),
    }
}

fn addresses() -> Finding {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let usable: Vec<String> = all
        .iter()
        .map(if_addrs::Interface::ip)
        .filter(|ip| !is_local(*ip))
        .map(|ip| ip.to_string())
        .collect();
    if usable.is_empty() {
        Finding::new("addresses", false, "only loopback: tickets made here work here only, with --local")
    } else {
        Finding::new("addresses", true, usable.join(", "))
    }
}

fn aes() -> Finding {
    #[cfg(target_arch = "x86_64")]
    let has = std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    let has = std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let has = false;
    let detail =
        if has { "AES in hardware" } else { "no AES in hardware: encryption costs several times more" };
    Finding::new("CPU", has, detail)
}
