//! The door for applications: types and a client, blocking or async ([`aio`]), of the local API (`docs/api.md`) of the user's daemon.
//!
//! ```no_run
//! use dray_client::{Client, PutOptions, Session};
//!
//! # fn main() -> dray_core::Result<()> {
//! let Some(client) = Client::connect()? else { return Ok(()) }; // no daemon runs
//! let session = Session::open(&client, |event| eprintln!("{event:?}"))?;
//! let mut put = session.put(&PutOptions::default())?;
//! put.write(b"any bytes")?;
//! let shared = put.commit()?;
//! println!("{}", shared.ticket);
//! let mut got = session.get(&shared.ticket, &Default::default())?;
//! std::io::copy(&mut got, &mut std::io::stdout()).ok();
//! # Ok(())
//! # }
//! ```

pub mod aio;
mod client;
mod descriptor;
mod dial;
mod directories;
mod get;
mod http;
mod place;
mod session;
pub mod types;

pub use client::{Client, while_busy};
pub use directories::DirectoryOptions;
pub use get::{Get, GetOptions, Piece};
pub use place::{descriptor_socket, is_socket_named, socket_path};
pub use session::{Event, Put, PutOptions, Session};
