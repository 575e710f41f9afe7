//! A machine of the lab: a network namespace with its devices, and programs that run in it.

use std::io::{self, Read};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, WaitId, WaitIdOptions};
use rustix::thread::LinkNameSpaceType;

use crate::kernel::{self, Namespace};
use crate::netlink::{Netlink, TABLE_MAIN};
use crate::spawner::Spawner;

/// Packets that wait in a device for the engine; more than it ever lets wait.
const DEVICE_QUEUE_PACKETS: u32 = 4000;
/// Buffers TCP may grow to: twice what 1 Gbit/s needs over 250 ms.
const TCP_BUFFER_BYTES_MAX: u32 = 64 << 20;
/// Routing tables of devices, by their number on the host.
const TABLE_FIRST: u32 = 100;
/// Ticks a second in `/proc/PID/stat`, the same on every Linux (`USER_HZ`).
const TICKS_PER_SECOND: u64 = 100;

/// A host. Clones are the same host.
#[derive(Clone, Debug)]
pub struct Host {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    name: String,
    network: Arc<OwnedFd>,
    netlink: Mutex<Netlink>,
    spawner: Arc<Spawner>,
    addresses: Mutex<Vec<IpAddr>>,
}

impl Host {
    /// In a new namespace without a name; it goes with the last program and the last clone of the host.
    pub(crate) fn new(name: &str, spawner: Arc<Spawner>) -> io::Result<Host> {
        let network = on_thread(|| {
            kernel::unshare(Namespace::Network)?;
            let flags = OFlags::RDONLY | OFlags::CLOEXEC;
            Ok(rustix::fs::open("/proc/thread-self/ns/net", flags, Mode::empty())?)
        })?;
        Host::adopt(name, network, spawner)
    }

    /// In the namespace that `network` stands for.
    pub(crate) fn adopt(name: &str, network: OwnedFd, spawner: Arc<Spawner>) -> io::Result<Host> {
        let network = Arc::new(network);
        let netlink = inside(&network, || {
            set_kernel_parameters();
            let netlink = Netlink::open()?;
            netlink.set_up(netlink.index_of("lo")?)?;
            Ok(netlink)
        })?;
        let shared = Shared {
            name: name.to_owned(),
            network,
            netlink: Mutex::new(netlink),
            spawner,
            addresses: Mutex::default(),
        };
        Ok(Host { shared: Arc::new(shared) })
    }

    /// Its name in the lab.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Addresses of its devices, in the order they were given.
    pub fn addresses(&self) -> Vec<IpAddr> {
        self.shared.addresses.lock().map(|addresses| addresses.clone()).unwrap_or_default()
    }

