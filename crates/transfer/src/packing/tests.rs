//! What goes in comes out, and what is not that is an error.

use std::sync::atomic::{AtomicUsize, Ordering};

use dray_core::ErrorKind;
use dray_core::limits::PACKED_WINDOW_LOG;
use zstd::stream::raw::{CParameter, Encoder, InBuffer, Operation, OutBuffer};

use super::{Packer, Share, Unpacker};

pub(super) fn noise(bytes: usize) -> Vec<u8> {
    let mut noise = vec![0; bytes];
    getrandom::fill(&mut noise).unwrap();
    noise
}

/// Another test has all the memory for a moment.
pub(crate) fn new() -> Packer {
    loop {
        if let Some(packer) = Packer::new().unwrap() {
            return packer;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
}

fn unpack(unpacker: &mut Unpacker, body: &[u8]) -> dray_core::Result<Vec<u8>> {
    let mut out = vec![0; Unpacker::data_bytes(body)? as usize];
    unpacker.unpack(body, &mut out)?;
    Ok(out)
}

#[test]
fn shares_are_bounded_and_come_back() {
    static OF: AtomicUsize = AtomicUsize::new(0);
    let first = Share::take(&OF, 2, 3).unwrap();
    assert!(Share::take(&OF, 2, 3).is_none() && Share::take(&OF, usize::MAX, 3).is_none());
    let second = Share::take(&OF, 1, 3).unwrap();
    drop((first, second));
    assert_eq!(OF.load(Ordering::Acquire), 0);
}

/// P6: pieces of any length arrive, one window reaches over all of them, and what was said before costs next to nothing.
#[test]
fn one_window_reaches_over_all_frames() {
    let mut packer = new();
    let mut unpacker = Unpacker::new().unwrap().unwrap();
    let piece = noise(100_000).into_iter().map(|byte| byte & 0x3f).collect::<Vec<u8>>();
    let first = packer.pack(&piece).unwrap().unwrap().to_vec();
    assert!(unpack(&mut unpacker, &first).unwrap() == piece);
    let mut all = 0;
    for len in [1, 63, 4096, 100_000, 7] {
        let body = packer.pack(&piece[..len]).unwrap().unwrap().to_vec();
        assert!(unpack(&mut unpacker, &body).unwrap() == piece[..len]);
        all += body.len();
    }
    assert!(all < 1000, "{all} bytes for what was said before");
    assert!(first.len() < 80_000, "{} bytes for six bits of each", first.len());
}

/// What cannot be packed costs next to nothing: a thousandth at most, and soon it passes as it is.
#[test]
fn what_does_not_compress_passes() {
    let mut packer = new();
    let data = noise(256 << 10);
    let (mut wire, mut raw, mut passed) = (0, 0, 0);
    for _ in 0..100 {
        raw += data.len();
        match packer.pack(&noise(256 << 10)).unwrap() {
            Some(body) => wire += body.len(),
            None => {
                passed += 1;
                wire += data.len();
            }
        }
    }
    assert!(wire < raw + raw / 1000, "{wire} for {raw}");
    assert!(passed > 80, "{passed} of 100 passed");
}

/// A frame that is not what it says ends with a typed error: garbage, a bomb, one cut short, one with something behind it.
#[test]
fn hostile_frames_are_errors() {
    let mut packer = new();
    let good = packer.pack(&[7; 300_000]).unwrap().unwrap().to_vec();
    assert!(good.len() < 1000);
    let next = packer.pack(&[7; 9]).unwrap().unwrap().to_vec();
    let said = |bytes: u32, rest: &[u8]| [&bytes.to_be_bytes()[..], rest].concat();
    let bad = [
        ("garbage", said(100, &noise(100))),
        ("a bomb", said(100, &good[4..])),
        ("less than it says", said(300_001, &good[4..])),
        ("cut short", said(300_000, &good[4..good.len() - 3])),
        ("something behind", [&good[..], &next[4..]].concat()),
        ("too short", vec![0, 0]),
        ("empty", said(10, &[])),
    ];
    for (what, body) in bad {
        let mut unpacker = Unpacker::new().unwrap().unwrap();
        let error = unpack(&mut unpacker, &body).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::Protocol, "{what}");
    }
    let mut unpacker = Unpacker::new().unwrap().unwrap();
    assert_eq!(unpack(&mut unpacker, &good).unwrap(), [7; 300_000]);
}

/// A holder cannot make a receiver keep more of the stream than was agreed on.
#[test]
fn a_larger_window_is_refused() {
    let mut greedy = Encoder::new(1).unwrap();
    greedy.set_parameter(CParameter::WindowLog(PACKED_WINDOW_LOG + 1)).unwrap();
    let (mut bytes, data) = (vec![0; 1 << 20], vec![7; 100_000]);
    let (mut input, mut output) = (InBuffer::around(&data[..]), OutBuffer::around(&mut bytes[..]));
    greedy.run(&mut input, &mut output).unwrap();
    greedy.flush(&mut output).unwrap();
    let count = output.pos();
    let body = [&100_000u32.to_be_bytes()[..], &bytes[..count]].concat();
    let mut unpacker = Unpacker::new().unwrap().unwrap();
    assert_eq!(unpack(&mut unpacker, &body).unwrap_err().kind(), ErrorKind::Protocol);
}
