//! Fetches the object of a ticket to standard output. If the daemon is restarted meanwhile, it goes on where it was.
//! `cargo run -p dray-client --example get -- TICKET`
#![allow(clippy::print_stderr)]

use std::io::Write;
use std::thread::sleep;
use std::time::Duration;

use dray_client::{Client, GetOptions, Session};
use dray_core::{Error, ErrorKind, Result};

/// How often the daemon is looked for after it was lost.
const TRIES: u32 = 30;

fn main() -> Result<()> {
    let ticket = std::env::args().nth(1);
    let ticket = ticket.ok_or_else(|| Error::new(ErrorKind::Usage, "which ticket?"))?;
    let (mut had, mut tries) = (0, 0);
    loop {
        let before = had;
        match fetch(&ticket, &mut had) {
            // Lost on the way: the next daemon goes on.
            Err(error) if matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Interrupted) => {
                tries = if had > before { 0 } else { tries + 1 };
                if tries > TRIES {
                    return Err(error);
                }
                eprintln!("{error}; {had} bytes are here");
                sleep(Duration::from_secs(1));
            }
            result => return result,
        }
    }
}

/// Writes what is left of the object; `had` says how much is here.
fn fetch(ticket: &str, had: &mut u64) -> Result<()> {
    let client = Client::connect()?
        .ok_or_else(|| Error::new(ErrorKind::Unreachable, "no daemon runs here: dray serve"))?;
    let session = Session::open(&client, |_| {})?;
    let options = GetOptions { from: Some(*had), ..GetOptions::default() };
    let mut get = session.get(ticket, &options)?;
    while let Some(piece) = get.piece()? {
        let written = std::io::stdout().write_all(&piece.bytes);
        written.map_err(|error| Error::file("write standard output", error))?;
        *had = piece.offset + piece.bytes.len() as u64;
    }
    Ok(())
}
