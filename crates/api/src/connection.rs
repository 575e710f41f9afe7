//! One connection: requests in, answers out, everything bounded in size and time.

use std::convert::Infallible;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dray_core::limits::{API_BODY_BYTES_MAX, API_HEAD_BYTES_MAX, API_HEADERS_MAX, API_TIMEOUT_MS};
use hyper::body::{Body, Incoming};
use hyper::header::{CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::answer::{AnswerBody, Busy, Idle, Method, Question};
use crate::patience::Patient;
use crate::refusal::refusal;
use crate::server::Desk;

/// What a connection and the server know of each other.
pub(crate) struct Slot {
    pub(crate) idle: Arc<Idle>,
    /// It shall give its place to another one.
    pub(crate) leave: Notify,
}

fn patience() -> Duration {
    Duration::from_millis(API_TIMEOUT_MS)
}

/// Serves until the client goes, breaks the rules, is asked to leave, or `end` says that everything ends: then what is
/// being answered still is.
pub(crate) async fn serve(
    stream: UnixStream,
    slot: Arc<Slot>,
    desk: Arc<Desk>,
    mut end: watch::Receiver<bool>,
) {
    let idle = slot.idle.clone();
    let service = service_fn(move |request| answer(request, desk.clone(), Busy::new(idle.clone())));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience())
        .max_buf_size(API_HEAD_BYTES_MAX)
        .max_headers(API_HEADERS_MAX)
        .serve_connection(TokioIo::new(Patient::new(stream, patience())), service);
    let mut serving = pin!(serving);
    tokio::select! {
        // Whatever ended it, there is nobody left to tell.
        _ = serving.as_mut() => {}
        () = slot.leave.notified() => {}
        // Who has asked nothing is not waited for.
        () = until(&mut end) => if slot.idle.since().is_none() {
            serving.as_mut().graceful_shutdown();
            let _ = timeout(patience(), serving).await;
        }
    }
}

/// Waits for the end of the service.
pub(crate) async fn until(end: &mut watch::Receiver<bool>) {
    // An error means that the server is gone, which is the end as well.
    let _ = end.wait_for(|end| *end).await.map(drop);
}

async fn answer(
    request: Request<Incoming>,
    desk: Arc<Desk>,
    busy: Busy,
) -> Result<Response<AnswerBody>, Infallible> {
    let (head, body) = request.into_parts();
    let (mut answer, closes) = match read(&head.headers, body).await {
        Err((status, words)) => (refusal(status, words), true),
        Ok(body) => {
            let method = match head.method {
                hyper::Method::GET => Some(Method::Get),
                hyper::Method::POST => Some(Method::Post),
                hyper::Method::DELETE => Some(Method::Delete),
                _ => None,
            };
            let gone = Gone(Arc::default());
            let question = method.map(|method| Question {
                method,
                path: head.uri.path().to_owned(),
                query: head.uri.query().unwrap_or("").to_owned(),
                required: required(&head.headers),
                body,
                gone: gone.0.clone(),
            });
            let answer = match question {
                None => refusal(405, "the API has the methods GET, POST and DELETE"),
                Some(question) => desk.answer(question).await,
            };
            (answer, false)
        }
    };
    answer.body.keeps(busy);
    let status = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = Response::new(answer.body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    if !answer.content_type.is_empty() {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(answer.content_type));
    }
    if let Some(range) = answer.content_range.and_then(|range| HeaderValue::from_str(&range).ok()) {
        headers.insert(CONTENT_RANGE, range);
    }
    if closes {
        // What is left of the body is not read, so nothing after it can be.
        headers.insert(hyper::header::CONNECTION, HeaderValue::from_static("close"));
    }
    Ok(response)
}

/// Told to the thread that makes the answer when nobody waits for it any more.
struct Gone(Arc<AtomicBool>);

impl Drop for Gone {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn required(headers: &HeaderMap) -> String {
    let values = headers.get_all("dray-require").iter().filter_map(|value| value.to_str().ok());
    values.collect::<Vec<_>>().join(",")
}

/// The whole body, or the status and words with which it is refused.
async fn read(headers: &HeaderMap, mut body: Incoming) -> Result<Vec<u8>, (u16, &'static str)> {
    const TOO_LARGE: (u16, &str) = (413, "a request body has at most 1 MiB: send pieces, or a descriptor");
    let told = headers.get(hyper::header::CONTENT_LENGTH);
    let told = told.and_then(|value| value.to_str().ok()).and_then(|text| text.parse::<u64>().ok());
    if told.is_some_and(|bytes| bytes > API_BODY_BYTES_MAX as u64) {
        return Err(TOO_LARGE);
    }
    let whole = async {
        let mut bytes = Vec::new();
        while let Some(frame) = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await
        {
            let frame = frame.map_err(|_| (400, "the body of the request is not HTTP"))?;
            let Ok(data) = frame.into_data() else { continue };
            if bytes.len() + data.len() > API_BODY_BYTES_MAX {
                return Err(TOO_LARGE);
            }
            bytes.extend_from_slice(&data);
        }
        Ok(bytes)
    };
    timeout(patience(), whole).await.unwrap_or(Err((408, "the body of the request did not come in 10 s")))
}
