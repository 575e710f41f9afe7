//! Rules of what is left out and protected: rsync's options for them, in the order in which they were given, and the files that they name.

use std::ffi::{OsStr, OsString};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;

use clap::{Arg, ArgAction, ArgMatches, Args, FromArgMatches};
use dray_core::{Error, ErrorKind, Result};
use dray_node::read_rule;

use super::list::Input;

/// Most bytes of a file of patterns.
const RULES_FILE_BYTES_MAX: u64 = 1 << 20;

/// Patterns, in the order in which they were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rules(Vec<(&'static str, OsString)>);

/// Options that give rules, and what they say.
const RULES: [(&str, &str, &str); 5] = [
    (
        "filter",
        "RULE",
        "Leave out, protect, hide or read rules from files, as rsync's filters do: '- PATTERN', '+ PATTERN', 'P PATTERN', '. FILE', ': NAME'",
    ),
    (
        "exclude",
        "PATTERN",
        "Leave out what matches, unless a pattern before it says otherwise, as rsync reads it",
    ),
    ("include", "PATTERN", "Do not leave out what matches"),
    ("exclude-from", "FILE", "Read --exclude patterns from a file, one a line (- for standard input)"),
    ("include-from", "FILE", "Read --include patterns from a file, one a line (- for standard input)"),
];

/// Options without a value that give rules, each time where it stands: the first time the first one, the second time the second.
const FLAGS: [(&str, &[&str]); 2] =
    [("gitignore", &[":g .gitignore"]), ("F", &[": .rsync-filter", "- .rsync-filter"])];

impl Args for Rules {
    fn augment_args(command: clap::Command) -> clap::Command {
        // Counted they would have one place, the last.
        let flag = |name: &'static str| {
            Arg::new(name).action(ArgAction::Append).num_args(0).default_missing_value("")
        };
        let command = RULES.iter().fold(command, |command, &(name, value, help)| {
            let parser = clap::value_parser!(OsString);
            let arg = Arg::new(name)
                .long(name)
                .value_name(value)
                .help(help)
                .value_parser(parser)
                .allow_hyphen_values(true);
            let arg = if name == "filter" { arg.short('f') } else { arg };
            command.arg(arg.action(ArgAction::Append))
        });
        command
            .arg(
                flag("gitignore")
                    .long("gitignore")
                    .help("Leave out what the .gitignore files of SRC name, as git reads them"),
            )
            .arg(
                flag("F").short('F').help(
                    "Read rules from .rsync-filter in each directory; twice: and leave those files out",
                ),
            )
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Rules::augment_args(command)
    }
}

