//! The rivals: where they come from, whether they are here, and which version. One that cannot be had is named in the results.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A program that is measured, or that measuring needs, besides ours.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Tool {
    Rsync,
    Ssh,
    Sshd,
    Nginx,
    Curl,
    Wget,
    Aria2,
    Rclone,
    Casync,
    Zsync,
    Libtorrent,
    Sendme,
    Syq,
}

impl Tool {
    /// Its name in the results.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Tool::Rsync => "rsync",
            Tool::Ssh => "ssh",
            Tool::Sshd => "sshd",
            Tool::Nginx => "nginx",
            Tool::Curl => "curl",
            Tool::Wget => "wget",
            Tool::Aria2 => "aria2",
            Tool::Rclone => "rclone",
            Tool::Casync => "casync",
            Tool::Zsync => "zsync",
            Tool::Libtorrent => "libtorrent",
            Tool::Sendme => "sendme",
            Tool::Syq => "syq",
        }
    }
}

/// Where a tool is, and where it comes from.
struct Program {
    tool: Tool,
    program: &'static str,
    source: Source,
    /// Arguments that print the version.
    version: &'static [&'static str],
}

enum Source {
    /// A package of Debian.
    Debian(&'static str),
    /// A package of crates.io, built here, in this version.
    Cargo(&'static str, &'static str),
}

const fn debian(
    tool: Tool,
    program: &'static str,
    package: &'static str,
    version: &'static [&'static str],
) -> Program {
    Program { tool, program, source: Source::Debian(package), version }
}

const PROGRAMS: [Program; 13] = [
    debian(Tool::Rsync, "rsync", "rsync", &["--version"]),
    debian(Tool::Ssh, "ssh", "openssh-client", &["-V"]),
    debian(Tool::Sshd, "/usr/sbin/sshd", "openssh-server", &[]),
    debian(Tool::Nginx, "nginx", "nginx-light", &["-v"]),
    debian(Tool::Curl, "curl", "curl", &["--version"]),
    debian(Tool::Wget, "wget", "wget", &["--version"]),
    debian(Tool::Aria2, "aria2c", "aria2", &["--version"]),
    debian(Tool::Rclone, "rclone", "rclone", &["version"]),
    debian(Tool::Casync, "casync", "casync", &["--version"]),
    debian(Tool::Zsync, "zsync", "zsync", &["-V"]),
    // A module for Debian's own Python; this is there when it is.
    Program {
        tool: Tool::Libtorrent,
        program: "/usr/lib/python3/dist-packages/libtorrent.egg-info",
        source: Source::Debian("python3-libtorrent"),
        version: &[],
    },
    Program {
        tool: Tool::Sendme,
        program: "sendme",
        source: Source::Cargo("sendme", "0.37.1"),
        version: &["--version"],
    },
    Program {
        tool: Tool::Syq,
        program: "syq",
        source: Source::Cargo("syq", "0.7.1"),
        version: &["--version"],
    },
];

/// Other commands without which nothing works, and their Debian packages.
const NEEDED: [(&str, &str); 5] = [
    ("ip", "iproute2"),
    ("nft", "nftables"),
    ("b3sum", "b3sum"),
    ("cmp", "diffutils"),
    ("taskset", "util-linux"),
];

/// What is here.
#[derive(Debug)]
pub(crate) struct Tools {
    found: BTreeMap<Tool, Result<String, String>>,
    path: String,
}

impl Tools {
    /// Looks for all of them, and installs what is missing if `installs`.
    pub(crate) fn prepare(installs: bool) -> Tools {
        let folder = cache_folder();
        let path = format!(
            "{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            folder.join("bin").display()
        );
        if installs {
            install_from_debian(&path);
        }
        let mut found = BTreeMap::new();
        for tool in &PROGRAMS {
            let mut why = Ok(());
            if let (Source::Cargo(package, version), true, None) =
                (&tool.source, installs, find(tool.program, &path))
            {
                why = install_from_cargo(package, version, &folder);
            }
            let state = match (find(tool.program, &path), why) {
                (Some(program), _) => Ok(version_of(&program, tool.version)),
                (None, Err(why)) => Err(why),
                (None, Ok(())) => Err(match tool.source {
                    Source::Debian(package) => format!("not installed (Debian: {package})"),
                    Source::Cargo(package, version) => {
                        format!("not installed (cargo install {package}@{version})")
                    }
                }),
            };
            found.insert(tool.tool, state);
        }
        Tools { found, path }
    }

