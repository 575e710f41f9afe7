//! `dray-liar`: joins a ticket as `dray put --ticket` does, prints the ticket with itself in it, serves, and lies as told.
//! Once it has told its first lie, it says so on standard output: `lied: NAME`. With `--trace` it writes down what receivers say; the
//! ticket may then be of a directory, whose holders it asks. Test support only.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, mpsc};

use clap::Parser;
use dray_core::hint::{Hint, HintUri};
use dray_core::limits::HINTS_MAX;
use dray_core::store::Store;
use dray_core::ticket::{AnyTicket, DirectoryTicket, Ticket};
use dray_core::{Error, ErrorKind, Result};
use dray_liar::{Liar, Lie, LyingHolder, Trace, WithRecipes, recipe_of};
use dray_store::local::LocalStore;
use dray_store::local::tree::raise_open_files;
use dray_transfer::holder::StoredHeld;
use dray_transfer::recipe::Recipe;

/// A holder that lies. For tests.
#[derive(Debug, Parser)]
struct Arguments {
    /// What the ticket is for; nothing if that is a directory
    file: Option<PathBuf>,
    /// Ticket to join
    #[arg(long)]
    ticket: AnyTicket,
    /// Which lie
    #[arg(long, default_value = "none")]
    lie: Lie,
    /// Tell the truth until so many MiB have been sent
    #[arg(long, default_value_t = 0)]
    after_mib: u64,
    /// Alter every n-th group only (flip)
    #[arg(long, default_value_t = 1)]
    every: u64,
    /// Give the recipe of this file for the object's (recipe)
    #[arg(long, required_if_eq("lie", "recipe"))]
    recipe_of: Option<PathBuf>,
    /// Address to name in the ticket
    #[arg(long)]
    address: String,
    /// TCP port to listen on; one the system chooses otherwise
    #[arg(long)]
    port: Option<u16>,
    /// First byte of the node's key: the same one is the same node
    #[arg(long)]
    seed: u8,
    /// Be so many nodes, each at a port of its own; those after the first tell no lies, and are printed as --hint takes them, a line each
    #[arg(long, default_value_t = 1)]
    nodes: u32,
    /// Where the hash tree is kept
    #[arg(long)]
    data_dir: PathBuf,
    /// Write what receivers say to this file, a line for each frame
    #[arg(long)]
    trace: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "dray-liar: {error}");
            ExitCode::from(error.kind().exit_code())
        }
    }
}

fn run(arguments: &Arguments) -> Result<()> {
    let trace = arguments.trace.as_deref().map(Trace::create).transpose()?.map(Arc::new);
    match (&arguments.ticket, &arguments.file, trace) {
        (AnyTicket::Object(ticket), Some(file), trace) => hold(arguments, ticket, file, trace),
        (AnyTicket::Directory(ticket), None, Some(trace)) => stand_in(arguments, ticket, trace),
        (AnyTicket::Object(_), None, _) => Err(usage("say which file the ticket is for")),
        (AnyTicket::Directory(_), ..) => Err(usage("the ticket is for a directory: say --trace and no file")),
    }
}

fn usage(what: &str) -> Error {
    Error::new(ErrorKind::Usage, what)
}

/// Holds the object and lies.
fn hold(arguments: &Arguments, ticket: &Ticket, file: &Path, trace: Option<Arc<Trace>>) -> Result<()> {
    let object = LocalStore::open(&arguments.data_dir)?.put_file(file, &|_| {})?;
    if object.oid() != ticket.oid {
        return Err(usage("the file is not what the ticket is for"));
    }
    let recipes = arguments.recipe_of.iter().map(|path| recipe_of_file(path)).collect::<Result<_>>()?;
    let held = Arc::new(WithRecipes::new(StoredHeld::new(object, None), recipes));
    let mut liar = Liar::new(arguments.lie).after_bytes(arguments.after_mib << 20).every(arguments.every);
    if let Some(trace) = trace {
        liar = liar.traced(trace);
    }
    // The ticket comes first, however soon somebody connects.
    let (told, printed) = mpsc::channel::<()>();
    let printed = Mutex::new(printed);
    let liar = liar.confessing(move |lie| {
        let _ = printed.lock().map(|printed| printed.recv());
        say(&format!("lied: {lie}"));
    });
    let others = others(arguments, &held, ticket)?;
    let holder = LyingHolder::start(arguments.seed, arguments.port, held, ticket.secret, liar)?;
    let own = own_hint(arguments, &holder);
    let mut ticket = ticket.clone();
    ticket.hints.retain(|hint| hint.node != own.node);
    ticket.hints.insert(0, own);
    ticket.hints.truncate(HINTS_MAX);
    say(&ticket.to_text()?);
    for other in &others {
        say(&format!("dray://{}@{}:{}", other.node, arguments.address, other.port));
    }
    drop(told);
    holder.serve();
    Ok(())
}

/// The other nodes that this process is: honest ones.
fn others(arguments: &Arguments, held: &Arc<WithRecipes>, ticket: &Ticket) -> Result<Vec<LyingHolder>> {
    // Each listens, and has a connection or two.
    raise_open_files();
    let start = |number: u32| {
        let mut key = [arguments.seed; 32];
        key[..4].copy_from_slice(&number.to_be_bytes());
        LyingHolder::start_with(&key, None, held.clone(), ticket.secret, Liar::new(Lie::None))
    };
    (1..arguments.nodes).map(start).collect()
}

/// Stands in for those who share the directory, and writes down what receivers say.
fn stand_in(arguments: &Arguments, ticket: &DirectoryTicket, trace: Arc<Trace>) -> Result<()> {
    let holder = LyingHolder::standing_in(arguments.seed, arguments.port, ticket.clone(), trace)?;
    // Nobody is to go past it.
    let hints = vec![own_hint(arguments, &holder)];
    say(&DirectoryTicket { hints, ..ticket.clone() }.to_text()?);
    holder.serve();
    Ok(())
}

fn own_hint(arguments: &Arguments, holder: &LyingHolder) -> Hint {
    Hint {
        uri: HintUri::Dray { host: arguments.address.clone(), port: holder.port },
        node: Some(holder.node),
        priority: 0,
        weight: 1,
    }
}

fn recipe_of_file(path: &Path) -> Result<Arc<Recipe>> {
    let failed = |error| Error::io(format!("read {}", path.display()), error);
    let file = File::open(path).map_err(failed)?;
    let size_bytes = file.metadata().map_err(failed)?.len();
    recipe_of(size_bytes, &mut |offset, out| file.read_exact_at(out, offset).map_err(failed))
}

/// A line on standard output; who no longer listens has no use for it.
fn say(text: &str) {
    let mut out = std::io::stdout();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
