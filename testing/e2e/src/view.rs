//! What a sender gets to see of its receivers: a holder that writes down everything that it hears, in order.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use dray_core::block_mask::BlockMask;
use dray_core::limits::GROUP_BYTES;
use dray_core::message::{Fetch, Message};
use dray_core::text::from_hex;

use crate::actions::{Share, liar, share};
use crate::daemon::await_that;
use crate::{Host, gate};

/// A holder that tells the truth, and writes down what it hears.
#[derive(Debug)]
pub struct Witness {
    holder: Share,
    trace: PathBuf,
    /// Of the object.
    size_bytes: u64,
}

impl Witness {
    /// The only holder of the object in `path`. Its key is made of `seed`; each one of a lab needs another.
    pub fn of_file(host: &Host, path: &Path, seed: u8) -> Witness {
        let shared = share(host, path);
        let mut ticket = shared.parsed();
        shared.end();
        ticket.hints.clear();
        let size_bytes = ticket.size_bytes;
        let text = ticket.to_text().expect("a ticket without hints is short");
        let trace = host.dir().join(format!("trace-{seed}"));
        let program = liar(host, path, &text, "none", seed).arg("--trace").arg(&trace);
        Witness { holder: Share::of(program.start()), trace, size_bytes }
    }

    /// Stands in for whoever shares the directory of `ticket`.
    pub fn of_directory(host: &Host, ticket: &str, seed: u8) -> Witness {
        let trace = host.dir().join(format!("trace-{seed}"));
        let program = host
            .program(gate::liar_binary())
            .args(["--ticket", ticket, "--seed", &seed.to_string()])
            .args(["--address", &host.address().to_string()])
            .arg("--data-dir")
            .arg(host.dir().join(format!("liar-{seed}")))
            .arg("--trace")
            .arg(&trace)
            .time_limit(std::time::Duration::from_secs(600));
        Witness { holder: Share::of(program.start()), trace, size_bytes: 0 }
    }

    /// The ticket that leads to it.
    pub fn ticket(&self) -> &str {
        &self.holder.ticket
    }

    /// What it hears while `work` is done, until all connections are closed.
    pub fn hears(&self, work: impl FnOnce()) -> View {
        let lines = || -> Vec<String> {
            fs::read_to_string(&self.trace).expect("a trace").lines().map(str::to_owned).collect()
        };
        let before = lines().len();
        work();
        let count = |lines: &[String], what: &str| {
            lines.iter().filter(|line| line.split(' ').nth(1) == Some(what)).count()
        };
        await_that("all connections are closed", || {
            let lines = lines();
            count(&lines, "connected") == count(&lines, "closed")
        });
        View::of(&lines()[before..], self.size_bytes)
    }
}

/// What was heard, in order: of which connection, counted from 1, and what. Everything is as it came, but for what hangs on time alone:
///
/// * Requests that were made in one go stand in the order of what they ask for, and have no numbers: several threads make them. Nor is it
///   told how many pairs of the tree had come from the sender before.
/// * A request that was taken back when all of its bytes had been sent was not taken back: how much is under way when a receiver has
///   everything tells nothing of it.
/// * How much of a tree has come is left out: it is told now and then. So is whether contents may be packed, which follows how fast they come.
#[derive(Clone, PartialEq)]
pub struct View(Vec<(usize, Event)>);

/// One event.
#[derive(Clone, PartialEq)]
enum Event {
    /// A connection, and by whom; or its end.
    Line(String),
    /// A frame, but for a request.
    Frame(String, Box<Message>),
    /// A request; of a group of which something is here, also what that is.
    Fetch(Fetch, Option<BlockMask>),
}

