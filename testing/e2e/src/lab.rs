//! Hosts that are network namespaces, joined by a bridge, or by links of the network lab with rate, delay, loss and queue.
//!
//! Each host has its own address, home directory and data directory; all share the file system of the machine.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, Once, OnceLock};
use std::time::Duration;

use dray_lab::conditions::Condition;
use dray_lab::{Change, Link, MeshIds, PipeId, PipeStats};
use rustix::thread::LinkNameSpaceType;

use crate::capture::Capture;
use crate::counters::{self, Counters};
use crate::gate::{self, Turn};
use crate::janitor;
use crate::process::Program;
use crate::sshd::Sshd;
use crate::sweep;

/// What the lab should be like.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    hosts: u8,
    alone: bool,
    rate_mbit: Option<u32>,
    /// From a host to one with a higher number, and back.
    links: Option<(Link, Link)>,
}

impl Setup {
    /// Lets no other lab run meanwhile: for whatever measures time or memory.
    pub fn alone(mut self) -> Setup {
        self.alone = true;
        self
    }

    /// Limits what each host receives to `rate` Mbit/s, with a queue of 1 MiB.
    pub fn rate_mbit(mut self, rate: u32) -> Setup {
        self.rate_mbit = Some(rate);
        self
    }

    /// Lets each packet take half of `time` from host to host, without another limit.
    pub fn round_trip(mut self, time: Duration) -> Setup {
        let link = Link::delay(time / 2);
        self.links = Some((link, link));
        self
    }

    /// Gives each pair of hosts such a link instead of a common bridge; the host with the lower number is its near end. Everything
    /// but [`Lab::limit_rate`], [`Host::hide_behind`] and [`Host::lose_unknown`], which are about the bridge, works as without.
    pub fn condition(mut self, condition: Condition) -> Setup {
        self.links = Some((condition.up, condition.down));
        self
    }

    /// Builds it; `None` if labs cannot run here (see [`gate::can_run`]).
    pub fn build(self) -> Option<Lab> {
        static SWEEP: Once = Once::new();
        if !gate::can_run() {
            return None;
        }
        SWEEP.call_once(|| {
            sweep::remove_stale();
            janitor::start();
        });
        Some(Lab::build(self))
    }
}

/// Hosts and the wire between them. Dropped, it ends all processes in its namespaces and removes everything it made.
#[derive(Debug)]
pub struct Lab {
    hosts: Vec<Host>,
    wire: String,
    network: Option<Network>,
    dir: PathBuf,
    _turn: Turn,
}

impl Lab {
    /// A lab of `hosts` hosts, at most 99.
    pub fn of(hosts: u8) -> Setup {
        Setup { hosts, alone: false, rate_mbit: None, links: None }
    }

