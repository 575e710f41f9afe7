//! The API from the moment its socket listens: until everything is loaded, who asks who is there hears that the daemon starts, and
//! every other request waits. A client so tells one that starts from one that is stuck.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dray_api::{Answer, Answering, Method, Question};
use dray_core::{Error, ErrorKind};

use super::routes::{self, Routes};
use crate::lock;

/// How long `GET /v1` waits for the start before it says that it is under way. Clients take a second's silence for nothing bad.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a waiting request looks whether its client still waits.
const INTERVAL: Duration = Duration::from_millis(100);

/// Answers by [`Routes`] once they are there.
#[derive(Default)]
pub(super) struct Opening {
    stage: Mutex<Stage>,
    changed: Condvar,
}

#[derive(Default)]
enum Stage {
    #[default]
    Starting,
    Open(Arc<Routes>),
    /// It will not be.
    Failed,
}

impl Opening {
    /// From now on requests are answered.
    pub(super) fn open(&self, routes: Routes) {
        self.set(Stage::Open(Arc::new(routes)));
    }

    fn set(&self, stage: Stage) {
        *lock(&self.stage) = stage;
        self.changed.notify_all();
    }

    /// The routes, as soon as they are there; an error if they will not be, or `is_over` says that nobody waits any more.
    fn routes(&self, is_over: impl Fn() -> bool) -> Result<Arc<Routes>, Error> {
        let refused = |what| Error::new(ErrorKind::Refused, what);
        let mut stage = lock(&self.stage);
        loop {
            match &*stage {
                Stage::Open(routes) => return Ok(routes.clone()),
                Stage::Failed => return Err(refused("the daemon cannot start; its log says why")),
                Stage::Starting if is_over() => {
                    return Err(refused("the daemon is starting")
                        .with_retryable(true)
                        .advise("ask again: it loads what it shares, or waits for its port"));
                }
                Stage::Starting => {}
            }
            stage = self.changed.wait_timeout(stage, INTERVAL).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Answering for Opening {
    fn answer(&self, question: Question) -> Answer {
        let begun = Instant::now();
        let asks_who = question.method == Method::Get && question.path == "/v1";
        let is_over = || question.is_abandoned() || (asks_who && begun.elapsed() >= PATIENCE);
        match self.routes(is_over) {
            Ok(routes) => routes.answer(question),
            Err(error) => routes::refusal(&error),
        }
    }
}

/// Says that nothing will be opened, unless it was: dropped before the server is, whose end waits for what is being answered.
pub(super) struct Attempt(pub(super) Arc<Opening>);

impl Drop for Attempt {
    fn drop(&mut self) {
        let mut stage = lock(&self.0.stage);
        if matches!(*stage, Stage::Starting) {
            *stage = Stage::Failed;
            self.0.changed.notify_all();
        }
    }
}
