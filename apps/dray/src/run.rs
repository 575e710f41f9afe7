//! Carries out a command and turns its result into an exit code.

use std::ffi::OsString;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
use dray_core::ticket::{DirectoryTicket, Ticket};
use dray_core::{Error, ErrorKind, Result};
use dray_node::{
    AddressFamily, Config, Confinement, Copied, CopyOptions, CopyRequest, DirectoryWish, GetRequest,
    Location, Node, Observer, Output as Destination, PutRequest, PutSource, SshOptions, Stop, TreeCopied,
    TreeOptions, TreeRequest, is_unsized, refuse_remote,
};
use serde_json::json;

use crate::arguments::{self, Arguments, Command, Show};
use crate::output::{Output, bytes, count, paged, print, verified_json};
use crate::{daemon, demo, explain, logs, manual, pasted, sync, usage};

/// The exit code.
pub(crate) fn main() -> u8 {
    let arguments = match Arguments::read(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => {
            return refuse(&error);
        }
    };
    // Each level of a tree, each file and each connection costs descriptors; the usual limit is for programs that wait for what they open with `select`.
    dray_node::raise_open_files();
    let is_forced = matches!(arguments.command, Command::Serve { stdio: true, .. });
    let is_remote = is_forced || matches!(arguments.command, Command::Remote);
    let stop = Stop::new();
    let is_daemon = matches!(arguments.command, Command::Serve { stdio: false, .. });
    // As `dray explain` calls it. The daemon has a name for each transfer.
    let transfer = (!is_daemon).then(|| std::process::id().to_string());
    // To a daemon a hangup means to read its configuration again, to everything else that its terminal is gone.
    let reload = Stop::new();
    let output = Output::new(arguments.show.clone(), stop.clone(), transfer.clone());
    let output = Arc::new(if is_daemon { output.of_daemon() } else { output });
    let result = logs::start()
        .and_then(|()| catch_signals(&stop, is_daemon.then_some(&reload)))
        .and_then(|()| run(arguments.command, &output, &stop, &reload));
    let result = result.and_then(|()| output.check());
    if let Some(transfer) = &transfer {
        dray_node::log_outcome(transfer, result.as_ref().map(drop));
    }
    match result {
        Ok(()) => 0,
        Err(error) => {
            // What went wrong at the far end of a copy has been told to the near end, which shows it.
            // A far end that nobody asked anything has told nobody.
            let is_unasked = is_forced && error.what().starts_with(dray_node::UNASKED);
            let is_told = is_remote && error.kind() != ErrorKind::Internal && !is_unasked;
            if !is_told {
                output.error(&error);
            }
            error.kind().exit_code()
        }
    }
}

/// Help and version are printed as clap has them, errors like every other.
fn refuse(slip: &clap::Error) -> u8 {
    let json = usage::wants_json(std::env::args_os());
    if !slip.use_stderr() || (slip.kind() == DisplayHelpOnMissingArgumentOrSubcommand && !json) {
        let printed = slip.print().and_then(|()| std::io::stdout().flush());
        if slip.use_stderr() {
            return ErrorKind::Usage.exit_code();
        }
        return paged(printed).map_or_else(|error| fail(&error, json), |()| 0);
    }
    fail(&usage::error(slip), json)
}

/// Shows an error of the command line itself.
fn fail(error: &Error, json: bool) -> u8 {
    Output::new(Show { json, quiet: false }, Stop::new(), None).error(error);
    error.kind().exit_code()
}

/// The first signal asks to stop; the second ends the process at once. A signal that whoever started us had chosen to
/// ignore stays ignored: `nohup` means that a hangup does not count, and a shell without job control that Ctrl-C is
/// not for what it runs in the background.
fn catch_signals(stop: &Stop, reload: Option<&Stop>) -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let ignored = ignored_signals();
    let failed = |error| Error::io("catch signals", error);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if let Some(reload) = reload.filter(|_| signal == SIGHUP) {
            signal_hook::flag::register(signal, reload.flag()).map_err(failed)?;
            continue;
        }
        if signal != SIGTERM && ignored >> (signal - 1) & 1 == 1 {
            continue;
        }
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.flag())
            .and_then(|_| signal_hook::flag::register(signal, stop.flag()))
            .map_err(failed)?;
    }
    Ok(())
}

