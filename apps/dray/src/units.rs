//! Times, rates and sizes as people write them: `30s`, `10m`, `2h`, `7d`; `500`, `1.5m`, `10MB`.

use std::time::Duration;

/// Parses a whole number and a unit (`s`, `m`, `h`, `d`, `w`).
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let seconds = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        "w" => 7 * 24 * 3600,
        _ => return Err("write a number and a unit, for example 30s, 10m, 2h or 7d".into()),
    };
    let number: u64 = number.parse().map_err(|_| "write a number and a unit, for example 30s")?;
    let total = number.checked_mul(seconds).filter(|total| *total > 0 && *total < 1 << 40);
    total.map(Duration::from_secs).ok_or_else(|| "that time is out of range".into())
}

/// Parses a rate as `rsync --bwlimit` does: KiB a second, or with a suffix (`K`, `KiB`, `M`, `MiB`, `G`, `T` are powers of 1024, `KB`,
/// `MB`, `GB`, `TB` of 1000, `B` is bytes), also with a fraction. Bytes a second; `None` for 0, which means without limit.
pub(crate) fn rate(text: &str) -> Result<Rate, String> {
    let bytes = counted(text, 1024.0)
        .ok_or("write KiB a second, or a number with K, M, G, T, KB, MB, GB, TB or B")?;
    if bytes == 0.0 {
        return Ok(Rate(None));
    }
    if (512.0..1e15).contains(&bytes) {
        return Ok(Rate(Some(bytes as u64)));
    }
    Err("a rate is at least 512 bytes a second and less than 1000 TB, or 0 for none".into())
}

/// Parses a size as `rsync --max-size` does: bytes, or with the suffixes of [`rate`]; `+1` or `-1` behind it is that many bytes.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    let (number, more) = match (text.strip_suffix("+1"), text.strip_suffix("-1")) {
        (Some(number), _) => (number, 1),
        (_, Some(number)) => (number, -1),
        _ => (text, 0),
    };
    let bytes = counted(number, 1.0).filter(|bytes| (0.0..9e18).contains(bytes));
    let bytes = bytes.and_then(|bytes| (bytes as u64).checked_add_signed(more));
    bytes.ok_or_else(|| "write bytes, or a number with K, M, G, T, KB, MB, GB or TB, for example 1.5M".into())
}

/// A number with a unit; one without has `plain`.
fn counted(text: &str, plain: f64) -> Option<f64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" => plain,
        "b" => 1.0,
        "k" | "kib" => 1024.0,
        "m" | "mib" => 1_048_576.0,
        "g" | "gib" => 1_073_741_824.0,
        "t" | "tib" => 1_099_511_627_776.0,
        "kb" => 1e3,
        "mb" => 1e6,
        "gb" => 1e9,
        "tb" => 1e12,
        _ => return None,
    };
    number.parse::<f64>().ok().map(|number| number * unit)
}

/// Bytes a second; `None` is without limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rate(pub(crate) Option<u64>);

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue `--bwlimit`: the units of rsync.
    #[test]
    fn rates_are_those_of_rsync() {
        for (text, bytes) in [
            ("500", 512_000),
            ("1.5m", 1_572_864),
            ("1K", 1024),
            ("2KB", 2000),
            ("10MB", 10_000_000),
            ("1GiB", 1 << 30),
            ("600B", 600),
        ] {
            assert_eq!(rate(text), Ok(Rate(Some(bytes))), "{text}");
        }
        assert_eq!(rate("0"), Ok(Rate(None)));
        for bad in ["", "x", "-1", "1.2.3", "1 m", "5q", "100B", "99999999999999999999g", "nan", "inf"] {
            assert!(rate(bad).is_err(), "{bad}");
        }
    }

    /// Issue "--max-size": the units of rsync, bytes without one.
    #[test]
    fn sizes_are_those_of_rsync() {
        for (text, bytes) in [
            ("0", 0),
            ("500", 500),
            ("1.5k", 1536),
            ("2KB", 2000),
            ("1m-1", (1 << 20) - 1),
            ("1T+1", (1 << 40) + 1),
            ("7b", 7),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for bad in ["", "x", "-1", "0-1", "1.2.3", "5q", "99999999999999999999g", "nan", "inf", "+1"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn human_durations() {
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        assert_eq!(duration("1w"), Ok(Duration::from_secs(604_800)));
        for bad in
            ["", "s", "30", "30 s", "-1s", "0s", "1y", "99999999999999999999d", "18446744073709551615w"]
        {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }
}
