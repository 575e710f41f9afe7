//! Who takes part, and the command each runs. Rivals have their best flags; Drayman has its defaults.

use std::path::PathBuf;

use crate::pair::{Between, Pair, SSH_PORT};
use crate::site::{Site, What};
use crate::tools::Tool;
use crate::turns::Entrant;

/// From the far end or to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    Pull,
    Push,
}

impl Way {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Pull => "pull",
            Self::Push => "push",
        }
    }
}

/// A way to move something, without the direction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mover {
    DrayGet,
    DrayGetClear,
    DrayPutGet,
    DrayDaemonPutGet,
    DrayCp,
    DrayDaemonCp,
    DraySsh,
    DraySync,
    DrayDaemonSync,
    Find,
    RsyncDaemon,
    RsyncSsh,
    RsyncInc,
    RsyncGcm,
    Scp,
    ScpGcm,
    Curl,
    CurlB3sum,
    Wget,
    Aria2,
    Rclone,
    Syq,
    Sendme,
    Bittorrent,
}

impl Mover {
    /// Its name in the results.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            DrayGet => "dray-get",
            DrayGetClear => "dray-get-clear",
            DrayPutGet => "dray-put-get",
            DrayDaemonPutGet => "dray-daemon-put-get",
            DrayCp => "dray-cp",
            DrayDaemonCp => "dray-daemon-cp",
            DraySsh => "dray-ssh",
            DraySync => "dray-sync",
            DrayDaemonSync => "dray-daemon-sync",
            Find => "find",
            RsyncDaemon => "rsync-daemon",
            RsyncSsh => "rsync-ssh",
            RsyncInc => "rsync-inc",
            RsyncGcm => "rsync-gcm",
            Scp => "scp",
            ScpGcm => "scp-gcm",
            Curl => "curl",
            CurlB3sum => "curl-b3sum",
            Wget => "wget",
            Aria2 => "aria2",
            Rclone => "rclone",
            Syq => "syq",
            Sendme => "sendme",
            Bittorrent => "bittorrent",
        }
    }

    pub(crate) fn is_ours(self) -> bool {
        self.name().starts_with("dray")
    }
}

/// A way to move something, in one direction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Contender {
    pub(crate) mover: Mover,
    pub(crate) way: Way,
    /// Programs it needs besides dray.
    tools: &'static [Tool],
    /// It can move directories.
    pub(crate) takes_trees: bool,
    /// It can make the file durable before it ends.
    pub(crate) can_sync: bool,
    /// What readers see, without the direction.
    pub(crate) title: &'static str,
}

const fn one(mover: Mover, way: Way, tools: &'static [Tool], title: &'static str) -> Contender {
    Contender { mover, way, tools, takes_trees: false, can_sync: false, title }
}

impl Contender {
    const fn trees(mut self) -> Contender {
        self.takes_trees = true;
        self
    }

    const fn syncs(mut self) -> Contender {
        self.can_sync = true;
        self
    }

    /// Whether it can be had in the other direction, too.
    fn has_both_ways(&self) -> bool {
        ALL.iter().any(|other| other.mover == self.mover && other.way != self.way)
    }
}

impl Entrant for Contender {
    fn label(&self) -> String {
        format!("{}-{}", self.mover.name(), self.way.word())
    }

    fn title(&self) -> String {
        let way = match self.way {
            _ if !self.has_both_ways() => "",
            Pull => ", from the far host",
            Push => ", to the far host",
        };
        format!("{}{way}", self.title)
    }

    fn tools(&self) -> &'static [Tool] {
        self.tools
    }

    fn is_ours(&self) -> bool {
        self.mover.is_ours()
    }
}

use Mover::*;
use Way::{Pull, Push};