impl View {
    fn of(lines: &[String], size_bytes: u64) -> View {
        let (mut numbers, mut events) = (BTreeMap::new(), Vec::new());
        let (mut asked, mut sent) = (BTreeMap::new(), BTreeMap::<_, u64>::new());
        let request = |fetch: Fetch, have| Event::Fetch(Fetch { request: 0, known_depth: 0, ..fetch }, have);
        for line in lines {
            let (number, event) = line.split_once(' ').expect("a line of a trace");
            let next = numbers.len() + 1;
            let number = *numbers.entry(number.to_owned()).or_insert(next);
            let words: Vec<&str> = event.split(' ').collect();
            match words[..] {
                ["sent", request, bytes] => {
                    let request: u32 = request.parse().expect("a number");
                    *sent.entry((number, request)).or_default() += bytes.parse::<u64>().expect("a number");
                }
                ["frame", _, _, body] => {
                    let body_bytes = from_hex(body).expect("hex digits");
                    match Message::from_bytes(&body_bytes).expect("a receiver says messages alone") {
                        Message::Fetch(fetch) => {
                            assert_eq!(Message::Fetch(fetch).to_bytes(), body_bytes, "more than a request");
                            asked.insert((number, fetch.request), bytes_of(&fetch, None, size_bytes));
                            events.push((number, request(fetch, None)));
                        }
                        Message::FetchRest(rest) => {
                            assert_eq!(
                                Message::FetchRest(rest).to_bytes(),
                                body_bytes,
                                "more than a request"
                            );
                            let (fetch, have) = (rest.whole(), Some(rest.have));
                            asked.insert((number, fetch.request), bytes_of(&fetch, have, size_bytes));
                            events.push((number, request(fetch, have)));
                        }
                        Message::Cancel(cancel)
                            if asked.contains_key(&(number, cancel.request))
                                && sent.get(&(number, cancel.request))
                                    == asked.get(&(number, cancel.request)) => {}
                        Message::Progress(_) => {}
                        Message::Pull(pull) if pull.pack.is_some() => {
                            assert!(pull.request == 0 && pull.runs.is_empty(), "more than a permission");
                        }
                        message => events.push((number, Event::Frame(event.to_owned(), Box::new(message)))),
                    }
                }
                _ => events.push((number, Event::Line(event.to_owned()))),
            }
        }
        let fetch = |(number, event): &(usize, Event)| match event {
            Event::Fetch(fetch, _) => Some((*number, fetch.start_group, fetch.groups)),
            _ => None,
        };
        for run in events.chunk_by_mut(|a, b| fetch(a).is_some() && fetch(b).is_some()) {
            run.sort_by_key(fetch);
        }
        View(events)
    }

    /// How many connections there were.
    pub fn connections(&self) -> usize {
        let lines = self
            .0
            .iter()
            .filter(|(_, event)| matches!(event, Event::Line(line) if line.starts_with("connected")));
        lines.count()
    }

    /// What was said, but for requests, in order.
    pub fn messages(&self) -> impl Iterator<Item = &Message> + '_ {
        self.0.iter().filter_map(|(_, event)| match event {
            Event::Frame(_, message) => Some(&**message),
            _ => None,
        })
    }

    /// The groups that were asked for.
    pub fn groups(&self) -> BTreeSet<u64> {
        let asked = self.0.iter().filter_map(|(_, event)| match event {
            Event::Fetch(fetch, _) => Some(fetch.start_group..fetch.start_group + fetch.groups),
            _ => None,
        });
        asked.flatten().collect()
    }

    /// Panics unless both are the same, byte for byte.
    #[track_caller]
    pub fn assert_same(&self, other: &View, what: &str) {
        assert!(self == other, "{what}:\n{self:?}\nis not\n{other:?}");
    }
}

/// The bytes that a request asks for.
fn bytes_of(fetch: &Fetch, have: Option<BlockMask>, size_bytes: u64) -> u64 {
    let end = (fetch.start_group + fetch.groups).saturating_mul(GROUP_BYTES).min(size_bytes);
    let bytes = end.saturating_sub(fetch.start_group.saturating_mul(GROUP_BYTES));
    have.map_or(bytes, |have| have.rest_bytes(bytes as usize) as u64)
}

impl std::fmt::Debug for View {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (number, event) in &self.0 {
            let text = match event {
                Event::Line(line) => line.clone(),
                Event::Frame(_, message) => format!("{message:?}"),
                Event::Fetch(fetch, have) => format!("{fetch:?} {have:?}"),
            };
            // Features and ids are long, and no help.
            writeln!(f, "{number} {}", text.chars().take(200).collect::<String>())?;
        }
        Ok(())
    }
}
