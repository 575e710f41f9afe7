//! Extended attributes, ACLs among them, read and set without following links.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::BorrowedFd;

use dray_core::limits::{TREE_XATTRS_BYTES_MAX, TREE_XATTRS_MAX};
use dray_core::tree::Xattr;
use rustix::fs::{
    XattrFlags, fgetxattr, flistxattr, fremovexattr, fsetxattr, getxattr, lgetxattr, listxattr, llistxattr,
    removexattr, setxattr,
};
use rustix::io::Errno;

use super::fake::is_reserved;

/// Most bytes of the list of names and of one value that Linux has.
const LINUX_MAX: usize = 64 * 1024;

/// Reads one attribute's value.
type Get<'a> = dyn Fn(&[u8], &mut [u8]) -> Result<usize, Errno> + 'a;
/// Sets one attribute.
type Put<'a> = dyn Fn(&[u8], &[u8]) -> Result<(), Errno> + 'a;

/// What names of our own marks begin with; none is ever copied.
const OURS: &[u8] = b"user.dray.unfinished";
/// Left on a directory whose bits are for the time of a copy only, in case that is killed.
pub(super) const MARK: &str = "user.dray.unfinished";
const DEFAULT_ACL: &str = "system.posix_acl_default";

/// What could not be kept, and what is not kept here, each with the number of entries.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) failed: BTreeMap<String, u64>,
    pub(super) left_out: BTreeMap<String, u64>,
}

/// Which attributes a copy is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AttributeSort {
    /// All that a user, or root, may set.
    #[default]
    All,
    /// ACLs alone.
    Acls,
    /// All but ACLs.
    Others,
}

/// What of the attributes that are there counts.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scope {
    /// Also those that only root may set.
    pub(super) is_root: bool,
    pub(super) sort: AttributeSort,
    /// Some stand for something else (`--fake-super`), and are no entry's own.
    pub(super) fakes: bool,
}

impl Scope {
    /// The same for one sort alone; nothing if it is not part of this.
    pub(super) fn of(self, sort: AttributeSort) -> Option<Scope> {
        let is_part = self.sort == AttributeSort::All || self.sort == sort;
        is_part.then_some(Scope { sort, ..self })
    }
}

/// True for what is copied: of ACLs both sorts, of other names the user's own and, for root, all but the system's. So `rsync -X`.
fn is_copied(name: &[u8], scope: Scope) -> bool {
    let is_acl = name == b"system.posix_acl_access" || name == DEFAULT_ACL.as_bytes();
    if is_acl {
        return scope.sort != AttributeSort::Others;
    }
    scope.sort != AttributeSort::Acls
        && !(scope.fakes && is_reserved(name))
        && ((name.starts_with(b"user.") && !name.starts_with(OURS))
            || (scope.is_root && !name.starts_with(b"system.") && !name.starts_with(b"user.")))
}

/// Labels that a host's own rules give to files: each host its own.
const LABELS: [&[u8]; 4] = [b"security.selinux", b"security.SMACK64", b"security.ima", b"security.evm"];

/// True for what root would copy, and this is somebody else; not for labels.
pub(super) fn is_for_root(name: &[u8], scope: Scope) -> bool {
    let is_label = LABELS.iter().any(|label| name.starts_with(label));
    !is_label
        && !name.starts_with(OURS)
        && !is_copied(name, scope)
        && is_copied(name, Scope { is_root: true, ..scope })
}

/// Reads the attributes of what stands at `path`, which [`Directory::reach`](super::Directory::reach) gave; ascending by name. `E2BIG` if they are more
/// than an entry holds.
pub(super) fn read(path: &[u8], scope: Scope) -> io::Result<Vec<Xattr>> {
    read_with(&|list| llistxattr(path, list), &|name, value| lgetxattr(path, name, value), scope)
}

/// The same of what the magic link `path` leads to.
pub(super) fn read_followed(path: &[u8], scope: Scope) -> io::Result<Vec<Xattr>> {
    read_with(&|list| listxattr(path, list), &|name, value| getxattr(path, name, value), scope)
}

/// Reads the attributes of the open file or directory `fd`.
pub(super) fn read_open(fd: BorrowedFd<'_>, scope: Scope) -> io::Result<Vec<Xattr>> {
    read_with(&|list| flistxattr(fd, list), &|name, value| fgetxattr(fd, name, value), scope)
}