    fn build(setup: Setup) -> Lab {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let turn = Turn::take(setup.alone).expect("lock of the lab");
        let tag = format!("{}{}", sweep::own_prefix(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(&tag);
        fs::create_dir(&dir).expect("directory of the lab");
        let wire = format!("{tag}-wire");
        add_namespace(&wire);
        // From here on Drop cleans up, also when a step below panics.
        let mut lab = Lab { hosts: Vec::new(), wire, network: None, dir, _turn: turn };
        let wire = lab.wire.clone();
        let bridge = setup.links.is_none().then_some(wire.as_str());
        if let Some(wire) = bridge {
            run_tool(&["ip", "-n", wire, "link", "add", "br0", "type", "bridge"]);
            run_tool(&["ip", "-n", wire, "link", "set", "br0", "up"]);
        }
        for number in 1..=setup.hosts {
            let host = Host::add(&lab.dir, &tag, number, bridge);
            lab.hosts.push(host);
            if let Some(rate) = setup.rate_mbit {
                let (port, rate) = (format!("p{number}"), format!("{rate}mbit"));
                run_tool(&[
                    "tc", "-n", &wire, "qdisc", "add", "dev", &port, "root", "tbf", "rate", &rate, "burst",
                    "256k", "limit", "1m",
                ]);
            }
        }
        if let Some((up, down)) = setup.links {
            lab.network = Some(Network::join(&lab.hosts, up, down));
        }
        lab
    }

    /// Host `index`, counted from 0.
    pub fn host(&self, index: usize) -> &Host {
        &self.hosts[index]
    }

    /// Limits what each host receives, as [`Setup::rate_mbit`] does, from now on.
    pub fn limit_rate(&self, rate_mbit: u32) {
        let rate = format!("{rate_mbit}mbit");
        for number in 1..=self.hosts.len() {
            let port = format!("p{number}");
            run_tool(&[
                "tc", "-n", &self.wire, "qdisc", "replace", "dev", &port, "root", "tbf", "rate", &rate,
                "burst", "256k", "limit", "1m",
            ]);
        }
    }

    /// Lifts the limit.
    pub fn lift_rate(&self) {
        for number in 1..=self.hosts.len() {
            run_tool(&["tc", "-n", &self.wire, "qdisc", "del", "dev", &format!("p{number}"), "root"]);
        }
    }

    /// The first two hosts.
    pub fn pair(&self) -> (&Host, &Host) {
        (&self.hosts[0], &self.hosts[1])
    }

    /// What the link from one host to another carried; hosts are counted from 0. Needs [`Setup::condition`] or
    /// [`Setup::round_trip`].
    pub fn carried(&self, from: usize, to: usize) -> PipeStats {
        let (network, pipe) = self.pipe(from, to);
        network.lab.stats().expect("counts of the lab").pipes[pipe.index()]
    }

    /// Counts what links carry from zero again. Needs [`Setup::condition`] or [`Setup::round_trip`].
    pub fn count_anew(&self) {
        let network = self.network.as_ref().expect("hosts on a bridge have no links of their own");
        network.lab.reset_stats().expect("counts of the lab");
    }

    /// Runs `work` and says whether the machine let the links be what they were asked to be meanwhile (the validity gate), and why not. Needs
    /// [`Setup::condition`] or [`Setup::round_trip`].
    pub fn judged<T>(&self, work: impl FnOnce() -> T) -> (T, Result<(), String>) {
        let network = self.network.as_ref().expect("hosts on a bridge have no links of their own");
        self.count_anew();
        let done = work();
        (done, network.lab.stats().expect("counts of the lab").validity())
    }

    /// Changes the link from one host to another from now on. Needs [`Setup::condition`] or [`Setup::round_trip`].
    pub fn change(&self, from: usize, to: usize, change: Change) {
        let (network, pipe) = self.pipe(from, to);
        network.lab.set(pipe, change).expect("change of a link");
    }

    fn pipe(&self, from: usize, to: usize) -> (&Network, PipeId) {
        let network = self.network.as_ref().expect("hosts on a bridge have no links of their own");
        (network, network.ids.pipe(from, to).expect("two hosts have a link"))
    }

    /// A directory that goes when the lab goes.
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("lab {} ended by a failure", self.dir.display());
        }
        drop(self.network.take());
        // Found by name, so that a host whose making failed half-way goes too.
        sweep::remove_namespaces(self.wire.trim_end_matches("wire"));
        sweep::remove_directory(&self.dir);
    }
}

/// Links between the hosts, instead of a bridge.
#[derive(Debug)]
struct Network {
    lab: dray_lab::Lab,
    ids: MeshIds,
}

impl Network {
    /// Gives every host its device and every pair its link.
    fn join(hosts: &[Host], up: Link, down: Link) -> Network {
        let mut lab = dray_lab::Lab::new().expect("network lab");
        let members: Vec<_> = hosts
            .iter()
            .map(|host| {
                let namespace = File::open(Path::new("/run/netns").join(&host.namespace));
                let namespace = namespace.expect("open the namespace").into();
                lab.adopt(&host.namespace, namespace).expect("host of the network lab");
                (host.namespace.as_str(), vec![host.address.into()])
            })
            .collect();
        let link = |from: usize, to: usize| if from < to { up } else { down };
        let ids = lab.mesh_of(&members, link).expect("links of the network lab");
        Network { lab, ids }
    }
}

/// One machine of the lab.
#[derive(Debug)]
pub struct Host {
    namespace: String,
    address: Ipv4Addr,
    dir: PathBuf,
    sshd: OnceLock<Sshd>,
    starting: Mutex<()>,
}

impl Host {
    fn add(lab_dir: &Path, tag: &str, number: u8, bridge: Option<&str>) -> Host {
        let namespace = format!("{tag}-h{number}");
        let port = format!("p{number}");
        let address = Ipv4Addr::new(10, 99, 0, 100 + number);
        add_namespace(&namespace);
        if let Some(wire) = bridge {
            run_tool(&[
                "ip", "link", "add", "e0", "netns", &namespace, "type", "veth", "peer", "name", &port,
                "netns", wire,
            ]);
            run_tool(&["ip", "-n", &namespace, "addr", "add", &format!("{address}/24"), "dev", "e0"]);
            run_tool(&["ip", "-n", &namespace, "link", "set", "e0", "up"]);
            run_tool(&["ip", "-n", wire, "link", "set", &port, "master", "br0", "up"]);
        }
        counters::install(&namespace);
        let dir = lab_dir.join(format!("h{number}"));
        for sub in ["home", "bin", "run", "files"] {
            fs::create_dir_all(dir.join(sub)).expect("directory of a host");
        }
        install_dray(&dir.join("bin/dray"));
        Host { namespace, address, dir, sshd: OnceLock::new(), starting: Mutex::new(()) }
    }

