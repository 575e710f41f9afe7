//! How a transfer fails: barring sources, choosing the cause that tells most, and giving up.

use dray_core::error::ErrorKind;
use dray_core::source::SourceId;

use super::source::{Cause, SourceRecord};
use super::{Planner, PlannerCommand, SourceState};

/// Sources named in one error; there may be a thousand.
const NAMED_SOURCES_MAX: usize = 8;

impl Planner {
    /// Closes a source for the rest of the transfer.
    pub(super) fn bar(&mut self, source: SourceId, cause: Cause) {
        self.remove_all(source);
        let Some(record) = self.sources.get_mut(&source).filter(|record| !record.is_over()) else { return };
        record.state = SourceState::Barred;
        record.cause = Some(cause);
        self.commands.push_back(PlannerCommand::CloseSource { source });
        self.fail_if_nobody_is_left();
    }

    /// Fails if no source can ever be asked again: with the kind of the most telling cause, and everybody's cause in words.
    pub(super) fn fail_if_nobody_is_left(&mut self) {
        if self.is_decided() || !self.sources.values().all(SourceRecord::is_over) {
            return;
        }
        let causes = self.sources.values().filter_map(|record| Some((record, record.cause.as_ref()?)));
        let mut causes: Vec<_> = causes.collect();
        causes.sort_by_key(|(_, cause)| cause.rank());
        let Some((_, first)) = causes.first() else { return };
        let mut telling = Cause::clone(first);
        let culprits = causes.iter().map(|(record, cause)| labelled(record, cause));
        telling.text = name(culprits, "; ");
        self.fail(telling);
    }

    /// Fails because nobody has made progress for too long.
    pub(super) fn give_up(&mut self) {
        let seconds = self.config.give_up_us as f64 / 1e6;
        if self.sources.is_empty() {
            let cause = Cause::new(ErrorKind::TimedOut, format!("no source was found for {seconds} s"));
            return self.fail(cause.advise("ask the sender for a new ticket"));
        }
        let mut culprits: Vec<&SourceRecord> = self.sources.values().collect();
        // Those who could have gone on come first.
        culprits.sort_by_key(|record| record.is_over());
        let names = name(culprits.iter().map(|record| describe(record, self.polled_us)), ", ");
        let mut text = format!("no progress for {seconds} s: {names}");
        if self.budget_retry_us.is_some() {
            text += "; the memory budget had no room for another request";
        }
        let advice = if culprits.iter().any(|record| record.is_at_work(self.polled_us)) {
            "check the disk that is written to, then run the same command again: it resumes"
        } else {
            "check the network and that the sender still runs, then run the same command again: it resumes"
        };
        self.fail(Cause::new(ErrorKind::TimedOut, text).advise(advice));
    }

    /// Fails because requests are numbered with 32 bits and all numbers have been used.
    pub(super) fn fail_for_want_of_numbers(&mut self) {
        let cause = Cause::new(ErrorKind::Interrupted, "one transfer cannot make more than 2^32 requests");
        self.fail(cause.advise("run the same command again: it resumes"));
    }

    fn fail(&mut self, cause: Cause) {
        if self.is_decided() {
            return;
        }
        self.failure = Some(cause);
        let open: Vec<SourceId> =
            self.sources.iter().filter(|(_, record)| !record.is_over()).map(|(&source, _)| source).collect();
        for source in open {
            self.remove_all(source);
            self.commands.push_back(PlannerCommand::CloseSource { source });
        }
    }
}

/// The first few culprits, and how many more there are.
fn name(culprits: impl ExactSizeIterator<Item = String>, between: &str) -> String {
    let more = culprits.len().saturating_sub(NAMED_SOURCES_MAX);
    let mut names: Vec<String> = culprits.take(NAMED_SOURCES_MAX).collect();
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names.join(between)
}

fn describe(record: &SourceRecord, now_us: u64) -> String {
    let state = match record.state {
        SourceState::Up | SourceState::Stalled if record.is_at_work(now_us) => {
            "what it sent was still being stored here"
        }
        SourceState::Connecting => "never answered",
        SourceState::Up | SourceState::Stalled if record.keeps_failing() => "keeps failing",
        SourceState::Up | SourceState::Stalled => "went silent",
        SourceState::Down => "connection lost",
        SourceState::Gone => "gone",
        SourceState::Barred => "not used any more",
    };
    match &record.cause {
        // Said once: the cause may begin with what the state says.
        Some(cause) if cause.text.starts_with(state) => {
            format!("{} ({})", record.description.label, cause.text)
        }
        Some(cause) => format!("{} ({state}: {})", record.description.label, cause.text),
        None => format!("{} ({state})", record.description.label),
    }
}

/// What happened to a source, with its label unless the text names the source already: it begins with the label, or has
/// the address in the label (`host:port`) as one of its words.
fn labelled(record: &SourceRecord, cause: &Cause) -> String {
    let label = record.description.label.as_str();
    let begins = cause.text.strip_prefix(label).is_some_and(|rest| rest.starts_with([' ', ':']));
    let address = label.rsplit(' ').next().filter(|address| address.contains(':'));
    let mut words = cause.text.split(' ').map(|word| word.trim_end_matches([':', ',', ';']));
    if begins || address.is_some_and(|address| words.any(|word| word == address)) {
        cause.text.clone()
    } else {
        format!("{label}: {}", cause.text)
    }
}
