//! A sender that lies, or is older than it is: runs the far end of a copy and alters the frames it sends, between it and the ssh channel.
//!
//! The binary `dray-frame-rewriter` is this module with a command line; tests name it with `--remote-dray`.

use std::io::{self, Read, Write};
use std::process::{Command, ExitCode, Stdio};

use dray_core::frame::{FRAME_HEAD_BYTES, FrameHead, FrameKind};
use dray_core::message::{Message, feature};

/// What is done to the frames of the far end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// Nothing: shows that the rewriter itself disturbs nobody.
    None,
    /// One bit of every data frame is inverted.
    FlipData,
    /// Holes are announced where there is data.
    HoleForData,
    /// Zeros are announced where there are other bytes.
    ZerosForData,
    /// The far end does not know packed contents of trees.
    NoPackedTree,
}

impl std::str::FromStr for Lie {
    type Err = String;

    fn from_str(text: &str) -> Result<Lie, String> {
        match text {
            "none" => Ok(Lie::None),
            "flip-data" => Ok(Lie::FlipData),
            "hole-for-data" => Ok(Lie::HoleForData),
            "zeros-for-data" => Ok(Lie::ZerosForData),
            "no-packed-tree" => Ok(Lie::NoPackedTree),
            other => Err(format!("unknown lie {other:?}")),
        }
    }
}

/// Runs `argv` with this process's standard input and error, and its standard output rewritten. Exits as it does.
pub fn run(lie: Lie, argv: &[std::ffi::OsString]) -> io::Result<ExitCode> {
    let (program, args) = argv.split_first().ok_or_else(|| io::Error::other("no program to run"))?;
    let mut child = Command::new(program).args(args).stdout(Stdio::piped()).spawn()?;
    let from = child.stdout.take().ok_or_else(|| io::Error::other("no standard output"))?;
    // A broken pipe on either side ends the copy; the exit status says the rest.
    let _ = copy(lie, from, io::stdout().lock());
    let status = child.wait()?;
    Ok(ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)))
}

fn copy(lie: Lie, mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut head = [0; FRAME_HEAD_BYTES];
    let mut body = Vec::new();
    loop {
        from.read_exact(&mut head)?;
        let parsed = FrameHead::decode(head).map_err(|error| io::Error::other(error.to_string()))?;
        body.resize(parsed.body_bytes, 0);
        from.read_exact(&mut body)?;
        let run = match lie {
            Lie::HoleForData => Some(FrameKind::Hole),
            Lie::ZerosForData => Some(FrameKind::Zeros),
            Lie::None | Lie::FlipData | Lie::NoPackedTree => None,
        };
        if let Some(run) = run.filter(|_| parsed.kind == FrameKind::Data) {
            to.write_all(&FrameHead::new(run, 8, parsed.request).encode())?;
            to.write_all(&(body.len() as u64).to_be_bytes())?;
        } else {
            if parsed.kind == FrameKind::Data && lie == Lie::FlipData {
                let middle = body.len() / 2;
                body[middle] ^= 1;
            }
            if parsed.kind == FrameKind::Control && lie == Lie::NoPackedTree {
                body = older(body)?;
                let shorter = FrameHead::new(parsed.kind, body.len(), parsed.request);
                to.write_all(&shorter.encode())?;
            } else {
                to.write_all(&head)?;
            }
            to.write_all(&body)?;
        }
        to.flush()?;
    }
}

/// A message as an end says it that does not know packed contents of trees.
fn older(body: Vec<u8>) -> io::Result<Vec<u8>> {
    match Message::from_bytes(&body).map_err(|error| io::Error::other(error.to_string()))? {
        Message::Hello(mut hello) => {
            hello.features.retain(|name| name != feature::PACKED_TREE);
            Ok(Message::Hello(hello).to_bytes())
        }
        _ => Ok(body),
    }
}
