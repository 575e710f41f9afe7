//! Bounded numbers of connections. Whoever has shown no right to anything gives way to newcomers, the oldest first; then whoever
//! has one and was owed nothing for a while; then those of an address that has more than its part. So neither strangers nor
//! idle receivers cost anybody a transfer.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a connection with a right is left alone that is owed nothing.
const RESTS_FOR: Duration = Duration::from_secs(10);
/// Parts of all places that one address may keep when others want in.
const PARTS: usize = 4;

/// Who counts as one address: of IPv6 whoever has the same 64 bits in front, since a host has all that follow them.
pub fn counted_address(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::from([a, b, c, d, 0, 0, 0, 0])
        }
        address => address,
    }
}

/// The places of one listener.
#[derive(Debug)]
pub struct Places {
    max: usize,
    rests_for: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Taken places in order of arrival.
    taken: BTreeMap<u64, Taken>,
    /// All that were given out and not dropped yet, those included that had to give way.
    alive: usize,
}

#[derive(Debug)]
struct Taken {
    /// A handle, to shut it down.
    socket: TcpStream,
    address: Option<IpAddr>,
    standing: Standing,
}

#[derive(Clone, Copy, Debug)]
enum Standing {
    /// It has shown no right yet.
    Unknown,
    /// It has, and is owed something.
    Busy,
    /// It has, and has been owed nothing since then.
    Resting(Instant),
}

/// One connection's place, given back when this is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
}

impl State {
    fn shut(&mut self, number: u64) {
        if let Some(taken) = self.taken.remove(&number) {
            // Its thread reads the end of the stream and goes.
            let _ = taken.socket.shutdown(Shutdown::Both);
        }
    }
}

impl Places {
    /// Places for `max` connections.
    pub fn new(max: usize) -> Places {
        Places { max, rests_for: RESTS_FOR, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for the connection of `socket`. If there is none, one that must give way is shut down and its place taken:
    /// the oldest that has shown no right, else the one that has been owed nothing for longest, 10 s at least. Else one of the
    /// address that has most will, if that is more than a quarter of all and more than the newcomer's has, as soon as the newcomer has shown a
    /// right; one such newcomer at a time is let in beyond the number. `None` if there is nobody who must give way, or if as many again that gave
    /// way have not ended yet.
    pub fn take(self: &Arc<Places>, socket: &TcpStream) -> Option<Place> {
        let address = socket.peer_addr().ok().map(|address| counted_address(address.ip()));
        self.take_for(socket, address)
    }

    fn take_for(self: &Arc<Places>, socket: &TcpStream, address: Option<IpAddr>) -> Option<Place> {
        let handle = socket.try_clone().ok()?;
        let mut state = self.state();
        if state.alive >= 2 * self.max {
            return None;
        }
        if state.taken.len() >= self.max {
            match self.who_is_idle(&state) {
                Some(number) => state.shut(number),
                // It has shown nothing yet: nobody who is busy goes for it.
                None => drop(self.who_has_most(&state, address, 1)?),
            }
        }
        let number = state.next;
        state.next += 1;
        state.alive += 1;
        state.taken.insert(number, Taken { socket: handle, address, standing: Standing::Unknown });
        Some(Place { places: self.clone(), number })
    }

    fn who_is_idle(&self, state: &State) -> Option<u64> {
        let unknown = state.taken.iter().find(|(_, taken)| matches!(taken.standing, Standing::Unknown));
        if let Some((&number, _)) = unknown {
            return Some(number);
        }
        let (since, number) = longest_resting(state.taken.iter())?;
        (since.elapsed() >= self.rests_for).then_some(number)
    }

    /// One of the address that has more than its part, and more than `newcomer`, which is to have `more` than it has.
    fn who_has_most(&self, state: &State, newcomer: Option<IpAddr>, more: usize) -> Option<u64> {
        let mut counts: HashMap<Option<IpAddr>, usize> = HashMap::new();
        for taken in state.taken.values() {
            *counts.entry(taken.address).or_default() += 1;
        }
        let own = counts.get(&newcomer).copied().unwrap_or(0);
        let (greedy, most) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        if most <= self.max / PARTS || most <= own + more {
            return None;
        }
        let theirs = || state.taken.iter().filter(|(_, taken)| taken.address == greedy);
        longest_resting(theirs())
            .map(|(_, number)| number)
            .or_else(|| theirs().next_back().map(|(&number, _)| number))
    }
}

fn longest_resting<'a>(taken: impl Iterator<Item = (&'a u64, &'a Taken)>) -> Option<(Instant, u64)> {
    let since = |(&number, taken): (&u64, &Taken)| match taken.standing {
        Standing::Resting(since) => Some((since, number)),
        Standing::Unknown | Standing::Busy => None,
    };
    taken.filter_map(since).min()
}

impl Place {
    /// The connection has shown a right, and is owed something: it does not give way for being silent.
    pub fn keep(&self) {
        self.stand(Standing::Busy);
    }

    /// The connection has shown a right, and is owed nothing from now on.
    pub fn rest(&self) {
        self.stand(Standing::Resting(Instant::now()));
    }

