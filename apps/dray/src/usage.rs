//! What was wrong with a command line, in the words of the other errors: habits of other programs get an answer, a
//! slip of the keys a suggestion.

use std::ffi::OsString;

use clap::CommandFactory;
use clap::error::{ContextKind, ContextValue, ErrorKind as Slip};
use dray_core::{Error, ErrorKind};

use crate::arguments::Arguments;
use crate::pasted;
use crate::sync::lacking;

/// Options of scp and rsync that `cp` has not, and what to do instead.
const HABITS: [(&str, &str); 14] = [
    ("-v", "--version says which dray it is; `ssh -v HOST` shows what ssh does; --json tells every event"),
    ("--verbose", "--json tells every event; `ssh -v HOST` shows what ssh does"),
    ("-l", "say --bwlimit RATE: it counts KiB a second where scp counts Kbit"),
    ("-B", "say -o BatchMode=yes"),
    ("-c", "say -o Ciphers=CIPHER"),
    ("-A", "say -o ForwardAgent=yes; it is not needed to copy"),
    ("--delete", "cp removes nothing"),
    ("--progress", "progress is shown by itself on a terminal; --json tells it to programs"),
    ("-V", "say `dray --version`"),
    ("-u", "`dray sync -u` leaves what is newer alone"),
    (
        "-T",
        "a last SRC/. and a DST that is not there are that place itself; cp of a file replaces what DST names",
    ),
    ("-O", "leave it out: no protocol of scp's is spoken"),
    ("--port", "say -P PORT"),
    ("-3", "run dray cp on one of the two hosts, or copy here first"),
];
/// How many slips of the keys a suggestion forgives.
const SLIPS_MAX: usize = 2;

/// True if the command line asks for JSON events, as far as can be told of one that cannot be read.
pub(crate) fn wants_json(arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.take_while(|argument| argument != "--").any(|argument| argument == "--json")
}

/// The command line of a `cp` with `--deploy` in it, as a shell takes it; `None` if it has bytes that are no text: shown,
/// they would name another file.
pub(crate) fn with_deploy(arguments: impl Iterator<Item = OsString>) -> Option<String> {
    let mut words = vec!["dray".to_owned()];
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        let text = argument.to_str()?;
        // Either this program there or one that is named.
        const NAMES: [&str; 2] = ["--remote-dray", "--rsync-path"];
        if NAMES.contains(&text) {
            arguments.next();
        }
        if NAMES.iter().any(|name| text.starts_with(name)) {
            continue;
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+=:@,%[]".contains(&byte);
        let is_plain = !text.is_empty() && text.bytes().all(plain);
        words.push(if is_plain { text.to_owned() } else { format!("'{}'", text.replace('\'', "'\\''")) });
        if words.last().is_some_and(|word| word == "cp" || word == "sync")
            && !words.iter().any(|word| word == "--deploy")
        {
            words.push("--deploy".into());
        }
    }
    Some(words.join(" "))
}

/// The error of a command line that clap does not understand.
pub(crate) fn error(slip: &clap::Error) -> Error {
    let told = slip.render().to_string();
    let what = what(slip, &told);
    Error::new(ErrorKind::Usage, what).advise(advice(slip, &told))
}

/// The first paragraph, without the word in front of it and on one line.
fn what(slip: &clap::Error, told: &str) -> String {
    if matches!(slip.kind(), Slip::MissingSubcommand | Slip::DisplayHelpOnMissingArgumentOrSubcommand) {
        return "no command was given".into();
    }
    let first = told.split("\n\n").next().unwrap_or_default();
    let text = first.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ");
    // Clap takes the only one for DST; whoever wrote it meant SRC.
    let missing = slip.get(ContextKind::InvalidArg);
    let is_source =
        |missing: &ContextValue| matches!(missing, ContextValue::Strings(all) if *all == ["<SRC>..."]);
    if slip.kind() == Slip::MissingRequiredArgument && missing.is_some_and(is_source) {
        return "one place is named, and two are needed: from where and to where".into();
    }
    // A second file of `put` is no unexpected argument to whoever wrote it.
    match excess(slip) {
        Some(argument) if is_of(told, "put") => {
            format!("one file at a time: {argument:?} is one too many")
        }
        _ => text,
    }
}