/// All that move a file or a tree as it is.
pub(crate) const ALL: [Contender; 35] = [
    one(DrayGet, Pull, &[], "dray get, file already hashed").syncs(),
    one(DrayGetClear, Pull, &[], "dray get, clear-text data allowed by both").syncs(),
    one(DrayPutGet, Pull, &[], "dray put + get, file never hashed").syncs(),
    one(DrayDaemonPutGet, Pull, &[], "dray put + get, file never hashed, daemons at both ends").syncs(),
    one(DrayCp, Pull, &[], "dray cp").syncs().trees(),
    one(DrayCp, Push, &[], "dray cp").syncs().trees(),
    one(DrayDaemonCp, Pull, &[], "dray cp, daemons at both ends").syncs().trees(),
    one(DrayDaemonCp, Push, &[], "dray cp, daemons at both ends").syncs().trees(),
    one(DraySsh, Pull, &[], "dray cp, only ssh gets through").syncs().trees(),
    one(DraySsh, Push, &[], "dray cp, only ssh gets through").syncs().trees(),
    one(DraySync, Pull, &[], "dray sync").syncs().trees(),
    one(DraySync, Push, &[], "dray sync").syncs().trees(),
    one(DrayDaemonSync, Pull, &[], "dray sync TICKET, daemons at both ends").syncs().trees(),
    one(Find, Pull, &[], "find -printf '%s %T@' of what is there, nothing else").trees(),
    one(RsyncDaemon, Pull, &[Tool::Rsync], "rsync daemon (clear text)").syncs().trees(),
    one(RsyncDaemon, Push, &[Tool::Rsync], "rsync daemon (clear text)").syncs().trees(),
    one(RsyncSsh, Pull, &[Tool::Rsync], "rsync over ssh").syncs().trees(),
    one(RsyncSsh, Push, &[Tool::Rsync], "rsync over ssh").syncs().trees(),
    one(RsyncInc, Pull, &[Tool::Rsync], "rsync over ssh, without --no-inc-recursive").syncs().trees(),
    one(RsyncInc, Push, &[Tool::Rsync], "rsync over ssh, without --no-inc-recursive").syncs().trees(),
    one(RsyncGcm, Pull, &[Tool::Rsync], "rsync over ssh with AES-GCM").syncs().trees(),
    one(RsyncGcm, Push, &[Tool::Rsync], "rsync over ssh with AES-GCM").syncs().trees(),
    one(Scp, Pull, &[], "scp").trees(),
    one(Scp, Push, &[], "scp").trees(),
    one(ScpGcm, Pull, &[], "scp with AES-GCM").trees(),
    one(ScpGcm, Push, &[], "scp with AES-GCM").trees(),
    one(Curl, Pull, &[Tool::Curl, Tool::Nginx], "curl from nginx (clear text, not verified)"),
    one(CurlB3sum, Pull, &[Tool::Curl, Tool::Nginx], "curl from nginx, then b3sum (clear text)"),
    one(Wget, Pull, &[Tool::Wget, Tool::Nginx], "wget from nginx (clear text, not verified)"),
    one(
        Aria2,
        Pull,
        &[Tool::Aria2, Tool::Nginx],
        "aria2 from nginx, 4 connections (clear text, not verified)",
    ),
    one(Rclone, Pull, &[Tool::Rclone, Tool::Nginx], "rclone copyurl from nginx (clear text, not verified)"),
    one(Syq, Pull, &[Tool::Syq], "syq").trees(),
    one(Syq, Push, &[Tool::Syq], "syq").trees(),
    one(Sendme, Pull, &[Tool::Sendme], "sendme").trees(),
    one(Bittorrent, Pull, &[Tool::Libtorrent], "BitTorrent (libtorrent; clear text), torrent already made"),
];

/// What `dray cp` has its ssh try first (ADR 5), for rivals too.
const GCM: &str = "aes128-gcm@openssh.com";

/// Where a seeder listens.
const BITTORRENT_PORT: u16 = 6881;

/// What is moved from where to where.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) what: What,
    pub(crate) from: PathBuf,
    pub(crate) to: PathBuf,
    /// The file must be durable before the command ends.
    pub(crate) syncs: bool,
}

/// What a contender does for a task.
#[derive(Clone, Debug, Default)]
pub(crate) struct Job {
    pub(crate) argv: Vec<String>,
    /// Runs at the far end before the clock starts; the first line it prints replaces `TICKET`.
    pub(crate) serve: Option<Vec<String>>,
    pub(crate) only_ssh: bool,
    pub(crate) allows_clear: bool,
    /// A daemon runs at each end before the clock starts.
    pub(crate) has_daemons: bool,
}

/// ssh's options for the far end, after its name.
pub(crate) fn ssh_options(site: &Site) -> Vec<String> {
    let (key, hosts) = (site.path("etc/client"), site.path("etc/known_hosts"));
    let known = format!("UserKnownHostsFile={hosts}");
    let words = ["-i", &key, "-o", &known, "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes"];
    words.map(str::to_owned).to_vec()
}

