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

/// Most bytes of the list of names and of one value that Linux has.
const LINUX_MAX: usize = 64 * 1024;

/// Reads one attribute's value.
type Get<'a> = dyn Fn(&[u8], &mut [u8]) -> Result<usize, Errno> + 'a;
/// Sets one attribute.
type Put<'a> = dyn Fn(&[u8], &[u8]) -> Result<(), Errno> + 'a;

/// True for what is copied: of ACLs both sorts, of other names the user's own and, for root, all but the system's.
fn is_copied(name: &[u8], is_root: bool) -> bool {
    let is_acl = name == b"system.posix_acl_access" || name == b"system.posix_acl_default";
    is_acl || name.starts_with(b"user.") || (is_root && !name.starts_with(b"system."))
}

/// Reads the attributes of what stands at `path`, a path through `/proc/self/fd`; ascending by name. `E2BIG` if they are more
/// than an entry holds.
pub(super) fn read(path: &[u8], is_root: bool) -> io::Result<Vec<Xattr>> {
    read_with(&|list| llistxattr(path, list), &|name, value| lgetxattr(path, name, value), is_root)
}

/// Reads the attributes of the open file or directory `fd`.
pub(super) fn read_open(fd: BorrowedFd<'_>, is_root: bool) -> io::Result<Vec<Xattr>> {
    read_with(&|list| flistxattr(fd, list), &|name, value| fgetxattr(fd, name, value), is_root)
}

fn read_with(
    list_names: &dyn Fn(&mut [u8]) -> Result<usize, Errno>,
    get: &Get<'_>,
    is_root: bool,
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
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && is_copied(name, is_root)) {
        let mut value = vec![0; LINUX_MAX];
        let len = match get(name, &mut value[..]) {
            Ok(len) => len,
            // It went meanwhile.
            Err(Errno::NODATA) => continue,
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

/// Makes the attributes of the open file or directory `fd` those of `wanted`. Failures are counted in `failed` by attribute.
pub(super) fn set(fd: BorrowedFd<'_>, wanted: &[Xattr], is_root: bool, failed: &mut BTreeMap<String, u64>) {
    let found = read_open(fd, is_root);
    let put = |name: &[u8], value: &[u8]| fsetxattr(fd, name, value, XattrFlags::empty());
    change(found, wanted, &put, &|name| fremovexattr(fd, name), failed);
}

/// The same for what the magic link `path` leads to, which may be a thing that cannot be opened.
pub(super) fn set_followed(path: &[u8], wanted: &[Xattr], is_root: bool, failed: &mut BTreeMap<String, u64>) {
    let found = read_with(&|list| listxattr(path, list), &|name, value| getxattr(path, name, value), is_root);
    let put = |name: &[u8], value: &[u8]| setxattr(path, name, value, XattrFlags::empty());
    change(found, wanted, &put, &|name| removexattr(path, name), failed);
}

fn change(
    found: io::Result<Vec<Xattr>>,
    wanted: &[Xattr],
    put: &Put<'_>,
    remove: &dyn Fn(&[u8]) -> Result<(), Errno>,
    failed: &mut BTreeMap<String, u64>,
) {
    let found = match found {
        Ok(found) => found,
        Err(error) => return count(failed, b"", error),
    };
    for xattr in wanted.iter().filter(|xattr| !found.contains(xattr)) {
        if let Err(error) = put(&xattr.name, &xattr.value) {
            count(failed, &xattr.name, error.into());
        }
    }
    for extra in found.iter().filter(|extra| !wanted.iter().any(|xattr| xattr.name == extra.name)) {
        // Labels of the system here are not the sender's to remove.
        if extra.name.starts_with(b"security.") {
            continue;
        }
        if let Err(error) = remove(&extra.name) {
            count(failed, &extra.name, error.into());
        }
    }
}

fn count(failed: &mut BTreeMap<String, u64>, name: &[u8], error: io::Error) {
    // Few kinds: one line each is told at the end.
    let name = match name {
        name if name.starts_with(b"user.") => "user.* attributes".to_owned(),
        name if name.starts_with(b"system.posix_acl") => "ACLs".to_owned(),
        name if name.starts_with(b"security.") => "security.* attributes".to_owned(),
        name if name.starts_with(b"trusted.") => "trusted.* attributes".to_owned(),
        _ => "extended attributes".to_owned(),
    };
    *failed.entry(format!("{name}: {error}")).or_default() += 1;
}
