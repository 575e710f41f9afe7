//! `dray sync`: rsync's words on the command line, and its lines about what was done.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Instant;

use clap::{ArgAction, Args};
use dray_core::{Error, ErrorKind, Result};
use dray_node::{
    AddressFamily, Config, DirectoryWish, Location, Node, SshOptions, Stop, SyncOptions, TreeCopied,
    TreeOptions, TreeRequest,
};

use self::aside::Aside;
use self::further::Further;
use self::kept::Kept;
use self::negated::Negated;
use self::rules::Rules;
use self::telling::{Telling, tell_stats};
use crate::output::Output;
use crate::{pasted, run, usage};

mod aside;
mod further;
mod kept;
pub(crate) mod lacking;
mod list;
mod negated;
mod rules;
mod telling;

/// What `dray sync` takes.
#[derive(Debug, Args)]
pub(crate) struct SyncArguments {
    /// What to bring over, DIR/ for what is in DIR, DIR for the directory itself, or the ticket of a directory, and last DST, the directory to bring up to date
    #[arg(value_name = "SRC... DST", required = true)]
    places: Vec<OsString>,
    #[command(flatten)]
    kept: Kept,
    /// Holes stay holes: always so
    #[arg(short = 'S', long)]
    sparse: bool,
    /// Change nothing; with -v or -i say what would be done
    #[arg(short = 'n', long)]
    dry_run: bool,
    /// Name what is made, replaced or deleted
    #[arg(short = 'v', long, action = ArgAction::Count)]
    verbose: u8,
    /// Say of each entry what changes, in rsync's letters
    #[arg(short = 'i', long)]
    itemize_changes: bool,
    /// Say at the end how much was done
    #[arg(long)]
    stats: bool,
    /// Compare files of the same size by their bytes, whatever their times say
    #[arg(short = 'c', long)]
    checksum: bool,
    /// Take files of the same size for the same
    #[arg(long)]
    size_only: bool,
    /// Send every file, whatever its size and time say
    #[arg(short = 'I', long)]
    ignore_times: bool,
    /// Leave files that are newer at DST
    #[arg(short = 'u', long)]
    update: bool,
    /// Make nothing that is not there
    #[arg(long, alias = "ignore-non-existing")]
    existing: bool,
    /// Leave what is there
    #[arg(long)]
    ignore_existing: bool,
    /// Delete what SRC has not, once all of it has come, and only if all of SRC could be read
    #[arg(long, aliases = ["del", "delete-after", "delete-delay", "delete-during"])]
    delete: bool,
    /// Delete what the patterns leave out, too
    #[arg(long)]
    delete_excluded: bool,
    /// Delete so many entries at most
    #[arg(long, value_name = "NUMBER")]
    max_delete: Option<u64>,
    /// Make what SRC/ has beside DST, linking what did not change, and switch the two at once: DST is all old or all new at every moment, and old if anything fails. Needs --delete
    #[arg(long, conflicts_with = "list_only")]
    atomic: bool,
    #[command(flatten)]
    aside: Aside,
    #[command(flatten)]
    further: Further,
    #[command(flatten)]
    rules: Rules,
    #[command(flatten)]
    _negated: Negated,
    /// Bring over only what FILE names, a path below SRC a line (- for standard input), with the directories on the way; of a directory what is
    /// in it only with -r itself, or one level if it ends with /
    #[arg(long, value_name = "FILE")]
    files_from: Option<OsString>,
    /// Lines of --files-from end with a NUL, so do those of --exclude-from and --include-from
    #[arg(short = '0', long)]
    from0: bool,
    /// Change permission bits: D755,F644 or u+w,go-rwx; several add up
    #[arg(long, value_name = "CHANGES")]
    chmod: Vec<OsString>,
    /// Give everything to this user, group or both, by name there or by number
    #[arg(long, value_name = "USER:GROUP")]
    chown: Option<OsString>,
    /// Keep the numbers of owners, not their names
    #[arg(long)]
    numeric_ids: bool,
    /// Leave the times of directories as they are
    #[arg(short = 'O', long)]
    omit_dir_times: bool,
    /// Leave the times of symbolic links as they are
    #[arg(short = 'J', long)]
    omit_link_times: bool,
    /// Leave out directories in which there are no files
    #[arg(short = 'm', long)]
    prune_empty_dirs: bool,
    /// Make the directories above DST, too
    #[arg(long)]
    mkpath: bool,
    /// Keep what came of large files over ssh when this is cut off, under a hidden name beside their places, for the next run to go on with
    #[arg(short = 'P', long)]
    partial: bool,
    /// The same: the place is the same, too
    #[arg(long, value_name = "DIR", hide = true, conflicts_with = "inplace")]
    partial_dir: Option<OsString>,
    /// Progress is shown on a terminal
    #[arg(long, hide = true)]
    progress: bool,
    /// Leave larger files as they are: bytes, or with a suffix K, M, G, T (1024), KB, MB, GB, TB
    #[arg(long, value_name = "SIZE", value_parser = crate::units::size)]
    max_size: Option<u64>,
    /// Leave smaller files as they are
    #[arg(long, value_name = "SIZE", value_parser = crate::units::size)]
    min_size: Option<u64>,
    /// Do not go into directories on another file system, nor delete there
    #[arg(short = 'x', long)]
    one_file_system: bool,
    /// Send at most this much a second: KiB, or with a suffix K, M, G, T (1024), KB, MB, GB, TB, B
    #[arg(long, value_name = "RATE", value_parser = crate::units::rate)]
    bwlimit: Option<crate::units::Rate>,
    /// Compress what is sent (zstd), over ssh alone
    #[arg(short = 'z', long)]
    compress: bool,
    /// Send what may differ without comparing first
    #[arg(short = 'W', long)]
    whole_file: bool,
    /// Compare what may differ
    #[arg(long, hide = true, alias = "no-W", overrides_with = "whole_file")]
    no_whole_file: bool,
    /// Figures for people: always so
    #[arg(short = 'h', long, action = ArgAction::Count)]
    human_readable: u8,
    /// Print help
    #[arg(long, action = ArgAction::HelpLong)]
    help: Option<bool>,
    /// Wait until everything is on disk
    #[arg(long)]
    fsync: bool,
    /// Go on: do the same whenever something changed in SRC, which is on this host, until this is stopped
    #[arg(long, conflicts_with_all = ["dry_run", "remove_source_files"])]
    watch: bool,
    /// Follow the hints of a ticket to addresses of this machine and its links
    #[arg(long)]
    local: bool,
    /// ssh, with its options: "ssh -p 2222 -i KEY"
    #[arg(short = 'e', long, value_name = "COMMAND")]
    rsh: Option<OsString>,
    /// Program to run on the far host, with words in front of it perhaps: "sudo dray"
    #[arg(long, value_name = "PROGRAM", default_value = "dray", alias = "rsync-path")]
    remote_dray: OsString,
    /// Copy this program into the far host's ~/.cache first, unless it is there, and use it
    #[arg(long, conflicts_with = "remote_dray")]
    deploy: bool,
}

