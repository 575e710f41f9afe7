//! Shows what the daemon shares, and then what happens, until it ends. `cargo run -p dray-client --example watch`
#![allow(clippy::print_stdout)]

use std::sync::mpsc;

use dray_client::{Client, Session};
use dray_core::{Error, ErrorKind, Result};

fn main() -> Result<()> {
    let client = Client::connect()?
        .ok_or_else(|| Error::new(ErrorKind::Unreachable, "no daemon runs here: dray serve"))?;
    for share in client.shares()? {
        println!("{} {} bytes, {} receivers so far", share.oid, share.size_bytes, share.receivers);
    }
    let (sender, events) = mpsc::channel();
    let _session = Session::open(&client, move |event| {
        let _ = sender.send(event);
    })?;
    // Ends with the daemon: its last event drops the sender.
    for event in events {
        println!("{} {}", event.name, event.data);
    }
    Ok(())
}