    /// For debugging: `nsenter --net=<this path> ip addr`, as long as this process lives.
    pub fn namespace_path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.shared.network.as_raw_fd()).into()
    }

    /// Starts `command` on this host. It ends when the lab does.
    ///
    /// # Errors
    /// What [`Command::spawn`] gives.
    pub fn spawn(&self, command: Command) -> io::Result<Child> {
        self.shared.spawner.spawn(&self.shared.network, command)
    }

    /// Runs `command` on this host to its end, with nothing on standard input.
    ///
    /// # Errors
    /// What [`Command::spawn`] and waiting give.
    pub fn run(&self, mut command: Command) -> io::Result<Ran> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let started = Instant::now();
        let mut child = self.spawn(command)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        std::thread::scope(|scope| {
            let errors = scope.spawn(move || read_all(stderr));
            let stdout = read_all(stdout)?;
            let stderr =
                errors.join().unwrap_or_else(|_| Err(io::Error::other("reader of standard error")))?;
            if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
                // Kept as a zombie, so that its times can be read.
                rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)?;
            }
            let elapsed = started.elapsed();
            let cpu = cpu_of(child.id()).unwrap_or_default();
            Ok(Ran { status: child.wait()?, stdout, stderr, elapsed, cpu })
        })
    }

    /// Runs `body` on a thread of this process inside the host: sockets made there belong to it for good. Threads started by
    /// `body` are inside too.
    pub fn enter<T: Send>(&self, body: impl FnOnce() -> T + Send) -> io::Result<T> {
        inside(&self.shared.network, || Ok(body()))
    }

    /// Packets of programs on it that the lab's devices dropped, as more waited for the engine than a device holds.
    pub(crate) fn dropped_packets(&self) -> io::Result<u64> {
        let table = inside(&self.shared.network, || std::fs::read_to_string("/proc/thread-self/net/dev"))?;
        table.lines().filter_map(dropped_of_device).sum()
    }

    /// Gives it one more device, called `e0`, `e1` and so on, with these addresses. Everything leaves through the first one, but
    /// for what is sent from an address of another.
    pub(crate) fn add_device(&self, number: u32, mtu: u16, addresses: &[IpAddr]) -> io::Result<OwnedFd> {
        let name = format!("e{number}");
        let tun = inside(&self.shared.network, || kernel::open_tun(&name))?;
        kernel::set_offloads(&tun, kernel::Offloads::Checksums)?;
        let netlink = self.shared.netlink.lock().map_err(|_| io::Error::other("netlink of the host"))?;
        let device = netlink.index_of(&name)?;
        netlink.set_sizes(device, u32::from(mtu), DEVICE_QUEUE_PACKETS)?;
        netlink.set_up(device)?;
        let table = TABLE_FIRST + number;
        for (at, address) in addresses.iter().enumerate() {
            netlink.add_address(device, *address)?;
            netlink.add_source_rule(*address, table)?;
            if !addresses[..at].iter().any(|other| other.is_ipv6() == address.is_ipv6()) {
                netlink.add_default_route(device, *address, TABLE_MAIN, number + 1)?;
                netlink.add_default_route(device, *address, table, 1)?;
            }
        }
        self.shared
            .addresses
            .lock()
            .map_err(|_| io::Error::other("addresses of the host"))?
            .extend(addresses);
        Ok(tun)
    }
}

/// What a program left.
#[derive(Debug)]
pub struct Ran {
    /// How it ended.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// From before it was started until it had ended.
    pub elapsed: Duration,
    /// CPU time of it and of the children it waited for, to 10 ms.
    pub cpu: Duration,
}

/// Buffers for long fat links; nothing remembered from one connection to the next; no traffic of the kernel's own.
fn set_kernel_parameters() {
    let buffers = format!("4096 131072 {TCP_BUFFER_BYTES_MAX}");
    for (name, value) in [
        ("ipv4/tcp_rmem", buffers.as_str()),
        ("ipv4/tcp_wmem", &buffers),
        ("ipv4/tcp_no_metrics_save", "1"),
        ("ipv6/conf/all/router_solicitations", "0"),
        ("ipv6/conf/default/router_solicitations", "0"),
    ] {
        // Absent where the kernel has no IPv6; the others are as old as namespaces.
        let _ = std::fs::write(format!("/proc/sys/net/{name}"), value);
    }
}

/// Runs `body` on a thread in the namespace.
fn inside<T: Send>(network: &OwnedFd, body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    on_thread(|| {
        rustix::thread::move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        body()
    })
}

/// Runs `body` on a thread of its own; its panic is the caller's.
fn on_thread<T: Send>(body: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, body)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn read_all(stream: Option<impl Read>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(mut stream) = stream {
        stream.read_to_end(&mut bytes)?;
    }
    Ok(bytes)
}

/// Fields 14 to 17 of `/proc/PID/stat` (proc_pid_stat(5)): user and system time, of the process and its waited-for children.
fn cpu_of(pid: u32) -> Option<Duration> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in field 2 may hold anything but ends with the last parenthesis.
    let fields = text.rsplit_once(')')?.1.split_whitespace();
    let ticks: u64 = fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Some(Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND))
}

/// Of a line of `/proc/net/dev` (proc_pid_net(5)): what a device of the lab has dropped of what was sent; `None` for lines of others.
fn dropped_of_device(line: &str) -> Option<io::Result<u64>> {
    let (name, counts) = line.trim_start().split_once(':')?;
    let number = name.strip_prefix('e')?;
    if number.is_empty() || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    // Received: bytes, packets, errs, drop, fifo, frame, compressed, multicast. Sent: bytes, packets, errs, drop.
    let dropped = counts.split_whitespace().nth(11).and_then(|text| text.parse().ok());
    let unknown = || io::Error::new(io::ErrorKind::InvalidData, format!("/proc/net/dev says {line}"));
    Some(dropped.ok_or_else(unknown))
}