/// Where rsync looks for the shell that `-e` does not name.
const SHELL_VARIABLE: &str = "RSYNC_RSH";

/// What ssh is told, from the words of `-e`, or of the variable where somebody else is reached.
fn ssh_options(said: Option<&OsStr>, variable: Option<&OsStr>) -> Result<SshOptions> {
    let mut options = SshOptions::default();
    let (by, command) = match (said, variable.filter(|words| !words.is_empty())) {
        (Some(command), _) => ("-e", command),
        (None, Some(command)) => (SHELL_VARIABLE, command),
        (None, None) => return Ok(options),
    };
    let refused = |what: String| {
        Error::new(ErrorKind::Usage, format!("{by}: {what}"))
            .advise("-e takes ssh and its options -p -i -J -o -F -l -4 -6 -C; what else it needs stands in ssh_config")
    };
    let mut words =
        dray_node::words(command.as_bytes()).ok_or_else(|| refused("a quote has no end".into()))?.into_iter();
    let program = words.next().unwrap_or_default();
    if std::path::Path::new(&program).file_name() != Some(OsStr::new("ssh")) {
        return Err(refused(format!("{program:?} is not ssh")));
    }
    options.program = Some(program).filter(|program| program != "ssh");
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        match bytes {
            b"-4" => options.family = Some(AddressFamily::Inet),
            b"-6" => options.family = Some(AddressFamily::Inet6),
            b"-C" => options.compress = true,
            // What is asked for anyway.
            b"-x" | b"-a" | b"-T" | b"-q" => {}
            [b'-', letter @ (b'p' | b'i' | b'J' | b'o' | b'F' | b'l'), rest @ ..] => {
                let value = match rest {
                    [] => words.next().ok_or_else(|| refused(format!("{word:?} lacks a value")))?,
                    rest => OsString::from_vec(rest.to_vec()),
                };
                match letter {
                    b'p' => {
                        let port = value.to_str().and_then(|text| text.parse().ok());
                        options.port = Some(port.ok_or_else(|| refused(format!("{value:?} is no port")))?);
                    }
                    b'i' => options.identities.push(value),
                    b'J' => options.jump = Some(value),
                    b'o' => options.options.push(value),
                    b'F' => options.config = Some(value),
                    _ => {
                        let mut user = OsString::from("User=");
                        user.push(value);
                        options.options.push(user);
                    }
                }
            }
            _ => return Err(refused(format!("{word:?} is not known here"))),
        }
    }
    Ok(options)
}

