//! The manual page: one page with every command, its arguments and the exit codes, from the same data as the help.

use clap::{Arg, Command, CommandFactory};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use dray_core::{Error, Result};

use crate::arguments::{Arguments, EXIT_CODES};

/// What is read and written, and where.
const FILES: [(&str, &str); 11] = [
    (
        "~/.config/dray/config.toml",
        "Configuration, TOML, optional: allow_local_targets, clear_text_data (false or true), connections (1 to 16), \
         window_mib (2 to 1024), port (TCP port of the daemon, and of put without one), cache_mib (what the daemon \
         keeps for nobody), index, index_mib (of the chunks of files), search (false or true: what others copy to here is \
         looked for in other files), search_policy (how), metrics (address for Prometheus), api_without (features \
         of the local API that the daemon does not offer).",
    ),
    ("~/.local/share/dray", "Data directory, for its user alone."),
    ("~/.local/share/dray/identity-*", "Key of this node."),
    (
        "~/.local/share/dray/store/objects/XX/OID",
        "What is known of an object that was put; the file data in it is what put took from standard input, and stays \
         until it is removed.",
    ),
    ("~/.local/share/dray/store/directories", "What the daemon shares of directories, a file for each."),
    ("~/.local/share/dray/origins", "What a killed cp needs to go on."),
    ("~/.local/share/dray/index", "Where chunks of files lie that were put or fetched; may be removed."),
    ("~/.local/share/dray/ended", "The last 16 transfers that ended, for dray explain."),
    (
        "$XDG_RUNTIME_DIR/dray",
        "Sockets: daemon.sock is the API of the daemon, the same with .fd is for file descriptors; on the others \
         running transfers are asked by dray explain. Without that variable those of the daemon are in \
         /run/user/UID/dray, the others in ~/.local/share/dray/run.",
    ),
    ("~/.cache/dray/bin", "What cp --deploy brought here, a directory for each build."),
    (
        ".NAME.dray-ID, .NAME.dray-ID.state",
        "Beside a destination: what get or cp has so far. Removed at the end; what a killed command left is used by the \
         same command again.",
    ),
];
/// What the environment says.
const ENVIRONMENT: [(&str, &str); 9] = [
    ("DRAY_CONFIG", "Configuration file, which must exist then."),
    ("DRAY_DATA_DIR", "Data directory."),
    ("DRAY_SOCKET", "Socket of the daemon."),
    (
        "DRAY_LOG",
        "Logs on standard error: error, warn, info or debug; with ,json behind it a JSON object a line.",
    ),
    ("XDG_CONFIG_HOME", "Stands for ~/.config above."),
    ("XDG_DATA_HOME", "Stands for ~/.local/share above."),
    ("XDG_RUNTIME_DIR", "Folder for sockets."),
    ("XDG_CACHE_HOME", "Stands for ~/.cache above."),
    ("SSH_ASKPASS", "Where it is set, cp gives ssh the time to ask for a password also without a terminal."),
];

/// The page, in roff.
pub(crate) fn page() -> Result<Vec<u8>> {
    let mut command = Arguments::command();
    command.build();
    let mut page = Vec::new();
    let man = Man::new(command.clone());
    man.render_title(&mut page)
        .and_then(|()| man.render_name_section(&mut page))
        .and_then(|()| rest(&command).to_writer(&mut page))
        .map_err(|error| Error::io("render the manual page", error))?;
    Ok(page)
}

fn rest(command: &Command) -> Roff {
    let mut roff = Roff::new();
    let shown = || command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help");
    roff.control("SH", ["SYNOPSIS"]);
    for (index, sub) in shown().enumerate() {
        if index > 0 {
            roff.control("br", []);
        }
        roff.text(synopsis(sub));
    }
    roff.control("SH", ["OPTIONS OF EVERY COMMAND"]);
    command.get_arguments().for_each(|arg| argument(&mut roff, arg));
    roff.control("SH", ["COMMANDS"]);
    for sub in shown() {
        let title = format!("dray {}", sub.get_name());
        roff.control("SS", [title.as_str()]);
        roff.text(synopsis(sub));
        let words = [sub.get_about(), sub.get_after_help()];
        for text in words.into_iter().flatten() {
            paragraphs(&mut roff, &text.to_string());
        }
        let own = |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set() && arg.get_id() != "help";
        sub.get_arguments().filter(own).for_each(|arg| argument(&mut roff, arg));
    }
    roff.control("SH", ["EXIT STATUS"]);
    for (code, meaning) in EXIT_CODES {
        roff.control("TP", ["5"]);
        roff.text([bold(code.to_string())]);
        roff.text([roman(meaning)]);
    }
    for (title, entries) in [("FILES", &FILES[..]), ("ENVIRONMENT", &ENVIRONMENT[..])] {
        roff.control("SH", [title]);
        for (name, meaning) in entries {
            roff.control("TP", []);
            roff.text([bold(*name)]);
            roff.text([roman(*meaning)]);
        }
    }
    roff.control("SH", ["SEE ALSO"]);
    roff.text([bold("ssh"), roman("(1), "), bold("b3sum"), roman("(1)")]);
    roff
}