fn advice(slip: &clap::Error, told: &str) -> String {
    match slip.kind() {
        Slip::InvalidSubcommand => {
            if let Some(near) =
                context(slip, ContextKind::InvalidSubcommand).and_then(|typed| nearest(&typed))
            {
                return format!("did you mean `dray {near}`?");
            }
        }
        Slip::UnknownArgument => {
            if let Some(argument) = context(slip, ContextKind::InvalidArg)
                && (is_of(told, "cp")
                    || argument.to_ascii_lowercase().starts_with("-v")
                    || argument == "--verbose")
                && let Some((_, advice)) = HABITS.iter().find(|(habit, _)| *habit == argument)
            {
                return (*advice).into();
            }
            if let Some(argument) = context(slip, ContextKind::InvalidArg)
                && is_of(told, "sync")
                && let Some(why) = lacking::why(&argument)
            {
                return why.into();
            }
            if excess(slip).is_some_and(|argument| argument.contains(':')) && is_of(told, "put") {
                return "`dray cp FILE HOST:` copies to a host over ssh; put shares a file by a ticket"
                    .into();
            }
            if excess(slip).is_some() && is_of(told, "put") {
                return "run it once for each file: each has its own ticket and is served by its own command"
                    .into();
            }
            if let Some(near) = context(slip, ContextKind::SuggestedArg)
                && context(slip, ContextKind::InvalidArg).is_none_or(|typed| is_near(&typed, &near))
            {
                return format!("did you mean {near}?");
            }
            let takes_files =
                ["put", "cp", "sync", "verify", "demo"].iter().any(|command| is_of(told, command));
            if takes_files && context(slip, ContextKind::InvalidArg).is_some_and(|it| it.starts_with('-')) {
                return format!("a file whose name begins with - is written ./-name; {}", usage(told));
            }
        }
        Slip::ValueValidation => {
            let argument = context(slip, ContextKind::InvalidArg);
            if let Some(command) = argument.and_then(|it| command_with(&it, std::env::args_os())) {
                return format!("`dray {command} --help` says what it takes");
            }
        }
        Slip::MissingRequiredArgument
            if is_of(told, "cp")
                && std::env::args_os().any(|word| word.to_str().is_some_and(pasted::may_be_ticket)) =>
        {
            return "that is a ticket: `dray get TICKET [-o PLACE]` fetches what it is for".into();
        }
        Slip::MissingSubcommand | Slip::DisplayHelpOnMissingArgumentOrSubcommand => {
            return format!("one of {}; `dray --help` says what each does", commands().join(", "));
        }
        _ => {}
    }
    usage(told)
}

/// How the command is called, where clap says so.
fn usage(told: &str) -> String {
    match told.lines().find_map(|line| line.strip_prefix("Usage: ")) {
        Some(usage) => format!("usage: {usage}; --help says more"),
        None => "`dray --help` says what there is".into(),
    }
}

/// The command that has this argument, written as clap does; of several the first that is a word of the command line.
fn command_with(argument: &str, mut line: impl Iterator<Item = OsString>) -> Option<String> {
    let mut all = Arguments::command();
    all.build();
    let has = |sub: &&clap::Command| sub.get_arguments().any(|own| own.to_string() == argument);
    let with: Vec<String> = all.get_subcommands().filter(has).map(|sub| sub.get_name().to_owned()).collect();
    match &with[..] {
        [one] => Some(one.clone()),
        several => line.find_map(|word| several.iter().find(|name| word == name.as_str()).cloned()),
    }
}

/// An argument that is no option and has no place.
fn excess(slip: &clap::Error) -> Option<String> {
    let argument = (slip.kind() == Slip::UnknownArgument).then(|| context(slip, ContextKind::InvalidArg))?;
    argument.filter(|argument| !argument.starts_with('-'))
}

/// Whether the error comes from this command: clap's usage line says so.
fn is_of(told: &str, command: &str) -> bool {
    let usage = told.lines().find(|line| line.starts_with("Usage: ")).unwrap_or_default();
    usage.split_whitespace().nth(2) == Some(command)
}

fn context(slip: &clap::Error, kind: ContextKind) -> Option<String> {
    match slip.get(kind)? {
        ContextValue::String(text) => Some(text.clone()),
        ContextValue::Strings(texts) => texts.first().cloned(),
        _ => None,
    }
}

/// Names of the commands that are shown.
fn commands() -> Vec<String> {
    let all = Arguments::command();
    let shown = all.get_subcommands().filter(|command| !command.is_hide_set());
    shown.map(|command| command.get_name().to_owned()).collect()
}

/// Words of other programs, and what does that here.
const SYNONYMS: [(&str, &str); 14] = [
    ("pull", "get"),
    ("fetch", "get"),
    ("download", "get"),
    ("receive", "get"),
    ("push", "put"),
    ("send", "put"),
    ("upload", "put"),
    ("share", "put"),
    ("copy", "cp"),
    ("scp", "cp"),
    ("clone", "sync"),
    ("mirror", "sync"),
    ("list", "ls"),
    ("stop", "done"),
];

/// The command that was probably meant.
fn nearest(typed: &str) -> Option<String> {
    if let Some((_, meant)) = SYNONYMS.iter().find(|(word, _)| *word == typed) {
        return Some((*meant).into());
    }
    let far = |name: &String| slips(typed.as_bytes(), name.as_bytes());
    let best = commands().into_iter().min_by_key(far)?;
    // A word of which nothing is right means another program.
    (far(&best) <= SLIPS_MAX && far(&best) < best.len()).then_some(best)
}

/// True if less than half of the letters of `option` would have to be typed otherwise.
fn is_near(typed: &str, option: &str) -> bool {
    let letters = option.bytes().filter(u8::is_ascii_alphanumeric).count();
    2 * slips(typed.as_bytes(), option.as_bytes()) < letters
}