/// What is told where one place alone is named.
pub(crate) const TWO_PLACES: &str = "one place is named, and two are needed: from where and to where";

impl SyncArguments {
    /// True if the places that are named can be SRC and DST. More than one is not asked for by clap, as options may stand between them.
    pub(crate) fn names_two(&self) -> bool {
        self.places.len() > 1 || self.further.list_only
    }
}

/// Options that ssh has with a value, which have none here, and what they mean here.
const SSH_LETTERS: [(&str, &str); 6] = [
    ("-P", "keeps what came of large files"),
    ("-F", "reads rules from .rsync-filter files"),
    ("-p", "keeps permission bits"),
    ("-i", "says of each entry what changes"),
    ("-o", "keeps owners"),
    ("-l", "keeps symbolic links"),
];

/// SRC and DST among the words that are no options; `line` is the whole command.
fn sides(places: &[OsString], line: impl Iterator<Item = OsString>) -> Result<(&[OsString], &OsString)> {
    let usage = |what: String, advice: String| Err(Error::new(ErrorKind::Usage, what).advise(advice));
    for place in places {
        let bytes = place.as_bytes();
        let colon = bytes.iter().position(|byte| b":/[".contains(byte)).filter(|at| bytes[*at] == b':');
        if colon.is_some_and(|at| bytes[at..].starts_with(b"::")) || bytes.starts_with(b"rsync://") {
            return usage(
                format!("{place:?}: no daemon of rsync's is spoken to"),
                "write host:path, which goes over ssh; a local file of that name is written ./NAME".into(),
            );
        }
    }
    let Some((destination, source)) = places.split_last().filter(|(_, source)| !source.is_empty()) else {
        return usage(TWO_PLACES.into(), "usage: dray sync [OPTIONS] SRC... DST; --help says more".into());
    };
    let words: Vec<OsString> = line.take_while(|word| word != "--").collect();
    for (letter, value) in words.iter().zip(words.iter().skip(1)) {
        let meant = SSH_LETTERS.iter().find(|(ssh, _)| letter == ssh);
        let is_missing = || std::fs::symlink_metadata(value).is_err() && !value.as_bytes().contains(&b':');
        // With one source it is that.
        let is_spare = source.len() > 1 && source.contains(value);
        if let Some((letter, here)) = meant.filter(|_| is_spare && is_missing()) {
            return usage(
                format!("{value:?} is not here, and {letter} takes no value: it {here}"),
                // scp's letter for the port is -P, ssh's -p.
                format!(
                    "say it to ssh: -e 'ssh {} {}'",
                    if *letter == "-P" { "-p" } else { letter },
                    value.to_string_lossy()
                ),
            );
        }
    }
    Ok((source, destination))
}