    /// Name of its network namespace.
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Its address.
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Its own directory; `home`, `files` and `run` lie in it.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Home directory of its user.
    pub fn home(&self) -> PathBuf {
        self.dir.join("home")
    }

    /// Writes `text` as the configuration of its user.
    #[track_caller]
    pub fn configure(&self, text: &str) {
        let config = self.home().join(".config/dray/config.toml");
        fs::create_dir_all(config.parent().unwrap()).unwrap();
        fs::write(config, text).unwrap();
    }

    /// Where `dray` keeps its data.
    pub fn data_dir(&self) -> PathBuf {
        self.home().join("dray-data")
    }

    /// A path below its directory for test files.
    pub fn file(&self, name: impl AsRef<OsStr>) -> PathBuf {
        self.dir.join("files").join(name.as_ref())
    }

    /// A new, empty directory below [`Host::file`].
    pub fn directory(&self, name: &str) -> PathBuf {
        let dir = self.file(name);
        fs::create_dir(&dir).unwrap_or_else(|error| panic!("create {}: {error}", dir.display()));
        dir
    }

    /// `dray` on this host.
    pub fn dray(&self) -> Program<'_> {
        self.program("dray")
    }

    /// Any program on this host.
    pub fn program(&self, name: impl AsRef<OsStr>) -> Program<'_> {
        Program::new(self, name.as_ref())
    }

    /// The environment of programs on this host, over ssh too.
    pub fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        let bin = self.dir.join("bin");
        let path = std::env::join_paths([
            bin.as_path(),
            Path::new("/usr/bin"),
            Path::new("/bin"),
            Path::new("/usr/sbin"),
        ]);
        vec![
            ("HOME", self.home()),
            ("PATH", PathBuf::from(path.expect("PATH of a host"))),
            ("DRAY_DATA_DIR", self.data_dir()),
            ("XDG_CONFIG_HOME", self.home().join(".config")),
            ("XDG_DATA_HOME", self.home().join(".local/share")),
            ("XDG_STATE_HOME", self.home().join(".local/state")),
            ("XDG_CACHE_HOME", self.home().join(".cache")),
            ("XDG_RUNTIME_DIR", self.dir.join("run")),
        ]
    }

    /// Its sshd on port 22, started at the first call. It admits the key of [`Host::ssh_options`].
    pub fn sshd(&self) -> &Sshd {
        let _one = self.starting.lock().expect("nobody panics while starting sshd");
        self.sshd.get_or_init(|| Sshd::start(self))
    }

    /// Options for `ssh`, `scp` and `dray cp` to log in to this host, which gets an sshd.
    pub fn ssh_options(&self) -> Vec<String> {
        self.sshd().client_options()
    }

    /// The same as one text, for what takes a remote shell (`-e`, `RSYNC_RSH`).
    pub fn ssh_command(&self) -> String {
        let words: Vec<String> = self.ssh_options().iter().map(|word| format!("'{word}'")).collect();
        format!("ssh {}", words.join(" "))
    }

    /// `root@address:path` of a path on this host.
    pub fn remote(&self, path: &Path) -> std::ffi::OsString {
        let mut text = std::ffi::OsString::from(format!("root@{}:", self.address));
        text.push(path);
        text
    }

    /// What its device carried so far.
    pub fn counters(&self) -> Counters {
        counters::read(self)
    }

    /// The bytes on its wire, both ways, while `work` is done; and says so of `what`.
    pub fn carried(&self, what: &str, work: impl FnOnce()) -> u64 {
        let before = self.counters();
        work();
        let bytes = (self.counters() - before).bytes();
        eprintln!("{what}: {bytes} bytes on the wire");
        bytes
    }

    /// Limits what it sends to `rate` Mbit/s.
    pub fn limit_sending(&self, rate: u32) {
        let rate = format!("{rate}mbit");
        run_tool(&[
            "tc",
            "-n",
            &self.namespace,
            "qdisc",
            "add",
            "dev",
            "e0",
            "root",
            "tbf",
            "rate",
            &rate,
            "burst",
            "128k",
            "limit",
            "1m",
        ]);
    }

    /// Lets nothing but ssh in or out, as many firewalls do. Counters still count what is dropped on its way in.
    pub fn allow_only_ssh(&self) {
        // Accepting first: some versions of nft join two `!=` of neighbouring fields into one comparison.
        let rules = r#"table inet firewall {
            chain in {
                type filter hook input priority 0;
                iifname "e0" tcp dport 22 accept; iifname "e0" tcp sport 22 accept; iifname "e0" meta l4proto tcp drop;
            }
            chain out {
                type filter hook output priority 0;
                oifname "e0" tcp dport 22 accept; oifname "e0" tcp sport 22 accept; oifname "e0" meta l4proto tcp drop;
            }
        }"#;
        run_tool(&["ip", "netns", "exec", &self.namespace, "nft", rules]);
    }

    /// Takes back [`Host::allow_only_ssh`].
    pub fn allow_everything(&self) {
        run_tool(&["ip", "netns", "exec", &self.namespace, "nft", "delete table inet firewall"]);
    }

    /// Moves this host to a network of its own behind `router`, which masquerades what leaves it and lets nothing new in,
    /// but for ssh to the router's own port 22 if `forward_ssh`. The old address answers no more; the new one is
    /// `192.168.<number>.2`.
    pub fn hide_behind(&self, router: &Host, forward_ssh: bool) {
        let [.., number] = self.address.octets();
        let (inside, gateway) = (format!("192.168.{number}.2"), format!("192.168.{number}.1"));
        let net = format!("192.168.{number}.0/24");
        let [h, r] = [&self.namespace, &router.namespace];
        run_tool(&["ip", "-n", h, "addr", "flush", "dev", "e0"]);
        run_tool(&["ip", "-n", h, "addr", "add", &format!("{inside}/24"), "dev", "e0"]);
        run_tool(&["ip", "-n", h, "route", "add", "default", "via", &gateway]);
        run_tool(&["ip", "-n", r, "addr", "add", &format!("{gateway}/24"), "dev", "e0"]);
        // Both networks are on one wire: the router must not tell hosts to take the short way.
        let settings = "echo 1 > /proc/sys/net/ipv4/ip_forward; \
             for i in all e0; do echo 0 > /proc/sys/net/ipv4/conf/$i/send_redirects; done";
        run_tool(&["ip", "netns", "exec", r, "sh", "-c", settings]);
        let forwarded = if forward_ssh {
            format!("iifname \"e0\" ip daddr {} tcp dport 22 dnat to {inside}", router.address)
        } else {
            String::new()
        };
        let rules = format!(
            "table ip nat{number} {{
                chain pre {{ type nat hook prerouting priority -100; {forwarded}; }}
                chain post {{ type nat hook postrouting priority 100; ip saddr {net} ip daddr != {net} masquerade; }}
                chain between {{
                    type filter hook forward priority 0;
                    ct state established,related accept; ct status dnat accept; ip daddr {net} drop;
                }}
            }}"
        )
        .replace(" ;", "");
        run_tool(&["ip", "netns", "exec", r, "nft", &rules]);
    }

    /// Lets packets for other networks vanish without an answer, as on the Internet; without it this host knows at once that
    /// it has no way there.
    pub fn lose_unknown(&self, router: &Host) {
        let via = router.address.to_string();
        run_tool(&["ip", "-n", &self.namespace, "route", "add", "192.168.0.0/16", "via", &via]);
    }

    /// Starts recording every IP packet that enters or leaves.
    pub fn capture(&self) -> Capture {
        Capture::start(self)
    }

    /// Process ids of the programs called `name` that run on this host.
    pub fn pids_of(&self, name: &str) -> Vec<u32> {
        let is_called = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
        };
        sweep::processes(&self.namespace).into_iter().filter(is_called).collect()
    }

    /// Runs `body` on a thread inside the namespace: sockets it makes belong to this host.
    pub fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                enter_namespace(&self.namespace);
                body()
            });
            inside.join().unwrap_or_else(|cause| std::panic::resume_unwind(cause))
        })
    }
}

