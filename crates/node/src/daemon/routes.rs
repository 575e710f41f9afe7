//! The API's paths: what is asked, who answers it, and how errors are told (`docs/api.md`).

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Instant;

use dray_api::{Answer, Answering, Descriptors, Method, Question, events};
use dray_client::types::{
    Begun, Directories, FEATURES, IndexQuestion, Info, NewDirectory, NewGet, NewPut, Nothing, Problem,
    Shares, Transactions, Written,
};
use dray_core::limits::API_BODY_BYTES_MAX;
use dray_core::ticket::DirectoryId;
use dray_core::{Error, ErrorKind, Oid, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use super::desk::name;
use super::getting::GetTransaction;
use super::putting::PutTransaction;
use super::{State, metrics};
use crate::elsewhere::Hints;
use crate::{AGENT, explain, from_hex};

/// Of a list beside what is in it.
const ENVELOPE_BYTES: usize = 200;

/// Answers requests.
pub(super) struct Routes {
    pub(super) state: Arc<State>,
    pub(super) descriptors: Arc<Descriptors>,
}

impl Answering for Routes {
    fn answer(&self, question: Question) -> Answer {
        let begun = Instant::now();
        let result = self.route(&question);
        let kind = result.as_ref().err().map(|error| error.kind().word());
        let elapsed_us = begun.elapsed().as_micros() as u64;
        tracing::debug!(method = ?question.method, path = question.path, kind, elapsed_us, "answered");
        match result {
            Ok(answer) => answer,
            Err(error) => refusal(&error),
        }
    }
}

/// The answer that tells an error.
pub(super) fn refusal(error: &Error) -> Answer {
    Answer::json(status(error), serde_json::to_string(&Problem::of(error)).unwrap_or_default())
}

impl Routes {
    fn route(&self, question: &Question) -> Result<Answer> {
        let state = &self.state;
        let node = state.node();
        check_required(&node.config.api_without, &question.required)?;
        let parts: Vec<&str> = question.path.split('/').skip(1).collect();
        // What is left out is answered in the words in which a daemon answers that never had it.
        check_required(&node.config.api_without, feature_of(&parts))?;
        match (question.method, parts.as_slice()) {
            (Method::Get, ["v1"]) => document(200, &self.info()),
            (Method::Get, ["v1", "events"]) => self.events(),
            (Method::Get, ["v1", "shares"]) => document(200, &self.shares(&question.query)?),
            (Method::Post, ["v1", "shares"]) => self.share(question),
            (Method::Delete, ["v1", "shares", oid]) => {
                state.shelf.done(&oid.parse::<Oid>()?, &|| question.is_abandoned())?;
                Ok(Answer::empty())
            }
            (Method::Get, ["v1", "directories"]) => document(200, &self.directories(&question.query)?),
            (Method::Post, ["v1", "directories"]) => self.share_directory(question),
            (Method::Delete, ["v1", "directories", id]) => {
                let ended = state.directories.done(id.parse::<DirectoryId>()?, &|| question.is_abandoned());
                // What the disk did not take is tried again soon.
                state.shelf.stir();
                ended.map(|()| Answer::empty())
            }
            (Method::Get, ["v1", "transactions"]) => {
                document(200, &Transactions { transactions: state.desk.lines() })
            }
            (Method::Delete, ["v1", "transactions", name]) => {
                state.desk.end(name)?;
                Ok(Answer::empty())
            }
            (Method::Post, ["v1", "puts"]) => self.begin_put(parse(&question.body)?),
            (Method::Post, ["v1", "puts", name, "data"]) => {
                let [offset] = numbers(&question.query, ["offset"])?;
                let size_bytes = state.desk.put(name)?.write(state, offset, &question.body)?;
                document(200, &Written { size_bytes })
            }
            (Method::Post, ["v1", "puts", name, "commit"]) => {
                parse_nothing(&question.body)?;
                let transaction = state.desk.put(name)?;
                let mut shared = transaction.commit(state, &|| question.is_abandoned())?;
                state.indexing.stir();
                shared.warnings.extend(state.port_warning());
                document(200, &shared)
            }
            (Method::Post, ["v1", "gets"]) => self.begin_get(parse(&question.body)?),
            (Method::Get, ["v1", "gets", name, "data"]) => {
                let wish = PieceWish::of(&question.query)?;
                let transaction = state.desk.get(name)?;
                let piece = transaction.piece(state, wish.number, wish.most, &|| question.is_abandoned())?;
                Ok(match piece {
                    Some(piece) => Answer::part(piece.offset, piece.bytes, piece.size_bytes),
                    None => Answer::empty(),
                })
            }
            (Method::Post, ["v1", "gets", name, "finish"]) => {
                parse_nothing(&question.body)?;
                let transaction = state.desk.get(name)?;
                document(200, &transaction.finish(state, &|| question.is_abandoned())?)
            }
            (Method::Get, ["v1", "explain"]) => {
                let [ended] = numbers(&question.query, ["ended"])?;
                let paths = &state.node().config.paths;
                let mut transfers = explain::running(paths);
                transfers
                    .extend(ended.filter(|ended| *ended > 0).into_iter().flat_map(|_| explain::ended(paths)));
                document(200, &json!({"transfers": transfers}))
            }
            (Method::Get, ["v1", "index"]) => document(200, &state.indexing.state()),
            (Method::Post, ["v1", "index"]) => {
                let question: IndexQuestion = parse(&question.body)?;
                let directory = self
                    .handed_over("index", Some(&question.descriptor))?
                    .ok_or_else(|| Error::new(ErrorKind::Usage, "which directory is searched is missing"))?;
                let answer = state.indexing.ask(directory.as_fd(), &question)?;
                if question.chunks.is_empty() && question.size_bytes.is_none() {
                    // Who has fetched something says so.
                    state.indexing.stir();
                }
                document(200, &answer)
            }
            (Method::Get, ["v1", "metrics"]) => Ok(Answer::text(metrics::page(state))),
            _ => {
                let what = format!(
                    "the API has no {} {:?}",
                    format!("{:?}", question.method).to_uppercase(),
                    question.path
                );
                Err(Error::new(ErrorKind::NotFound, what).advise("docs/api.md lists what it has"))
            }
        }
    }

    fn info(&self) -> Info {
        let state = &self.state;
        let node = state.node();
        let (shares, cached_bytes) = state.shelf.counts();
        Info {
            agent: AGENT.into(),
            features: offered(&node.config.api_without).map(str::to_owned).collect(),
            node: node.id().to_string(),
            port: state.port(),
            pid: std::process::id(),
            started_unix_s: state.started_unix_s,
            data_dir: node.config.paths.data_dir.to_string_lossy().into_owned(),
            shares: shares as u64,
            directories: state.directories.count() as u64,
            cached_bytes,
            sessions: state.hub.sessions() as u64,
            transactions: state.desk.count() as u64,
            warnings: state.warnings(),
        }
    }

    /// What is shared after the object that the query names, as much as fits into an answer.
    fn shares(&self, query: &str) -> Result<Shares> {
        let after = after::<Oid>(query)?;
        let (shares, is_all) = page(self.state.shelf.lines(after.as_ref()));
        let next = shares.last().filter(|_| !is_all).map(|line| line.oid.clone());
        Ok(Shares { shares, next })
    }

    /// The same of directories.
    fn directories(&self, query: &str) -> Result<Directories> {
        let (directories, is_all) = page(self.state.directories.lines(after(query)?));
        let next = directories.last().filter(|_| !is_all).map(|line| line.id.clone());
        Ok(Directories { directories, next })
    }

    /// Shares a directory that was handed over.
    fn share_directory(&self, question: &Question) -> Result<Answer> {
        let wish: NewDirectory = parse(&question.body)?;
        let handed = self.handed_over("directories", Some(&wish.descriptor))?;
        let handed = handed.ok_or_else(|| Error::new(ErrorKind::Usage, "descriptor is missing"))?;
        let state = &self.state;
        let is_abandoned = || question.is_abandoned();
        let shared = state.directories.put(&state.node(), state.port(), &wish, &handed, &is_abandoned);
        // It may be the first to expire.
        state.shelf.stir();
        let mut shared = shared?;
        shared.warnings.extend(state.port_warning());
        document(200, &shared)
    }

    /// A session begins, and ends when the answer does.
    fn events(&self) -> Result<Answer> {
        let session = name("session")?;
        let (sender, receiver) = events();
        self.state.hub.join(session.clone(), sender)?;
        let guard = SessionGuard { state: self.state.clone(), session };
        Ok(Answer::events(receiver, Box::new(guard)))
    }

    fn begin_put(&self, wish: NewPut) -> Result<Answer> {
        let file = self.handed_over("put-descriptor", wish.descriptor.as_deref())?.map(File::from);
        let transaction = PutTransaction::begin(&self.state, wish, file)?;
        document(201, &Begun { transaction })
    }

    /// Puts a file that was handed over, in one request.
    fn share(&self, question: &Question) -> Result<Answer> {
        check_required(&self.state.node().config.api_without, "put,put-descriptor,put-at-once")?;
        let wish: NewPut = parse(&question.body)?;
        let Some(file) = self.handed_over("put-descriptor", wish.descriptor.as_deref())? else {
            return Err(Error::new(
                ErrorKind::Usage,
                "what is put at once is handed over: descriptor is missing",
            ));
        };
        let is_abandoned = || question.is_abandoned();
        let mut shared = PutTransaction::at_once(&self.state, wish, File::from(file), &is_abandoned)?;
        self.state.indexing.stir();
        shared.warnings.extend(self.state.port_warning());
        document(200, &shared)
    }

    fn begin_get(&self, wish: NewGet) -> Result<Answer> {
        let descriptor = self.handed_over("get-descriptor", wish.descriptor.as_deref())?;
        let transaction = GetTransaction::begin(&self.state, wish, descriptor)?;
        document(201, &Begun { transaction })
    }

    /// The descriptor that was handed over under a name.
    fn handed_over(&self, feature: &str, name: Option<&str>) -> Result<Option<OwnedFd>> {
        let Some(name) = name else { return Ok(None) };
        check_required(&self.state.node().config.api_without, feature)?;
        let nonce = from_hex(name)?.try_into();
        let nonce = nonce.map_err(|_| Error::new(ErrorKind::Usage, "a descriptor's name has 16 bytes"))?;
        self.descriptors.take(&nonce).map(Some)
    }
}

/// Ends its session when it is dropped.
struct SessionGuard {
    state: Arc<State>,
    session: String,
}

impl Drop for SessionGuard {
    fn drop(&mut self) {
        // First no transaction can begin in it any more, then those that did are undone.
        self.state.hub.leave(&self.session);
        let (state, session) = (self.state.clone(), std::mem::take(&mut self.session));
        let named = session.clone();
        // Dropped on the thread that serves all clients, which shall not wait for a disk.
        let spawned = std::thread::Builder::new()
            .name("session ends".into())
            .spawn(move || state.desk.end_session(&state.shelf, &session));
        if spawned.is_err() {
            self.state.desk.end_session(&self.state.shelf, &named);
        }
    }
}

/// The features of this daemon.
fn offered(without: &[String]) -> impl Iterator<Item = &'static str> {
    FEATURES.into_iter().filter(|name| !without.iter().any(|left_out| left_out == name))
}

