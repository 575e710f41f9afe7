//! The command line, as data: help, man page and completions come from it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::Resettable;
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

/// Every exit code and its meaning.
pub(crate) const EXIT_CODES: [(u8, &str); 10] = [
    (0, "done"),
    (1, "internal error"),
    (2, "usage, a mangled ticket included"),
    (3, "not found"),
    (4, "verification failed, or the source changed"),
    (5, "unreachable, timed out, or the other end breaks the protocol"),
    (6, "refused, by the other side or by this machine (a busy port, a place that may not be written)"),
    (7, "no space"),
    (8, "some entries failed, the rest is done; doctor: something is not as it should be"),
    (130, "interrupted; the same command again goes on"),
];

fn exit_codes() -> String {
    let lines = EXIT_CODES.iter().map(|(code, meaning)| format!("\n  {code:>3}  {meaning}"));
    std::iter::once("Exit codes:".to_owned()).chain(lines).collect()
}

/// Moves files between machines and proves every byte.
#[derive(Debug, Parser)]
#[command(name = "dray", version, about, after_help = exit_codes(), max_term_width = 100, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) show: Show,
}

impl Arguments {
    /// Reads a command line.
    pub(crate) fn read(line: impl Iterator<Item = OsString>) -> Result<Arguments, clap::Error> {
        let mut command = command();
        let mut line: Vec<OsString> = line.collect();
        let is_global = |word: &OsString| ["-q", "--quiet", "--json"].iter().any(|global| word == global);
        if let [_, before @ .., sync, help] = &mut line[..]
            && before.iter().all(is_global)
            && sync == "sync"
            && help == "-h"
        {
            // rsync's `-h` is another option wherever it is not alone.
            *help = "--help".into();
        }
        let mut matches = command.try_get_matches_from_mut(line)?;
        let read = Arguments::from_arg_matches_mut(&mut matches).map_err(|slip| slip.format(&mut command))?;
        let lacks_a_place = matches!(&read.command, Command::Sync(sync) if !sync.names_two());
        command.build();
        match command.find_subcommand_mut("sync").filter(|_| lacks_a_place) {
            Some(sync) => Err(sync.error(clap::error::ErrorKind::TooFewValues, crate::sync::TWO_PLACES)),
            None => Ok(read),
        }
    }
}

/// The command line with help that says of each command what `--quiet` leaves of it.
pub(crate) fn command() -> clap::Command {
    let whole = Arguments::command();
    let global: Vec<clap::Arg> = whole.get_arguments().filter(|arg| arg.is_global_set()).cloned().collect();
    whole.mut_subcommands(|sub| {
        let left = match sub.get_name() {
            "put" => "No progress and no notes: the ticket and errors only",
            "get" | "cp" | "sync" => "No progress, no notes, no verdict: errors only",
            "verify" => "No progress, no verdict: the exit code says it, and errors why",
            "demo" => "Errors only",
            "serve" => "No notes: warnings and errors only",
            "ls" | "status" => "No output: the exit code says whether a daemon runs",
            "doctor" => "Only what is not as it should be",
            _ => "Errors only (the output asked for is printed all the same)",
        };
        let quiet = |arg: clap::Arg| if arg.get_id() == "quiet" { arg.help(left) } else { arg };
        sub.args(global.iter().cloned().map(quiet))
    })
}

/// The command line without what is hidden, for completions, which would offer it.
pub(crate) fn shown() -> clap::Command {
    let whole = command();
    // Of those with hidden options.
    let without_hidden = |sub: &clap::Command, name: &'static str| {
        clap::Command::new(name)
            .disable_help_flag(sub.is_disable_help_flag_set())
            .about(Resettable::from(sub.get_about().cloned()))
            .args(sub.get_arguments().filter(|arg| !arg.is_hide_set()).cloned())
    };
    let subs = whole.get_subcommands().filter(|sub| !sub.is_hide_set()).map(|sub| match sub.get_name() {
        "put" => without_hidden(sub, "put"),
        "sync" => without_hidden(sub, "sync"),
        _ => sub.clone(),
    });
    clap::Command::new("dray")
        .version(env!("CARGO_PKG_VERSION"))
        .about(Resettable::from(whole.get_about().cloned()))
        .args(whole.get_arguments().cloned())
        .subcommands(subs)
}

