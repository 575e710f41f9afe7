//! `dray sync`: what it asks for beyond a copy, as flags and rules of the first message, and back again at either end.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dray_core::limits::{
    PATH_BYTES_MAX, SYNC_BASES_MAX, SYNC_PLACES_MAX, SYNC_RULE_BYTES_MAX, SYNC_RULES_BYTES_MAX,
    SYNC_RULES_MAX, SYNC_SUFFIX_BYTES_MAX,
};
use dray_core::message::{
    Backup, Basis, BasisUsage, CopyRole, FakeWish, Near, Place, SyncWish, Tree, sync_flag, tree_flag,
};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::boot_id;
use dray_store::local::tree::{
    Above, AttributeSort, BackupOptions, BasisOptions, BasisUse, Beside, Chosen, DeleteOptions, Done,
    Excludes, FakeSuper, Landing, Origin, ReadMounts, SyncOptions as StoreOptions, WalkOptions,
};

use super::{TreeOptions, landing_name, removal, whole};

/// What a synchronisation keeps and does; the words are those of rsync's options.
#[derive(Clone, Debug, Default)]
pub struct SyncOptions {
    /// Keep symbolic links (`-l`).
    pub links: bool,
    /// Keep permission bits (`-p`).
    pub modes: bool,
    /// Keep modification times (`-t`).
    pub times: bool,
    /// Keep users (`-o`), as far as the receiver may.
    pub users: bool,
    /// Keep groups (`-g`), as far as the receiver may.
    pub groups: bool,
    /// Keep devices.
    pub devices: bool,
    /// Keep fifos and sockets.
    pub specials: bool,
    /// Keep hard links (`-H`).
    pub hard_links: bool,
    /// Keep ACLs (`-A`).
    pub acls: bool,
    /// Keep extended attributes (`-X`).
    pub attributes: bool,
    /// Compare files of the same size by their bytes (`-c`).
    pub checksum: bool,
    /// Files of the same size are the same.
    pub size_only: bool,
    /// Times say nothing: every content is sent (`-I`).
    pub ignore_times: bool,
    /// What is newer at the receiver stays (`-u`).
    pub update: bool,
    /// Make nothing that is not there.
    pub existing: bool,
    /// Leave what is there.
    pub ignore_existing: bool,
    /// Delete what the source has not.
    pub delete: bool,
    /// Delete what the rules leave out, too.
    pub delete_excluded: bool,
    /// Delete so many entries at most.
    pub max_delete: Option<u64>,
    /// What is left out, the first that fits: `+` or `-`, then a pattern as rsync reads it; or what [`read_rule`](crate::read_rule) makes of its filters,
    /// or `:g ` and the name of files as git reads them.
    pub rules: Vec<Vec<u8>>,
    /// Tell of each entry that is made, changed or deleted.
    pub itemize: bool,
    /// Where times are kept: not those of directories (`-O`).
    pub omit_directory_times: bool,
    /// Nor those of symbolic links (`-J`).
    pub omit_link_times: bool,
    /// Make the directories above the destination, too.
    pub make_path: bool,
    /// Leave out directories in which there is nothing but such (`-m`).
    pub prune_empty: bool,
    /// What came of large files before the run is cut off waits for the next one.
    pub partial: bool,
    /// Without going into directories: tell them, and what is in a source whose entries go into the destination itself (`-d`).
    pub directories: bool,
    /// What is in place and is no directory leaves the source.
    pub remove_sources: bool,
    /// Seconds of silence after which either end gives the other up, 0 for never; else a minute.
    pub timeout_s: Option<u64>,
    /// Contents of larger files do not come.
    pub max_size_bytes: Option<u64>,
    /// Nor those of smaller ones.
    pub min_size_bytes: Option<u64>,
    /// The destination is made anew beside itself, and the two are switched at once.
    pub atomic: bool,
    /// Files that are there are changed, not replaced.
    pub in_place: bool,
    /// What is replaced or deleted is kept.
    pub backup: Option<SyncBackup>,
    /// Other directories may have what is to come.
    pub basis: Option<SyncBasis>,
    /// Kinds, owners and bits are in attributes, and where.
    pub fake_super: Option<FakeWish>,
    /// Of the one source only what this names, with the directories on the way.
    pub chosen: Option<Arc<Chosen>>,
    /// Asked before anything is deleted, where the sources are read here for a run that is not dry. [`crate::Node::follow_trees`] sets its own.
    pub confirm: Option<Confirm>,
    /// Is told of the mounts that something of the sources is read of, where that is here. [`crate::Node::follow_trees`] sets its own.
    pub mounts: Option<Arc<ReadMounts>>,
}

