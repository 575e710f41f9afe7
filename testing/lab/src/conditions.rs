//! Links that people have, by name, each with a reason for its numbers. Rates are those of IP packets.

use std::time::Duration;

use crate::link::{Link, Loss, Queue, Rate};

/// Both directions of a link between two hosts.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Condition {
    /// How it is asked for.
    pub name: &'static str,
    /// From the first host to the second.
    pub up: Link,
    /// Back.
    pub down: Link,
    /// Where the numbers come from.
    pub why: &'static str,
}

impl Condition {
    const fn symmetric(name: &'static str, link: Link, why: &'static str) -> Condition {
        Condition { name, up: link, down: link, why }
    }

    /// Time from one end to the other and back on an idle link.
    pub fn round_trip(&self) -> Duration {
        self.up.delay + self.down.delay
    }
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

/// Gigabit Ethernet in one building.
pub const LAN: Condition = Condition::symmetric(
    "lan",
    Link::new(Rate::mbit(1000), Duration::from_micros(100)).with_queue(Queue::Bytes(512 << 10)),
    "1 Gbit/s, 0.2 ms there and back, and the half megabyte of buffer of a small switch",
);

/// Two data centres of one continent.
pub const GIGABIT_50_MS: Condition = Condition::symmetric(
    "1g-50ms",
    Link::new(Rate::mbit(1000), ms(25)),
    "a cross-country path: 2,500 km of fibre and its routers are 25 ms each way; 6 MB in flight",
);

/// Two continents.
pub const LONG_FAT: Condition = Condition::symmetric(
    "100m-132ms",
    Link::new(Rate::mbit(100), ms(66)),
    "Europe to the American west coast, 66 ms each way; 1.6 MB in flight, where windows that never grow show",
);

/// The same with a little loss.
pub const LONG_FAT_LOSSY: Condition = Condition::symmetric(
    "100m-132ms-lossy",
    Link::new(Rate::mbit(100), ms(66)).with_loss(Loss::Random(0.001)),
    "as 100m-132ms with 1 packet in 1,000 lost, as a cheap transit does",
);

/// The leased line of the older papers.
pub const T1: Condition = Condition::symmetric(
    "t1",
    Link::new(Rate::kbit(1544), ms(20)),
    "1.544 Mbit/s and 40 ms there and back, as in the experiments this project repeats",
);

/// A home line over copper.
pub const DSL: Condition = Condition {
    name: "dsl",
    up: Link::new(Rate::mbit(1), ms(12)).with_queue(Queue::Time(ms(300))),
    down: Link::new(Rate::mbit(16), ms(12)).with_queue(Queue::Time(ms(100))),
    why: "ADSL2+ at its usual sync rates, 24 ms there and back, and a modem that queues a third of a second upstream",
};

/// A geostationary satellite.
pub const SATELLITE: Condition = Condition {
    name: "satellite",
    up: Link::new(Rate::mbit(3), ms(300)).with_loss(Loss::Random(0.0005)),
    down: Link::new(Rate::mbit(25), ms(300)).with_loss(Loss::Random(0.0005)),
    why: "35,786 km up and down is 240 ms each way, and the shared return channel adds the rest; residual loss after coding",
};

/// A wireless LAN at the edge of its range.
pub const WIFI_LOSSY: Condition = Condition::symmetric(
    "wifi-lossy",
    Link::new(Rate::mbit(30), ms(3)).with_queue(Queue::Time(ms(50))).with_loss(Loss::Burst {
        to_bad: 0.002,
        to_good: 0.1,
        in_bad: 1.0,
    }),
    "retries of 802.11 hide single losses, so what is left comes in bursts: about 2 % in runs of 10 packets",
);

/// All of them.
pub const ALL: [Condition; 8] =
    [LAN, GIGABIT_50_MS, LONG_FAT, LONG_FAT_LOSSY, T1, DSL, SATELLITE, WIFI_LOSSY];

/// What a condition is called that was given by its numbers and is none of [`ALL`].
pub const GIVEN: &str = "given";

/// A condition by its name, or as `RATE/ROUND-TRIP[/LOSS%]`, for example `10M/40ms` or `1.5M/40ms/0.1%`: symmetric, with
/// half of the round trip each way and a queue of one bandwidth-delay product. One of [`ALL`] has its name also if it is asked for by its
/// numbers.
///
/// # Errors
/// What is wrong with the text.
pub fn parse(text: &str) -> Result<Condition, String> {
    if let Some(named) = ALL.iter().find(|condition| condition.name == text) {
        return Ok(*named);
    }
    let names: Vec<&str> = ALL.iter().map(|condition| condition.name).collect();
    let help = || {
        format!(
            "{text:?} is no link: use RATE/ROUND-TRIP[/LOSS%], as in 100M/132ms/0.1%, or one of {}",
            names.join(", ")
        )
    };
    let parts: Vec<&str> = text.split('/').collect();
    let (rate, round_trip, loss) = match parts[..] {
        [rate, time] => (rate, time, None),
        [rate, time, loss] => (rate, time, Some(loss)),
        _ => return Err(help()),
    };
    let number = |text: &str| text.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let scaled = |text: &str, units: &[(&str, f64)]| {
        let (unit, factor) = units.iter().find(|(unit, _)| text.ends_with(unit))?;
        Some(number(text.strip_suffix(unit)?)? * factor)
    };
    let rate = scaled(rate, &[("k", 1e3), ("M", 1e6), ("G", 1e9)]).filter(|bits| (1.0..=1e12).contains(bits));
    let seconds = scaled(round_trip, &[("ms", 1e-3), ("s", 1.0)]).filter(|seconds| *seconds <= 3600.0);
    let loss = match loss {
        None => Some(Loss::None),
        Some(text) => scaled(text, &[("%", 0.01)]).filter(|share| *share < 1.0).map(Loss::Random),
    };
    let (Some(rate), Some(seconds), Some(loss)) = (rate, seconds, loss) else { return Err(help()) };
    let link = Link::new(Rate::bits(rate as u64), Duration::from_secs_f64(seconds / 2.0)).with_loss(loss);
    // One link has one name, whoever asks for it.
    let named = ALL.iter().find(|condition| (condition.up, condition.down) == (link, link));
    Ok(named.copied().unwrap_or(Condition::symmetric(GIVEN, link, "given by hand")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_and_every_condition_has_a_reason() {
        for condition in ALL {
            assert_eq!(parse(condition.name), Ok(condition));
            assert!(condition.why.len() > 20, "{}", condition.name);
        }
        let given = Condition { name: GIVEN, why: "given by hand", ..parse("100M/131ms").unwrap() };
        assert_eq!((parse("100M/131ms"), given.round_trip()), (Ok(given), ms(131)));
        let lossy = parse("1.544M/40ms/0.1%").unwrap();
        assert_eq!((lossy.up.rate, lossy.up.loss), (T1.up.rate, Loss::Random(0.001)));
        assert!((WIFI_LOSSY.up.loss.share() - 0.02).abs() < 0.001);
    }

    /// One link has one name.
    #[test]
    fn numbers_of_a_named_link_are_that_link() {
        for (numbers, named) in
            [("100M/132ms", LONG_FAT), ("0.1G/0.132s/0.1%", LONG_FAT_LOSSY), ("1G/50ms", GIGABIT_50_MS)]
        {
            assert_eq!(parse(numbers), Ok(named), "{numbers}");
        }
        // Its queue is another one.
        assert_eq!(parse("1G/0.2ms").unwrap().name, GIVEN);
    }

    /// The page for readers lists every condition.
    #[test]
    fn the_page_on_testing_names_every_condition() {
        let page = include_str!("../../../docs/testing.md");
        for condition in ALL {
            assert!(page.contains(&format!("| `{}` |", condition.name)), "{}", condition.name);
        }
    }

    #[test]
    fn what_is_no_link_is_refused_with_an_example() {
        for text in [
            "",
            "100M",
            "fast/1ms",
            "100M/",
            "-1M/1ms",
            "1M/1h",
            "0M/1ms",
            "NaNM/1ms",
            "1M/1ms/100%",
            "1M/1ms/2",
            "1/2/3/4",
            "infM/1ms",
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains("100M/132ms/0.1%"), "{text}: {error}");
        }
    }
}
