//! Options of `dray sync` that bring less, or only tell: directories alone, a list, sources that go, and how long silence is borne.

use clap::Args;
use dray_core::limits::SYNC_TIMEOUT_MAX_S;
use dray_core::message::FakeWish;
use dray_node::{Event, Listed, ListedKind, Observer};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::telling::shown;
use crate::output::Output;

/// What is said of them.
#[derive(Debug, Default, Args)]
pub(super) struct Further {
    /// Bring over directories without what is in them; of SRC/ what is in SRC, one level
    #[arg(short = 'd', long)]
    dirs: bool,
    /// Pass directories by
    #[arg(long, hide = true, alias = "no-d", overrides_with = "dirs")]
    no_dirs: bool,
    /// Bring over nothing: list what is at SRC, with bits, sizes and times; one level of it, or all with -r or -a
    #[arg(long)]
    pub(super) list_only: bool,
    /// Remove files from SRC, and what else is no directory, once they are in place at DST, on its disk and with the same bytes
    #[arg(long)]
    pub(super) remove_source_files: bool,
    /// Change files that are there instead of replacing them: each keeps its inode, and only what differs is written, once all of it has come beside it
    #[arg(long)]
    pub(super) inplace: bool,
    /// Give up a far end that is silent for so many seconds, 0 for never; else it is 25, and 60 there
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=SYNC_TIMEOUT_MAX_S))]
    pub(super) timeout: Option<u64>,
    /// Keep owners, all permission bits, devices, fifos, sockets and links in an attribute of plain files (user.rsync.%stat, as rsync does) at each end that
    /// is not root, and read them there; with a value at SRC, at DST or at both, also as root
    #[arg(long, value_name = "src|dst|both", num_args = 0..=1, require_equals = true, default_missing_value = "", value_parser = fake_super)]
    pub(super) fake_super: Option<FakeWish>,
}

/// Which ends `--fake-super` is for.
fn fake_super(text: &str) -> Result<FakeWish, &'static str> {
    match text {
        "" => Ok(FakeWish::Users),
        "src" => Ok(FakeWish::Sender),
        "dst" => Ok(FakeWish::Receiver),
        "both" => Ok(FakeWish::Both),
        _ => Err("it is src, dst or both; without a value it counts at each end that is not root"),
    }
}

impl Further {
    /// Directories are told where they are not gone into. As with rsync, a list of sources is of one level.
    pub(super) fn directories(&self) -> bool {
        self.dirs || self.list_only
    }
}

/// Prints what is listed.
pub(super) struct Listing<'a> {
    pub(super) output: &'a Output,
    /// Where symbolic links point is told, too.
    pub(super) links: bool,
}

impl Observer for Listing<'_> {
    fn event(&self, event: Event) {
        match event {
            Event::Listed(mut listed) if !self.output.is_json() => {
                listed.link = listed.link.filter(|_| self.links);
                self.output.line(&line(&listed, &TimeZone::system()));
            }
            event => self.output.event(event),
        }
    }
}

/// As rsync lists an entry.
fn line(listed: &Listed, zone: &TimeZone) -> String {
    let size = with_commas(listed.size_bytes);
    let time = Timestamp::new(listed.mtime_s, listed.mtime_ns.cast_signed())
        .map(|time| time.to_zoned(zone.clone()).strftime("%Y/%m/%d %H:%M:%S").to_string());
    // A time that no calendar has.
    let time = time.unwrap_or_else(|_| format!("@{:<18}", listed.mtime_s));
    let link = listed.link.as_ref().map_or_else(String::new, |link| format!(" -> {}", shown(link)));
    format!("{} {size:>14} {time} {}{link}", letters(listed), shown(&listed.path))
}

fn with_commas(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}

/// The kind and the permission bits in ten letters.
fn letters(listed: &Listed) -> String {
    let mode = listed.mode;
    let kind = match listed.kind {
        ListedKind::File => '-',
        ListedKind::Directory => 'd',
        ListedKind::Link => 'l',
        ListedKind::Fifo => 'p',
        ListedKind::Socket => 's',
        ListedKind::CharacterDevice => 'c',
        ListedKind::BlockDevice => 'b',
    };
    let mut letters = vec![kind];
    for (place, letter) in "rwxrwxrwx".chars().enumerate() {
        letters.push(if mode & (0o400 >> place) != 0 { letter } else { '-' });
    }
    for (bit, place, runs, stands) in [(0o4000, 3, 's', 'S'), (0o2000, 6, 's', 'S'), (0o1000, 9, 't', 'T')] {
        if mode & bit != 0 {
            letters[place] = if letters[place] == 'x' { runs } else { stands };
        }
    }
    letters.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rsync's lines: bits that run as another, sizes in groups of three, links and times before 1970 and beyond any calendar.
    #[test]
    fn entries_are_listed_as_rsync_lists_them() {
        let listed = |kind, mode, size_bytes, mtime_s, link: Option<&str>| Listed {
            kind,
            mode,
            size_bytes,
            mtime_s,
            mtime_ns: 5,
            path: "a/b".into(),
            link: link.map(Into::into),
        };
        for (listed, expected) in [
            (
                listed(ListedKind::File, 0o4755, 1_234_567, 1_700_000_000, None),
                "-rwsr-xr-x      1,234,567 2023/11/14 22:13:20 a/b",
            ),
            (
                listed(ListedKind::Directory, 0o3644, 0, -1, None),
                "drw-r-Sr-T              0 1969/12/31 23:59:59 a/b",
            ),
            (
                listed(ListedKind::Link, 0o777, 999, 0, Some("c")),
                "lrwxrwxrwx            999 1970/01/01 00:00:00 a/b -> c",
            ),
            (
                listed(ListedKind::Fifo, 0o2711, 1000, i64::MAX, None),
                "prwx--s--x          1,000 @9223372036854775807 a/b",
            ),
        ] {
            assert_eq!(line(&listed, &TimeZone::UTC), expected);
        }
    }
}