/// Asked when every source was read to its end, before anything is deleted: with an error nothing is, and that is told as one of `.`.
#[derive(Clone)]
pub struct Confirm(Arc<dyn Fn() -> Result<()> + Send + Sync>);

impl Confirm {
    /// Asks `confirm`.
    pub fn new(confirm: impl Fn() -> Result<()> + Send + Sync + 'static) -> Confirm {
        Confirm(Arc::new(confirm))
    }

    pub(super) fn ask(&self) -> Result<()> {
        (self.0)()
    }
}

impl fmt::Debug for Confirm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Confirm")
    }
}

#[cfg(test)]
impl SyncOptions {
    /// As `-a`.
    pub(super) fn archive() -> SyncOptions {
        SyncOptions {
            links: true,
            modes: true,
            times: true,
            users: true,
            groups: true,
            devices: true,
            specials: true,
            ..SyncOptions::default()
        }
    }
}

/// Where what is replaced or deleted is kept.
#[derive(Clone, Debug, Default)]
pub struct SyncBackup {
    /// Below this directory of the receiver's, under its path in the destination, where a relative path begins; else beside its place.
    pub directory: Option<Vec<u8>>,
    /// What its name ends with; not empty without a directory.
    pub suffix: Vec<u8>,
}

/// Directories of the receiver's that may have what is to come, in the order in which they are asked; a relative path begins in the destination.
#[derive(Clone, Debug)]
pub struct SyncBasis {
    /// What for.
    pub usage: BasisUse,
    /// Which.
    pub places: Vec<Vec<u8>>,
}

impl SyncOptions {
    /// Flags of the first message that take the place of those of a copy.
    pub(super) fn tree_flags(&self) -> u64 {
        let sum = [
            // The receiver passes by what it does not keep, so that it is not taken for something that the source has not.
            (true, tree_flag::SPECIALS),
            (self.times, tree_flag::TIMES),
            (self.modes, tree_flag::MODES | tree_flag::SPECIAL_MODES),
            (self.users || self.groups, tree_flag::OWNERS),
            (self.acls || self.attributes, tree_flag::XATTRS),
            (self.hard_links, tree_flag::HARD_LINKS),
            (self.ignore_times, tree_flag::WHOLE_FILE),
        ];
        sum.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum()
    }

    /// What becomes of directories above the destination that are not there.
    pub(super) fn above(&self, is_dry: bool) -> Above {
        above_if(self.make_path, is_dry)
    }

    /// True if it takes an end that knows more than the first ones did.
    pub(super) fn needs_more(&self) -> bool {
        self.omit_directory_times
            || self.omit_link_times
            || self.make_path
            || self.prune_empty
            || self.partial
            || self.max_size_bytes.is_some()
            || self.min_size_bytes.is_some()
    }