/// A hard link where possible: users without rights on the build directory run it too.
fn install_dray(path: &Path) {
    let binary = gate::dray_binary();
    if fs::hard_link(&binary, path).is_err() {
        fs::copy(&binary, path).expect("copy dray");
    }
}

/// Moves the calling thread, for good, into the namespace.
pub(crate) fn enter_namespace(name: &str) {
    let file = File::open(Path::new("/run/netns").join(name)).expect("open the namespace");
    rustix::thread::move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .expect("enter the namespace");
}

fn add_namespace(name: &str) {
    run_tool(&["ip", "netns", "add", name]);
    run_tool(&["ip", "-n", name, "link", "set", "lo", "up"]);
    // Neighbour and router discovery would count as traffic.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            enter_namespace(name);
            for scope in ["all", "default"] {
                // Absent where the kernel has no IPv6.
                let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/disable_ipv6"), "1");
            }
        });
    });
}

/// Runs a system program to its end and returns what it printed; panics if it fails.
pub(crate) fn run_tool(argv: &[&str]) -> Vec<u8> {
    let program = gate::find_tool(argv[0]).unwrap_or_else(|| panic!("{} is not installed", argv[0]));
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let output =
        Command::new(program).args(&argv[1..]).env("PATH", path).output().expect("run a system program");
    assert!(output.status.success(), "{argv:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