    fn stand(&self, standing: Standing) {
        let mut state = self.places.state();
        let Some(taken) = state.taken.get_mut(&self.number) else { return };
        let (was, address) = (std::mem::replace(&mut taken.standing, standing), taken.address);
        if matches!(was, Standing::Unknown) && state.taken.len() > self.places.max {
            // It was let in beyond the number until it showed its right.
            let idle = self.places.who_is_idle(&state).filter(|number| *number != self.number);
            let number = idle.or_else(|| self.places.who_has_most(&state, address, 0));
            state.shut(number.unwrap_or(self.number));
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

    struct Bed {
        listener: TcpListener,
        places: Arc<Places>,
        clients: Vec<TcpStream>,
        taken: Vec<Option<Place>>,
    }

    impl Bed {
        fn new(max: usize, rests_for: Duration) -> Bed {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let places = Arc::new(Places { rests_for, ..Places::new(max) });
            Bed { listener, places, clients: Vec::new(), taken: Vec::new() }
        }

        /// Somebody comes from the host of that number; whether he has a place.
        fn comes(&mut self, host: u8) -> bool {
            let client = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
            client.set_nonblocking(true).unwrap();
            let socket = self.listener.accept().unwrap().0;
            let place = self.places.take_for(&socket, Some(IpAddr::from([10, 0, 0, host])));
            self.clients.push(client);
            self.taken.push(place);
            self.taken.last().is_some_and(Option::is_some)
        }

        /// The same of somebody who shows a right and is owed something.
        fn works(&mut self, host: u8) -> bool {
            let is_in = self.comes(host);
            self.taken.last().into_iter().flatten().for_each(Place::keep);
            is_in
        }

        fn place(&self, index: usize) -> &Place {
            self.taken[index].as_ref().unwrap()
        }

        /// Those that were shut down since they were asked for last, by number.
        fn shut(&mut self) -> Vec<usize> {
            let is_shut = |index: &usize| {
                self.taken[*index].is_some() && matches!((&self.clients[*index]).read(&mut [0]), Ok(0))
            };
            let shut: Vec<usize> = (0..self.clients.len()).filter(is_shut).collect();
            shut.iter().for_each(|index| self.taken[*index] = None);
            shut
        }
    }

    /// Limits: with all places taken, the oldest connection without a right gives way; one with a right does not, as long as it is
    /// owed something.
    #[test]
    fn the_oldest_without_a_right_gives_way() {
        let mut bed = Bed::new(3, Duration::ZERO);
        assert!(bed.comes(1) && bed.comes(1) && bed.comes(1));
        bed.place(0).keep();
        assert!(bed.comes(1));
        assert_eq!(bed.shut(), [1]);
        bed.place(2).keep();
        bed.place(3).keep();
        assert!(!bed.comes(1), "all have a right");
        assert_eq!(bed.shut(), [0; 0]);
        bed.taken[0] = None;
        assert!(bed.comes(1));
        // However many come, those that gave way must end before more do.
        let crowd = (0..9).filter(|_| bed.comes(1)).count();
        assert_eq!(crowd, 3);
    }

    /// Limits, threat model: a right is no right to a place for ever. Who is owed nothing gives way after a while, the one first that has been so
    /// for longest; not before, and not if it is owed something again.
    #[test]
    fn who_rests_gives_way() {
        for rests_for in [Duration::ZERO, Duration::from_secs(3600)] {
            let mut bed = Bed::new(4, rests_for);
            (1..=4).for_each(|host| assert!(bed.comes(host)));
            (0..4).for_each(|index| bed.place(index).keep());
            [2, 0, 3].into_iter().for_each(|index| bed.place(index).rest());
            bed.place(2).keep();
            let is_long = rests_for.is_zero();
            assert_eq!(bed.comes(9), is_long);
            assert_eq!(bed.shut(), if is_long { vec![0] } else { vec![] });
        }
    }

    /// Threat model: strangers cost nobody a transfer, however often they come; one of them at a time is beyond the number.
    #[test]
    fn nobody_busy_goes_for_a_stranger() {
        let mut bed = Bed::new(4, Duration::from_secs(3600));
        (0..4).for_each(|_| assert!(bed.works(1)));
        assert!(bed.comes(2) && bed.comes(2) && bed.comes(2));
        assert_eq!(bed.shut(), [4, 5], "strangers alone");
        assert_eq!(bed.places.state().taken.len(), 5);
        bed.place(6).keep();
        assert_eq!(bed.shut(), [3], "for one that has shown a right");
        assert_eq!(bed.places.state().taken.len(), 4);
    }

    /// Threat model: who has a network of IPv6 addresses is one address.
    #[test]
    fn a_network_is_one_address() {
        let of = |text: &str| counted_address(text.parse().unwrap());
        assert_eq!(of("2001:db8:1:2:3:4:5:6"), of("2001:db8:1:2:ffff::1"));
        assert_ne!(of("2001:db8:1:2::1"), of("2001:db8:1:3::1"));
        assert_ne!(of("10.0.0.1"), of("10.0.0.2"));
        assert_ne!(of("::ffff:10.0.0.1"), of("::ffff:10.0.0.2"));
    }

    /// Threat model: one receiver with a right does not hold all places, however busy: an address that has more than a quarter of them
    /// gives way to others, and to none of its own.
    #[test]
    fn one_address_does_not_hold_all_places() {
        let mut bed = Bed::new(8, Duration::from_secs(3600));
        (0..8).for_each(|_| assert!(bed.works(1)));
        assert!(!bed.works(1));
        bed.place(5).rest();
        assert!(bed.works(2));
        assert_eq!(bed.shut(), [5], "the one that rests");
        assert!(bed.works(2));
        assert_eq!(bed.shut(), [7], "the newest");
        // Until they have as many as each other.
        assert!(bed.works(2) && bed.works(2));
        assert_eq!(bed.shut(), [4, 6]);
        assert!(!bed.works(2));
    }
}