/// Letters to change, leave out, add or swap with their neighbour to turn one word into the other (optimal string
/// alignment distance).
fn slips(one: &[u8], other: &[u8]) -> usize {
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut best = (rows[i][j] + usize::from(a != b)).min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of an argument that two commands have, the one that was called is pointed to.
    #[test]
    fn a_wrong_value_leads_to_the_help_of_its_command() {
        let of = |line: &str| command_with("--bwlimit <RATE>", line.split(' ').map(OsString::from));
        assert_eq!(of("dray --quiet sync --bwlimit=abc cp d").as_deref(), Some("sync"));
        assert_eq!(of("dray cp --bwlimit abc sync d").as_deref(), Some("cp"));
        assert_eq!(of("dray put x"), None);
    }

    fn of(line: &str) -> (String, String) {
        let slip = Arguments::read(line.split(' ').map(OsString::from)).unwrap_err();
        let error = error(&slip);
        assert_eq!(error.kind(), ErrorKind::Usage);
        assert_eq!(error.to_string().lines().count(), 1, "{error}");
        (error.to_string(), error.advice().unwrap().to_owned())
    }

    /// Design 5: an error says what to do; habits of scp and slips of the keys are answered, not misled.
    #[test]
    fn habits_and_slips_are_answered() {
        for (line, what, advice) in [
            ("dray gte x", "gte", "`dray get`"),
            ("dray pt x", "pt", "`dray put`"),
            ("dray pull x", "pull", "`dray get`"),
            ("dray clone x", "clone", "`dray sync`"),
            ("dray put a h:", "one file at a time", "dray cp FILE HOST:"),
            ("dray doctro", "doctro", "`dray doctor`"),
            ("dray frobnicate", "frobnicate", "usage: dray"),
            ("dray cp -c x a h:", "'-c'", "Ciphers"),
            ("dray cp -v a h:", "'-v'", "ssh -v"),
            ("dray cp -V", "'-V'", "dray --version"),
            ("dray sync -V a b", "'-V'", "dray --version"),
            ("dray sync --delte a b", "'--delte'", "did you mean --delete?"),
            ("dray sync --foo a b", "'--foo'", "usage: dray sync"),
            ("dray cp --progress a b", "'--progress'", "by itself"),
            ("dray -v", "'-v'", "--version"),
            ("dray cp a", "two are needed", "usage: dray cp <SRC>... <DST>"),
            ("dray sync -a a", "two are needed", "usage: dray sync"),
            ("dray cp -r", "not provided", "usage: dray cp"),
            ("dray put --pubic x", "--pubic", "--public"),
            ("dray get x y", "'y'", "usage: dray get"),
            ("dray put --expire 1y x", "1y", "`dray put --help`"),
            ("dray cp -P x a h:", "'x'", "`dray cp --help`"),
            ("dray put one two", "one file at a time: \"two\"", "once for each"),
            ("dray put -dash", "'-d'", "./-name"),
            ("dray sync -a --delete-before a b", "--delete-before", "say `--delete`"),
            ("dray sync -a --delay-updates a b", "--delay-updates", "not yet"),
            ("dray sync a --info=progress2 b", "--info", "not yet"),
            ("dray --json", "no command", "put, get, cp"),
        ] {
            let told = of(line);
            assert!(told.0.contains(what), "{line}: {told:?}");
            assert!(told.1.contains(advice), "{line}: {told:?}");
            assert!(!told.1.contains("-- -r") && !told.1.contains("remote,"), "{line}: {told:?}");
        }
    }

    /// Design 5: where dray is missing, the error prints the command that brings it there.
    #[test]
    fn the_same_command_with_deploy() {
        let line = ["/usr/bin/dray", "-q", "cp", "--remote-dray", "x", "-P", "22", "it's", "h:a b"]
            .map(OsString::from);
        let command = with_deploy(line.into_iter());
        assert_eq!(command.as_deref(), Some("dray -q cp --deploy -P 22 'it'\\''s' 'h:a b'"));
        let line = ["dray", "sync", "-a", "--rsync-path=sudo dray", "s/", "h:d"].map(OsString::from);
        assert_eq!(with_deploy(line.into_iter()).as_deref(), Some("dray sync --deploy -a s/ h:d"));
        let odd = <OsString as std::os::unix::ffi::OsStringExt>::from_vec(b"\xff".to_vec());
        assert_eq!(with_deploy(["dray".into(), "cp".into(), odd, "h:".into()].into_iter()), None);
    }

    #[test]
    fn slips_are_counted() {
        for (one, other, count) in [("get", "gte", 1), ("put", "pt", 1), ("cp", "copy", 2), ("", "cp", 2)] {
            assert_eq!(slips(one.as_bytes(), other.as_bytes()), count, "{one} {other}");
        }
    }

    #[test]
    fn json_is_wanted_before_the_operands_only() {
        let words = |line: &'static str| line.split(' ').map(OsString::from);
        assert!(wants_json(words("dray gte --json x")));
        assert!(!wants_json(words("dray put -- --json")));
    }
}
