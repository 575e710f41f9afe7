//! The client for async code, on any executor: each put and each get has a thread that speaks to the daemon, and whoever
//! awaits is woken when it has answered. No runtime is needed, and none is brought along.
//!
//! A future that is dropped early is not waited for any more; what it asked for happens all the same. Dropping the session ends
//! what was begun in it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread;

use dray_core::limits::API_EVENTS_WAITING_MAX;
use dray_core::{Error, ErrorKind, Result};

use crate::types::{Fetched, Shared};
use crate::{Client, Event, Get, GetOptions, Piece, Put, PutOptions, Session};

/// A session, as [`Session`].
#[derive(Debug)]
pub struct AsyncSession {
    session: Arc<Session>,
    events: Arc<Mutex<Events>>,
}

impl AsyncSession {
    /// Opens a session.
    pub async fn open(client: &Client) -> Result<AsyncSession> {
        let (client, events) = (client.clone(), Arc::new(Mutex::new(Events::default())));
        let (heard, ended) = (events.clone(), Ended(events.clone()));
        let on_event = move |event| {
            let _until_the_end = &ended;
            lock(&heard).push(event);
        };
        let session = on_a_thread(move || Session::open(&client, on_event)).await??;
        Ok(AsyncSession { session: Arc::new(session), events })
    }

    /// The next event of the daemon, such as `progress`; `None` when the session has ended. Of events that nobody takes the last
    /// ones are kept, and an event `lost` says how many are not.
    pub async fn event(&self) -> Option<Event> {
        poll_fn(|context| lock(&self.events).poll(context)).await
    }

    /// See [`Session::put`].
    pub async fn put(&self, options: PutOptions) -> Result<AsyncPut> {
        let (session, (commands, asked)) = (self.session.clone(), channel());
        let (begun, reply) = promise();
        spawn(move || match session.put(&options) {
            Ok(put) => {
                begun.keep(Ok(()));
                serve_put(put, &asked);
            }
            Err(error) => begun.keep(Err(error)),
        })?;
        reply.await??;
        Ok(AsyncPut { commands })
    }

    /// See [`Session::put_file`].
    pub async fn put_file(&self, file: File, options: PutOptions) -> Result<Shared> {
        let session = self.session.clone();
        on_a_thread(move || session.put_file(&file, &options)).await?
    }

    /// See [`Session::get`].
    pub async fn get(&self, wanted: &str, options: GetOptions) -> Result<AsyncGet> {
        let (session, (commands, asked)) = (self.session.clone(), channel());
        let (wanted, (begun, reply)) = (wanted.to_owned(), promise());
        spawn(move || match session.get(&wanted, &options) {
            Ok(get) => {
                begun.keep(Ok(()));
                serve_get(get, &asked);
            }
            Err(error) => begun.keep(Err(error)),
        })?;
        reply.await??;
        Ok(AsyncGet { commands })
    }

    /// See [`Session::get_through`].
    pub async fn get_through(&self, wanted: &str, out: OwnedFd, options: GetOptions) -> Result<Fetched> {
        let (session, wanted) = (self.session.clone(), wanted.to_owned());
        on_a_thread(move || session.get_through(&wanted, &out, &options)).await?
    }

    /// See [`Session::get_into`].
    pub async fn get_into(
        &self,
        wanted: &str,
        directory: OwnedFd,
        name: Option<OsString>,
        options: GetOptions,
    ) -> Result<Fetched> {
        let (session, wanted) = (self.session.clone(), wanted.to_owned());
        on_a_thread(move || session.get_into(&wanted, &directory, name.as_deref(), &options)).await?
    }
}

impl Drop for AsyncSession {
    fn drop(&mut self) {
        // Threads that still wait for an answer hear of it.
        self.session.end();
    }
}

/// Bytes on their way into an object, as [`Put`].
#[derive(Debug)]
pub struct AsyncPut {
    commands: Sender<PutCommand>,
}

enum PutCommand {
    Write(Vec<u8>, Promise<Result<()>>),
    Commit(Promise<Result<Shared>>),
}

impl AsyncPut {
    /// Appends `bytes`.
    pub async fn write(&mut self, bytes: Vec<u8>) -> Result<()> {
        let (promise, reply) = promise();
        self.commands.send(PutCommand::Write(bytes, promise)).map_err(|_| gone())?;
        reply.await?
    }

    /// Ends the object and shares it.
    pub async fn commit(self) -> Result<Shared> {
        let (promise, reply) = promise();
        self.commands.send(PutCommand::Commit(promise)).map_err(|_| gone())?;
        reply.await?
    }
}