impl FromArgMatches for Rules {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Rules, clap::Error> {
        let mut all = Vec::new();
        for (name, _, _) in RULES {
            let values = matches.get_many::<OsString>(name).into_iter().flatten();
            let places = matches.indices_of(name).into_iter().flatten();
            all.extend(places.zip(values).map(|(place, value)| (place, name, value.clone())));
        }
        for (name, implied) in FLAGS {
            let places = matches.indices_of(name).into_iter().flatten();
            all.extend(places.zip(implied).map(|(place, rule)| (place, name, OsString::from(rule))));
        }
        all.sort_by_key(|(place, _, _)| *place);
        Ok(Rules(all.into_iter().map(|(_, name, value)| (name, value)).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Rules::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Rules {
    /// The rules, as they travel. `ends_with_nul` says how lines of files end.
    pub(super) fn read(&self, ends_with_nul: bool, input: &mut Input) -> Result<Vec<Vec<u8>>> {
        let mut rules = Vec::new();
        for (name, value) in &self.0 {
            let sign = if name.starts_with("include") { b'+' } else { b'-' };
            match *name {
                "exclude" | "include" => add_pattern(&mut rules, sign, value.as_bytes()),
                "filter" => add_rule(&mut rules, value.as_bytes(), ends_with_nul, Some(&mut *input))?,
                "gitignore" => rules.push(value.as_bytes().to_vec()),
                "F" => add_rule(&mut rules, value.as_bytes(), ends_with_nul, None)?,
                _ => {
                    let lines = lines_of(value, ends_with_nul, input)?;
                    lines.iter().for_each(|line| add_pattern(&mut rules, sign, line));
                }
            }
        }
        Ok(rules)
    }

    /// Which options gave them.
    #[cfg(test)]
    pub(super) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.iter().map(|(name, _)| *name)
    }
}

/// As rsync has it: `+ ` or `- ` in front counts more than the option's name, and `!` forgets what came before.
fn add_pattern(rules: &mut Vec<Vec<u8>>, sign: u8, text: &[u8]) {
    let (sign, pattern) = match text {
        b"!" => return rules.clear(),
        [sign @ (b'+' | b'-'), b' ', rest @ ..] => (*sign, rest),
        text => (sign, text),
    };
    if !pattern.is_empty() {
        rules.push([&[sign][..], pattern].concat());
    }
}

/// A rule of `--filter`; where a file may be named, for which there is `input`, its lines.
fn add_rule(
    rules: &mut Vec<Vec<u8>>,
    text: &[u8],
    ends_with_nul: bool,
    input: Option<&mut Input>,
) -> Result<()> {
    if text == b"!" || text == b"clear" {
        rules.clear();
        return Ok(());
    }
    let merge = text.strip_prefix(b"merge").or_else(|| text.strip_prefix(b"."));
    let (Some(rest), Some(input)) = (merge, input) else {
        rules.extend(read_rule(text)?);
        return Ok(());
    };
    let rest = rest.strip_prefix(b",").unwrap_or(rest);
    let end = rest.iter().position(|byte| matches!(byte, b' ' | b'_'));
    let (modifiers, path) = end.map_or((rest, &[][..]), |end| (&rest[..end], &rest[end + 1..]));
    let sign = match modifiers {
        b"" => None,
        [sign @ (b'-' | b'+')] => Some(*sign),
        _ => {
            let what =
                format!("the rule {:?} has a modifier that is not taken", String::from_utf8_lossy(text));
            return Err(
                Error::new(ErrorKind::Usage, what).advise("of a file that is read once only - and + are")
            );
        }
    };
    if path.is_empty() {
        return Err(Error::new(ErrorKind::Usage, "a rule names no file to read rules from"));
    }
    for line in lines_of(OsStr::from_bytes(path), ends_with_nul, input)? {
        match sign {
            Some(sign) => add_pattern(rules, sign, &line),
            // A file that reads files might never end.
            None => add_rule(rules, &line, ends_with_nul, None)?,
        }
    }
    Ok(())
}

/// Lines of a file, without notes and empty ones.
fn lines_of(path: &OsStr, ends_with_nul: bool, input: &mut Input) -> Result<Vec<Vec<u8>>> {
    let is_end = |byte: &u8| if ends_with_nul { *byte == 0 } else { b"\n\r".contains(byte) };
    let is_note = |line: &[u8]| !ends_with_nul && matches!(line.first(), Some(b'#' | b';'));
    let bytes = read_lines(path, input)?;
    let lines = bytes.split(is_end).filter(|line| !line.is_empty() && !is_note(line));
    Ok(lines.map(<[u8]>::to_vec).collect())
}

fn read_lines(path: &OsStr, input: &mut Input) -> Result<Vec<u8>> {
    let failed = |error| Error::io(format!("cannot read the patterns in {path:?}"), error);
    let mut bytes = Vec::new();
    let mut file = input.open(path)?.map_err(failed)?;
    let count = file.by_ref().take(RULES_FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(failed)?;
    if count as u64 > RULES_FILE_BYTES_MAX {
        return Err(Error::new(ErrorKind::Usage, format!("{path:?} is too large for a file of patterns")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rsync's habits: rules count in the order of the command line, and signs in front of a pattern count more.
    #[test]
    fn rules_keep_their_order() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("rules");
        std::fs::write(&file, "# note\n\n*.o\r\n+ keep.o\n; note\n- last\n").unwrap();
        let of = |rules: &[(&'static str, &str)]| {
            let rules = rules.iter().map(|(name, value)| (*name, OsString::from(value))).collect();
            let read = Rules(rules).read(false, &mut Input::default()).unwrap();
            read.into_iter().map(|rule| String::from_utf8(rule).unwrap()).collect::<Vec<_>>()
        };
        let file = file.to_str().unwrap();
        assert_eq!(of(&[("include", "*.c"), ("exclude", "*"), ("include", "x")]), ["+*.c", "-*", "+x"]);
        assert_eq!(of(&[("exclude", "+ a"), ("include", "- b"), ("exclude", "-c")]), ["+a", "-b", "--c"]);
        assert_eq!(of(&[("exclude-from", file), ("include-from", file)])[..3], ["-*.o", "+keep.o", "-last"]);
        assert_eq!(of(&[("exclude", "a"), ("exclude", "!"), ("exclude", "b")]), ["-b"]);
        // rsync's filters, as they travel.
        let filters = std::path::Path::new(file).with_file_name("filters");
        std::fs::write(&filters, "- *.o\nP keep\n# note\ninclude,s x\n").unwrap();
        let filters = format!("merge {}", filters.display());
        assert_eq!(of(&[("filter", &filters)]), ["-*.o", "=-r keep", "=+s x"]);
        let patterns = format!(".- {file}");
        assert_eq!(of(&[("filter", &patterns)]), ["-*.o", "+keep.o", "-last"]);
        for (rule, read) in [
            ("- a", &["-a"][..]),
            ("+_a b", &["+a b"]),
            ("-! */", &["=-! */"]),
            ("exclude,p a", &["=-p a"]),
            ("hide a", &["=-s a"]),
            ("show,! a", &["=+!s a"]),
            ("R a", &["=+r a"]),
            (": .rules", &[": .rules"]),
            ("dir-merge,- .gitignore", &[":- .gitignore"]),
            (":en- /.rules", &["-.rules", ":n- .rules"]),
        ] {
            assert_eq!(of(&[("filter", rule)]), read, "{rule}");
        }
        assert_eq!(of(&[("exclude", "a"), ("filter", "clear"), ("F", ": .r")]), [": .r"]);
        for bad in ["x a", "- ", "-", "", "-x a", "-C", ": a/b", ". ", ".w f", "protect", "-/ a", ": .."] {
            let rules = Rules(vec![("filter", OsString::from(bad))]).read(false, &mut Input::default());
            assert_eq!(rules.unwrap_err().kind(), ErrorKind::Usage, "{bad}");
        }
    }
}
