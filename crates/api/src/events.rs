//! Server-sent events (WHATWG HTML, "Server-sent events"): a bounded queue between whoever has something to tell and one
//! reader. A reader that is too slow misses events, and is told how many.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use dray_core::limits::API_EVENTS_WAITING_MAX;
use hyper::body::Bytes;
use tokio::sync::mpsc;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

/// A stream that is silent for this long carries a comment, so that a client that went without a word is noticed.
const HEARTBEAT: Duration = Duration::from_secs(15);

/// Tells one reader. Clones tell the same one.
#[derive(Clone, Debug)]
pub struct EventSender {
    queue: mpsc::Sender<Bytes>,
    lost: Arc<AtomicU64>,
}

/// The reader's end, for [`crate::Answer::events`].
#[derive(Debug)]
pub struct EventReceiver {
    queue: mpsc::Receiver<Bytes>,
    /// What the sender has not told yet.
    lost: Arc<AtomicU64>,
    /// Made when it is first polled, which is inside the runtime.
    heartbeat: Option<Interval>,
}

/// A queue of events.
pub fn events() -> (EventSender, EventReceiver) {
    let (sender, receiver) = mpsc::channel(API_EVENTS_WAITING_MAX);
    let lost = Arc::<AtomicU64>::default();
    let sender = EventSender { queue: sender, lost: lost.clone() };
    (sender, EventReceiver { queue: receiver, lost, heartbeat: None })
}

impl EventSender {
    /// Sends an event with one line of JSON; it is dropped and counted if too many wait.
    pub fn send(&self, name: &str, json: &str) {
        let lost = self.lost.swap(0, Ordering::AcqRel);
        if lost > 0 && self.queue.try_send(told_lost(lost)).is_err() {
            self.lost.fetch_add(lost, Ordering::AcqRel);
        }
        if !self.try_send(name, json) {
            self.lost.fetch_add(1, Ordering::AcqRel);
        }
    }

    fn try_send(&self, name: &str, json: &str) -> bool {
        debug_assert!(!json.contains('\n'), "a line would end the event");
        self.queue.try_send(Bytes::from(format!("event: {name}\ndata: {json}\n\n"))).is_ok()
    }
}

fn told_lost(events: u64) -> Bytes {
    Bytes::from(format!("event: lost\ndata: {{\"events\":{events}}}\n\n"))
}

impl EventReceiver {
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if let Poll::Ready(event) = self.queue.poll_recv(context) {
            return Poll::Ready(event);
        }
        // All that waited is read: nothing need happen before it is told how much did not.
        let lost = self.lost.swap(0, Ordering::AcqRel);
        if lost > 0 {
            return Poll::Ready(Some(told_lost(lost)));
        }
        let heartbeat = self.heartbeat.get_or_insert_with(|| {
            let mut heartbeat = interval_at(Instant::now() + HEARTBEAT, HEARTBEAT);
            heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
            heartbeat
        });
        heartbeat.poll_tick(context).map(|_| Some(Bytes::from_static(b": still here\n\n")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Design 5, issue "bounded and answered": a reader that does not read costs a bounded queue, and hears how many
    /// events it missed.
    #[test]
    fn a_slow_reader_is_told_what_it_missed() {
        let (sender, mut receiver) = events();
        for number in 0..API_EVENTS_WAITING_MAX + 5 {
            sender.send("n", &number.to_string());
        }
        assert_eq!(receiver.queue.try_recv().unwrap(), Bytes::from("event: n\ndata: 0\n\n"));
        receiver.queue.try_recv().unwrap();
        sender.send("n", "7");
        let rest: Vec<Bytes> = std::iter::from_fn(|| receiver.queue.try_recv().ok()).collect();
        assert_eq!(rest.len(), API_EVENTS_WAITING_MAX);
        assert_eq!(rest[rest.len() - 2], Bytes::from("event: lost\ndata: {\"events\":5}\n\n"));
        assert_eq!(rest[rest.len() - 1], Bytes::from("event: n\ndata: 7\n\n"));
    }

    /// The same where nothing happens after that.
    #[test]
    fn what_was_missed_last_is_told_without_another_event() {
        let (sender, mut receiver) = events();
        for number in 0..API_EVENTS_WAITING_MAX + 3 {
            sender.send("n", &number.to_string());
        }
        let mut context = Context::from_waker(std::task::Waker::noop());
        let mut next = || match receiver.poll(&mut context) {
            Poll::Ready(event) => event.unwrap(),
            Poll::Pending => Bytes::from("pending"),
        };
        for number in 0..API_EVENTS_WAITING_MAX {
            assert_eq!(next(), Bytes::from(format!("event: n\ndata: {number}\n\n")));
        }
        assert_eq!(next(), Bytes::from("event: lost\ndata: {\"events\":3}\n\n"));
    }
}