fn serve_put(mut put: Put<'_>, asked: &Receiver<PutCommand>) {
    while let Ok(command) = asked.recv() {
        match command {
            PutCommand::Write(bytes, promise) => promise.keep(put.write(&bytes)),
            PutCommand::Commit(promise) => return promise.keep(put.commit()),
        }
    }
}

/// An object on its way here, as [`Get`].
#[derive(Debug)]
pub struct AsyncGet {
    commands: Sender<Promise<Result<Option<Piece>>>>,
}

impl AsyncGet {
    /// The next piece; `None` when all have come.
    pub async fn piece(&mut self) -> Result<Option<Piece>> {
        let (promise, reply) = promise();
        self.commands.send(promise).map_err(|_| gone())?;
        reply.await?
    }
}

fn serve_get(mut get: Get<'_>, asked: &Receiver<Promise<Result<Option<Piece>>>>) {
    while let Ok(promise) = asked.recv() {
        promise.keep(get.piece());
    }
}

/// Events that were not taken yet.
#[derive(Debug, Default)]
struct Events {
    waiting: VecDeque<Event>,
    lost: u64,
    has_ended: bool,
    waker: Option<Waker>,
}

impl Events {
    fn push(&mut self, event: Event) {
        if self.waiting.len() >= API_EVENTS_WAITING_MAX {
            self.waiting.pop_front();
            self.lost += 1;
        }
        self.waiting.push_back(event);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn poll(&mut self, context: &Context<'_>) -> Poll<Option<Event>> {
        if self.lost > 0 {
            let events = std::mem::take(&mut self.lost);
            return Poll::Ready(Some(Event {
                name: "lost".into(),
                data: serde_json::json!({"events": events}),
            }));
        }
        match self.waiting.pop_front() {
            Some(event) => Poll::Ready(Some(event)),
            None if self.has_ended => Poll::Ready(None),
            None => {
                self.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Dropped with the thread that hears events: there are no more.
struct Ended(Arc<Mutex<Events>>);

impl Drop for Ended {
    fn drop(&mut self) {
        let mut events = lock(&self.0);
        events.has_ended = true;
        events.wake();
    }
}

/// What a thread will say, once.
struct Slot<T> {
    said: Option<T>,
    is_over: bool,
    waker: Option<Waker>,
}

struct Promise<T>(Arc<Mutex<Slot<T>>>);

struct Reply<T>(Arc<Mutex<Slot<T>>>);

fn promise<T>() -> (Promise<T>, Reply<T>) {
    let slot = Arc::new(Mutex::new(Slot { said: None, is_over: false, waker: None }));
    (Promise(slot.clone()), Reply(slot))
}

impl<T> Promise<T> {
    fn keep(self, said: T) {
        lock(&self.0).said = Some(said);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let mut slot = lock(&self.0);
        slot.is_over = true;
        if let Some(waker) = slot.waker.take() {
            waker.wake();
        }
    }
}

impl<T> Future for Reply<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let mut slot = lock(&self.0);
        match slot.said.take() {
            Some(said) => Poll::Ready(Ok(said)),
            None if slot.is_over => Poll::Ready(Err(gone())),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

async fn on_a_thread<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    let (promise, reply) = promise();
    spawn(move || promise.keep(work()))?;
    reply.await
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    let spawned = thread::Builder::new().name("dray client".into()).spawn(work);
    spawned.map(drop).map_err(|error| Error::file("start a thread", error))
}

fn gone() -> Error {
    Error::new(ErrorKind::Internal, "the thread that speaks to the daemon has ended")
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    /// Whoever awaits gets the answer, or hears that there will be none; never nothing.
    #[test]
    fn a_promise_is_kept_or_broken_aloud() {
        let (kept, mut reply) = promise::<u8>();
        assert!(poll_once(pin!(&mut reply)).is_pending());
        kept.keep(7);
        assert!(matches!(poll_once(pin!(reply)), Poll::Ready(Ok(7))));
        let (broken, reply) = promise::<u8>();
        drop(broken);
        assert!(matches!(poll_once(pin!(reply)), Poll::Ready(Err(_))));
    }

    /// Events that nobody takes are bounded, and their number is told.
    #[test]
    fn events_that_nobody_takes_are_counted() {
        let mut events = Events::default();
        for number in 0..API_EVENTS_WAITING_MAX + 3 {
            events.push(Event { name: number.to_string(), data: serde_json::Value::Null });
        }
        let context = Context::from_waker(Waker::noop());
        let mut next = || match events.poll(&context) {
            Poll::Ready(event) => event,
            Poll::Pending => None,
        };
        assert_eq!(next().unwrap().data["events"], 3);
        assert_eq!(next().unwrap().name, "3");
        assert_eq!(std::iter::from_fn(next).count(), API_EVENTS_WAITING_MAX - 1);
    }
}