/// Brings DST to the state of SRC.
pub(crate) fn run(arguments: SyncArguments, output: &Output, stop: &Stop) -> Result<()> {
    let usage_error =
        |what: &str, advice: &str| Err(Error::new(ErrorKind::Usage, what).advise(advice.to_owned()));
    let here = OsString::from(".");
    let (source, destination) = match (arguments.further.list_only, &arguments.places[..]) {
        // What is only told goes nowhere.
        (true, [_]) => (&arguments.places[..], &here),
        _ => sides(&arguments.places, std::env::args_os())?,
    };
    let kept = arguments.kept;
    if destination == "-" || source.iter().any(|source| source == "-") {
        return usage_error(
            "sync works on files, not standard input or output",
            "a file of that name is written ./-",
        );
    }
    // A list says itself of which directories it means what is in them.
    let is_recursive = if arguments.files_from.is_some() { kept.recursive_itself } else { kept.recursive };
    let directories = !is_recursive && arguments.further.directories();
    let sees_directories = is_recursive || directories || arguments.files_from.is_some();
    if (arguments.delete || arguments.delete_excluded) && !sees_directories {
        return usage_error("--delete needs to see whole directories", "say -r, -a or -d, too");
    }
    let mut input = list::Input::default();
    let list = arguments.files_from.as_deref();
    let chosen = list.map(|path| list::read(path, arguments.from0, &mut input)).transpose()?;
    if chosen.is_some() && source.len() > 1 {
        return usage_error("--files-from names what is below one SRC", "run it once for each SRC");
    }
    let source: Vec<OsString> = source.iter().map(|source| in_it(source, chosen.is_some())).collect();
    let ticket = match &arguments.places[..] {
        [source, _] => run::ticket_of(source)?,
        _ => None,
    };
    let sources: Vec<Location> = match ticket {
        Some(_) => Vec::new(),
        None => source.iter().cloned().map(Location::parse).collect::<Result<_>>()?,
    };
    if let Some(source) =
        source.iter().filter_map(|source| source.to_str()).find(|text| pasted::may_be_ticket(text))
        && ticket.is_none()
    {
        // One of an object, or one of several sources.
        let what = match pasted::directory(source)? {
            Some(_) if arguments.further.list_only => "--list-only does not go with a ticket",
            Some(_) => "a ticket is the only SRC there is",
            None => "that ticket is for an object, not for a directory",
        };
        return usage_error(what, "dray sync -a TICKET DIR; an object is fetched with dray get");
    }
    if arguments.local && ticket.is_none() {
        return usage_error("--local says where a ticket may lead, and SRC is none", "leave it out");
    }
    if destination.to_str().is_some_and(pasted::may_be_ticket) {
        return usage_error(
            "a ticket is SRC, not DST",
            "dray sync -a TICKET DIR; a host called dray is written USER@dray",
        );
    }
    let destination = Location::parse(destination.clone())?;
    if ticket.is_none() {
        run::require_fetched(arguments.aside.search.as_deref(), &sources, &destination)?;
    }
    let backup = arguments.aside.backup();
    let mut rules = arguments.rules.read(arguments.from0, &mut input)?;
    if let Some(backup) = backup.as_ref().filter(|_| arguments.delete && !arguments.delete_excluded) {
        rules.extend(aside::protecting(backup));
    }
    let sync = SyncOptions {
        links: kept.links,
        modes: kept.perms,
        times: kept.times,
        users: kept.owner,
        groups: kept.group,
        devices: kept.devices,
        specials: kept.specials,
        hard_links: kept.hard_links,
        acls: kept.acls,
        attributes: kept.xattrs,
        checksum: arguments.checksum,
        size_only: arguments.size_only,
        ignore_times: arguments.ignore_times,
        update: arguments.update,
        existing: arguments.existing,
        ignore_existing: arguments.ignore_existing,
        delete: arguments.delete || arguments.delete_excluded,
        delete_excluded: arguments.delete_excluded,
        max_delete: arguments.max_delete,
        rules,
        // As with rsync: a backup beside its place changes them in any case.
        omit_directory_times: arguments.omit_dir_times
            || backup.as_ref().is_some_and(|backup| backup.directory.is_none()),
        omit_link_times: arguments.omit_link_times,
        make_path: arguments.mkpath,
        prune_empty: arguments.prune_empty_dirs,
        directories,
        remove_sources: arguments.further.remove_source_files,
        atomic: arguments.atomic,
        timeout_s: arguments.further.timeout,
        confirm: None,
        mounts: None,
        fake_super: arguments.further.fake_super,
        in_place: arguments.further.inplace,
        // As with rsync, what came of a file that is changed is not lost.
        partial: arguments.partial || arguments.partial_dir.is_some() || arguments.further.inplace,
        max_size_bytes: arguments.max_size,
        min_size_bytes: arguments.min_size,
        backup,
        basis: arguments.aside.basis(),
        chosen: chosen.map(std::sync::Arc::new),
        itemize: arguments.verbose > 0 || arguments.itemize_changes || output.is_json(),
    };
    let is_far = |place: &Location| !matches!(place, Location::Local(_));
    let shell = std::env::var_os(SHELL_VARIABLE).filter(|_| sources.iter().chain([&destination]).any(is_far));
    let ssh = SshOptions {
        remote_dray: Some(arguments.remote_dray),
        deploy: arguments.deploy,
        deploy_command: usage::with_deploy(std::env::args_os()),
        ..ssh_options(arguments.rsh.as_deref(), shell.as_deref())?
    };
    let options = TreeOptions {
        recursive: is_recursive,
        search: arguments.aside.search.clone(),
        numeric_ids: arguments.numeric_ids,
        one_file_system: arguments.one_file_system,
        chmod: joined(&arguments.chmod),
        chown: arguments.chown.map(OsString::into_vec),
        dry_run: arguments.dry_run,
        rate_bytes: arguments.bwlimit.and_then(|rate| rate.0),
        compress: arguments.compress,
        whole_file: arguments.whole_file,
        fsync: arguments.fsync,
        sync: Some(sync),
        ssh,
        ..TreeOptions::default()
    };
    let begun = Instant::now();
    let node = Node::passing(Config::load()?)?;
    if let Some(ticket) = ticket {
        if arguments.further.list_only || arguments.watch {
            let what = if arguments.watch {
                "--watch does not go with a ticket"
            } else {
                "--list-only does not go with a ticket"
            };
            return usage_error(what, "-n -v says what would be brought over");
        }
        let Location::Local(destination) = destination else {
            return usage_error(
                "a ticket is fetched to this host",
                "run dray sync -a TICKET DIR on the other one",
            );
        };
        let wish = DirectoryWish { ticket, hints: Vec::new(), allow_local: arguments.local, destination };
        let telling = Telling { output, itemizes: arguments.itemize_changes, names: arguments.verbose > 0 };
        let copied = node.sync_directory(&wish, &options, &telling, stop)?;
        tell_stats(&copied, arguments.stats, arguments.dry_run, output);
        return run::tell_copied(&copied, arguments.dry_run, begun.elapsed(), output);
    }
    if arguments.further.list_only {
        let listing = further::Listing { output, links: kept.links };
        let copied = node.list_sources(&sources, &options, &listing, stop)?;
        return run::fail_partly(&copied);
    }
    let request = TreeRequest { sources, destination, options };
    let telling = Telling { output, itemizes: arguments.itemize_changes, names: arguments.verbose > 0 };
    if arguments.watch {
        return follow(&node, &request, &telling, arguments.stats, stop);
    }
    let copied = node.copy_trees(&request, &telling, stop)?;
    tell_stats(&copied, arguments.stats, arguments.dry_run, output);
    run::tell_copied(&copied, arguments.dry_run, begun.elapsed(), output)
}