/// The signals ignored since before this program began, bit 0 for signal 1; none where the system does not say.
fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

fn run(command: Command, output: &Arc<Output>, stop: &Stop, reload: &Stop) -> Result<()> {
    match command {
        Command::Put { path, public, expire, ticket, foreground, until_stdin_closes } => {
            let is_stdin = path.as_os_str() == "-";
            let path_is_for_daemon = is_stdin || path.is_file();
            let source = if is_stdin { PutSource::Stdin } else { PutSource::Path(path.clone()) };
            if until_stdin_closes {
                if matches!(source, PutSource::Stdin) {
                    return Err(Error::new(
                        ErrorKind::Usage,
                        "standard input cannot be both data and a sign",
                    ));
                }
                stop_when_stdin_closes(stop);
            }
            let ticket = ticket.as_deref().map(pasted::ticket).transpose()?;
            let config = Config::load()?;
            if !is_stdin && path.is_dir() {
                if ticket.is_some() {
                    return Err(Error::new(ErrorKind::Usage, "a directory has a ticket of its own")
                        .advise("leave --ticket out"));
                }
                let terms = (public, expire);
                if !foreground
                    && !until_stdin_closes
                    && let Some(client) = daemon::find(&config, output, stop)?
                    && daemon::directories::put(&client, &path, terms, output, stop)?
                {
                    return Ok(());
                }
                return put_directory(config, &path, terms, output, stop);
            }
            // What is neither a file nor standard input gets its answer here.
            let is_for_daemon = path_is_for_daemon && !foreground && !until_stdin_closes;
            if is_for_daemon && let Some(client) = daemon::find(&config, output, stop)? {
                let options = daemon::options(&path, public, expire, ticket.as_ref())?;
                return daemon::put(&client, &path, options, output, stop);
            }
            let node = Node::open(config)?;
            let request = PutRequest { source, public, expires_in: expire, ticket };
            let shared = node.put(&request, &**output, stop)?;
            if shared.ticket.secret.is_none() {
                output.note(&without_ticket(&shared.ticket));
            }
            let observer: Arc<dyn Observer> = output.clone();
            shared.serve(stop, &observer)
        }
        Command::Get { wanted, output: path, hint, local, search, whole_file, fsync } => {
            if path.as_deref() == Some(Path::new("-")) && output.is_json() {
                return Err(Error::new(ErrorKind::Usage, "--json and -o - both want standard output")
                    .advise("write to a file with -o PATH, or leave --json out"));
            }
            let hints = hint.iter().map(|text| pasted::hint(text)).collect::<Result<_>>()?;
            if let Some(ticket) = pasted::directory(&wanted)? {
                let destination = path.filter(|path| path.as_os_str() != "-").ok_or_else(|| {
                    Error::new(ErrorKind::Usage, "the ticket is for a directory, which needs a name here")
                        .advise("dray get TICKET -o DIR")
                })?;
                let wish = DirectoryWish { ticket, hints, allow_local: local, destination };
                return get_directory(&wish, (whole_file, search, fsync), output, stop);
            }
            if path.as_deref() == Some(Path::new("-"))
                && let Some(search) = &search
            {
                return Err(Error::new(
                    ErrorKind::Usage,
                    format!("--search {search:?} is for files, not for -o -"),
                )
                .advise("write to a file with -o PATH, or leave --search out"));
            }
            let request = GetRequest {
                wanted: pasted::wanted(&wanted)?,
                hints,
                allow_local: local,
                whole_file,
                search,
                fsync,
            };
            let node = Node::open(Config::load()?)?;
            let begun = Instant::now();
            let place = destination(path);
            let delivered = node.get(&request, &place, &**output, stop)?;
            if !matches!(place, Destination::Stdout) {
                output.delivered(&delivered, begun.elapsed());
            }
            Ok(())
        }
        Command::Cp {
            source,
            destination,
            recursive,
            preserve,
            archive,
            exclude,
            chmod,
            chown,
            dry_run,
            bwlimit,
            pack,
            one_file_system,
            numeric_ids,
            port,
            identity,
            jump,
            option,
            ssh_config,
            ipv4,
            ipv6,
            compress,
            remote_dray,
            deploy,
            search,
            whole_file,
            fsync,
        } => {
            if destination == "-" || source.iter().any(|source| source == "-") {
                return Err(Error::new(ErrorKind::Usage, "cp copies files, not standard input or output")
                    .advise(
                        "`dray put -` and `dray get TICKET -o -` stream; a file of that name is written ./-",
                    ));
            }
            if source
                .iter()
                .chain([&destination])
                .filter_map(|place| place.to_str())
                .any(pasted::may_be_ticket)
            {
                return Err(Error::new(ErrorKind::Usage, "cp copies files, not what a ticket is for")
                    .advise(
                        "`dray get TICKET [-o DST]` fetches that; a host called dray is written USER@dray",
                    ));
            }
            let sources: Vec<Location> = source.into_iter().map(Location::parse).collect::<Result<_>>()?;
            let destination = Location::parse(destination)?;
            require_fetched(search.as_deref(), &sources, &destination)?;
            let ssh = SshOptions {
                program: None,
                port,
                identities: identity,
                jump,
                options: option,
                config: ssh_config,
                family: match (ipv4, ipv6) {
                    (true, _) => Some(AddressFamily::Inet),
                    (_, true) => Some(AddressFamily::Inet6),
                    _ => None,
                },
                compress,
                remote_dray: Some(remote_dray),
                deploy,
                deploy_command: usage::with_deploy(std::env::args_os()),
            };
            let rate_bytes = bwlimit.and_then(|rate| rate.0);
            let begun = Instant::now();
            if let [source] = &sources[..]
                && !archive
                && (!recursive || is_file(source))
                // What only copies of trees know.
                && !dry_run
                && exclude.is_empty()
                && chmod.is_none()
                && chown.is_none()
                && !matches!(source, Location::Local(path) if is_unsized(path))
            {
                let node = Node::open(Config::load()?)?;
                let options =
                    CopyOptions { preserve, whole_file, search, fsync, rate_bytes, compress: pack, ssh };
                let request = CopyRequest { source: source.clone(), destination, options };
                return match node.copy(&request, &**output, stop)? {
                    Copied::File(delivered) => {
                        output.delivered(&delivered, begun.elapsed());
                        Ok(())
                    }
                    Copied::Files(copied) => tell_copied(&copied, false, begun.elapsed(), output),
                };
            }
            let options = TreeOptions {
                recursive,
                preserve,
                archive,
                numeric_ids,
                one_file_system,
                excludes: exclude.into_iter().map(OsString::into_vec).collect(),
                chmod: chmod.map(OsString::into_vec),
                chown: chown.map(OsString::into_vec),
                dry_run,
                rate_bytes,
                compress: pack,
                whole_file,
                search,
                fsync,
                sync: None,
                ssh,
            };
            let request = TreeRequest { sources, destination, options };
            let node = Node::passing(Config::load()?)?;
            let copied = node.copy_trees(&request, &**output, stop)?;
            tell_copied(&copied, dry_run, begun.elapsed(), output)
        }
        Command::Sync(arguments) => sync::run(*arguments, output, stop),
        Command::Verify { path, oid } => verify(&path, &oid, output, stop),
        Command::Demo { file } => demo::run(&file, output, stop),
        Command::Ls => daemon::ls(output, stop),
        Command::Done { wanted } => daemon::done(&wanted, output, stop),
        Command::Status => daemon::status(output, stop),
        Command::Doctor => doctor(output),
        Command::Explain { all } => explain::run(all, output),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut arguments::shown(), "dray", &mut script);
            paged(print(&script))
        }
        Command::Man => paged(print(&manual::page()?)),
        Command::Remote => remote(None, stop),
        Command::Serve { stdio: false, .. } => daemon::serve(output, stop, reload),
        Command::Serve { only, read_only, stdio: true } => {
            remote(only.map(|directory| Confinement::new(&directory, read_only)), stop)
        }
    }
}

