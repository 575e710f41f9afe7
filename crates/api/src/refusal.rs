//! What the transport itself refuses, in the form that all errors of the API have.

use crate::answer::Answer;

/// An answer that refuses with `status`, and says why in `what`: our own words, without a quotation mark.
pub(crate) fn refusal(status: u16, what: &str) -> Answer {
    Answer::json(status, document(status, what))
}

/// The same for a connection that gets no further: head and body.
pub(crate) fn farewell(status: u16, what: &str) -> String {
    let reason = hyper::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason());
    let (reason, body) = (reason.unwrap_or(""), document(status, what));
    let length = body.len();
    format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn document(status: u16, what: &str) -> String {
    debug_assert!(!what.contains(['"', '\\', '\n']), "it would need to be escaped");
    let kind = match status {
        408 => "timed-out",
        500 => "internal",
        503 | 403 => "refused",
        _ => "usage",
    };
    let retryable = matches!(status, 408 | 503);
    format!("{{\"kind\":\"{kind}\",\"what\":\"{what}\",\"advice\":null,\"retryable\":{retryable}}}")
}