    /// What stands in the first message; `Usage` if the rules are too many, or are none, or something does not go together.
    pub(super) fn wish(&self, is_dry: bool, whole_file: bool, into_directory: bool) -> Result<SyncWish> {
        if self.remove_sources {
            let (deletes, backup) = (self.delete || self.delete_excluded, self.backup.is_some());
            let fake = self.fake_super.is_some();
            let beside = removal::Beside { deletes, hard_links: self.hard_links, backup, fake, meets: false };
            // Which names the sources have is asked where they are known.
            beside.require_none()?;
        }
        if self.acls && self.fake_super.is_some() {
            return Err(acls_and_fake());
        }
        Excludes::of_rules(self.rules.iter().map(|rule| &rule[..]))
            .map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))?;
        let bytes: usize = self.rules.iter().map(Vec::len).sum();
        if self.rules.len() > SYNC_RULES_MAX || bytes > SYNC_RULES_BYTES_MAX {
            let what = format!(
                "more than {SYNC_RULES_MAX} patterns, or more than {SYNC_RULES_BYTES_MAX} bytes of them"
            );
            return Err(Error::new(ErrorKind::Usage, what));
        }
        if self.rules.iter().any(|rule| !matches!(rule.len(), 2..=SYNC_RULE_BYTES_MAX)) {
            let what = format!("an empty pattern, or one of {SYNC_RULE_BYTES_MAX} bytes or more");
            return Err(Error::new(ErrorKind::Usage, what));
        }
        let sum = [
            (self.links, sync_flag::LINKS),
            (self.devices, sync_flag::DEVICES),
            (self.specials, sync_flag::SPECIALS),
            (self.users, sync_flag::USERS),
            (self.groups, sync_flag::GROUPS),
            (self.acls, sync_flag::ACLS),
            (self.attributes, sync_flag::ATTRIBUTES),
            (self.checksum, sync_flag::CHECKSUM),
            (self.size_only, sync_flag::SIZE_ONLY),
            (self.update, sync_flag::UPDATE),
            (self.existing, sync_flag::EXISTING),
            (self.ignore_existing, sync_flag::IGNORE_EXISTING),
            (self.delete, sync_flag::DELETE),
            (self.delete_excluded, sync_flag::DELETE_EXCLUDED),
            (self.itemize || is_dry, sync_flag::ITEMIZE),
            (whole_file, sync_flag::NO_COMPARING),
            (into_directory, sync_flag::INTO_DIRECTORY),
            (self.omit_directory_times, sync_flag::OMIT_DIRECTORY_TIMES),
            (self.omit_link_times, sync_flag::OMIT_LINK_TIMES),
            (self.make_path, sync_flag::MAKE_PATH),
            (self.prune_empty, sync_flag::PRUNE_EMPTY),
            (self.partial, sync_flag::PARTIAL),
            (self.directories, sync_flag::DIRECTORIES),
            (self.remove_sources, sync_flag::REMOVE_SOURCES),
            (self.atomic, sync_flag::ATOMIC),
            (self.in_place, sync_flag::IN_PLACE),
            (self.chosen.is_some(), sync_flag::CHOSEN),
            (self.chosen.as_ref().is_some_and(|chosen| !chosen.names_root()), sync_flag::ROOTS_STAY),
        ];
        let rules: Vec<_> = self.rules.iter().map(|rule| rule.clone().into()).collect();
        Ok(SyncWish {
            flags: sum.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum(),
            rules: (!rules.is_empty()).then_some(rules),
            max_delete: self.max_delete,
            near: None,
            max_size_bytes: self.max_size_bytes,
            min_size_bytes: self.min_size_bytes,
            timeout_s: self.timeout_s,
            fake: self.fake_super,
            backup: self.backup.as_ref().map(SyncBackup::wish).transpose()?,
            basis: self.basis.as_ref().map(SyncBasis::wish).transpose()?,
        })
    }
}

impl SyncBackup {
    /// What stands in the first message.
    fn wish(&self) -> Result<Box<Backup>> {
        let usage = |what: String| Err(Error::new(ErrorKind::Usage, what));
        let SyncBackup { directory, suffix } = self;
        if suffix.len() > SYNC_SUFFIX_BYTES_MAX || suffix.contains(&b'/') {
            return usage(format!("--suffix has a slash in it, or more than {SYNC_SUFFIX_BYTES_MAX} bytes"));
        }
        if directory.is_none() && suffix.is_empty() {
            return usage("--suffix is empty, and there is no --backup-dir".into());
        }
        if directory.as_ref().is_some_and(|path| !matches!(path.len(), 1..=PATH_BYTES_MAX)) {
            return usage("--backup-dir is empty, or longer than a path may be".into());
        }
        let directory = directory.clone().map(Into::into);
        Ok(Box::new(Backup { directory, suffix: suffix.clone().into() }))
    }
}