/// Said of a directory that is shared without a secret.
pub(crate) const PUBLIC_DIRECTORY: &str =
    "public: the ticket has no secret, so whoever learns of it gets the directory";

/// Shares a directory as long as this runs.
fn put_directory(
    config: Config,
    path: &Path,
    (public, expire): (bool, Option<Duration>),
    output: &Arc<Output>,
    stop: &Stop,
) -> Result<()> {
    let shared = Node::open(config)?.put_directory(path, public, expire, &**output)?;
    if public {
        output.note(PUBLIC_DIRECTORY);
    }
    let observer: Arc<dyn Observer> = output.clone();
    shared.serve(stop, &observer)
}

/// Refuses `--search` where nothing comes to here from another host.
pub(crate) fn require_fetched(
    search: Option<&Path>,
    sources: &[Location],
    destination: &Location,
) -> Result<()> {
    let Some(search) = search else { return Ok(()) };
    let advice = match destination {
        Location::Remote { .. } => "say search = true in the configuration of that host",
        _ if sources.iter().all(|source| matches!(source, Location::Local(_))) => "leave --search out",
        Location::Local(_) => return Ok(()),
    };
    let text = format!("--search {search:?} is for what is copied to here from another host");
    Err(Error::new(ErrorKind::Usage, text).advise(advice))
}

