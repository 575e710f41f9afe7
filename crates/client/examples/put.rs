//! Puts files without reading them: their descriptors go to the daemon, which shares them until it is told otherwise. Prints
//! a ticket for each. `cargo run -p dray-client --example put -- FILE…`
#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::fs::File;
use std::path::PathBuf;

use dray_client::{Client, PutOptions, Session};
use dray_core::{Error, ErrorKind, Result};

fn main() -> Result<()> {
    let client = Client::connect()?
        .ok_or_else(|| Error::new(ErrorKind::Unreachable, "no daemon runs here: dray serve"))?;
    // Hears how far the daemon has hashed; not needed to put.
    let session = Session::open(&client, |event| {
        if event.name == "hashing" {
            eprintln!("{} bytes hashed", event.data["done_bytes"]);
        }
    })?;
    for path in std::env::args_os().skip(1).map(PathBuf::from) {
        let file = File::open(&path).map_err(|error| Error::file(format!("open {path:?}"), error))?;
        let name = path.file_name().map(ToOwned::to_owned);
        let options = PutOptions { name, pin: true, ..PutOptions::default() };
        println!("{}", session.put_file(&file, &options)?.ticket);
    }
    Ok(())
}