impl SyncBasis {
    /// What stands in the first message.
    fn wish(&self) -> Result<Box<Basis>> {
        let is_path = |path: &Vec<u8>| matches!(path.len(), 1..=PATH_BYTES_MAX);
        if !matches!(self.places.len(), 1..=SYNC_BASES_MAX) || !self.places.iter().all(is_path) {
            let what = format!(
                "more than {SYNC_BASES_MAX} directories to look in, or one with no path at all, or too long a one"
            );
            return Err(Error::new(ErrorKind::Usage, what));
        }
        let usage = match self.usage {
            BasisUse::Compare => BasisUsage::Compare,
            BasisUse::Copy => BasisUsage::Copy,
            BasisUse::Link => BasisUsage::Link,
        };
        let places = self.places.iter().map(|path| path.clone().into()).collect();
        Ok(Box::new(Basis { usage, places }))
    }
}

/// Where directories that the user names beside the destination are.
pub(super) type Reach<'a> = dyn Fn(&[u8]) -> Result<Beside> + 'a;

/// They are on this host, as the user wrote them.
pub(super) fn beside_here(path: &[u8]) -> Result<Beside> {
    Ok(Beside::anywhere(OsStr::from_bytes(path).into()))
}

/// What the sender leaves out and the receiver protects.
pub(super) fn rules(wish: &SyncWish) -> Result<Excludes> {
    Excludes::of_rules(wish.rules.iter().flatten().map(|rule| &rule[..]))
}

/// Which extended attributes are kept.
pub(super) fn attributes(tree: &Tree) -> AttributeSort {
    let has = |flag| tree.sync.as_ref().is_none_or(|wish| wish.flags & flag != 0);
    match (has(sync_flag::ACLS), has(sync_flag::ATTRIBUTES)) {
        (true, false) => AttributeSort::Acls,
        (false, true) => AttributeSort::Others,
        _ => AttributeSort::All,
    }
}

/// What the sender, or the receiver, makes of attributes in which kinds, owners and bits are.
pub(super) fn fake_super(tree: &Tree, role: CopyRole) -> FakeSuper {
    let wish = tree.sync.as_ref().and_then(|wish| wish.fake);
    let is_named = match wish {
        None => false,
        Some(FakeWish::Users | FakeWish::Both) => true,
        Some(FakeWish::Sender) => role == CopyRole::Send,
        Some(FakeWish::Receiver) => role == CopyRole::Receive,
    };
    FakeSuper::of(is_named, wish != Some(FakeWish::Users))
}

/// How the sender walks, told what is chosen.
pub(super) fn walk_chosen(walk: WalkOptions, options: &TreeOptions) -> WalkOptions {
    let Some(sync) = &options.sync else { return walk };
    WalkOptions { chosen: sync.chosen.clone(), mounts: sync.mounts.clone(), ..walk }
}

/// True if a list follows `tree`: a far end that sends is told of it.
pub(in crate::copy) fn is_told_a_list(tree: &Tree) -> bool {
    tree.role == CopyRole::Send && has(tree, sync_flag::CHOSEN)
}

