//! `dray sync`: what it asks for beyond a copy, as flags and rules of the first message, and back again at either end.

use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dray_core::limits::{SYNC_PLACES_MAX, SYNC_RULE_BYTES_MAX, SYNC_RULES_BYTES_MAX, SYNC_RULES_MAX};
use dray_core::message::{CopyRole, Near, Place, SyncWish, Tree, sync_flag, tree_flag};
use dray_core::{Error, ErrorKind, Result};
use dray_store::local::boot_id;
use dray_store::local::tree::{
    AttributeSort, Chosen, DeleteOptions, Done, Excludes, Landing, Origin, SyncOptions as StoreOptions,
    WalkOptions,
};

use super::{TreeOptions, landing_name};

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
    /// Of the one source only what this names, with the directories on the way.
    pub chosen: Option<Arc<Chosen>>,
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

    /// `Usage` if something is asked for together that is not safe together.
    pub(super) fn require_safe(&self) -> Result<()> {
        let rules = Excludes::of_rules(self.rules.iter().map(|rule| &rule[..]))
            .map_err(|error| Error::new(ErrorKind::Usage, error.to_string()))?;
        match unsafe_together(self.delete, self.chosen.is_some(), &rules) {
            None => Ok(()),
            Some((what, advice)) => Err(Error::new(ErrorKind::Usage, what).advise(advice)),
        }
    }

    /// What stands in the first message; `Usage` if the rules are too many, or something is not safe together.
    pub(super) fn wish(&self, is_dry: bool, whole_file: bool, into_directory: bool) -> Result<SyncWish> {
        self.require_safe()?;
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
            (self.chosen.is_some(), sync_flag::CHOSEN),
            (self.chosen.as_ref().is_some_and(|chosen| !chosen.names_root()), sync_flag::ROOTS_STAY),
        ];
        let rules: Vec<_> = self.rules.iter().map(|rule| rule.clone().into()).collect();
        Ok(SyncWish {
            flags: sum.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum(),
            rules: (!rules.is_empty()).then_some(rules),
            max_delete: self.max_delete,
            near: None,
        })
    }
}

/// What is refused, and what to do instead. Where something is deleted, the receiver would have to know what files of rules that it has just deleted said,
/// and, of a list, believe the sender as to which directories come whole.
fn unsafe_together(deletes: bool, has_list: bool, rules: &Excludes) -> Option<(&'static str, &'static str)> {
    match deletes {
        true if has_list => Some((
            "--delete together with --files-from is not taken yet",
            "leave one of them out; docs/sync.md says why",
        )),
        true if rules.reads_files() => Some((
            "--delete together with files of rules in directories (-F, --gitignore, the rule `:`) is not taken yet",
            "give the rules on the command line (--exclude, -f, -f '. FILE'), or leave --delete out; docs/sync.md says why",
        )),
        _ => None,
    }
}

/// What the sender leaves out and the receiver protects; `Unsupported` where it is not safe together with the rest, whatever the other end thinks of that.
pub(super) fn rules(wish: &SyncWish) -> Result<Excludes> {
    let rules = Excludes::of_rules(wish.rules.iter().flatten().map(|rule| &rule[..]))?;
    let has = |flag| wish.flags & flag != 0;
    match unsafe_together(has(sync_flag::DELETE), has(sync_flag::CHOSEN), &rules) {
        None => Ok(rules),
        Some((what, _)) => Err(Error::new(ErrorKind::Unsupported, what)),
    }
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

/// How the sender walks, told what is chosen.
pub(super) fn walk_chosen(walk: WalkOptions, options: &TreeOptions) -> WalkOptions {
    WalkOptions { chosen: options.sync.as_ref().and_then(|sync| sync.chosen.clone()), ..walk }
}

/// True if a list follows `tree`: a far end that sends is told of it.
pub(in crate::copy) fn is_told_a_list(tree: &Tree) -> bool {
    tree.role == CopyRole::Send && tree.sync.as_ref().is_some_and(|wish| wish.flags & sync_flag::CHOSEN != 0)
}

/// What the receiver does; `None` in a copy.
pub(super) fn options(tree: &Tree) -> Result<Option<StoreOptions>> {
    let Some(wish) = &tree.sync else { return Ok(None) };
    let has = |flag| wish.flags & flag != 0;
    let deletes = has(sync_flag::DELETE);
    let delete = DeleteOptions { excluded: has(sync_flag::DELETE_EXCLUDED), max: wish.max_delete };
    Ok(Some(StoreOptions {
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

/// Tells the far end of directories here, where something is deleted: the sources, or the destination.
pub(super) fn add_near<'a>(tree: &mut Tree, paths: impl Iterator<Item = &'a Path>) {
    let found = paths.filter_map(|path| std::fs::metadata(path).ok()).filter(std::fs::Metadata::is_dir);
    let places: Vec<Place> = found
        .map(|found| Place { device: found.dev(), inode: found.ino() })
        .take(SYNC_PLACES_MAX + 1)
        .collect();
    if let (Some(wish), Some(boot)) = (&mut tree.sync, boot_id())
        && wish.flags & sync_flag::DELETE != 0
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
    let Some(near) = tree.sync.as_ref().and_then(|wish| wish.near.as_ref()) else { return Ok(()) };
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

/// True if what may differ is wanted without comparing first.
pub(super) fn compares_nothing(tree: &Tree) -> bool {
    tree.sync.as_ref().is_some_and(|wish| wish.flags & sync_flag::NO_COMPARING != 0)
}

/// True if the receiver deletes what the source has not.
pub(super) fn deletes(tree: &Tree) -> bool {
    tree.sync.as_ref().is_some_and(|wish| wish.flags & sync_flag::DELETE != 0)
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
    is_sync: bool,
    sources: impl IntoIterator<Item = [u8; 32]>,
) -> Result<Landing> {
    if is_sync {
        return Landing::resolve_sync(origin, path, names);
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

    /// What is not safe together is refused by the near end as a usage error, and by the far end whatever the near one thinks of it: a wish with flags and
    /// rules that no `SyncOptions` would make. Rules of the command line go on.
    #[test]
    fn what_is_not_safe_together_is_refused_at_both_ends() {
        let (merge, git, plain) = (b": .r".to_vec(), b":g .gitignore".to_vec(), b"=-r x".to_vec());
        for (delete, list, rule, is_taken) in [
            (true, false, &merge, false),
            (true, false, &git, false),
            (true, true, &plain, false),
            (true, false, &plain, true),
            (false, true, &merge, true),
            (false, false, &git, true),
        ] {
            let chosen = list.then(Arc::default);
            let options = SyncOptions { delete, rules: vec![rule.clone()], chosen, ..SyncOptions::default() };
            let near = options.wish(false, false, false);
            let sum = [(delete, sync_flag::DELETE), (list, sync_flag::CHOSEN)];
            let flags = sum.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).sum();
            let told =
                SyncWish { flags, rules: Some(vec![rule.clone().into()]), max_delete: None, near: None };
            let far = rules(&told);
            if is_taken {
                assert!(near.is_ok() && far.is_ok(), "{delete} {list} {rule:?}");
            } else {
                assert_eq!(near.unwrap_err().kind(), ErrorKind::Usage, "{delete} {list} {rule:?}");
                assert_eq!(far.unwrap_err().kind(), ErrorKind::Unsupported, "{delete} {list} {rule:?}");
            }
        }
        let twice = SyncOptions { rules: vec![merge.clone(), merge], ..SyncOptions::default() };
        assert_eq!(twice.wish(false, false, false).unwrap_err().kind(), ErrorKind::Usage);
    }
}