/// The feature that a path belongs to; of descriptors the body of the request decides.
fn feature_of(parts: &[&str]) -> &'static str {
    match parts {
        ["v1", "puts", ..] => "put",
        ["v1", "gets", ..] => "get",
        ["v1", "shares", ..] => "shares",
        ["v1", "directories", ..] => "directories",
        ["v1", "explain", ..] => "explain",
        ["v1", "metrics", ..] => "metrics",
        ["v1", "index", ..] => "index",
        _ => "",
    }
}

/// D37: a client that cannot do without something is told which part is missing.
fn check_required(without: &[String], required: &str) -> Result<()> {
    let names = required.split(',').map(str::trim).filter(|name| !name.is_empty());
    let missing: Vec<&str> = names.filter(|name| !offered(without).any(|known| known == *name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::Unsupported, format!("this daemon ({AGENT}) has no {}", missing.join(", ")))
        .advise("update the daemon, or look at api_without in its configuration, and start it again"))
}

/// Of a list, the name after which it is to begin.
fn after<T: FromStr<Err = Error>>(query: &str) -> Result<Option<T>> {
    match query.split_once('=') {
        None if query.is_empty() => Ok(None),
        Some(("after", name)) => name.parse().map(Some),
        _ => Err(Error::new(ErrorKind::Usage, format!("{query:?} means nothing here"))),
    }
}