/// What the receiver does; `None` in a copy.
pub(super) fn options(tree: &Tree, reach: &Reach<'_>) -> Result<Option<StoreOptions>> {
    let Some(wish) = &tree.sync else { return Ok(None) };
    // To a sender, and where names of patterns are not known yet, somebody else looks at them.
    let names = tree.names.iter().filter(|_| tree.role == CopyRole::Receive);
    require_safe(tree, &names.map(|name| name.to_vec()).collect::<Vec<_>>())?;
    let has = |flag| wish.flags & flag != 0;
    let deletes = has(sync_flag::DELETE);
    let delete = DeleteOptions { excluded: has(sync_flag::DELETE_EXCLUDED), max: wish.max_delete };
    let kept = |backup: &Backup| {
        let directory = backup.directory.as_ref().map(|path| reach(path)).transpose()?;
        Ok::<_, Error>(BackupOptions { directory, suffix: backup.suffix.to_vec() })
    };
    Ok(Some(StoreOptions {
        omit_directory_times: has(sync_flag::OMIT_DIRECTORY_TIMES),
        omit_link_times: has(sync_flag::OMIT_LINK_TIMES),
        partial: has(sync_flag::PARTIAL),
        in_place: has(sync_flag::IN_PLACE),
        fake: fake_super(tree, CopyRole::Receive),
        removes_sources: removal::removes(tree),
        max_size_bytes: wish.max_size_bytes,
        min_size_bytes: wish.min_size_bytes,
        backup: wish.backup.as_deref().map(kept).transpose()?,
        basis: wish.basis.as_deref().map(|basis| looked_in(basis, reach)).transpose()?,
        links: has(sync_flag::LINKS),
        devices: has(sync_flag::DEVICES),
        specials: has(sync_flag::SPECIALS),
        users: has(sync_flag::USERS),
        groups: has(sync_flag::GROUPS),
        attributes: attributes(tree),
        checksum: has(sync_flag::CHECKSUM),
        size_only: has(sync_flag::SIZE_ONLY),
        update: has(sync_flag::UPDATE),
        existing: has(sync_flag::EXISTING),
        ignore_existing: has(sync_flag::IGNORE_EXISTING),
        delete: deletes.then_some(delete),
        one_file_system: tree.flags & tree_flag::ONE_FILE_SYSTEM != 0,
        rules: rules(wish)?,
        itemize: has(sync_flag::ITEMIZE),
        into_directory: has(sync_flag::INTO_DIRECTORY),
        roots_stay: has(sync_flag::ROOTS_STAY),
        // To a near end that receives, what it told of is its own destination.
        sources: wish
            .near
            .as_ref()
            .filter(|_| tree.role == CopyRole::Receive)
            .map_or_else(Vec::new, |near| places_here(near)),
    }))
}

/// Where the receiver looks for what need not come.
fn looked_in(basis: &Basis, reach: &Reach<'_>) -> Result<BasisOptions> {
    let usage = match basis.usage {
        BasisUsage::Compare => BasisUse::Compare,
        BasisUsage::Copy => BasisUse::Copy,
        BasisUsage::Link => BasisUse::Link,
    };
    let places = basis.places.iter().map(|path| reach(path)).collect::<Result<_>>()?;
    Ok(BasisOptions { places, usage })
}

/// Tells the far end of directories here, where something is deleted, moved or kept elsewhere: the sources, or the destination.
pub(super) fn add_near<'a>(tree: &mut Tree, paths: impl Iterator<Item = &'a Path>) {
    let found = paths.filter_map(|path| std::fs::metadata(path).ok()).filter(std::fs::Metadata::is_dir);
    let places: Vec<Place> = found
        .map(|found| Place { device: found.dev(), inode: found.ino() })
        .take(SYNC_PLACES_MAX + 1)
        .collect();
    if let (Some(wish), Some(boot)) = (&mut tree.sync, boot_id())
        && (wish.flags & (sync_flag::DELETE | sync_flag::REMOVE_SOURCES) != 0 || wish.backup.is_some())
        && (1..=SYNC_PLACES_MAX).contains(&places.len())
    {
        wish.near = Some(Box::new(Near { boot: boot.to_vec().into(), places }));
    }
}

/// Which of the near end's directories are here.
fn places_here(near: &Near) -> Vec<(u64, u64)> {
    let is_here = boot_id().is_some_and(|boot| boot[..] == near.boot[..]);
    near.places.iter().filter(|_| is_here).map(|place| (place.device, place.inode)).collect()
}

