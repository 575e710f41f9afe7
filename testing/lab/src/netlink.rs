//! Addresses, routes and devices of one network namespace, set by messages to the kernel (rtnetlink(7)) instead of a
//! command for each.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink::SocketAddrNetlink};

// `linux/netlink.h`, `linux/rtnetlink.h`, `linux/if_addr.h`, `linux/if_link.h`, `linux/fib_rules.h`
const NLMSG_ERROR: u16 = 2;
const NLM_F_REQUEST: u16 = 0x001;
const NLM_F_ACK: u16 = 0x004;
const NLM_F_EXCL: u16 = 0x200;
const NLM_F_CREATE: u16 = 0x400;
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_NEWRULE: u16 = 32;
const IFF_UP: u32 = 1;
const IFLA_MTU: u16 = 4;
const IFLA_TXQLEN: u16 = 13;
const IFA_ADDRESS: u16 = 1;
const IFA_LOCAL: u16 = 2;
const IFA_F_NODAD: u8 = 2;
const RTA_OIF: u16 = 4;
const RTA_PRIORITY: u16 = 6;
const RTA_TABLE: u16 = 15;
const FRA_SRC: u16 = 2;
const FRA_TABLE: u16 = 15;
const FR_ACT_TO_TABLE: u8 = 1;
const RTN_UNICAST: u8 = 1;
const RTPROT_STATIC: u8 = 4;
const RT_SCOPE_UNIVERSE: u8 = 0;
const RT_SCOPE_LINK: u8 = 253;
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;

/// The main routing table.
pub(crate) const TABLE_MAIN: u32 = 254;
const HEADER_BYTES: usize = 16;

/// A conversation with the kernel about the namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: OwnedFd,
}

impl Netlink {
    /// About the namespace of the calling thread.
    pub(crate) fn open() -> io::Result<Netlink> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, 0))?;
        Ok(Netlink { socket })
    }

    /// Index of the device called `name`.
    pub(crate) fn index_of(&self, name: &str) -> io::Result<u32> {
        // Any socket of the namespace answers this.
        Ok(rustix::net::netdevice::name_to_index(&self.socket, name)?)
    }

    /// Brings a device up.
    pub(crate) fn set_up(&self, device: u32) -> io::Result<()> {
        self.request(Message::new(RTM_NEWLINK, 0).link(device, IFF_UP))
    }

    /// Sets the longest packet and how many packets the device keeps before it drops.
    pub(crate) fn set_sizes(&self, device: u32, mtu: u32, queue_packets: u32) -> io::Result<()> {
        let message = Message::new(RTM_NEWLINK, 0).link(device, 0);
        self.request(message.number(IFLA_MTU, mtu).number(IFLA_TXQLEN, queue_packets))
    }

    /// Gives a device an address of its own, without a network around it.
    pub(crate) fn add_address(&self, device: u32, address: IpAddr) -> io::Result<()> {
        let (family, bits) = family(address);
        let flags = if address.is_ipv6() { IFA_F_NODAD } else { 0 };
        let mut message = Message::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL);
        message.bytes.extend([family, bits, flags, RT_SCOPE_UNIVERSE]);
        message.bytes.extend(device.to_ne_bytes());
        self.request(message.address(IFA_LOCAL, address).address(IFA_ADDRESS, address))
    }

    /// Sends what has no better route through `device`; in `table`, for the family of `like`. The smallest `metric` wins.
    pub(crate) fn add_default_route(
        &self,
        device: u32,
        like: IpAddr,
        table: u32,
        metric: u32,
    ) -> io::Result<()> {
        let scope = if like.is_ipv6() { RT_SCOPE_UNIVERSE } else { RT_SCOPE_LINK };
        let mut message = Message::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL);
        // Tables beyond 255 go by the attribute alone.
        message.bytes.extend([family(like).0, 0, 0, 0, 0, RTPROT_STATIC, scope, RTN_UNICAST]);
        message.bytes.extend(0_u32.to_ne_bytes());
        self.request(message.number(RTA_OIF, device).number(RTA_TABLE, table).number(RTA_PRIORITY, metric))
    }

    /// Lets packets from `source` go by `table`.
    pub(crate) fn add_source_rule(&self, source: IpAddr, table: u32) -> io::Result<()> {
        let (family, bits) = family(source);
        let mut message = Message::new(RTM_NEWRULE, NLM_F_CREATE | NLM_F_EXCL);
        message.bytes.extend([family, 0, bits, 0, 0, 0, 0, FR_ACT_TO_TABLE]);
        message.bytes.extend(0_u32.to_ne_bytes());
        self.request(message.address(FRA_SRC, source).number(FRA_TABLE, table))
    }

    fn request(&self, message: Message) -> io::Result<()> {
        rustix::net::send(&self.socket, &message.finish(), SendFlags::empty())?;
        let mut answer = [0; 1024];
        let (len, _) = rustix::net::recv(&self.socket, &mut answer, RecvFlags::empty())?;
        let word = |at: usize| answer[..len].get(at..at + 4).and_then(|bytes| bytes.try_into().ok());
        let kind = answer[..len].get(4..6).and_then(|bytes| bytes.try_into().ok()).map(u16::from_ne_bytes);
        match (kind, word(HEADER_BYTES).map(i32::from_ne_bytes)) {
            (Some(NLMSG_ERROR), Some(0)) => Ok(()),
            (Some(NLMSG_ERROR), Some(code)) => Err(io::Error::from_raw_os_error(code.wrapping_neg())),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "no acknowledgement from rtnetlink")),
        }
    }
}

fn family(address: IpAddr) -> (u8, u8) {
    if address.is_ipv6() { (AF_INET6, 128) } else { (AF_INET, 32) }
}

/// A request under construction.
struct Message {
    bytes: Vec<u8>,
}

impl Message {
    fn new(kind: u16, flags: u16) -> Message {
        let mut bytes = vec![0; HEADER_BYTES];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&(flags | NLM_F_REQUEST | NLM_F_ACK).to_ne_bytes());
        Message { bytes }
    }

    /// `struct ifinfomsg`; only the flags in `up` change.
    fn link(mut self, device: u32, up: u32) -> Message {
        self.bytes.extend(0_u32.to_ne_bytes());
        for word in [device, up, up] {
            self.bytes.extend(word.to_ne_bytes());
        }
        self
    }

    fn number(self, kind: u16, value: u32) -> Message {
        self.attribute(kind, &value.to_ne_bytes())
    }

    fn address(self, kind: u16, address: IpAddr) -> Message {
        match address {
            IpAddr::V4(four) => self.attribute(kind, &four.octets()),
            IpAddr::V6(six) => self.attribute(kind, &six.octets()),
        }
    }

    /// All values of ours are multiples of 4 bytes, so none needs padding.
    fn attribute(mut self, kind: u16, value: &[u8]) -> Message {
        let len = value.len() as u16 + 4;
        self.bytes.extend(len.to_ne_bytes());
        self.bytes.extend(kind.to_ne_bytes());
        self.bytes.extend(value);
        self
    }

    fn finish(mut self) -> Vec<u8> {
        let len = self.bytes.len() as u32;
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes
    }
}
