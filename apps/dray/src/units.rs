//! Times as people write them: `30s`, `10m`, `2h`, `7d`.

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

#[cfg(test)]
mod tests {
    use super::*;

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