/// Fetches a directory by its ticket.
fn get_directory(
    wish: &DirectoryWish,
    (whole_file, search, fsync): (bool, Option<PathBuf>, bool),
    output: &Output,
    stop: &Stop,
) -> Result<()> {
    let node = Node::open(Config::load()?)?;
    let begun = Instant::now();
    let copied = node.get_directory(wish, whole_file, search, fsync, output, stop)?;
    tell_copied(&copied, false, begun.elapsed(), output)
}

/// The ticket of a directory, if SRC of `sync` is one.
pub(crate) fn ticket_of(source: &std::ffi::OsStr) -> Result<Option<DirectoryTicket>> {
    match source.to_str().filter(|text| pasted::may_be_ticket(text)) {
        Some(text) => pasted::directory(text),
        None => Ok(None),
    }
}

/// What there is to do about entries that failed.
const NAMED_ABOVE: &str = "each is named above, with the reason";

/// Says what a copy of trees did; an error if some entries failed.
pub(crate) fn tell_copied(
    copied: &TreeCopied,
    is_dry: bool,
    elapsed: Duration,
    output: &Output,
) -> Result<()> {
    output.copied(copied, is_dry, elapsed);
    fail_partly(copied)
}

/// `Partial` if entries failed.
pub(crate) fn fail_partly(copied: &TreeCopied) -> Result<()> {
    if copied.failed == 0 {
        return Ok(());
    }
    let failed = partly_failed(copied.failed, copied.has_come());
    Err(match copied.made_destination {
        // The run came to its end, so the rule of scp counts again.
        true => failed.advise(
            "each is named above, with the reason; the destination is there now, so write SRC/. for SRC the next time",
        ),
        false => failed,
    })
}

/// What some entries of a tree came to, and the others if there are any.
pub(crate) fn partly_failed(failed: u64, has_rest: bool) -> Error {
    let rest = if has_rest { ", the rest is done" } else { "" };
    let what = format!("{} failed{rest}", count(failed, "entry", "entries"));
    Error::new(ErrorKind::Partial, what).advise(NAMED_ABOVE)
}

