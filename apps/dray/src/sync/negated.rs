//! The `--no-` forms of options that are on or off: the last one given counts, as with rsync. Those of what is kept are beside that.

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};

/// Words that take an option back.
#[derive(Clone, Copy, Debug)]
pub(super) struct Negated;

/// The option, the word that takes it back, and the short form of that.
const NEGATED: [(&str, &str, Option<&str>); 20] = [
    ("sparse", "no-sparse", Some("no-S")),
    ("verbose", "no-verbose", Some("no-v")),
    ("itemize_changes", "no-itemize-changes", Some("no-i")),
    ("checksum", "no-checksum", Some("no-c")),
    ("omit_dir_times", "no-omit-dir-times", Some("no-O")),
    ("omit_link_times", "no-omit-link-times", Some("no-J")),
    ("prune_empty_dirs", "no-prune-empty-dirs", Some("no-m")),
    ("one_file_system", "no-one-file-system", Some("no-x")),
    ("compress", "no-compress", Some("no-z")),
    ("human_readable", "no-human-readable", Some("no-h")),
    ("partial", "no-partial", None),
    ("progress", "no-progress", None),
    ("mkpath", "no-mkpath", None),
    ("bwlimit", "no-bwlimit", None),
    ("from0", "no-from0", None),
    ("numeric_ids", "no-numeric-ids", None),
    ("backup", "no-backup", None),
    ("inplace", "no-inplace", None),
    ("timeout", "no-timeout", None),
    ("fsync", "no-fsync", None),
];

impl Args for Negated {
    fn augment_args(command: clap::Command) -> clap::Command {
        NEGATED.iter().fold(command, |command, &(option, word, short)| {
            let arg = Arg::new(word).long(word).aliases(short).hide(true).action(ArgAction::Count);
            command.arg(arg.overrides_with(option))
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Negated::augment_args(command)
    }
}

impl FromArgMatches for Negated {
    fn from_arg_matches(_: &ArgMatches) -> Result<Negated, clap::Error> {
        Ok(Negated)
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        Ok(())
    }
}
