//! Events that are printed by a thread of their own: a terminal that is paused, or a pipe that nobody reads, holds up printing and nothing else.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use dray_core::{Error, Result};
use dray_node::{Event, Observer};

/// Events that wait to be printed; those beyond are counted.
const WAITING_MAX: usize = 1024;
/// How long the end waits for the last ones to be printed.
const FAREWELL: Duration = Duration::from_secs(1);

/// The events, and the thread that prints them.
pub(crate) struct Aside {
    queue: Arc<Queue>,
    thread: Option<JoinHandle<()>>,
}

/// What is to be printed.
pub(crate) struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Event>,
    lost: u64,
    is_printing: bool,
    is_over: bool,
}

impl Aside {
    /// Has `printer` told of events from now on.
    pub(crate) fn start(printer: Arc<dyn Observer>) -> Result<Aside> {
        let queue = Arc::new(Queue { state: Mutex::default(), changed: Condvar::new() });
        let printing = queue.clone();
        let run = move || {
            while let Some(event) = printing.next() {
                printer.event(event);
            }
        };
        let thread = thread::Builder::new().name("events".into()).spawn(run);
        let thread = thread.map_err(|error| Error::io("start a thread", error))?;
        Ok(Aside { queue, thread: Some(thread) })
    }

    /// Who takes events in.
    pub(crate) fn observer(&self) -> Arc<dyn Observer> {
        self.queue.clone()
    }

    /// Waits until all that came is printed, not without end.
    pub(crate) fn settle(&self) {
        let state = self.queue.state();
        let is_left = |state: &mut State| !state.waiting.is_empty() || state.is_printing || state.lost > 0;
        drop(self.queue.changed.wait_timeout_while(state, FAREWELL, is_left));
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.settle();
        let mut state = self.queue.state();
        state.is_over = true;
        let is_idle = !state.is_printing;
        drop(state);
        self.queue.changed.notify_all();
        // One that is stuck is left behind.
        if let Some(thread) = self.thread.take().filter(|_| is_idle) {
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next event, when there is one; `None` at the end.
    fn next(&self) -> Option<Event> {
        let mut state = self.state();
        state.is_printing = false;
        self.changed.notify_all();
        let is_idle = |state: &mut State| state.waiting.is_empty() && state.lost == 0 && !state.is_over;
        let waited = self.changed.wait_while(state, is_idle);
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let next = match state.waiting.pop_front() {
            // All those in front of the ones that were lost are told.
            None if state.lost > 0 => {
                let lost = std::mem::take(&mut state.lost);
                Some(Event::Warning(format!("{lost} events were not told: nobody read what was printed")))
            }
            next => next.filter(|_| !state.is_over),
        };
        state.is_printing = next.is_some();
        next
    }
}

impl Observer for Queue {
    fn event(&self, event: Event) {
        let mut state = self.state();
        if state.waiting.len() < WAITING_MAX {
            state.waiting.push_back(event);
        } else {
            state.lost += 1;
        }
        drop(state);
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn note(number: usize) -> Event {
        Event::Note(number.to_string())
    }

    fn texts(told: &Mutex<Vec<Event>>) -> Vec<String> {
        let told = told.lock().unwrap();
        let text = |event: &Event| match event {
            Event::Note(text) | Event::Warning(text) => text.clone(),
            other => panic!("{other:?}"),
        };
        told.iter().map(text).collect()
    }

    /// Design 9: whoever reads the log and stops costs nobody else anything: events are taken in at once, as many as fit into the memory that
    /// they may take, and how many were lost is told when reading goes on.
    #[test]
    fn a_reader_that_stops_holds_up_nobody() {
        let (go_on, gate) = mpsc::channel::<()>();
        let (gate, told) = (Mutex::new(gate), Arc::new(Mutex::new(Vec::new())));
        let printed = told.clone();
        let aside = Aside::start(Arc::new(move |event: Event| {
            let _ = gate.lock().unwrap().recv();
            printed.lock().unwrap().push(event);
        }))
        .unwrap();
        let observer = aside.observer();
        observer.event(note(0));
        while !aside.queue.state().is_printing {
            thread::yield_now();
        }
        (1..WAITING_MAX + 8).for_each(|number| observer.event(note(number)));
        assert!(told.lock().unwrap().is_empty(), "nothing is read");
        drop(go_on);
        drop(aside);
        let told = texts(&told);
        assert_eq!(told.len(), 1 + WAITING_MAX + 1);
        assert!((0..=WAITING_MAX).all(|number| told[number] == number.to_string()));
        assert!(told[WAITING_MAX + 1].starts_with("7 events"), "{}", told[WAITING_MAX + 1]);
    }

    /// The end prints what came before it, and waits for a reader no longer than a moment.
    #[test]
    fn the_end_prints_what_is_left() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let printed = told.clone();
        let aside = Aside::start(Arc::new(move |event| printed.lock().unwrap().push(event))).unwrap();
        (0..5).for_each(|number| aside.observer().event(note(number)));
        drop(aside);
        assert_eq!(texts(&told), ["0", "1", "2", "3", "4"]);
        let (_stuck, gate) = mpsc::channel::<()>();
        let gate = Mutex::new(gate);
        let stuck = move |_: Event| {
            let _ = gate.lock().unwrap().recv();
        };
        let aside = Aside::start(Arc::new(stuck)).unwrap();
        aside.observer().event(note(0));
        drop(aside);
    }
}