/// As much of a list as fits into an answer, and whether that is all of it.
fn page<T: Serialize>(lines: Vec<T>) -> (Vec<T>, bool) {
    let mut left_bytes = API_BODY_BYTES_MAX - ENVELOPE_BYTES;
    let all = lines.len();
    let mut fits = |line: &T| {
        let bytes = serde_json::to_string(line).map_or(0, |text| text.len() + 1);
        let left = left_bytes.checked_sub(bytes);
        left_bytes = left.unwrap_or(0);
        left.is_some()
    };
    let page: Vec<T> = lines.into_iter().take_while(|line| fits(line)).collect();
    let is_all = page.len() == all;
    (page, is_all)
}

/// The numbers of a query, in the order of `names`.
fn numbers<const N: usize>(query: &str, names: [&str; N]) -> Result<[Option<u64>; N]> {
    let mut found = [None; N];
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let at = part.split_once('=').and_then(|(name, number)| {
            let at = names.iter().position(|known| *known == name)?;
            Some((at, number)).filter(|(at, _)| found[*at].is_none())
        });
        let Some((at, number)) = at else {
            return Err(Error::new(ErrorKind::Usage, format!("{part:?} means nothing here")));
        };
        let number = number.parse();
        found[at] = Some(number.map_err(|_| Error::new(ErrorKind::Usage, format!("{part:?} is no number")))?);
    }
    Ok(found)
}

