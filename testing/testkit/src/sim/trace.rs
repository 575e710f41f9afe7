//! What happened, event by event, as one hash: two runs with equal hashes did the same things at the same times. On demand
//! also as lines for a person.

use std::fmt::Write as _;

/// Bytes that are hashed at a time.
const BATCH_BYTES: usize = 1 << 16;

/// Where the lines go.
pub type TraceLines = Box<dyn FnMut(&str)>;

/// The trace of one run.
pub(crate) struct Trace {
    hasher: blake3::Hasher,
    batch: Vec<u8>,
    events: u64,
    lines: Option<TraceLines>,
}

impl Trace {
    pub(crate) fn new(lines: Option<TraceLines>) -> Trace {
        Trace {
            hasher: blake3::Hasher::new(),
            batch: Vec::with_capacity(BATCH_BYTES + 256),
            events: 0,
            lines,
        }
    }

    /// `what` happened at `now_ns`, with the numbers that tell it from others of its kind.
    pub(crate) fn note(&mut self, now_ns: u64, what: &'static str, figures: &[u64]) {
        self.events += 1;
        self.batch.extend_from_slice(&now_ns.to_le_bytes());
        self.batch.extend_from_slice(what.as_bytes());
        self.batch.push(figures.len() as u8);
        for figure in figures {
            self.batch.extend_from_slice(&figure.to_le_bytes());
        }
        if self.batch.len() >= BATCH_BYTES {
            self.hasher.update(&self.batch);
            self.batch.clear();
        }
        if let Some(lines) = &mut self.lines {
            let mut line = format!("{:>16.6} {what}", now_ns as f64 / 1e9);
            for figure in figures {
                // Writing to a string cannot fail.
                let _ = write!(line, " {figure}");
            }
            lines(&line);
        }
    }

    /// The same for words, for example those of an error.
    pub(crate) fn say(&mut self, now_ns: u64, what: &'static str, node: usize, words: &str) {
        self.batch.extend_from_slice(words.as_bytes());
        self.note(now_ns, what, &[node as u64]);
        if let Some(lines) = &mut self.lines {
            lines(words);
        }
    }

    pub(crate) fn events(&self) -> u64 {
        self.events
    }

    pub(crate) fn hash(&self) -> String {
        let mut hasher = self.hasher.clone();
        hasher.update(&self.batch);
        hasher.finalize().to_hex().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two runs have one hash only if the same happened at the same times.
    #[test]
    fn times_words_and_figures_are_all_hashed() {
        let hash = |now_ns: u64, what: &'static str, words: &str, figures: &[u64]| {
            let mut trace = Trace::new(None);
            trace.note(now_ns, what, figures);
            trace.say(now_ns, what, 0, words);
            trace.hash()
        };
        let one = hash(5, "sent", "to all", &[1, 2]);
        assert_eq!(one, hash(5, "sent", "to all", &[1, 2]));
        for other in [
            hash(6, "sent", "to all", &[1, 2]),
            hash(5, "seen", "to all", &[1, 2]),
            hash(5, "sent", "to one", &[1, 2]),
            hash(5, "sent", "to all", &[1, 3]),
            hash(5, "sent", "to all", &[1]),
        ] {
            assert_ne!(one, other);
        }
    }
}
