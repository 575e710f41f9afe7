//! The three system calls that have no safe wrapper: making and tuning a TUN device, and leaving a namespace. The only file
//! of the workspace that may say `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::ioctl::{IntegerSetter, Opcode, Updater, ioctl};
use rustix::thread::UnshareFlags;

/// `_IOW('T', 202, int)`, `linux/if_tun.h`.
const TUNSETIFF: Opcode = 0x4004_54ca;
/// `_IOW('T', 208, unsigned int)`, `linux/if_tun.h`.
const TUNSETOFFLOAD: Opcode = 0x4004_54d0;

/// A layer 3 device, no packet information before packets, but a `virtio_net_hdr`.
const FLAGS: u16 = 0x0001 | 0x1000 | 0x4000;

/// What the host may leave to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Offloads {
    /// Checksums: one packet a read.
    Checksums = 0x01,
    /// Checksums and segmentation of TCP and UDP: super-packets of up to 64 KiB.
    Segments = 0x6f,
}

/// `struct ifreq` of `linux/if.h`, as TUNSETIFF uses it.
#[repr(C, align(8))]
struct InterfaceRequest {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Makes the TUN device `name` (at most 15 bytes) in the network namespace of the calling thread. It lives as long as the
/// descriptor, which does not block.
pub(crate) fn open_tun(name: &str) -> io::Result<OwnedFd> {
    let mut request = InterfaceRequest { name: [0; 16], flags: FLAGS, rest: [0; 22] };
    let room = request.name.len() - 1;
    if name.len() > room {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("{name} is longer than {room} bytes"),
        ));
    }
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let tun = rustix::fs::open("/dev/net/tun", flags, Mode::empty())?;
    // SAFETY: TUNSETIFF reads and writes one `struct ifreq`, 40 bytes on every 64-bit Linux, which `request` is
    // (`ifreq_has_the_size_of_the_kernel`).
    unsafe { ioctl(&tun, Updater::<TUNSETIFF, InterfaceRequest>::new(&mut request)) }?;
    Ok(tun)
}

/// Says what the host may leave to the device from now on.
pub(crate) fn set_offloads(tun: impl AsFd, offloads: Offloads) -> io::Result<()> {
    // SAFETY: TUNSETOFFLOAD takes its argument as an integer and follows no pointer.
    Ok(unsafe { ioctl(tun, IntegerSetter::<TUNSETOFFLOAD>::new_usize(offloads as usize)) }?)
}

/// Gives the calling thread, or its children, a namespace of its own.
pub(crate) fn unshare(what: Namespace) -> io::Result<()> {
    let flags = match what {
        Namespace::Network => UnshareFlags::NEWNET,
        Namespace::ProcessesOfChildren => UnshareFlags::NEWPID | UnshareFlags::NEWNS,
    };
    // SAFETY: the hazard of `unshare` is a table of descriptors that threads no longer share; FILES is never asked for.
    Ok(unsafe { rustix::thread::unshare_unsafe(flags) }?)
}

/// What [`unshare`] makes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Namespace {
    /// A network without devices but a loopback that is down.
    Network,
    /// Mounts of the thread, and process ids of what it starts; the first child is 1 among them. The thread can start no
    /// threads afterwards.
    ProcessesOfChildren,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ifreq_has_the_size_of_the_kernel() {
        assert_eq!(size_of::<InterfaceRequest>(), 40);
    }

    #[test]
    fn a_name_that_does_not_fit_is_refused_before_the_kernel_sees_it() {
        assert_eq!(open_tun("a-name-of-16-byt").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