/// Which piece of an object is asked for.
struct PieceWish {
    number: Option<u64>,
    most: usize,
}

impl PieceWish {
    fn of(query: &str) -> Result<PieceWish> {
        let [number, size] = numbers(query, ["piece", "size"])?;
        let most = size.map_or(API_BODY_BYTES_MAX, |size| usize::try_from(size).unwrap_or(usize::MAX));
        if most == 0 {
            return Err(Error::new(ErrorKind::Usage, "a piece has at least one byte"));
        }
        Ok(PieceWish { number, most: most.min(API_BODY_BYTES_MAX) })
    }
}

fn parse<A: DeserializeOwned>(body: &[u8]) -> Result<A> {
    serde_json::from_slice(body).map_err(|error| {
        Error::new(ErrorKind::Usage, format!("the body is not the JSON it should be: {error}"))
    })
}

/// The body of a request that has nothing to say. A wish in it would be lost in silence.
fn parse_nothing(body: &[u8]) -> Result<()> {
    if body.is_empty() { Ok(()) } else { parse::<Nothing>(body).map(drop) }
}

fn document(status: u16, document: &impl Serialize) -> Result<Answer> {
    let text = serde_json::to_string(document)
        .map_err(|error| Error::new(ErrorKind::Internal, "an answer is no JSON").caused_by(error))?;
    Ok(Answer::json(status, text))
}

/// The status that fits a kind best; the kind itself is in the body.
fn status(error: &Error) -> u16 {
    match error.kind() {
        ErrorKind::Usage => 400,
        // A limit, or somebody else at work: not for want of a right.
        ErrorKind::Refused if error.is_retryable() => 503,
        ErrorKind::Refused => 403,
        ErrorKind::NotFound => 404,
        ErrorKind::Changed | ErrorKind::Interrupted => 409,
        ErrorKind::Unsupported => 501,
        ErrorKind::Unreachable | ErrorKind::Protocol | ErrorKind::VerificationFailed => 502,
        ErrorKind::TimedOut => 504,
        ErrorKind::NoSpace => 507,
        _ => 500,
    }
}