/// How a command is called, on one line.
fn synopsis(command: &Command) -> Vec<Inline> {
    let mut line = vec![bold("dray"), roman(" "), bold(command.get_name())];
    let own = |arg: &&Arg| !arg.is_hide_set() && !arg.is_global_set();
    if command.get_arguments().filter(own).any(|arg| !arg.is_positional() && arg.get_id() != "help") {
        line.push(roman(" [options]"));
    }
    for arg in command.get_positionals() {
        line.extend([roman(" "), italic(value(arg))]);
    }
    line
}

/// An option or operand and what it means.
fn argument(roff: &mut Roff, arg: &Arg) {
    let mut head = Vec::new();
    if arg.is_positional() {
        head.push(italic(value(arg)));
    }
    if let Some(short) = arg.get_short() {
        head.push(bold(format!("-{short}")));
    }
    if let Some(long) = arg.get_long() {
        if !head.is_empty() {
            head.push(roman(", "));
        }
        head.push(bold(format!("--{long}")));
    }
    if !arg.is_positional() && arg.get_action().takes_values() {
        head.extend([roman(" "), italic(value(arg))]);
    }
    roff.control("TP", []);
    roff.text(head);
    let mut help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    if let [default] = arg.get_default_values()
        && arg.get_action().takes_values()
    {
        help.push_str(&format!(" [default: {}]", default.to_string_lossy()));
    }
    roff.text([roman(plain(&help))]);
}

/// What stands for the value of an argument.
fn value(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

/// ASCII, which every formatter reads whatever the locale.
fn plain(text: &str) -> String {
    text.replace('…', "...")
}

/// Text whose indented lines are kept as they are.
fn paragraphs(roff: &mut Roff, text: &str) {
    roff.control("PP", []);
    let mut is_verbatim = false;
    for line in text.lines() {
        if line.starts_with("  ") != is_verbatim {
            is_verbatim = !is_verbatim;
            roff.control(if is_verbatim { "nf" } else { "fi" }, []);
        }
        roff.text([roman(plain(line))]);
    }
    if is_verbatim {
        roff.control("fi", []);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every option of every command is on the page, and every exit code on a line of its own.
    #[test]
    fn the_page_names_every_option_and_exit_code() {
        let page = String::from_utf8(page().unwrap()).unwrap();
        assert!(page.is_ascii());
        let plain = page.replace("\\-", "-").replace("\\fB", "").replace("\\fI", "").replace("\\fR", "");
        let lines: Vec<&str> = plain.lines().collect();
        let mut command = Arguments::command();
        command.build();
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            let title = format!(".SS \"dray {}\"", sub.get_name());
            assert!(lines.contains(&title.as_str()), "{title}");
            for arg in sub.get_arguments().filter(|arg| !arg.is_hide_set()) {
                if let Some(long) = arg.get_long() {
                    assert!(lines.iter().any(|line| line.contains(&format!("--{long}"))), "{long}");
                }
            }
        }
        for word in
            [".SH FILES", ".SH ENVIRONMENT", "DRAY_CONFIG", "DRAY_DATA_DIR", "~/.config/dray/config.toml"]
        {
            assert!(lines.contains(&word), "{word}");
        }
        for (code, meaning) in EXIT_CODES {
            let at = lines.iter().position(|line| *line == code.to_string()).unwrap();
            assert_eq!((lines[at - 1], lines[at + 1]), (".TP 5", meaning));
        }
        assert!(!plain.contains("remote\n") && !plain.contains("until-stdin-closes"));
    }
}
