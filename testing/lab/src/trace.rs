//! Rates that change by a plan: steps, or a file in the format of mahimahi.

use std::io;
use std::path::Path;
use std::time::Duration;

use crate::link::Rate;

/// Most steps of one trace; 24 MiB of memory.
const STEPS_MAX: usize = 1 << 20;
/// Longest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Bytes of one line's delivery opportunity in a mahimahi file.
const OPPORTUNITY_BYTES: u64 = 1500;

/// Rates one after the other, and from the beginning again.
#[derive(Clone, PartialEq, Debug)]
pub struct Trace {
    pub(crate) steps: Vec<(Duration, Rate)>,
}

impl Trace {
    /// From steps of (duration, rate).
    ///
    /// # Errors
    /// `InvalidInput` if there is no step, more than a million, or one of less than 100 µs (the engine would do nothing else).
    pub fn steps(steps: impl Into<Vec<(Duration, Rate)>>) -> io::Result<Trace> {
        let steps = steps.into();
        let refuse = |why: String| Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        if steps.is_empty() || steps.len() > STEPS_MAX {
            return refuse(format!("a trace has 1 to {STEPS_MAX} steps, not {}", steps.len()));
        }
        if let Some(at) = steps.iter().position(|(time, _)| *time < Duration::from_micros(100)) {
            return refuse(format!("step {at} of the trace is shorter than 100 µs"));
        }
        Ok(Trace { steps })
    }

    /// From the text of a mahimahi file: each line is the millisecond at which one packet of 1500 bytes may leave. The
    /// opportunities of each `window` become its rate, so that a queue in bytes works as it does for any other link.
    ///
    /// # Errors
    /// `InvalidInput` if a line is no number, the numbers fall, or [`Trace::steps`] refuses what comes out.
    pub fn mahimahi(text: &str, window: Duration) -> io::Result<Trace> {
        let refuse = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let window_ms = u64::try_from(window.as_millis()).unwrap_or(u64::MAX).max(1);
        let mut counts: Vec<u64> = Vec::new();
        let mut last = 0;
        for (index, line) in text.lines().map(str::trim).enumerate().filter(|(_, line)| !line.is_empty()) {
            let at: u64 = line.parse().map_err(|error| refuse(format!("line {}: {error}", index + 1)))?;
            if at < last {
                return Err(refuse(format!("line {}: {at} ms is before {last} ms", index + 1)));
            }
            last = at;
            // The file's period is its last timestamp, and time 0 is the end of the period before.
            let slot = usize::try_from(at.saturating_sub(1) / window_ms).unwrap_or(usize::MAX);
            if slot >= STEPS_MAX {
                return Err(refuse(format!("line {}: more than {STEPS_MAX} windows", index + 1)));
            }
            counts.resize(counts.len().max(slot + 1), 0);
            counts[slot] += 1;
        }
        let windows = counts.len();
        let steps = counts.into_iter().enumerate().map(|(slot, count)| {
            let is_last = slot + 1 == windows;
            let length_ms = if is_last { last.max(1) - slot as u64 * window_ms } else { window_ms };
            let rate = count * OPPORTUNITY_BYTES * 8 * 1000 / length_ms;
            (Duration::from_millis(length_ms), Rate::bits(rate))
        });
        Trace::steps(steps.collect::<Vec<_>>())
    }

    /// [`Trace::mahimahi`] of a file of at most 64 MiB.
    ///
    /// # Errors
    /// As there, and what opening and reading the file gives.
    pub fn mahimahi_file(path: &Path, window: Duration) -> io::Result<Trace> {
        let len = std::fs::metadata(path)?.len();
        if len > FILE_BYTES_MAX {
            let why = format!("{} is longer than {FILE_BYTES_MAX} bytes", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        Trace::mahimahi(&std::fs::read_to_string(path)?, window)
    }

    /// Length of one round.
    pub fn period(&self) -> Duration {
        self.steps.iter().map(|(time, _)| *time).sum()
    }

    /// Bytes that pass in one round.
    pub fn bytes(&self) -> u64 {
        self.steps.iter().map(|(time, rate)| rate.bytes_in(*time)).sum()
    }

    /// The smallest rate.
    pub(crate) fn slowest(&self) -> Rate {
        self.steps.iter().map(|(_, rate)| *rate).min().unwrap_or(Rate::bits(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mahimahi_file_keeps_its_bytes_and_its_period() {
        // 2 packets in the first 10 ms, none in the next, 3 in the last 5 ms.
        let trace = Trace::mahimahi("1\n10\n\n21\n25\n25\n", Duration::from_millis(10)).unwrap();
        assert_eq!(trace.period(), Duration::from_millis(25));
        assert_eq!(trace.bytes(), 5 * 1500);
        assert_eq!(trace.steps[0], (Duration::from_millis(10), Rate::bits(2_400_000)));
        assert_eq!(trace.steps[1].1, Rate::bits(0));
        assert_eq!(trace.steps[2], (Duration::from_millis(5), Rate::bits(7_200_000)));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let window = Duration::from_millis(10);
        for (text, why) in [("", "1 to"), ("a", "line 1"), ("5\n4", "line 2"), ("-1", "line 1")] {
            let error = Trace::mahimahi(text, window).unwrap_err().to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
        let far = format!("1\n{}\n", u64::MAX);
        assert!(Trace::mahimahi(&far, window).unwrap_err().to_string().contains("windows"));
        assert!(Trace::steps([(Duration::from_nanos(1), Rate::mbit(1))]).is_err());
    }
}