/// The command of `contender` for `task`.
pub(crate) fn job(contender: &Contender, task: &Task, site: &Site, pair: &Pair) -> Job {
    let Task { what, .. } = *task;
    let (from, to) = (task.from.to_string_lossy().into_owned(), task.to.to_string_lossy().into_owned());
    let name = what.name();
    let far = pair.far_ip;
    let is_pull = contender.way == Pull;
    let options = ssh_options(site);
    let ssh = format!("ssh -p {SSH_PORT} {}", options.join(" "));
    // A tree lands in the folder that is there.
    let into = if what.is_tree() {
        format!("{}/", task.to.parent().unwrap_or(&task.to).display())
    } else {
        to.clone()
    };
    let remote = |path: &str| format!("root@{far}:{path}");
    let (source, target) =
        if is_pull { (remote(&from), into.clone()) } else { (from.clone(), remote(&into)) };
    let url = format!("http://{far}/in/{name}");
    let mut argv: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| argv.extend(words.iter().map(|word| (*word).to_owned()));
    let mut job = Job {
        has_daemons: matches!(contender.mover, DrayDaemonPutGet | DrayDaemonCp | DrayDaemonSync),
        ..Job::default()
    };
    match contender.mover {
        DrayGet | DrayGetClear | DrayPutGet | DrayDaemonPutGet => {
            let put = vec!["dray".to_owned(), "put".to_owned(), from.clone()];
            job.allows_clear = contender.mover == DrayGetClear;
            if matches!(contender.mover, DrayPutGet | DrayDaemonPutGet) {
                // The near end asks for the ticket with the clock on: a named pipe carries it.
                let pipe = site.path("etc/ticket");
                let sync = if task.syncs { "--fsync " } else { "" };
                add(&[
                    "sh",
                    "-c",
                    &format!(
                        "echo >{pipe}.go; read -r ticket <{pipe} && exec dray get {sync}\"$ticket\" -o {to}"
                    ),
                ]);
                job.serve = Some(vec![
                    "sh".into(),
                    "-c".into(),
                    format!("echo ready; read -r go <{pipe}.go; exec dray put {from} >{pipe}"),
                ]);
            } else {
                add(&["dray", "get"]);
                if task.syncs {
                    add(&["--fsync"]);
                }
                add(&["TICKET", "-o", &to]);
                job.serve = Some(put);
            }
        }
        DrayCp | DrayDaemonCp | DraySsh => {
            add(&["dray", "cp"]);
            if what.is_tree() {
                add(&["-a"]);
            }
            if task.syncs {
                add(&["--fsync"]);
            }
            add(&["-P", &SSH_PORT.to_string()]);
            add(&options.iter().map(String::as_str).collect::<Vec<_>>());
            add(&[&source, &target]);
            job.only_ssh = contender.mover == DraySsh;
        }
        DraySync => {
            add(&["dray", "sync", "-a"]);
            if task.syncs {
                add(&["--fsync"]);
            }
            add(&["-e", &ssh, &source, &target]);
        }
        DrayDaemonSync => {
            add(&["dray", "sync", "-a"]);
            if task.syncs {
                add(&["--fsync"]);
            }
            add(&["TICKET", &format!("{to}/")]);
            job.serve = Some(["dray", "put", &from].map(str::to_owned).to_vec());
        }
        Find => add(&["find", &to, "-printf", "%s %T@\n"]),
        RsyncDaemon | RsyncSsh | RsyncInc | RsyncGcm => {
            add(&["rsync", if what.is_tree() { "-a" } else { "-W" }]);
            if what.is_tree() && pair.between != Between::Nothing && contender.mover != RsyncInc {
                add(&["--no-inc-recursive"]);
            }
            if task.syncs {
                add(&["--fsync"]);
            }
            if contender.mover == RsyncDaemon {
                let below = |path: &str| {
                    format!("rsync://{far}/far{}", path.strip_prefix(&site.path("far")).unwrap_or(path))
                };
                match is_pull {
                    true => add(&[&below(&from), &into]),
                    false => add(&[&from, &below(&into)]),
                }
            } else {
                let cipher = if contender.mover == RsyncGcm { format!(" -c {GCM}") } else { String::new() };
                add(&["-e", &format!("{ssh}{cipher}"), &source, &target]);
            }
        }
        Scp | ScpGcm => {
            add(&["scp", "-q"]);
            if contender.mover == ScpGcm {
                add(&["-c", GCM]);
            }
            if what.is_tree() {
                add(&["-r", "-p"]);
            }
            add(&["-P", &SSH_PORT.to_string()]);
            add(&options.iter().map(String::as_str).collect::<Vec<_>>());
            add(&[&source, &target]);
        }
        Curl => add(&["curl", "-sSf", "-o", &to, &url]),
        CurlB3sum => add(&["sh", "-c", &format!("curl -sSf -o {to} {url} && b3sum {to}")]),
        Wget => add(&["wget", "-q", "-O", &to, &url]),
        Aria2 => {
            let folder = task.to.parent().unwrap_or(&task.to).to_string_lossy().into_owned();
            add(&[
                "aria2c",
                "-q",
                "--file-allocation=none",
                "-x4",
                "-s4",
                "-k",
                "64M",
                "-d",
                &folder,
                "-o",
                &name,
                &url,
            ]);
        }
        Rclone => add(&["rclone", "--config", "/dev/null", "copyurl", &url, &to]),
        Syq => {
            add(&["syq", "rsync", "--no-progress", "--syq-no-bootstrap"]);
            if what.is_tree() {
                add(&["-a"]);
            }
            add(&["-e", &ssh, &source, &target]);
        }
        Sendme => {
            add(&[
                "sh",
                "-c",
                &format!(
                    "cd {} && exec sendme receive --relay disabled --no-progress TICKET",
                    site.path("near/out")
                ),
            ]);
            // It keeps what it serves in the folder it stands in, and prints its ticket among other lines.
            let text = format!(
                "cd {} && sendme send --relay disabled --ticket-type addresses --no-progress {from} | grep --line-buffered -o 'blob[a-z0-9]*'",
                site.path("far/out")
            );
            job.serve = Some(vec!["sh".into(), "-c".into(), text]);
        }
        Bittorrent => {
            let (script, torrent) = (site.path("etc/bittorrent.py"), site.path("etc/torrent"));
            let folder = task.to.parent().unwrap_or(&task.to).to_string_lossy().into_owned();
            let (address, port) = (far.to_string(), BITTORRENT_PORT.to_string());
            add(&["/usr/bin/python3", &script, "fetch", &torrent, &folder, &address, &port]);
            let listen = format!("{address}:{port}");
            let words = ["/usr/bin/python3", &script, "seed", &from, &torrent, &listen];
            job.serve = Some(words.map(str::to_owned).to_vec());
        }
    }
    job.argv = argv;
    job
}