/// True for a regular file of this host, which goes the way of single files.
fn is_file(source: &Location) -> bool {
    matches!(source, Location::Local(path) if path.is_file())
}

/// How to fetch a public object by its id alone.
pub(crate) fn without_ticket(ticket: &Ticket) -> String {
    let place = ticket.hints.iter().find_map(|hint| {
        let place = hint.uri.to_string();
        Some(format!("dray://{}@{}", hint.node?, place.strip_prefix("dray://")?))
    });
    let place = place.unwrap_or_else(|| "dray://NODE@host:port".into());
    format!("public; without the ticket: dray get {} --hint {place}", ticket.oid)
}

fn stop_when_stdin_closes(stop: &Stop) {
    let stop = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        stop.set();
    });
}

fn destination(path: Option<PathBuf>) -> Destination {
    match path {
        None => Destination::Suggested,
        Some(path) if path.as_os_str() == "-" => Destination::Stdout,
        Some(path) => Destination::Path(path),
    }
}

fn verify(path: &Path, oid: &str, output: &Output, stop: &Stop) -> Result<()> {
    check_verify(path, oid)?;
    let oid = pasted::oid(oid)?;
    let total_bytes = std::fs::metadata(path).map(|metadata| metadata.len()).ok();
    let progress = |done_bytes| output.event(dray_node::Event::Hashing { done_bytes, total_bytes });
    let size_bytes = Node::verify(path, &oid, &progress, stop)?;
    output.result(
        &format!("{path:?} is {oid} ({})", bytes(size_bytes)),
        &verified_json(path, &oid, size_bytes),
    );
    Ok(())
}

/// Slips in what `verify` is given.
fn check_verify(path: &Path, oid: &str) -> Result<()> {
    if path.as_os_str() == "-" {
        return Err(Error::new(ErrorKind::Usage, "verify reads a file, not standard input")
            .advise("write it to a file first; a file of that name is written ./-"));
    }
    let is_id = |text: &str| pasted::wanted(text).is_ok();
    if !path.exists() && path.to_str().is_some_and(is_id) && !is_id(oid) {
        return Err(Error::new(ErrorKind::Usage, "the file comes first, then the object id")
            .advise("dray verify FILE blake3:…"));
    }
    Ok(())
}

fn doctor(output: &Output) -> Result<()> {
    let findings = Node::doctor();
    for finding in &findings {
        let mark = if finding.is_good { "ok  " } else { "BAD " };
        output.finding(
            finding.is_good,
            &format!("{mark} {:<15} {}", finding.what, finding.detail),
            &json!({"event": "finding", "what": finding.what, "good": finding.is_good, "detail": finding.detail}),
        );
    }
    let bad = findings.iter().filter(|finding| !finding.is_good).count();
    if bad == 0 {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Partial,
        format!("not as it should be: {bad} of {}", count(findings.len() as u64, "finding", "findings")),
    )
    .advise("each line marked BAD says what to do"))
}

fn remote(confinement: Option<Result<Confinement>>, stop: &Stop) -> Result<()> {
    let owned = |fd: std::os::fd::BorrowedFd<'_>| {
        fd.try_clone_to_owned().map_err(|error| Error::io("take over standard input and output", error))
    };
    let input = owned(std::io::stdin().as_fd())?;
    let output = owned(std::io::stdout().as_fd())?;
    let node = match Config::load().and_then(Node::passing) {
        Ok(node) => node,
        Err(error) => return Err(refuse_remote(input, output, error)),
    };
    node.remote_on(input, output, confinement, stop)
}

/// The arguments of a child process of our own kind.
pub(crate) fn own_program() -> Result<OsString> {
    std::env::current_exe().map(Into::into).map_err(|error| Error::io("find this program", error))
}
