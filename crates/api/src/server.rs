//! The listening end: who may come in, how many, and how it ends.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dray_core::limits::{
    API_CONNECTIONS_MAX, API_HEAD_BYTES_MAX, API_QUESTIONS_MAX, API_TURNED_AWAY_MAX, API_TURNED_AWAY_MS,
};
use dray_core::{Error, ErrorKind, Result};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::answer::{Answer, Idle, Question};
use crate::connection::{Slot, serve, until};
use crate::refusal::{farewell, refusal};

/// Answers requests. Called on threads of their own, any number at once; may block.
pub trait Answering: Send + Sync + 'static {
    /// Answers one request.
    fn answer(&self, question: Question) -> Answer;
}

/// HTTP/1.1 on a Unix socket. Dropped, it ends as [`Server::stop`] does.
#[derive(Debug)]
pub struct Server {
    end: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves this process's user on `listener`.
    pub fn start(listener: UnixListener, answering: Arc<dyn Answering>) -> Result<Server> {
        let failed = |error: std::io::Error| Error::file("start the local API", error);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            // As many as there are questions: none waits for another one's answer.
            .max_blocking_threads(API_QUESTIONS_MAX)
            .thread_name("api")
            .build()
            .map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::UnixListener::from_std(listener).map_err(failed)?
        };
        let (end, ended) = watch::channel(false);
        let desk = Arc::new(Desk { answering, places: Arc::new(Semaphore::new(API_QUESTIONS_MAX)) });
        let run = move || run(runtime, listener, desk, ended);
        let thread = thread::Builder::new().name("api".into()).spawn(run).map_err(failed)?;
        Ok(Server { end, thread: Some(thread) })
    }

    /// Takes no more connections, finishes what is being answered (10 s at most), and returns.
    pub fn stop(&mut self) -> Result<()> {
        self.end.send_replace(true);
        match self.thread.take().map(JoinHandle::join) {
            None | Some(Ok(())) => Ok(()),
            Some(Err(_)) => Err(Error::new(ErrorKind::Internal, "the thread of the local API failed")),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

fn run(runtime: Runtime, listener: tokio::net::UnixListener, desk: Arc<Desk>, ended: watch::Receiver<bool>) {
    runtime.block_on(accept(listener, desk, ended));
    // A thread that works for nobody any more is told so and not waited for.
    runtime.shutdown_background();
}

async fn accept(listener: tokio::net::UnixListener, desk: Arc<Desk>, mut ended: watch::Receiver<bool>) {
    let us = rustix::process::geteuid().as_raw();
    let mut connections = JoinSet::new();
    let mut slots: Vec<Arc<Slot>> = Vec::new();
    let mut door = Door::default();
    loop {
        let accepted = tokio::select! {
            () = until(&mut ended) => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else {
            // Out of descriptors, or a connection that died in the queue: wait a little, never spin.
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        if stream.peer_cred().map(|peer| peer.uid()).ok() != Some(us) {
            door.turn_away(stream, 403, "this service works for another user");
            continue;
        }
        // A slot is also held by the task of its connection.
        slots.retain(|slot| Arc::strong_count(slot) > 1);
        if slots.len() >= API_CONNECTIONS_MAX {
            let idle = slots.iter().enumerate().filter_map(|(at, slot)| Some((slot.idle.since()?, at)));
            let Some((_, longest)) = idle.min() else {
                door.turn_away(stream, 503, "too many connections: try again");
                continue;
            };
            slots.remove(longest).leave.notify_one();
        }
        let slot = Arc::new(Slot { idle: Arc::new(Idle::new()), leave: Notify::new() });
        slots.push(slot.clone());
        connections.spawn(serve(stream, slot, desk.clone(), ended.clone()));
    }
    // The socket may be somebody's who hands it to the next service: who comes meanwhile is told, and not left in silence.
    loop {
        tokio::select! {
            finished = connections.join_next() => if finished.is_none() { break },
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => door.turn_away(stream, 503, "the service is ending: try again"),
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            },
        }
    }
    // Each has its moment.
    door.leaving.join_all().await;
}

/// Those who are not let in. Some clients ask before they read, and hear nothing if the connection is closed by then: so many at
/// once are heard out, for a moment.
#[derive(Default)]
struct Door {
    leaving: JoinSet<()>,
}

impl Door {
    /// Says why in one write, if the socket takes it, and closes once the client has asked or gone.
    fn turn_away(&mut self, stream: UnixStream, status: u16, what: &str) {
        let Ok(mut stream) = stream.into_std() else { return };
        let is_told = stream.write_all(farewell(status, what).as_bytes()).is_ok()
            && stream.shutdown(Shutdown::Write).is_ok();
        while self.leaving.try_join_next().is_some() {}
        if is_told
            && self.leaving.len() < API_TURNED_AWAY_MAX
            && let Ok(stream) = UnixStream::from_std(stream)
        {
            let moment = Duration::from_millis(API_TURNED_AWAY_MS);
            self.leaving.spawn(async move {
                let _ = timeout(moment, hear_out(stream)).await;
            });
        }
    }
}

/// Reads what a request can have, until the client closes.
async fn hear_out(stream: UnixStream) {
    let mut left = API_HEAD_BYTES_MAX;
    while left > 0 && stream.readable().await.is_ok() {
        match stream.try_read(&mut [0; 1024]) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Ok(0) | Err(_) => return,
            Ok(count) => left = left.saturating_sub(count),
        }
    }
}

/// Where questions are answered, so many at once: also those count whose client has gone, as long as somebody works on them.
pub(crate) struct Desk {
    answering: Arc<dyn Answering>,
    places: Arc<Semaphore>,
}

impl Desk {
    pub(crate) async fn answer(&self, question: Question) -> Answer {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            return refusal(503, "too many requests are being answered: try again");
        };
        let answering = self.answering.clone();
        let answered = tokio::task::spawn_blocking(move || {
            let _place = place;
            answering.answer(question)
        });
        answered.await.unwrap_or_else(|_| refusal(500, "the service failed; its log says how"))
    }
}