/// What a person would type for a contender's job.
pub(crate) fn shown(contender: &Contender, job: &Job, task: &Task, site: &Site, pair: &Pair) -> String {
    match contender.mover {
        DrayPutGet | DrayDaemonPutGet => {
            let (from, to) = (task.from.to_string_lossy(), task.to.to_string_lossy());
            let words = ["dray", "put", &from, "&", "dray", "get", "TICKET", "-o", &to];
            readable(&words.map(str::to_owned), site, pair)
        }
        DrayGetClear => format!("DRAY_CONFIG=clear.toml {}", readable(&job.argv, site, pair)),
        _ => readable(&job.argv, site, pair),
    }
}

/// A command in one line, as a shell takes it; no word here has a quote.
pub(crate) fn joined(words: &[String]) -> String {
    let quoted = |word: &String| if word.contains(' ') { format!("'{word}'") } else { word.clone() };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

/// A command with folders and addresses of the test made readable; `…` stands for the ssh options.
pub(crate) fn readable(argv: &[String], site: &Site, pair: &Pair) -> String {
    let text = joined(argv);
    let options = ssh_options(site).join(" ");
    let text = text.replace(&options, "…").replace(&format!("{}/", site.root.display()), "");
    let text = text.replace(&pair.far_ip.to_string(), "FAR");
    // A ticket is long, and another one each time.
    let words = text.split(' ').map(|word| if word.starts_with("dray:") { "TICKET" } else { word });
    words.collect::<Vec<_>>().join(" ")
}
