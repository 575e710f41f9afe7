//! What the wire must know of a packet: its destination, and how many bytes it would be on a real link.
//!
//! A TUN device opened with `IFF_VNET_HDR` puts a `virtio_net_hdr` (virtio 1.2 §5.1.6) before each packet. It is passed on
//! unchanged, so that checksums the sender left to its device stay left to the device of the receiver.

use std::net::IpAddr;

/// Length of `virtio_net_hdr` without the count of merged buffers, which the kernel uses unless told otherwise.
pub(crate) const HEADER_BYTES: usize = 10;
/// Longest packet the kernel hands over: a super-packet of 64 KiB and its header.
pub(crate) const PACKET_BYTES_MAX: usize = HEADER_BYTES + 65_536;

const GSO_NONE: u8 = 0;
const GSO_ECN: u8 = 0x80;
const GSO_UDP_L4: u8 = 5;

/// Where it goes. `None` if it is no whole IPv4 or IPv6 packet.
pub(crate) fn destination(data: &[u8]) -> Option<IpAddr> {
    let ip = data.get(HEADER_BYTES..)?;
    match ip.first()? >> 4 {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(ip.get(16..20)?).ok()?)),
        6 => Some(IpAddr::from(<[u8; 16]>::try_from(ip.get(24..40)?).ok()?)),
        _ => None,
    }
}

/// Bytes and packets it would be on a link: a super-packet is cut into segments there, and each has the headers again.
/// Only the offsets that decide how the kernel cuts are believed; `hdr_len` is a hint.
pub(crate) fn size_on_link(data: &[u8]) -> (u64, u64) {
    let whole = data.len().saturating_sub(HEADER_BYTES) as u64;
    let segments = || {
        let kind = data.get(1)? & !GSO_ECN;
        let word = |at: usize| Some(usize::from(u16::from_ne_bytes([*data.get(at)?, *data.get(at + 1)?])));
        let (segment_bytes, checksum_start) = (word(4)?, word(6)?);
        if kind == GSO_NONE || segment_bytes == 0 {
            return None;
        }
        let transport = match kind {
            GSO_UDP_L4 => 8,
            // The data offset of TCP, in words (RFC 9293 §3.1).
            _ => usize::from(data.get(HEADER_BYTES + checksum_start + 12)? >> 4) * 4,
        };
        let headers = (checksum_start + transport) as u64;
        let count = whole.checked_sub(headers)?.div_ceil(segment_bytes as u64).max(1);
        Some((whole + (count - 1) * headers, count))
    };
    segments().unwrap_or((whole, 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A super-packet of `payload` bytes over IPv4 and TCP with timestamps (52 bytes of headers).
    fn super_packet(payload: usize, segment_bytes: u16) -> Vec<u8> {
        let mut data = vec![0; HEADER_BYTES + 52 + payload];
        data[1] = 1;
        data[4..6].copy_from_slice(&segment_bytes.to_ne_bytes());
        data[6..8].copy_from_slice(&20_u16.to_ne_bytes());
        data[HEADER_BYTES] = 0x45;
        data[HEADER_BYTES + 20 + 12] = 8 << 4;
        data[HEADER_BYTES + 16..HEADER_BYTES + 20].copy_from_slice(&[10, 0, 0, 7]);
        data
    }

    #[test]
    fn a_super_packet_costs_the_headers_of_its_segments() {
        assert_eq!(size_on_link(&super_packet(44 * 1448, 1448)), (44 * 1500, 44));
        assert_eq!(size_on_link(&super_packet(1448 + 1, 1448)), (1500 + 53, 2));
        assert_eq!(size_on_link(&super_packet(10, 1448)), (62, 1));
    }

    #[test]
    fn what_is_cut_short_or_lies_about_its_headers_is_taken_as_it_is() {
        let whole = super_packet(3000, 1448);
        for len in 0..whole.len() {
            let (bytes, packets) = size_on_link(&whole[..len]);
            assert!(packets >= 1 && bytes >= len.saturating_sub(HEADER_BYTES) as u64, "{len}");
            assert_eq!(destination(&whole[..len]).is_some(), len >= HEADER_BYTES + 20, "{len}");
        }
        let mut lying = whole;
        lying[6..8].copy_from_slice(&u16::MAX.to_ne_bytes());
        assert_eq!(size_on_link(&lying), (3052, 1));
    }

    #[test]
    fn both_families_name_their_destination() {
        assert_eq!(destination(&super_packet(1, 1448)), Some([10, 0, 0, 7].into()));
        let mut six = vec![0; HEADER_BYTES + 40];
        six[HEADER_BYTES] = 0x60;
        six[HEADER_BYTES + 39] = 1;
        assert_eq!(destination(&six), Some(std::net::Ipv6Addr::LOCALHOST.into()));
        six[HEADER_BYTES] = 0x50;
        assert_eq!(destination(&six), None);
    }
}
