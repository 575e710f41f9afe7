//! Bounded numbers of connections. Whoever has shown no right to anything gives way to newcomers, the oldest first, so
//! that idle connections cost nobody a transfer.

use std::collections::BTreeMap;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The places of one listener.
#[derive(Debug)]
pub struct Places {
    max: usize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Taken places in order of arrival, with a handle to the socket of those that have shown no right yet.
    taken: BTreeMap<u64, Option<TcpStream>>,
    /// All that were given out and not dropped yet, those included that had to give way.
    alive: usize,
}

/// One connection's place, given back when this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
}

impl Places {
    /// Places for `max` connections.
    pub fn new(max: usize) -> Places {
        Places { max, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for the connection of `socket`. If there is none, the oldest connection that has shown no right is shut down
    /// and its place taken; `None` if all have, or if as many again that gave way have not ended yet.
    pub fn take(self: &Arc<Places>, socket: &TcpStream) -> Option<Place> {
        let handle = socket.try_clone().ok()?;
        let mut state = self.state();
        if state.alive >= 2 * self.max {
            return None;
        }
        if state.taken.len() >= self.max {
            let (&oldest, _) = state.taken.iter().find(|(_, handle)| handle.is_some())?;
            if let Some(Some(socket)) = state.taken.remove(&oldest) {
                // Its thread reads the end of the stream and goes.
                let _ = socket.shutdown(Shutdown::Both);
            }
        }
        let number = state.next;
        state.next += 1;
        state.alive += 1;
        state.taken.insert(number, Some(handle));
        Some(Place { places: self.clone(), number })
    }
}

impl Place {
    /// The connection has shown a right: it does not give way any more.
    pub fn keep(&self) {
        if let Some(handle) = self.places.state().taken.get_mut(&self.number) {
            *handle = None;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.state();
        state.taken.remove(&self.number);
        state.alive = state.alive.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::TcpListener;

    use super::*;

    /// Limits: with all places taken, the oldest connection without a right gives way; one with a right never does.
    #[test]
    fn the_oldest_without_a_right_gives_way() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let connect = || (TcpStream::connect(address).unwrap(), listener.accept().unwrap().0);
        let is_shut = |client: &TcpStream| {
            client.set_nonblocking(true).unwrap();
            matches!((&mut &*client).read(&mut [0]), Ok(0))
        };
        let places = Arc::new(Places::new(3));
        let sockets: Vec<_> = (0..6).map(|_| connect()).collect();
        let mut taken: Vec<Place> = (0..3).map(|index| places.take(&sockets[index].1).unwrap()).collect();
        taken[0].keep();
        taken.push(places.take(&sockets[3].1).unwrap());
        let shut: Vec<bool> = sockets.iter().map(|(client, _)| is_shut(client)).collect();
        assert_eq!(shut, [false, true, false, false, false, false]);
        taken[2].keep();
        taken[3].keep();
        assert!(places.take(&sockets[4].1).is_none(), "all have a right");
        // The place of the one that gave way is gone already.
        drop(taken.remove(1));
        assert!(places.take(&sockets[4].1).is_none());
        drop(taken.remove(0));
        let newest = places.take(&sockets[4].1).unwrap();
        // However many come, those that gave way must end before more do.
        let crowd: Vec<_> = (0..9).filter_map(|_| places.take(&sockets[5].1)).collect();
        assert_eq!(crowd.len(), 3);
        drop((newest, crowd));
        assert!(places.take(&sockets[5].1).is_some());
    }
}