fn read_with(
    list_names: &dyn Fn(&mut [u8]) -> Result<usize, Errno>,
    get: &Get<'_>,
    scope: Scope,
) -> io::Result<Vec<Xattr>> {
    let mut list = [0; 1024];
    let mut long = Vec::new();
    let names = match list_names(&mut list[..]) {
        Ok(len) => &list[..len],
        Err(Errno::RANGE) => {
            long.resize(LINUX_MAX, 0);
            let len = list_names(&mut long[..])?;
            &long[..len]
        }
        // A file system without attributes has none.
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut found = Vec::new();
    let mut bytes = 0;
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && is_copied(name, scope)) {
        let mut value = vec![0; LINUX_MAX];
        let len = match get(name, &mut value[..]) {
            Ok(len) => len,
            // It went meanwhile, or is one that has no value here.
            Err(Errno::NODATA | Errno::OPNOTSUPP) => continue,
            Err(error) => return Err(error.into()),
        };
        value.truncate(len);
        value.shrink_to_fit();
        bytes += name.len() + len;
        found.push(Xattr { name: name.to_vec(), value });
        if bytes > TREE_XATTRS_BYTES_MAX || found.len() > TREE_XATTRS_MAX {
            return Err(Errno::TOOBIG.into());
        }
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(found)
}

/// Makes the attributes of the open file or directory `fd` those of `wanted`. Failures are counted by sort of attribute.
pub(super) fn set(fd: BorrowedFd<'_>, wanted: &[Xattr], scope: Scope, told: &mut Told) {
    let found = read_open(fd, scope);
    let put = |name: &[u8], value: &[u8]| fsetxattr(fd, name, value, XattrFlags::empty());
    change(found, wanted, &put, &|name| fremovexattr(fd, name), scope, told);
}

/// The same for what the magic link `path` leads to, which may be a thing that cannot be opened.
pub(super) fn set_followed(path: &[u8], wanted: &[Xattr], scope: Scope, told: &mut Told) {
    let found = read_followed(path, scope);
    let put = |name: &[u8], value: &[u8]| setxattr(path, name, value, XattrFlags::empty());
    change(found, wanted, &put, &|name| removexattr(path, name), scope, told);
}

fn change(
    found: io::Result<Vec<Xattr>>,
    wanted: &[Xattr],
    put: &Put<'_>,
    remove: &dyn Fn(&[u8]) -> Result<(), Errno>,
    scope: Scope,
    told: &mut Told,
) {
    // What cannot be read is not taken for none: it is set as wanted, and nothing is removed.
    let found = found.unwrap_or_else(|error| {
        count(&mut told.failed, b"", &error.to_string());
        Vec::new()
    });
    for xattr in wanted.iter().filter(|xattr| !found.contains(xattr)) {
        if xattr.name.starts_with(OURS) || (scope.fakes && is_reserved(&xattr.name)) {
            // An older sender tells those that it does not know, and another one what it likes.
            if scope.fakes && is_reserved(&xattr.name) {
                count(&mut told.left_out, &xattr.name, "with --fake-super they stand for what is not kept");
            }
        } else if !is_copied(&xattr.name, scope) {
            count(&mut told.left_out, &xattr.name, "only root may set them");
        } else if let Err(error) = put(&xattr.name, &xattr.value) {
            count(&mut told.failed, &xattr.name, &io::Error::from(error).to_string());
        }
    }
    for extra in found.iter().filter(|extra| !wanted.iter().any(|xattr| xattr.name == extra.name)) {
        // Labels of the system here are not the sender's to remove.
        if extra.name.starts_with(b"security.") {
            continue;
        }
        if let Err(error) = remove(&extra.name) {
            count(&mut told.failed, &extra.name, &io::Error::from(error).to_string());
        }
    }
}

fn count(counts: &mut BTreeMap<String, u64>, name: &[u8], why: &str) {
    // Few kinds: one line each is told at the end.
    let name = match name {
        name if is_reserved(name) => "user.rsync.* attributes",
        name if name.starts_with(b"user.") => "user.* attributes",
        name if name.starts_with(b"system.posix_acl") => "ACLs",
        name if name.starts_with(b"security.") => "security.* attributes",
        name if name.starts_with(b"trusted.") => "trusted.* attributes",
        _ => "extended attributes",
    };
    *counts.entry(format!("{name}: {why}")).or_default() += 1;
}

/// Whether the attributes of what stands at `path` are `wanted` as far as they are copied
/// here; false if they cannot be read.
pub(super) fn are(path: &[u8], wanted: &[Xattr], scope: Scope) -> bool {
    are_found(read(path, scope), wanted, scope)
}

/// The same of the open file or directory `fd`.
pub(super) fn are_open(fd: BorrowedFd<'_>, wanted: &[Xattr], scope: Scope) -> bool {
    are_found(read_open(fd, scope), wanted, scope)
}

fn are_found(found: io::Result<Vec<Xattr>>, wanted: &[Xattr], scope: Scope) -> bool {
    let Ok(found) = found else { return false };
    let is_wanted = |there: &Xattr| wanted.iter().any(|xattr| xattr.name == there.name);
    // Those that `change` leaves.
    let found = found.iter().filter(|there| !there.name.starts_with(b"security.") || is_wanted(there));
    found.eq(wanted.iter().filter(|xattr| is_copied(&xattr.name, scope)))
}

/// True if the directory carries a mark of ours, or nobody can tell.
pub(super) fn has_marks(directory: BorrowedFd<'_>) -> bool {
    let mut list = [0; 1024];
    match flistxattr(directory, &mut list[..]) {
        Ok(len) => list[..len].split(|byte| *byte == 0).any(|name| name.starts_with(OURS)),
        Err(error) => error != Errno::OPNOTSUPP,
    }
}

/// The permission bits that the default ACL of `directory` leaves to what is made in it; `None` if it has none.
pub(super) fn default_acl_bits(directory: BorrowedFd<'_>) -> Option<u32> {
    const USER_OBJ: u16 = 1;
    const GROUP_OBJ: u16 = 4;
    const MASK: u16 = 16;
    const OTHER: u16 = 32;
    let mut value = vec![0; LINUX_MAX];
    let len = match fgetxattr(directory, DEFAULT_ACL, &mut value[..]) {
        Ok(len) if len > 4 => len,
        _ => return None,
    };
    let bits_of = |wanted: u16| {
        let mut entries = value[4..len].chunks_exact(8);
        let entry = entries.find(|entry| u16::from_le_bytes([entry[0], entry[1]]) == wanted)?;
        Some(u32::from(u16::from_le_bytes([entry[2], entry[3]])) & 7)
    };
    let group = bits_of(MASK).or_else(|| bits_of(GROUP_OBJ));
    Some(bits_of(USER_OBJ)? << 6 | group? << 3 | bits_of(OTHER)?)
}
