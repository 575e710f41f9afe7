//! A sender that only says that it lives is given up where the user says so: `--timeout` counts what comes of the tree.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use dray_core::message::{Message, TreeDone};
use dray_core::{Error, ErrorKind, Result};
use dray_transfer::tree::{Heard, SinkWake, TreeSink, Unpacking};

use crate::lock;

/// What came of a tree, as its sink sees it and whoever waits for it.
#[derive(Debug, Default)]
pub(super) struct Life {
    /// Entries, digests and contents, in whatever pieces.
    came: AtomicU64,
    /// The sink works: who waits then waits for this side.
    is_busy: AtomicBool,
    /// How much had come, and when that was seen for the first time.
    seen: Mutex<Option<(u64, Instant)>>,
}

impl Life {
    /// `TimedOut` if nothing of the tree has come for longer than `patience`; to be asked now and then.
    pub(super) fn check(&self, patience: Duration) -> Result<()> {
        let came = self.came.load(Ordering::Acquire);
        let mut seen = lock(&self.seen);
        match *seen {
            Some((before, since)) if before == came && !self.is_busy.load(Ordering::Acquire) => {
                if since.elapsed() <= patience {
                    return Ok(());
                }
                let what = "the holder lives, and nothing of the directory came for too long";
                Err(Error::new(ErrorKind::TimedOut, what)
                    .advise("the same command again goes on where this one stopped"))
            }
            _ => {
                *seen = Some((came, Instant::now()));
                Ok(())
            }
        }
    }
}

/// A sink that tells of what it does.
pub(super) struct Watched<S> {
    pub(super) sink: S,
    pub(super) life: Arc<Life>,
}

impl<S: TreeSink> Watched<S> {
    fn busy<T>(&mut self, act: impl FnOnce(&mut S) -> T) -> T {
        self.life.is_busy.store(true, Ordering::Release);
        let done = act(&mut self.sink);
        // It is woken, and comes by here, when that is over.
        self.life.is_busy.store(self.sink.is_at_work(), Ordering::Release);
        done
    }
}

impl<S: TreeSink> TreeSink for Watched<S> {
    fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.sink.stop_with(stop);
    }

    fn wake_with(&mut self, wake: Arc<SinkWake>) {
        self.sink.wake_with(wake);
    }

    fn unpack_with(&mut self, channel: Arc<Unpacking>) {
        self.sink.unpack_with(channel);
    }

    fn handle(&mut self, heard: Heard) -> Result<()> {
        if !matches!(heard, Heard::Message(Message::Progress(_))) {
            self.life.came.fetch_add(1, Ordering::AcqRel);
        }
        self.busy(|sink| sink.handle(heard))
    }

    fn work(&mut self) -> Result<bool> {
        self.busy(TreeSink::work)
    }

    fn is_at_work(&self) -> bool {
        self.sink.is_at_work()
    }

    fn say(&mut self, out: &mut Vec<Message>) {
        self.sink.say(out);
    }

    fn done(&mut self) -> Result<Option<TreeDone>> {
        self.busy(TreeSink::done)
    }

    fn done_bytes(&self) -> u64 {
        self.sink.done_bytes()
    }

    fn missing(&self) -> Option<String> {
        self.sink.missing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sink that has something done on another thread, or not.
    struct Working(bool);

    impl TreeSink for Working {
        fn handle(&mut self, _: Heard) -> Result<()> {
            Ok(())
        }
        fn is_at_work(&self) -> bool {
            self.0
        }
        fn say(&mut self, _: &mut Vec<Message>) {}
        fn done(&mut self) -> Result<Option<TreeDone>> {
            Ok(None)
        }
        fn done_bytes(&self) -> u64 {
            0
        }
        fn missing(&self) -> Option<String> {
            None
        }
    }

    /// `--timeout`: who is waited for while this side puts a file together or proves it is this side; after that it is the holder.
    #[test]
    fn what_this_side_does_is_no_silence_of_the_holder() {
        let life: Arc<Life> = Arc::default();
        let mut watched = Watched { sink: Working(true), life: life.clone() };
        watched.handle(Heard::Woken).unwrap();
        for _ in 0..3 {
            life.check(Duration::ZERO).unwrap();
        }
        watched.sink.0 = false;
        assert!(life.check(Duration::ZERO).is_ok(), "nobody has come by here since");
        watched.work().unwrap();
        let error = life.check(Duration::ZERO).unwrap_err();
        assert!(error.kind() == ErrorKind::TimedOut && error.advice().is_some(), "{error}");
        watched.handle(Heard::Woken).unwrap();
        assert!(life.check(Duration::ZERO).is_ok(), "something came");
    }
}