/// `Refused` if a source lies in the destination, both being on this machine: what it has not would be deleted, itself among it.
pub(super) fn require_outside(tree: &Tree, paths: &[PathBuf], origin: &Origin) -> Result<()> {
    let Some(near) = tree.sync.as_ref().filter(|_| deletes(tree)).and_then(|wish| wish.near.as_ref()) else {
        return Ok(());
    };
    let destinations = places_here(near);
    if destinations.is_empty() {
        return Ok(());
    }
    let is_destination = |path: &Path| {
        std::fs::metadata(path).is_ok_and(|found| destinations.contains(&(found.dev(), found.ino())))
    };
    for path in paths {
        let Ok(directory) = origin.directory(path) else { continue };
        let directory = OwnedFd::from(directory);
        let Ok(whole) = std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())) else {
            continue;
        };
        if whole.ancestors().skip(1).any(is_destination) {
            // What to do does not cross the wire, so it stands here.
            let what = format!(
                "{path:?} lies in the destination, from which what it has not would be deleted; name another destination"
            );
            return Err(Error::new(ErrorKind::Refused, what));
        }
    }
    Ok(())
}

/// Directories of a sender's that are the destination of what leaves it.
pub(super) fn spared(tree: &Tree) -> Vec<(u64, u64)> {
    let near = tree.sync.as_ref().and_then(|wish| wish.near.as_ref());
    let near = near.filter(|_| tree.role == CopyRole::Send && removal::removes(tree));
    near.map_or_else(Vec::new, |near| places_here(near))
}

/// `Refused` if what leaves its source, or is switched as a whole, would go into that, both being on this machine: it would be found there again, one directory deeper.
pub(super) fn require_landing_outside(tree: &Tree, landing: &Landing) -> Result<()> {
    let is_asked = removal::removes(tree) || whole::is_switched(tree);
    let near = tree.sync.as_ref().and_then(|wish| wish.near.as_ref()).filter(|_| is_asked);
    let sources = near.map_or_else(Vec::new, |near| places_here(near));
    if sources.is_empty() || !landing.lies_in(|device, inode| sources.contains(&(device, inode))) {
        return Ok(());
    }
    if whole::is_switched(tree) {
        let what = "--atomic: the destination lies in a source; name another destination";
        return Err(Error::new(ErrorKind::Refused, what));
    }
    let what = "the destination lies in a source, which would be moved into itself; name another destination";
    Err(Error::new(ErrorKind::Refused, what))
}

/// `Usage` if `tree`, whose sources go under `names`, asks for what does not go together.
pub(super) fn require_safe(tree: &Tree, names: &[Vec<u8>]) -> Result<()> {
    let fakes = tree.sync.as_ref().is_some_and(|wish| wish.fake.is_some());
    if fakes && tree.flags & tree_flag::XATTRS != 0 && attributes(tree) != AttributeSort::Others {
        return Err(acls_and_fake());
    }
    removal::require_safe(tree, names)?;
    whole::require_alone(tree, names)
}

/// An ACL has a say in the bits of what stands for an entry, and may let others write to that. What to do does not cross the wire, so it stands in what is said.
fn acls_and_fake() -> Error {
    let what = "--fake-super does not go with -A: an ACL on what stands for an entry may let others write to it, and ACLs are not kept in attributes; leave out -A";
    Error::new(ErrorKind::Usage, what)
}

/// True for a synchronisation with this flag.
pub(super) fn has(tree: &Tree, flag: u64) -> bool {
    tree.sync.as_ref().is_some_and(|wish| wish.flags & flag != 0)
}

/// How long the other end may be silent, where that is `usual` unless somebody says otherwise.
pub(super) fn patience(tree: &Tree, usual: Duration) -> Duration {
    match tree.sync.as_ref().and_then(|wish| wish.timeout_s) {
        None => usual,
        Some(0) => Duration::MAX,
        Some(seconds) => Duration::from_secs(seconds),
    }
}

/// True if what may differ is wanted without comparing first.
pub(super) fn compares_nothing(tree: &Tree) -> bool {
    has(tree, sync_flag::NO_COMPARING)
}

/// True if the receiver deletes what the source has not.
pub(super) fn deletes(tree: &Tree) -> bool {
    has(tree, sync_flag::DELETE)
}

/// What becomes of directories above the destination that are not there; `None` in a copy.
pub(super) fn above(tree: &Tree) -> Option<Above> {
    let wish = tree.sync.as_ref()?;
    Some(above_if(wish.flags & sync_flag::MAKE_PATH != 0, tree.flags & tree_flag::DRY_RUN != 0))
}

