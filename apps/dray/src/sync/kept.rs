//! What of each entry is kept: rsync's letters and words, each with its `--no-` form, of which the last one given counts.

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};

/// What `-a -r -l -p -t -o -g -D -H -A -X` and the like come to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) recursive: bool,
    /// Not only because `-a` says so.
    pub(super) recursive_itself: bool,
    pub(super) links: bool,
    pub(super) perms: bool,
    pub(super) times: bool,
    pub(super) owner: bool,
    pub(super) group: bool,
    pub(super) devices: bool,
    pub(super) specials: bool,
    pub(super) hard_links: bool,
    pub(super) acls: bool,
    pub(super) xattrs: bool,
}

/// Word, letter, and help.
const OPTIONS: [(&str, Option<char>, &str); 12] = [
    ("archive", Some('a'), "-rlptgoD: all but hard links, ACLs and attributes"),
    ("recursive", Some('r'), "Go into directories"),
    ("links", Some('l'), "Keep symbolic links"),
    ("perms", Some('p'), "Keep permission bits"),
    ("times", Some('t'), "Keep modification times"),
    ("owner", Some('o'), "Keep owners, as far as the user there may"),
    ("group", Some('g'), "Keep groups, as far as the user there may"),
    ("devices", None, "Keep devices"),
    ("specials", None, "Keep fifos and sockets"),
    ("hard-links", Some('H'), "Keep hard links"),
    ("acls", Some('A'), "Keep ACLs (and permission bits)"),
    ("xattrs", Some('X'), "Keep extended attributes"),
];

/// `-D`, which has no word.
const BOTH: &str = "D";

impl Args for Kept {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flag = |name: &'static str| Arg::new(name).action(ArgAction::Count);
        let command = OPTIONS.iter().fold(command, |command, &(word, letter, help)| {
            let option = flag(word).long(word).help(help);
            let command = command.arg(if let Some(letter) = letter { option.short(letter) } else { option });
            match negative(word) {
                Some((no, short)) => command.arg(flag(no).long(no).aliases(short).hide(true)),
                None => command,
            }
        });
        command
            .arg(flag(BOTH).short('D').help("Keep devices, fifos and sockets"))
            .arg(flag("no-D").long("no-D").hide(true))
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Kept::augment_args(command)
    }
}

/// The word that takes an option back, and its short form.
fn negative(word: &str) -> Option<(&'static str, Option<&'static str>)> {
    Some(match word {
        "recursive" => ("no-recursive", Some("no-r")),
        "links" => ("no-links", Some("no-l")),
        "perms" => ("no-perms", Some("no-p")),
        "times" => ("no-times", Some("no-t")),
        "owner" => ("no-owner", Some("no-o")),
        "group" => ("no-group", Some("no-g")),
        "devices" => ("no-devices", None),
        "specials" => ("no-specials", None),
        "hard-links" => ("no-hard-links", Some("no-H")),
        "acls" => ("no-acls", Some("no-A")),
        "xattrs" => ("no-xattrs", Some("no-X")),
        _ => return None,
    })
}

impl FromArgMatches for Kept {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Kept, clap::Error> {
        let last = |name: &str| {
            let is_given = matches.value_source(name) == Some(ValueSource::CommandLine);
            matches.indices_of(name).filter(|_| is_given).and_then(|places| places.max())
        };
        // Each by what implies it.
        let is_on = |word: &str, implied_by: &[&str], taken_back_by: &[&str]| {
            let on = implied_by.iter().chain([&word]).filter_map(|name| last(name)).max();
            let no = negative(word).map(|(no, _)| no);
            let off = taken_back_by.iter().copied().chain(no).filter_map(last).max();
            on.is_some() && on > off
        };
        let archive = &["archive"][..];
        Ok(Kept {
            recursive: is_on("recursive", archive, &[]),
            recursive_itself: is_on("recursive", &[], &[]),
            links: is_on("links", archive, &[]),
            perms: is_on("perms", &["archive", "acls"], &[]),
            times: is_on("times", archive, &[]),
            owner: is_on("owner", archive, &[]),
            group: is_on("group", archive, &[]),
            devices: is_on("devices", &["archive", BOTH], &["no-D"]),
            specials: is_on("specials", &["archive", BOTH], &["no-D"]),
            hard_links: is_on("hard-links", &[], &[]),
            acls: is_on("acls", &[], &[]),
            xattrs: is_on("xattrs", &[], &[]),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Kept::from_arg_matches(matches)?;
        Ok(())
    }
}
