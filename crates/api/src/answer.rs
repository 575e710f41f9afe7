//! Requests and answers as blocking code sees them.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use hyper::body::{Body, Bytes, Frame, SizeHint};

use crate::events::EventReceiver;

/// What is asked for. Other methods are answered before anybody sees them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Method {
    /// Reads and changes nothing.
    Get,
    /// Changes something, and may do it twice if sent twice.
    Post,
    /// Removes something.
    Delete,
}

/// A request, complete.
#[derive(Debug)]
pub struct Question {
    /// What to do.
    pub method: Method,
    /// The path as it was sent, without the query.
    pub path: String,
    /// What follows the first `?`, as it was sent; empty if there is none.
    pub query: String,
    /// Features that the client cannot do without: the header `Dray-Require`, as it was sent.
    pub required: String,
    /// The body, at most `API_BODY_BYTES_MAX`.
    pub body: Vec<u8>,
    /// True once nobody waits for the answer any more.
    pub(crate) gone: Arc<AtomicBool>,
}

impl Question {
    /// Whether the client has gone: work that takes long ends early then.
    pub fn is_abandoned(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    pub(crate) status: u16,
    pub(crate) content_type: &'static str,
    pub(crate) content_range: Option<String>,
    pub(crate) body: AnswerBody,
}

impl Answer {
    /// A JSON document.
    pub fn json(status: u16, text: String) -> Answer {
        let body = AnswerBody::whole(text.into_bytes());
        Answer { status, content_type: "application/json", content_range: None, body }
    }

    /// Text, in the form that Prometheus reads.
    pub fn text(text: String) -> Answer {
        let body = AnswerBody::whole(text.into_bytes());
        Answer { status: 200, content_type: "text/plain; version=0.0.4", content_range: None, body }
    }

    /// Nothing more: 204.
    pub fn empty() -> Answer {
        let body = AnswerBody::whole(Vec::new());
        Answer { status: 204, content_type: "", content_range: None, body }
    }

    /// Bytes `start..start + bytes.len()` of `size_bytes`: 206.
    pub fn part(start: u64, bytes: Vec<u8>, size_bytes: u64) -> Answer {
        let last = start + (bytes.len() as u64).saturating_sub(1);
        Answer {
            status: 206,
            content_type: "application/octet-stream",
            content_range: Some(format!("bytes {start}-{last}/{size_bytes}")),
            body: AnswerBody::whole(bytes),
        }
    }

    /// Server-sent events, until the last of their senders is dropped or the client goes. `guard` is dropped then.
    pub fn events(events: EventReceiver, guard: Box<dyn Send>) -> Answer {
        let body = AnswerBody { content: Content::Events(events, guard), busy: None };
        Answer { status: 200, content_type: "text/event-stream", content_range: None, body }
    }
}

/// The body of an answer, with what is to be dropped when it has been sent.
#[derive(Debug)]
pub(crate) struct AnswerBody {
    content: Content,
    busy: Option<Busy>,
}

enum Content {
    Whole(Option<Bytes>),
    Events(EventReceiver, #[expect(dead_code, reason = "it is there to be dropped")] Box<dyn Send>),
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Content::Whole(_) => "Whole",
            Content::Events(..) => "Events",
        })
    }
}

/// Since when nothing was asked on a connection.
#[derive(Debug)]
pub(crate) struct Idle(Mutex<Option<Instant>>);

impl Idle {
    /// From now on.
    pub(crate) fn new() -> Idle {
        Idle(Mutex::new(Some(Instant::now())))
    }

    /// `None` while a request is being answered.
    pub(crate) fn since(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, since: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = since;
    }
}

/// A connection is in use as long as one of these is there.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Idle>);

impl Busy {
    pub(crate) fn new(idle: Arc<Idle>) -> Busy {
        idle.set(None);
        Busy(idle)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.set(Some(Instant::now()));
    }
}

impl AnswerBody {
    fn whole(bytes: Vec<u8>) -> AnswerBody {
        AnswerBody {
            content: Content::Whole(Some(Bytes::from(bytes)).filter(|bytes| !bytes.is_empty())),
            busy: None,
        }
    }

    pub(crate) fn keeps(&mut self, busy: Busy) {
        self.busy = Some(busy);
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match &mut self.content {
            Content::Whole(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Content::Events(events, _) => {
                events.poll(context).map(|event| event.map(|event| Ok(Frame::data(event))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.content {
            Content::Whole(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Content::Events(..) => SizeHint::default(),
        }
    }
}