fn above_if(is_made: bool, is_dry: bool) -> Above {
    match (is_made, is_dry) {
        (false, _) => Above::IsThere,
        (true, false) => Above::IsMade,
        (true, true) => Above::WouldBeMade,
    }
}

/// `Usage` if a source lies where what it has not is to be deleted, itself among it, and no rule of the command line protects it.
pub(super) fn refuse_source_inside(
    sync: &SyncOptions,
    source: &Path,
    destination: &Path,
    name: &[u8],
) -> Result<()> {
    let whole = |path: &Path| std::fs::canonicalize(path).ok();
    let target = destination.join(OsStr::from_bytes(name));
    let (Some(from), Some(to)) = (whole(source), whole(&target)) else { return Ok(()) };
    let Some(below) = from.strip_prefix(&to).ok().filter(|_| sync.delete && from != to) else {
        return Ok(());
    };
    let rules = Excludes::of_rules(sync.rules.iter().map(|rule| &rule[..]))?;
    let top = Path::new(OsStr::from_bytes(name));
    let is_kept = |at: &Path| {
        !at.as_os_str().is_empty()
            && rules.protects(top.join(at).as_os_str().as_bytes(), true, sync.delete_excluded)
    };
    if below.ancestors().any(is_kept) {
        return Ok(());
    }
    let what = format!(
        "{source:?} lies in {target:?}, from which what it has not would be deleted, itself among it"
    );
    Err(Error::new(ErrorKind::Usage, what)
        .advise("name another destination, or protect it with --exclude or --filter='P …'"))
}

/// The name under which a source goes into the destination: with rsync, nothing for `DIR/`, too.
pub(super) fn name_of(path: &Path, is_sync: bool) -> Vec<u8> {
    if is_sync && path.as_os_str().as_bytes().ends_with(b"/") { Vec::new() } else { landing_name(path) }
}

/// Where everything goes; `sources` know the only source of a copy, which may go on where it was cut off.
pub(super) fn landing(
    origin: &Origin,
    path: &Path,
    names: &[Vec<u8>],
    must_be_directory: bool,
    sync: Option<Above>,
    sources: impl IntoIterator<Item = [u8; 32]>,
) -> Result<Landing> {
    if let Some(above) = sync {
        return Landing::resolve_sync_below(origin, path, names, above);
    }
    Ok(Landing::resolve_at(origin, path, names, must_be_directory)?.of_source(origin, path, sources))
}

/// What was done with an entry, for the other end or the user.
pub(super) fn item(done: Done) -> dray_core::message::PlannedItem {
    let action = if done.letters.is_some() { 0 } else { 4 };
    dray_core::message::PlannedItem {
        action,
        path: done.path.into(),
        changes: None,
        letters: done.letters.map(|letters| letters.to_vec().into()),
        link: done.link.map(Into::into),
    }
}

/// What is told where deletion was asked for and an entry failed before it.
pub(super) fn nothing_deleted() -> Error {
    Error::new(ErrorKind::Refused, "nothing was deleted, because not everything could be read and written")
        .advise("mend what is named above, and run it again")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// rsync's habits: a slash at the end means what is in the directory.
    #[test]
    fn a_slash_means_what_is_inside() {
        for (path, name) in
            [("a", "a"), ("a/", ""), ("/x/a//", ""), ("a/.", ""), (".", ""), ("..", ""), ("/", "")]
        {
            assert_eq!(name_of(Path::new(path), true), name.as_bytes(), "{path}");
        }
        assert_eq!(name_of(Path::new("a/"), false), b"a");
    }

    /// No two rules name one file of rules: it would be read, and kept, twice.
    #[test]
    fn files_of_rules_are_named_once() {
        let merge = b": .r".to_vec();
        let twice = SyncOptions { rules: vec![merge.clone(), merge], ..SyncOptions::default() };
        assert_eq!(twice.wish(false, false, false).unwrap_err().kind(), ErrorKind::Usage);
    }
}