/// The same again and again. What came to nothing is not told.
fn follow(
    node: &Node,
    request: &TreeRequest,
    telling: &Telling<'_>,
    has_stats: bool,
    stop: &Stop,
) -> Result<()> {
    let (mut is_first, mut has_come) = (true, false);
    let mut tell = |copied: &TreeCopied, elapsed| {
        has_come |= copied.has_come();
        let has_done = copied.files + copied.deleted + copied.failed > 0;
        if std::mem::take(&mut is_first) || has_done {
            tell_stats(copied, has_stats, false, telling.output);
            telling.output.copied(copied, false, elapsed);
        }
    };
    match node.follow_trees(request, telling, stop, &mut tell)? {
        0 => Ok(()),
        failed => Err(run::partly_failed(failed, has_come)),
    }
}

/// A source of which only what is in it is meant, if a list says what.
fn in_it(source: &OsString, is_chosen: bool) -> OsString {
    let mut source = source.clone();
    if is_chosen && !source.as_bytes().ends_with(b"/") {
        source.push(if source.as_bytes().ends_with(b":") { "./" } else { "/" });
    }
    source
}

/// Changes of permission bits, one after the other.
fn joined(changes: &[OsString]) -> Option<Vec<u8>> {
    let changes: Vec<&[u8]> = changes.iter().map(|change| change.as_bytes()).collect();
    (!changes.is_empty()).then(|| changes.join(&b','))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The order comes from the command line itself, over all the options.
    #[test]
    fn rules_are_read_in_order() {
        let line = [
            "dray",
            "sync",
            "-aHAX",
            "--exclude",
            "a",
            "--include=b",
            "--exclude-from",
            "f",
            "--exclude=c",
            "-F",
            "-f",
            "P x",
            "--gitignore",
            "-F",
            "s/",
            "d",
        ];
        let read = crate::arguments::Arguments::read(line.map(OsString::from).into_iter()).unwrap();
        let crate::arguments::Command::Sync(sync) = read.command else { panic!("sync") };
        let names: Vec<&str> = sync.rules.names().collect();
        assert_eq!(names, ["exclude", "include", "exclude-from", "exclude", "F", "filter", "gitignore", "F"]);
        assert!(sync.kept.times && sync.kept.hard_links && sync.kept.acls && sync.kept.xattrs);
    }

    fn read(words: &[&str]) -> SyncArguments {
        let line = ["dray", "sync"].iter().chain(words).chain(&["s/", "d"]).map(OsString::from);
        match crate::arguments::Arguments::read(line.collect::<Vec<_>>().into_iter()).unwrap().command {
            crate::arguments::Command::Sync(sync) => *sync,
            _ => panic!("sync"),
        }
    }

    /// rsync's habits: `-h` is no help, what is said again counts last, and `--no-` takes back what was said before it.
    #[test]
    fn options_are_read_as_rsync_reads_them() {
        let sync = read(&["-avhh", "--delete", "--delete-after", "-xx", "--chmod=D755", "--chmod", "F644"]);
        assert!(sync.delete && sync.kept.recursive && sync.one_file_system && sync.verbose == 1);
        assert_eq!(joined(&sync.chmod).unwrap(), b"D755,F644");
        assert_eq!(read(&["--max-delete=3", "--max-delete=4"]).max_delete, Some(4));
        assert!(read(&["--no-W", "-W"]).whole_file && !read(&["-W", "--no-whole-file"]).whole_file);
        assert!(joined(&read(&["-a"]).chmod).is_none());
        let some =
            read(&["-vvczxmOJ", "--partial", "--no-z", "--no-c", "--no-v", "--no-partial", "--no-x", "-v"]);
        assert_eq!((some.verbose, some.checksum, some.compress, some.partial), (1, false, false, false));
        assert!(
            !some.one_file_system && some.prune_empty_dirs && some.omit_dir_times && some.omit_link_times
        );
        assert_eq!(read(&["--bwlimit=1M", "--no-bwlimit"]).bwlimit.map(|rate| rate.0), None);
        assert_eq!(read(&["--timeout=5", "--no-timeout"]).further.timeout, None);
        assert!(read(&["--no-inplace", "--no-inplace", "--inplace"]).further.inplace);
        assert!(!read(&["--inplace", "--no-inplace", "--partial-dir=x"]).further.inplace);
        let all = read(&["-a"]).kept;
        let is_all = |kept: Kept| Kept { recursive_itself: false, ..kept } == all;
        assert!(read(&["-ar"]).kept.recursive_itself && !all.recursive_itself);
        assert!(all.recursive && all.links && all.perms && all.times && all.owner && all.group);
        assert!(all.devices && all.specials && !all.hard_links && !all.acls && !all.xattrs);
        assert!(is_all(read(&["-rlptgoD"]).kept) && is_all(read(&["--no-o", "--no-perms", "-a"]).kept));
        assert_eq!(read(&["-a", "--no-o", "--no-group"]).kept, Kept { owner: false, group: false, ..all });
        assert_eq!(read(&["-a", "--no-D"]).kept, Kept { devices: false, specials: false, ..all });
        assert_eq!(read(&["-aH", "--no-o", "-o", "--no-H"]).kept, all);
        assert_eq!(read(&["-A"]).kept, Kept { acls: true, perms: true, ..Kept::default() });
        let help = ["dray", "sync", "--help"].map(OsString::from);
        let shown = crate::arguments::Arguments::read(help.into_iter()).unwrap_err();
        assert_eq!(shown.kind(), clap::error::ErrorKind::DisplayHelp);
    }

    /// rsync's habit: options stand anywhere. Words of ssh and scp that mean something else here are answered.
    #[test]
    fn options_stand_anywhere() {
        for line in
            ["-a --delete s/ t/ d", "s/ -a t/ d --delete", "s/ t/ -a --delete d", "s/ t/ d -a --delete"]
        {
            let words = ["dray", "sync"].into_iter().chain(line.split(' ')).map(OsString::from);
            let read = crate::arguments::Arguments::read(words).unwrap();
            let crate::arguments::Command::Sync(sync) = read.command else { panic!("sync") };
            let (source, destination) = sides(&sync.places, std::iter::empty()).unwrap();
            assert_eq!((source, destination), (&["s/".into(), "t/".into()][..], &"d".into()), "{line}");
            assert!(sync.delete && sync.kept.recursive, "{line}");
        }
        for (line, what, advice) in [
            ("-p 22722 -a s/ h:s", "-p takes no value", "-e 'ssh -p 22722'"),
            ("-a -i no/such/key s/ h:s", "says of each entry", "-e 'ssh -i no/such/key'"),
            ("-a host::module d", "no daemon of rsync's", "host:path"),
            ("-a s/ rsync://host/module", "no daemon of rsync's", "host:path"),
        ] {
            let words = || ["dray", "sync"].into_iter().chain(line.split(' ')).map(OsString::from);
            let read = crate::arguments::Arguments::read(words()).unwrap();
            let crate::arguments::Command::Sync(sync) = read.command else { panic!("sync") };
            let error = sides(&sync.places, words()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage);
            assert!(error.to_string().contains(what), "{line}: {error}");
            assert!(error.advice().unwrap().contains(advice), "{line}: {:?}", error.advice());
        }
        // A source that is not there, behind an option that takes no value.
        let missing = ["sync", "-a", "-i", "no/such/", "d"].map(OsString::from);
        assert!(sides(&missing[3..], missing.iter().cloned()).is_ok());
        let fine = ["[::1]:x", "a/b::c", "u@[fe80::1]:d"].map(OsString::from);
        assert!(sides(&fine, std::iter::empty()).is_ok());
        // Alone, -h is help, as with rsync; behind a place that has the command's name it is not.
        let of =
            |line: &str| crate::arguments::Arguments::read(line.split(' ').map(OsString::from)).map(|_| ());
        for line in ["dray sync -h", "dray -q sync -h", "dray --json -q sync -h"] {
            assert_eq!(of(line).unwrap_err().kind(), clap::error::ErrorKind::DisplayHelp, "{line}");
        }
        assert!(of("dray sync -a s/ sync -h").is_ok());
    }

    /// `-e` as rsync users have it.
    #[test]
    fn ssh_is_told_what_e_says() {
        let read =
            ssh_options(Some(OsStr::new("ssh -p2222 -i 'a key' -o \"A=b c\" -l me -4")), None).unwrap();
        assert_eq!(read.port, Some(2222));
        assert_eq!(read.identities, ["a key"]);
        assert_eq!(read.options, ["A=b c", "User=me"]);
        assert_eq!(read.program, None);
        let elsewhere = ssh_options(Some(OsStr::new("'/opt/my ssh/ssh' -C")), None).unwrap();
        assert_eq!(elsewhere.program.as_deref(), Some(OsStr::new("/opt/my ssh/ssh")));
        for bad in ["rsh", "ssh -p", "ssh -p x", "ssh 'a", "ssh -N"] {
            let error = ssh_options(Some(OsStr::new(bad)), None).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{bad}");
            let error = ssh_options(None, Some(OsStr::new(bad))).unwrap_err();
            assert!(error.kind() == ErrorKind::Usage && error.to_string().contains("RSYNC_RSH"), "{error}");
        }
        // What the command line says counts, and a variable that is empty says nothing.
        let of = |said: Option<&str>, variable: &str| {
            ssh_options(said.map(OsStr::new), Some(OsStr::new(variable))).unwrap().port
        };
        assert_eq!(
            (of(None, "ssh -p 1"), of(Some("ssh -p 2"), "rsh"), of(None, "")),
            (Some(1), Some(2), None)
        );
    }
}
