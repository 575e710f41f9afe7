//! Puts bytes as they are made, here a table of squares, and shares them as long as this program runs.
//! `cargo run -p dray-client --example produce`
#![allow(clippy::print_stdout)]

use std::io::{BufWriter, Read, Write};

use dray_client::{Client, PutOptions, Session};
use dray_core::{Error, ErrorKind, Result};

fn main() -> Result<()> {
    let client = Client::connect()?
        .ok_or_else(|| Error::new(ErrorKind::Unreachable, "no daemon runs here: dray serve"))?;
    let session = Session::open(&client, |_| {})?;
    let options = PutOptions { name: Some("squares.txt".into()), ..PutOptions::default() };
    let mut out = BufWriter::with_capacity(1 << 20, session.put(&options)?);
    for number in 0..100_000_u64 {
        writeln!(out, "{number} {}", number * number).map_err(|error| Error::file("put a line", error))?;
    }
    let put = out.into_inner().map_err(|error| Error::file("put the last lines", error.into_error()))?;
    println!("{}", put.commit()?.ticket);
    // Without a pin it stays for certain until the session ends: here when standard input does.
    let _ = std::io::stdin().read(&mut [0]);
    Ok(())
}