    pub(crate) fn has(&self, tool: Tool) -> bool {
        self.found.get(&tool).is_some_and(Result::is_ok)
    }

    /// Which of `tools` is not here, and why.
    pub(crate) fn missing(&self, tools: &[Tool]) -> Option<String> {
        tools.iter().find_map(|tool| match self.found.get(tool) {
            Some(Ok(_)) => None,
            Some(Err(why)) => Some(format!("{}: {why}", tool.name())),
            None => Some(format!("{}: not looked for", tool.name())),
        })
    }

    /// The first line each says about its version.
    pub(crate) fn versions(&self) -> BTreeMap<&'static str, &str> {
        let known =
            self.found.iter().filter_map(|(tool, state)| Some((tool.name(), state.as_ref().ok()?.as_str())));
        known.filter(|(_, version)| !version.is_empty()).collect()
    }

    /// `PATH` of both ends.
    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

/// Where what is built and fetched once is kept.
pub(crate) fn cache_folder() -> PathBuf {
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    cache.unwrap_or_else(|| home.join(".cache")).join("drayman-bench")
}

pub(crate) fn find(program: &str, path: &str) -> Option<PathBuf> {
    if program.starts_with('/') {
        return Path::new(program).exists().then(|| program.into());
    }
    path.split(':').map(|folder| Path::new(folder).join(program)).find(|file| file.is_file())
}

#[allow(clippy::print_stderr, reason = "a command says what it waits for")]
fn install_from_debian(path: &str) {
    let tools = PROGRAMS.iter().filter_map(|tool| match tool.source {
        Source::Debian(package) => Some((tool.program, package)),
        Source::Cargo(..) => None,
    });
    let missing: Vec<&str> = tools
        .chain(NEEDED)
        .filter(|(program, _)| find(program, path).is_none())
        .map(|(_, package)| package)
        .collect();
    if missing.is_empty() {
        return;
    }
    eprintln!("bench: installing {}", missing.join(" "));
    // One that fails must not take the others with it; what is still missing afterwards is named in the results.
    let apt = |words: &[&str]| {
        let mut apt = Command::new("apt-get");
        apt.args(words).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).stdout(Stdio::null());
        apt.status().is_ok_and(|status| status.success())
    };
    apt(&["update", "-qq"]);
    for package in missing {
        if !apt(&["install", "-y", "-qq", "--no-install-recommends", package]) {
            eprintln!("bench: {package} cannot be installed");
        }
    }
}

#[allow(clippy::print_stderr, reason = "a command says what it waits for")]
fn install_from_cargo(package: &str, version: &str, folder: &Path) -> Result<(), String> {
    eprintln!("bench: building {package} {version}, once, into {}", folder.display());
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let target = folder.join("target");
    let mut install = Command::new(cargo);
    install.args(["install", "--quiet", "--locked", &format!("{package}@{version}")]);
    install.env("CARGO_INSTALL_ROOT", folder).env("CARGO_TARGET_DIR", &target).stdin(Stdio::null());
    let output = install.output().map_err(|error| format!("start cargo: {error}"))?;
    let _ = std::fs::remove_dir_all(&target);
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().rfind(|line| line.starts_with("error")).unwrap_or("it does not build").to_owned();
    Err(format!("cargo install {package}@{version}: {said}"))
}

fn version_of(program: &Path, arguments: &[&str]) -> String {
    if program.is_dir() {
        // A module of Python's says it in a file.
        let text = std::fs::read_to_string(program.join("PKG-INFO")).unwrap_or_default();
        let version = text.lines().find_map(|line| line.strip_prefix("Version: "));
        return version.unwrap_or("").to_owned();
    }
    if arguments.is_empty() {
        return String::new();
    }
    let Ok(output) = Command::new(program).args(arguments).stdin(Stdio::null()).output() else {
        return String::new();
    };
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().find(|line| line.chars().any(|letter| letter.is_ascii_digit())).unwrap_or("");
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.split(" protocol").next().unwrap_or("").split(" (").next().unwrap_or("");
    let line = line.split(" built on").next().unwrap_or("").split(", ").next().unwrap_or("");
    line.trim_start_matches("nginx version: ").trim().to_owned()
}
