//! A witness on the wire: passes TCP connections on to a holder and keeps what went by.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

/// What one connection carried.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    pub to_holder: Vec<u8>,
    pub to_receiver: Vec<u8>,
}

pub struct Relay {
    pub port: u16,
    seen: Arc<Mutex<Vec<Traffic>>>,
}

impl Relay {
    /// A relay to `holder_port` on loopback.
    pub fn to(holder_port: u16) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen: Arc<Mutex<Vec<Traffic>>> = Arc::default();
        let keep = seen.clone();
        // Ends with the process.
        thread::spawn(move || {
            for socket in listener.incoming() {
                let (near, far) = (socket.unwrap(), TcpStream::connect(("127.0.0.1", holder_port)).unwrap());
                let index = {
                    let mut seen = lock(&keep);
                    seen.push(Traffic::default());
                    seen.len() - 1
                };
                let (near_again, far_again) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (there, back) = (keep.clone(), keep.clone());
                thread::spawn(move || {
                    pass(near, far, &|bytes| lock(&there)[index].to_holder.extend_from_slice(bytes));
                });
                thread::spawn(move || {
                    pass(far_again, near_again, &|bytes| {
                        lock(&back)[index].to_receiver.extend_from_slice(bytes);
                    });
                });
            }
        });
        Relay { port, seen }
    }

    /// What went by so far, one entry a connection.
    pub fn seen(&self) -> Vec<Traffic> {
        lock(&self.seen).clone()
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, keep: &dyn Fn(&[u8])) {
    let mut bytes = vec![0; 64 * 1024];
    while let Ok(n) = from.read(&mut bytes)
        && n > 0
    {
        keep(&bytes[..n]);
        if to.write_all(&bytes[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}