/// How results are shown.
#[derive(Clone, Debug, Args)]
pub(crate) struct Show {
    /// One JSON event a line on standard output instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// No progress, no notes, no verdicts: errors only, and the ticket of put
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Share a file or directory: print a ticket, then serve it until interrupted, or leave that to the daemon
    #[command(
        after_help = "The ticket is the only thing on standard output (with --json: in the event \"shared\"). Whoever has it can fetch the file while this command runs. Where a daemon runs (dray serve), it serves the file instead, and this command ends at once; dray done TICKET ends that. The same file shared again, the same way, keeps its ticket.\n\nA directory is shared as it is at each moment: dray get TICKET -o DIR fetches it, dray sync -a TICKET DIR brings a copy up to date. By this command it has another ticket each time, which ends with it; by the daemon the same one again, which lasts until dray done TICKET. What is mounted below is not shared, nor are directories with those in which dray keeps its keys.\n\nStandard input is kept in the data directory, also when this command has ended, until you remove it there (docs/operating.md says how); a file is read where it is.\n\nWith --expire the command ends by itself some 30 s after that time: until then it tells who comes late that the ticket has expired."
    )]
    Put {
        /// File or directory to share, or - for standard input
        path: PathBuf,
        /// Share without a secret: whoever knows the object id and an address may fetch it
        #[arg(long)]
        public: bool,
        /// End the right after this time, for example 30s, 10m, 2h, 7d; the command ends some 30 s later
        #[arg(long, value_name = "TIME", value_parser = crate::units::duration)]
        expire: Option<Duration>,
        /// Share under this ticket's secret, and print a ticket that names its senders and this one: the file must be
        /// the one that the ticket is for
        #[arg(long, value_name = "TICKET", conflicts_with_all = ["public", "expire"])]
        ticket: Option<String>,
        /// Serve from this command until it is interrupted, also where a daemon runs
        #[arg(long)]
        foreground: bool,
        /// Stop when standard input ends: how a parent's end reaches its child
        #[arg(long, hide = true)]
        until_stdin_closes: bool,
    },
    /// Fetch a file or directory by its ticket, prove it, and go on where an earlier run stopped
    #[command(
        after_help = "-o FILE replaces FILE once the new bytes are complete; a symbolic link FILE is itself replaced, not written through. A name that the sender suggests, also in -o DIR, never replaces anything. What was put from standard input has no name: its default is 16 digits of its id.\n\nA directory needs -o DIR, which is not there yet, or was begun by this ticket; dray sync -a TICKET DIR brings one up to date."
    )]
    Get {
        /// Ticket (dray:…) or object id (blake3:…, together with --hint)
        wanted: String,
        /// File or directory to write, or - for standard output [default: the name the sender suggests]
        #[arg(short, long, value_name = "PATH")]
        output: Option<PathBuf>,
        /// Ask here too: dray://NODE@host:port
        #[arg(long, value_name = "URI")]
        hint: Vec<String>,
        /// Follow the ticket's hints to loopback and link-local addresses
        #[arg(long)]
        local: bool,
        /// Look for parts of it in the files below this directory, too; the sender can tell what was found there
        #[arg(long, value_name = "DIR", conflicts_with = "whole_file")]
        search: Option<PathBuf>,
        /// Fetch everything, also where an older version lies at PATH or the object itself elsewhere here
        #[arg(short = 'W', long)]
        whole_file: bool,
        /// Wait until the file and its name are on disk
        #[arg(long)]
        fsync: bool,
    },
    /// Copy files and trees to or from another host over ssh, as scp does
    #[command(
        after_help = "One side may be [user@]host:path. Several SRC, and a DST that is a directory, mean: into DST, under the last name of each; a / at the end of SRC means nothing, DIR/. means what is in DIR. -r copies symbolic links as links, but one that is itself SRC stands for what it points to (not with -a). Entries that fail are named on standard error, the others are copied, and the exit code is 8. With -r a file that is there with the same content is not sent again; with -p and -a size and modification time are enough.\n\nssh asks and authenticates; data starts on its channel at once and moves to direct encrypted connections when they come up. The far host needs dray too: in PATH, ~/.local/bin, ~/.cargo/bin or /usr/local/bin, by --remote-dray, or brought there by --deploy. After an interruption the same command goes on where it stopped. A local name with a colon is written ./a:b.\n\nAn existing DST is replaced once the new bytes are complete. Unlike with scp, a symbolic link DST to a file is itself replaced, not written through."
    )]
    Cp {
        /// Files to copy, and directories with -r
        #[arg(value_name = "SRC", required = true)]
        source: Vec<OsString>,
        /// Where to, a file or a directory
        #[arg(value_name = "DST", required = true)]
        destination: OsString,
        /// Copy directories and all that is in them
        #[arg(short = 'r', short_alias = 'R', long)]
        recursive: bool,
        /// Keep modification time and permission bits
        #[arg(short = 'p', long)]
        preserve: bool,
        /// Copy directories and keep everything: -r -p, setuid bits, owners (as far as the user may), extended
        /// attributes, ACLs, hard links, devices, fifos
        #[arg(short = 'a', long)]
        archive: bool,
        /// Leave out what matches, as rsync reads it: a name; with a / in it the end of a path; with one in front a path
        /// from SRC's name on; with one at the end directories only. * ? [a-z] stop at /, ** does not
        #[arg(long, value_name = "PATTERN")]
        exclude: Vec<OsString>,
        /// Change permission bits, as rsync does: D755,F644 or u+w,go-rwx; -p keeps them whatever the umask
        #[arg(long, value_name = "CHANGES")]
        chmod: Option<OsString>,
        /// Give everything to this user, group or both, by name there or by number
        #[arg(long, value_name = "USER:GROUP")]
        chown: Option<OsString>,
        /// Only say what would be made (new), replaced, compared because sizes are equal and times say nothing, or changed but
        /// for the content
        #[arg(short = 'n', long)]
        dry_run: bool,
        /// Send at most this much a second over all paths: KiB, or with a suffix K, M, G, T (1024), KB, MB, GB, TB, B
        #[arg(long, value_name = "RATE", value_parser = crate::units::rate)]
        bwlimit: Option<crate::units::Rate>,
        /// Compress what is sent (zstd), over ssh alone: worth it below some 500 Mbit/s
        #[arg(short = 'z', long = "compress")]
        pack: bool,
        /// Do not go into directories on another file system
        #[arg(short = 'x', long)]
        one_file_system: bool,
        /// With -a: keep the numbers of owners, not their names
        #[arg(long)]
        numeric_ids: bool,
        /// Port of the ssh server
        #[arg(short = 'P', value_name = "PORT")]
        port: Option<u16>,
        /// Key file for ssh
        #[arg(short = 'i', value_name = "FILE")]
        identity: Vec<OsString>,
        /// Jump host for ssh
        #[arg(short = 'J', value_name = "HOST")]
        jump: Option<OsString>,
        /// Option for ssh, as in ssh_config
        #[arg(short = 'o', value_name = "OPTION")]
        option: Vec<OsString>,
        /// Configuration file for ssh
        #[arg(short = 'F', value_name = "FILE")]
        ssh_config: Option<OsString>,
        /// Use IPv4 addresses only
        #[arg(short = '4', conflicts_with = "ipv6")]
        ipv4: bool,
        /// Use IPv6 addresses only
        #[arg(short = '6')]
        ipv6: bool,
        /// Let ssh compress what goes through it, slowly (zlib); direct connections are not compressed
        #[arg(short = 'C')]
        compress: bool,
        /// Program to run on the far host, with words in front of it perhaps: "sudo dray"
        #[arg(long, value_name = "PROGRAM", default_value = "dray", alias = "rsync-path")]
        remote_dray: OsString,
        /// Copy this program into the far host's ~/.cache first, unless it is there, and use it
        #[arg(long, conflicts_with = "remote_dray")]
        deploy: bool,
        /// Copying to here: look for parts of it in the files below this directory, too; the other end can tell what was found there
        #[arg(long, value_name = "DIR", conflicts_with = "whole_file")]
        search: Option<PathBuf>,
        /// Send everything, also where an older version of the file lies at DST
        #[arg(short = 'W', long)]
        whole_file: bool,
        /// Wait until the file and its name are on disk
        #[arg(long)]
        fsync: bool,
    },
    /// Bring a directory to the state of another, here or over ssh, as rsync does
    #[command(
        // `-h` is rsync's word for figures for people, and what is said again counts last.
        disable_help_flag = true,
        args_override_self = true,
        override_usage = "dray sync [OPTIONS] <SRC>... <DST>",
        after_help = "The options are rsync's; docs/sync.md has a table of all of them. One side may be [user@]host:path. DIR/ means what is in DIR, DIR the directory itself. Files are compared by size and modification time, with -c by their bytes.\n\n--delete removes what SRC has not after everything else is done, and nothing at all if anything could not be read or written, if the connection was lost or if no more room was left. What the patterns leave out is not deleted, unless --delete-excluded says so. Nothing outside of DST is deleted, whatever links say. If SRC is empty because a disk is not mounted, everything in DST is what SRC has not: --max-delete bounds that.\n\n--atomic makes the new tree beside DST, and then switches the two at once: who reads DST finds all of the old one or all of the new one, and the old one if anything failed.\n\nEntries that fail are named on standard error, the others are done, and the exit code is 8."
    )]
    Sync(Box<crate::sync::SyncArguments>),
    /// Check that a file is the object with this id
    Verify {
        /// File to check
        path: PathBuf,
        /// Object id: the 64 digits that b3sum prints, with or without blake3: before them
        oid: String,
    },
    /// Send a file from one process to another on this machine and check it, to see everything work
    Demo {
        /// File to send
        file: PathBuf,
    },
    /// List what the daemon shares, with whom and until when
    Ls,
    /// Stop sharing what the daemon shares
    Done {
        /// Ticket (dray:…), object id (blake3:…) or id of a directory (directory:…)
        wanted: String,
    },
    /// Say whether a daemon runs, and what it does
    Status,
    /// Look at what a transfer depends on: configuration, directories, network, ssh
    Doctor,
    /// Say what your running transfers wait for and where each source stands; with none running, how the last one ended
    #[command(
        after_help = "One row for each source of a transfer:\n  STANDING  up, frozen (owes data and is silent, or keeps failing), waiting (not\n            there yet, or not again), gone, barred (lied or broke the protocol)\n  RATE/S    of the last 5 s; of a transfer that ended, of all its time\n  WINDOW    what it may owe;  QUEUE  what it owes / in how many requests\n  SHARE     its part of what came;  CAME  what came from it and was needed\n  TWICE     what came from it and was not needed\nand below it why it has nothing to do, or what happened to it. Sizes are in bytes, K, M, G and T:\n1024 of the one before.\n\nTold are get, cp and sync, also the receiving end that somebody's cp of a file\nstarted here, once they have lasted 0.2 s; of trees, where they were started, what\ncame so far."
    )]
    Explain {
        /// The last transfers that ended, too: up to 16, those that failed or lasted 0.2 s
        #[arg(short, long)]
        all: bool,
    },
    /// Print shell completions
    #[command(
        after_help = "To install them for your user:\n  bash  dray completions bash > ~/.local/share/bash-completion/completions/dray\n  zsh   dray completions zsh > ~/.zfunc/_dray   (with fpath+=~/.zfunc before compinit in ~/.zshrc)\n  fish  dray completions fish > ~/.config/fish/completions/dray.fish\nMake the folder first where it is not there. New shells have them."
    )]
    Completions {
        /// bash, zsh, fish, elvish or powershell
        shell: clap_complete::Shell,
    },
    /// Print the manual page (roff); to read it: dray man | man -l -
    Man,
    /// Run the daemon: share what is put, and answer programs on a local socket, until interrupted
    ///
    /// With --stdio, answer one `dray cp` over ssh instead: for command= in authorized_keys, to confine a key to one directory
    #[command(
        after_help = "One daemon for each user and data directory. Its sockets are $DRAY_SOCKET, else $XDG_RUNTIME_DIR/dray/daemon.sock, and the same with .fd; systemd may hand them over. SIGHUP reads the configuration again, SIGTERM ends it. What was put with it is shared again when it starts the next time, at the same port, until dray done or the end of its --expire. docs/api.md describes the API.\n\nA line of authorized_keys for a key that can fetch from /srv/data with `dray cp`, and nothing else:\n  restrict,command=\"dray serve --stdio --read-only --only /srv/data\" ssh-ed25519 AAAA…\nWhoever has that key names paths relative to DIR. Nothing outside of DIR is read, written or made, whatever paths and links say. Needs Linux 5.6 or later."
    )]
    Serve {
        /// No daemon: answer one cp on standard input and output, as ssh has them
        #[arg(long)]
        stdio: bool,
        /// With --stdio, the one directory to read and write
        #[arg(long, value_name = "DIR", requires = "stdio")]
        only: Option<PathBuf>,
        /// With --only, write nothing
        #[arg(long, requires = "only")]
        read_only: bool,
    },
    /// The far end of `dray cp`, started by ssh
    #[command(hide = true)]
    Remote,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is hidden is not offered by any shell; everything else is.
    #[test]
    fn completions_offer_what_is_shown() {
        let offered: String =
            [clap_complete::Shell::Bash, clap_complete::Shell::Zsh, clap_complete::Shell::Fish]
                .into_iter()
                .map(|shell| {
                    let mut script = Vec::new();
                    clap_complete::generate(shell, &mut shown(), "dray", &mut script);
                    String::from_utf8(script).unwrap()
                })
                .collect();
        assert!(!offered.contains("until-stdin") && !offered.contains("subcmd__remote"));
        for word in ["--public", "--expire", "--remote-dray", "doctor", "--quiet"] {
            assert!(offered.contains(word), "{word}");
        }
    }

    /// `--quiet` counts before and after the name of a command, and each command says what it leaves.
    #[test]
    fn quiet_is_explained_by_each_command() {
        for line in [["dray", "-q", "doctor"], ["dray", "doctor", "-q"]] {
            let read = Arguments::read(line.map(OsString::from).into_iter()).unwrap();
            assert!(read.show.quiet && !read.show.json, "{line:?}");
        }
        let mut command = command();
        for (name, words) in [("put", "the ticket and errors only"), ("doctor", "not as it should be")] {
            let help = command.find_subcommand_mut(name).unwrap().render_help().to_string();
            assert!(help.split_whitespace().collect::<Vec<_>>().join(" ").contains(words), "{help}");
        }
    }
}
