//! Kind, owner and bits of an entry in an attribute of the file or directory that stands for it, as rsync's `--fake-super` keeps them ([ADR 32]): for
//! an account that may not give files away, or a file system that keeps no owners.
//!
//! An attribute is believed only where nobody else can have set it: what is told of it comes to life where root restores it. Who may write to a file may set it, too.
//!
//! [ADR 32]: ../../../../../docs/adr/0032-owners-in-attributes.md

use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use dray_core::limits::PATH_BYTES_MAX;
use dray_core::tree::{Kind, Metadata, Xattr};
use dray_core::{Error, ErrorKind, Result};
use rustix::fs::{
    FileType, Mode, OFlags, Statx, XattrFlags, fgetxattr, fremovexattr, fsetxattr, lgetxattr, removexattr,
    setxattr,
};
use rustix::io::Errno;

use super::attributes::{self, Scope, Told as NotKept};
use super::directory::{Directory, READ, STAT, stat_fd};
use super::overwrite::FACTS;
use super::place::{identity_of, times_of};
use super::settings::{Settings, mtime_of};
use super::temporary;
use super::write::file_type;

/// The attribute.
pub(super) const ATTRIBUTE: &str = "user.rsync.%stat";
/// What names of attributes begin with that stand for something else: with `%` for what rsync knows of an entry, else for attributes that only root may set. None of
/// them is told where the option is on, and none is removed.
const RESERVED: &[u8] = b"user.rsync.";
/// Bytes of its value: five numbers, the first in octal.
const VALUE_BYTES_MAX: usize = 64;
/// Bits of a mode that tell the kind.
const KIND: u32 = 0o170_000;
/// Bits that what stands for an entry may have: others are not to write to it, who could change the attribute then.
const REAL: u32 = 0o755;
/// Those that let others write, be it by ACLs, whose mask is in the bits of the group.
const OTHERS_WRITE: u32 = 0o022;

/// What one end makes of the attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FakeSuper {
    /// It is nothing special.
    #[default]
    Off,
    /// What it says counts, and is written.
    On,
    /// This end is root, and nobody said that root is to believe it.
    Distrusted,
}

impl FakeSuper {
    /// At an end that is asked for it, be it as root, or only if it is not.
    pub fn of(is_asked: bool, is_for_root: bool) -> FakeSuper {
        match (is_asked, is_for_root || !rustix::process::geteuid().is_root()) {
            (false, _) => FakeSuper::Off,
            (true, true) => FakeSuper::On,
            (true, false) => FakeSuper::Distrusted,
        }
    }
}

/// True for attributes that are no entry's own.
pub(super) fn is_reserved(name: &[u8]) -> bool {
    name.starts_with(RESERVED)
}

/// What an attribute says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct FakeStat {
    /// Kind and permission bits.
    pub(super) mode: u32,
    /// Major and minor number of a device; else 0.
    pub(super) device: (u32, u32),
    pub(super) uid: u32,
    pub(super) gid: u32,
}

impl FakeStat {
    /// Reads a value: `100644 0,0 1000:1000`, in this very form and no other.
    pub(super) fn parse(value: &[u8]) -> Option<FakeStat> {
        let text = std::str::from_utf8(value).ok().filter(|text| text.len() <= VALUE_BYTES_MAX)?;
        let mut words = text.split(' ');
        let (mode, device, owner) = (words.next()?, words.next()?, words.next()?);
        let mode = u32::from_str_radix(mode, 8).ok()?;
        let number = |text: &str| text.parse::<u32>().ok();
        let ((major, minor), (uid, gid)) = (device.split_once(',')?, owner.split_once(':')?);
        let device = (number(major)?, number(minor)?);
        let stat = FakeStat { mode, device, uid: number(uid)?, gid: number(gid)? };
        // What is written otherwise, with signs or zeros, nobody wrote who is to be believed.
        (stat.is_possible() && stat.value() == text).then_some(stat)
    }

    /// The value that says so.
    pub(super) fn value(&self) -> String {
        let FakeStat { mode, device: (major, minor), uid, gid } = self;
        format!("{mode:o} {major},{minor} {uid}:{gid}")
    }

    fn is_possible(&self) -> bool {
        let is_device = matches!(self.kind(), FileType::CharacterDevice | FileType::BlockDevice);
        self.mode & !(KIND | 0o7777) == 0
            && self.kind() != FileType::Unknown
            && (is_device || self.device == (0, 0))
            && self.uid != u32::MAX
            && self.gid != u32::MAX
    }

    fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    /// What `found`, which the attribute is on, stands for; `None` if it cannot stand for that.
    fn over(&self, found: &Statx) -> Option<Statx> {
        let is_directory = |kind| kind == FileType::Directory;
        let mut seen = *found;
        seen.stx_mode = u16::try_from(self.mode).ok()?;
        (seen.stx_uid, seen.stx_gid) = (self.uid, self.gid);
        (seen.stx_rdev_major, seen.stx_rdev_minor) = self.device;
        (is_directory(self.kind()) == is_directory(file_type(found))).then_some(seen)
    }

    /// True if it makes more of `found` than those could who may write there without owning it, be it by ACLs, whose mask is in the bits of the group: powers, a device,
    /// or a link where rsync, which gives to what stands for links all bits, would have made none.
    fn is_lent_by_others(&self, found: &Statx) -> bool {
        let bits = u32::from(found.stx_mode) & 0o777;
        let is_more = match self.kind() {
            FileType::CharacterDevice | FileType::BlockDevice => true,
            FileType::Symlink => bits != 0o777,
            _ => self.mode & 0o6000 != 0,
        };
        is_more && bits & OTHERS_WRITE != 0 && file_type(found) == FileType::RegularFile
    }

    /// The permission bits of what stands for it and has the group `gid`: its owner can read and write it, and nobody else writes to it. What has no content of
    /// its own is nobody else's at all.
    fn real_bits(&self, gid: u32) -> u32 {
        // Whom this group has here are others there.
        let of_group = if gid == self.gid { 0o070 } else { self.mode << 3 & 0o070 };
        let bits = self.mode & REAL & (0o707 | of_group);
        match self.kind() {
            FileType::Directory => bits | 0o700,
            FileType::RegularFile => bits | 0o600,
            _ => 0o600,
        }
    }

    /// True if what stands for it says all that by itself.
    fn is_plain(&self, uid: u32, gid: u32) -> bool {
        matches!(self.kind(), FileType::Directory | FileType::RegularFile)
            && (self.uid, self.gid) == (uid, gid)
            && self.mode & 0o7777 == self.real_bits(gid)
    }
}

/// The attribute of something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    None,
    Says(FakeStat),
    Rubbish,
}

/// Something that may have the attribute.
#[derive(Clone, Copy)]
pub(super) enum At<'a> {
    /// Open, for reading at least.
    Open(BorrowedFd<'a>),
    /// What a magic link leads to.
    Path(&'a [u8]),
}

impl At<'_> {
    fn read(self) -> Result<Found, Errno> {
        let mut value = [0; VALUE_BYTES_MAX];
        let read = match self {
            At::Open(fd) => fgetxattr(fd, ATTRIBUTE, &mut value[..]),
            At::Path(path) => rustix::fs::getxattr(path, ATTRIBUTE, &mut value[..]),
        };
        found(read, &value)
    }

    fn set(self, value: &str) -> Result<(), Errno> {
        let none = XattrFlags::empty();
        match self {
            At::Open(fd) => fsetxattr(fd, ATTRIBUTE, value.as_bytes(), none),
            At::Path(path) => setxattr(path, ATTRIBUTE, value.as_bytes(), none),
        }
    }

    /// Says that, or where it cannot, nothing: what was said goes in any case, but for the error of both.
    fn set_or_remove(self, stat: &FakeStat) -> Result<(), Errno> {
        self.set(&stat.value()).or_else(|error| self.remove().and(Err(error)))
    }

    /// Says that `stat` of what `real` tells of, as far as it is not just that.
    fn say(self, stat: &FakeStat, real: &Statx) -> Result<(), Errno> {
        let says = self.read();
        if stat.is_plain(real.stx_uid, real.stx_gid) {
            if says == Ok(Found::None) { Ok(()) } else { self.remove() }
        } else if says == Ok(Found::Says(*stat)) {
            Ok(())
        } else {
            self.set_or_remove(stat)
        }
    }

    fn remove(self) -> Result<(), Errno> {
        let removed = match self {
            At::Open(fd) => fremovexattr(fd, ATTRIBUTE),
            At::Path(path) => removexattr(path, ATTRIBUTE),
        };
        match removed {
            Err(Errno::NODATA) => Ok(()),
            removed => removed,
        }
    }

    /// Its attributes, but for the one that stands for others.
    pub(super) fn attributes(self, scope: Scope) -> io::Result<Vec<Xattr>> {
        match self {
            At::Open(fd) => attributes::read_open(fd, scope),
            At::Path(path) => attributes::read_followed(path, scope),
        }
    }

    /// Makes them those of `wanted`.
    pub(super) fn set_attributes(self, wanted: &[Xattr], scope: Scope, told: &mut NotKept) {
        match self {
            At::Open(fd) => attributes::set(fd, wanted, scope, told),
            At::Path(path) => attributes::set_followed(path, wanted, scope, told),
        }
    }

    pub(super) fn set_mode(self, mode: u32) -> Result<(), Errno> {
        match self {
            At::Open(fd) => rustix::fs::fchmod(fd, Mode::from_raw_mode(mode)),
            At::Path(path) => rustix::fs::chmod(path, Mode::from_raw_mode(mode)),
        }
    }
}

/// How the attributes are reached of what is open as a place (`O_PATH`), which is no descriptor for them.
#[derive(Debug)]
pub(super) enum Access {
    /// By the magic link to it.
    Link(Vec<u8>),
    /// By the same file, open for reading.
    Open(OwnedFd),
}

impl Access {
    /// To what `place` has open, which `found` tells of and which stood under `name`. `ESTALE` if something else stands there where no magic link leads to
    /// it, as on a host without `/proc`.
    pub(super) fn to(
        place: BorrowedFd<'_>,
        found: &Statx,
        directory: &Directory,
        name: &[u8],
    ) -> Result<Access, Errno> {
        // Opening a fifo or device is felt at its other end; what is none has attributes of its own.
        if has_magic_links(place) || file_type(found) != FileType::RegularFile {
            return Ok(Access::by_link(place));
        }
        Access::by_name(found, directory, name)
    }

    /// By the magic link, wherever that leads.
    pub(super) fn by_link(place: BorrowedFd<'_>) -> Access {
        Access::Link(Directory::path_of(place))
    }

    /// By its name, as long as the same file stands there.
    pub(super) fn by_name(found: &Statx, directory: &Directory, name: &[u8]) -> Result<Access, Errno> {
        let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let fd = directory.open_to_read(name).map_err(errno)?;
        let now = stat_fd(fd.as_fd()).map_err(errno)?;
        if identity_of(&now) == identity_of(found) { Ok(Access::Open(fd)) } else { Err(Errno::STALE) }
    }

    pub(super) fn at(&self) -> At<'_> {
        match self {
            Access::Link(path) => At::Path(path),
            Access::Open(fd) => At::Open(fd.as_fd()),
        }
    }
}

/// Whether this host has magic links to what a process has open, as `open` is; asked once.
fn has_magic_links(open: BorrowedFd<'_>) -> bool {
    static HAS: OnceLock<bool> = OnceLock::new();
    *HAS.get_or_init(|| {
        rustix::fs::access(Directory::path_of(open), rustix::fs::Access::EXISTS) != Err(Errno::NOENT)
    })
}

/// What reading the attribute came to.
fn found(read: Result<usize, Errno>, value: &[u8]) -> Result<Found, Errno> {
    match read {
        Ok(len) => Ok(FakeStat::parse(&value[..len]).map_or(Found::Rubbish, Found::Says)),
        Err(Errno::RANGE) => Ok(Found::Rubbish),
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(Found::None),
        Err(error) => Err(error),
    }
}

/// The attribute of what stands under `name`, not through a link.
fn read_at(directory: &Directory, name: &[u8]) -> Result<Found, Errno> {
    let mut value = [0; VALUE_BYTES_MAX];
    let read = directory.reach(name, |path| lgetxattr(path, ATTRIBUTE, &mut value[..]));
    found(read, &value)
}

/// The directory that `fd` lies in, as far as this mount tells.
fn above(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(fd, "..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// Has `look` see `directory` and what it lies in, as far as this mount tells, until that breaks off or the root was seen; `None` if something cannot be looked at.
fn climb<T>(directory: &Directory, look: &mut dyn FnMut(&Statx) -> ControlFlow<T>) -> Option<ControlFlow<T>> {
    let mut found = directory.stat_self().ok()?;
    let mut at: Option<OwnedFd> = None;
    // As many as a path can have.
    for _ in 0..PATH_BYTES_MAX {
        if let ControlFlow::Break(said) = look(&found) {
            return Some(ControlFlow::Break(said));
        }
        let next = above(at.as_ref().map_or(directory.as_fd(), AsFd::as_fd)).ok()?;
        let there = stat_fd(next.as_fd()).ok()?;
        // What lies in itself is the root.
        if identity_of(&there) == identity_of(&found) {
            return Some(ControlFlow::Continue(()));
        }
        (found, at) = (there, Some(next));
    }
    None
}

/// Who owns `directory`, unless he may have put a directory of his own in a place of others: what it lies in is his, up to a directory of root's, where nobody else makes
/// anything.
fn owner_in_place(directory: &Directory) -> Option<u32> {
    let mut owner = None;
    let end = climb(directory, &mut |found| match owner {
        None => {
            owner = Some(found.stx_uid);
            ControlFlow::Continue(())
        }
        Some(_) if found.stx_uid == 0 => ControlFlow::Break(u32::from(found.stx_mode) & OTHERS_WRITE == 0),
        Some(owner) if found.stx_uid != owner => ControlFlow::Break(false),
        Some(_) => ControlFlow::Continue(()),
    })?;
    owner.filter(|_| end != ControlFlow::Break(false))
}

/// True if nobody but root and the accounts `own` can come to what is in `directory`: that, or one above it, belongs to them and lets nobody else in.
fn is_closed(directory: &Directory, own: [u32; 2]) -> bool {
    let end = climb(directory, &mut |found| {
        let is_theirs = found.stx_uid == 0 || own.contains(&found.stx_uid);
        if is_theirs && found.stx_mode & 0o011 == 0 {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    });
    end == Some(ControlFlow::Break(()))
}

/// True if nobody else can come to what `found` tells of, in a directory that others cannot come to: it has no name elsewhere.
fn is_closed_in(is_closed: bool, found: &Statx) -> bool {
    is_closed && found.stx_nlink == 1
}

/// True if others may write to what is really a file, as `found` tells, whatever it stands for: who can may set its attribute.
pub(super) fn is_open_to_others(found: &Statx) -> bool {
    file_type(found) == FileType::RegularFile && u32::from(found.stx_mode) & OTHERS_WRITE != 0
}

/// What is made in `directory`, of which nothing is left, nor that it was made; `None` if nothing can be made there. An error if it is left.
fn made_in(directory: &Directory) -> Result<Option<Statx>> {
    match directory.unnamed() {
        Ok(file) => Ok(stat_fd(file.as_fd()).ok()),
        Err(_) => made_by_name_in(directory, &|| ()),
    }
}

/// The same where every file has a name; `meanwhile` is what others do while it is there.
pub(super) fn made_by_name_in(directory: &Directory, meanwhile: &dyn Fn()) -> Result<Option<Statx>> {
    let Ok(before) = directory.stat_self() else { return Ok(None) };
    let mut made = None;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOCTTY;
    let name = temporary::make_random(&mut |name| {
        made = Some(directory.open_at(name, flags, Mode::RUSR | Mode::WUSR)?);
        Ok(())
    });
    let (Ok(name), Some(file)) = (name, made) else { return Ok(None) };
    let time = || directory.stat_self().map(|found| mtime_of(&found)).ok();
    let left = time();
    let found = stat_fd(file.as_fd()).ok();
    meanwhile();
    let is_ours = left.is_some() && time() == left;
    match rustix::fs::unlinkat(directory, &name[..], rustix::fs::AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => {
            let name = String::from_utf8_lossy(&name);
            let what = format!("remove {name:?}, which was made in the destination to see whose it is there");
            return Err(Error::file(what, error.into()));
        }
    }
    // The time of what others did is not taken away. Who may not set it back has none to keep there.
    if is_ours {
        let _ = rustix::fs::futimens(directory, &times_of(mtime_of(&before)));
    }
    Ok(found)
}

/// True for what can have the attribute: links and devices can not.
fn may_have(found: &Statx) -> bool {
    matches!(file_type(found), FileType::RegularFile | FileType::Directory)
}

/// The sender's side: what is believed, and what is told of the rest.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Telling {
    fake: FakeSuper,
    /// The accounts whose attributes are believed.
    own: u32,
    owner: u32,
    /// Who owns the source, and is not believed.
    stranger: Option<u32>,
    /// Nobody else can come to the source.
    is_closed: bool,
}

impl Telling {
    /// Of a source in `directory`, or that itself: to this account its own attributes count; to root those of who owns the directory, too, who could put anything there.
    pub(super) fn new(fake: FakeSuper, directory: &Directory) -> Telling {
        let uid = rustix::process::geteuid();
        let own = uid.as_raw();
        if fake != FakeSuper::On {
            return Telling { fake, own, owner: own, stranger: None, is_closed: false };
        }
        let believed = if uid.is_root() { owner_in_place(directory) } else { Some(own) };
        let stranger = match believed {
            Some(_) => None,
            None => directory.stat_self().ok().map(|found| found.stx_uid),
        };
        let owner = believed.unwrap_or(own);
        Telling { fake, own, owner, stranger, is_closed: is_closed(directory, [own, owner]) }
    }

    /// What stands under `name`, of which `found` was told, open so that nobody can put something else in its place between one look and the next;
    /// `None` where no attribute counts.
    pub(super) fn place(&self, directory: &Directory, name: &[u8], found: &Statx) -> Result<Option<Place>> {
        if self.fake == FakeSuper::Off || !may_have(found) {
            return Ok(None);
        }
        let failed = |error| Error::file("read it", error);
        let fd = directory.open_at(name, OFlags::PATH, Mode::empty()).map_err(failed)?;
        let now = stat_fd(fd.as_fd()).map_err(failed)?;
        if file_type(&now) != file_type(found) {
            return Err(replaced());
        }
        let access = Access::to(fd.as_fd(), &now, directory, name);
        if access.as_ref().is_err_and(|error| *error == Errno::STALE) {
            return Err(replaced());
        }
        Ok(Some(Place { _fd: fd, access, found: now }))
    }

    /// What is at `place` is told as. An error if it says something that cannot be believed.
    pub(super) fn entry(&self, place: &Place) -> Result<Told> {
        self.told(&place.found, || place.at()?.read())
    }

    /// The same of an open directory.
    pub(super) fn open(&self, directory: &Directory, found: &Statx) -> Result<Told> {
        self.told(found, || At::Open(directory.as_fd()).read())
    }

    fn told(&self, found: &Statx, read: impl FnOnce() -> Result<Found, Errno>) -> Result<Told> {
        let itself = Ok(Told::Itself);
        if self.fake == FakeSuper::Off || !may_have(found) {
            return itself;
        }
        let is_own = found.stx_uid == self.own || found.stx_uid == self.owner;
        // What to do does not cross the wire, so it stands here.
        let refused =
            |what: &str| Error::new(ErrorKind::Refused, format!("its attribute {ATTRIBUTE} {what}"));
        match (read(), self.fake) {
            (Ok(Found::None), _) => itself,
            // What cannot be read of another user's is not believed either.
            (Err(Errno::ACCESS | Errno::PERM), _) if !is_own => itself,
            (Err(error), _) => Err(Error::file(format!("read its attribute {ATTRIBUTE}"), error.into())),
            (Ok(_), FakeSuper::Distrusted) => Ok(Told::NotBelieved(refused(
                "says of it what root does not believe unasked, and is not kept; --fake-super=src has root believe it",
            ))),
            (Ok(_), _) if !is_own && self.stranger == Some(found.stx_uid) => Err(refused(
                "is that of who owns the source, who is not believed, as others than he and root may write to a directory that the source lies in, and he may have put it \
                 there; see that they may not, or remove it",
            )),
            (Ok(_), _) if !is_own => Err(refused(
                "is that of another user, who is not believed; remove it, or give the file to the account that reads it",
            )),
            (Ok(Found::Says(stat)), _)
                if stat.is_lent_by_others(found) && !is_closed_in(self.is_closed, found) =>
            {
                Err(refused(match found.stx_nlink {
                    1 => {
                        "makes it setuid, setgid, a device or a link, and others may write to the file, and so may have set that; if nobody did, have a \
                         directory above it be entered by its account alone (mode 0700), or take their bits away"
                    }
                    _ => {
                        "makes it setuid, setgid, a device or a link, and others may write to the file, and so may have set that, be it by another of its \
                         names (it has hard links); if nobody did, take their bits away"
                    }
                }))
            }
            (Ok(Found::Says(stat)), _) => match stat.over(found) {
                Some(seen) => Ok(Told::As(Box::new(seen))),
                None => Err(refused("says that a directory is none, or a file is one; remove it")),
            },
            (Ok(Found::Rubbish), _) => {
                Err(refused("is not what rsync or dray writes; remove it, or leave out --fake-super"))
            }
        }
    }
}

/// What an entry is told as.
#[derive(Debug)]
pub(super) enum Told {
    /// What it is.
    Itself,
    /// What its attribute says.
    As(Box<Statx>),
    /// What it is, and with a word: it says more, which may be right.
    NotBelieved(Error),
}

fn replaced() -> Error {
    Error::new(ErrorKind::Changed, "it was replaced meanwhile")
}

/// An entry that is looked at more than once, and stays what it was at first.
#[derive(Debug)]
pub(super) struct Place {
    /// Not open for reading; a magic link leads there while it is.
    _fd: OwnedFd,
    access: Result<Access, Errno>,
    pub(super) found: Statx,
}

impl Place {
    fn at(&self) -> Result<At<'_>, Errno> {
        self.access.as_ref().map(Access::at).map_err(|error| *error)
    }

    /// The attributes of this very thing.
    pub(super) fn attributes(&self, scope: Scope) -> io::Result<Vec<Xattr>> {
        self.at()?.attributes(scope)
    }

    /// Where the link points that it stands for.
    pub(super) fn target(&self) -> io::Result<Vec<u8>> {
        match self.at()? {
            At::Open(fd) => target_in(fd),
            At::Path(path) => {
                target_in(rustix::fs::open(path, READ | OFlags::CLOEXEC, Mode::empty())?.as_fd())
            }
        }
    }
}

/// Where the link points that the regular file `name` stands for.
pub(super) fn target_of(directory: &Directory, name: &[u8]) -> io::Result<Vec<u8>> {
    target_in(directory.open_to_read(name)?.as_fd())
}

fn target_in(file: BorrowedFd<'_>) -> io::Result<Vec<u8>> {
    if file_type(&stat_fd(file)?) != FileType::RegularFile {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut target = vec![0; PATH_BYTES_MAX + 1];
    let mut len = 0;
    loop {
        match rustix::io::pread(file, &mut target[len..], len as u64) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    target.truncate(len);
    if matches!(len, 1..=PATH_BYTES_MAX) && !target.contains(&0) {
        Ok(target)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// The mode of an entry of this kind with these bits.
fn mode_of(kind: &Kind, bits: u32) -> u32 {
    let (kind, bits) = match kind {
        Kind::File { .. } => (FileType::RegularFile, bits),
        Kind::Directory { .. } => (FileType::Directory, bits),
        // A link has no bits of its own.
        Kind::Symlink { .. } => (FileType::Symlink, 0o777),
        Kind::Fifo => (FileType::Fifo, bits),
        Kind::Socket => (FileType::Socket, bits),
        Kind::CharacterDevice { .. } => (FileType::CharacterDevice, bits),
        Kind::BlockDevice { .. } => (FileType::BlockDevice, bits),
    };
    kind.as_raw_mode() | bits & 0o7777
}

impl Settings {
    /// True if kinds, owners and bits are in attributes here.
    pub(super) fn fakes(&self) -> bool {
        self.sync().is_some_and(|sync| sync.fake == FakeSuper::On)
    }

    /// What stands under `name`, as its attribute has it where that counts.
    pub(super) fn stat(&self, directory: &Directory, name: &[u8]) -> io::Result<Statx> {
        // What is to be changed is to be told from what takes its place.
        let in_place = self.in_place();
        let found = directory.stat_for(name, if in_place { FACTS } else { STAT })?;
        Ok(self.seen(found, || read_at(directory, name)))
    }

    /// The same of an open directory, of which `found` tells.
    pub(super) fn seen_directory(&self, directory: &Directory, found: &Statx) -> Statx {
        self.seen(*found, || At::Open(directory.as_fd()).read())
    }

    /// The same of what is at `at`.
    pub(super) fn seen_at(&self, at: At<'_>, found: &Statx) -> Statx {
        self.seen(*found, || at.read())
    }

    /// What says nothing, or nothing that counts, is what it is: then it differs, and is made what it is to be.
    fn seen(&self, found: Statx, read: impl FnOnce() -> Result<Found, Errno>) -> Statx {
        if !self.fakes() || !may_have(&found) || !self.is_believed(&found) {
            return found;
        }
        match read() {
            Ok(Found::Says(stat))
                if stat.is_lent_by_others(&found)
                    && !is_closed_in(self.is_destination_closed.get(), &found) =>
            {
                found
            }
            Ok(Found::Says(stat)) => stat.over(&found).unwrap_or(found),
            _ => found,
        }
    }

    /// To an account its own counts; to root also what belongs to who owns the destination, who can put anything there.
    fn is_believed(&self, found: &Statx) -> bool {
        let is_its_owners = || self.destination_owner.get() == Some(found.stx_uid);
        found.stx_uid == self.powers.uid || (self.powers.is_root && is_its_owners())
    }

    /// Asked before anything is written below `base`, into `into` if that is there; `writes` if that is what comes next. An error where no attributes are kept, those
    /// of a destination would be believed that root was not told to believe, or what is made there is not that of who makes it.
    pub(super) fn require_attributes(
        &self,
        base: &Directory,
        into: Option<&[u8]>,
        writes: bool,
    ) -> Result<()> {
        let Some(sync) = self.sync().filter(|sync| sync.fake != FakeSuper::Off) else { return Ok(()) };
        let owner = base.stat_self().ok().map(|found| found.stx_uid);
        self.destination_owner.set(owner);
        let own = self.powers.uid;
        let owner = owner.filter(|_| self.powers.is_root).unwrap_or(own);
        self.is_destination_closed.set(sync.fake == FakeSuper::On && is_closed(base, [own, owner]));
        let mut value = [0; VALUE_BYTES_MAX];
        match (sync.fake, fgetxattr(base, ATTRIBUTE, &mut value[..])) {
            (FakeSuper::On, Err(Errno::OPNOTSUPP)) => {
                // What to do does not cross the wire, so it stands here, too.
                let what = "the file system of the destination keeps no attributes of users, in which --fake-super keeps \
                            owners and kinds; name another destination, or leave that out";
                Err(Error::new(ErrorKind::Unsupported, what))
            }
            (FakeSuper::On, _) if writes => self.require_own(base),
            (FakeSuper::On, _) => Ok(()),
            (_, read) => {
                let there = into.map_or_else(|| found(read, &value), |name| read_at(base, name));
                if !matches!(there, Ok(Found::Says(_))) {
                    return Ok(());
                }
                let what = format!(
                    "the destination was written with --fake-super, and root would give it real owners beside its attributes; \
                     --fake-super=dst has root write these, too; else remove {ATTRIBUTE} from it"
                );
                Err(Error::new(ErrorKind::Refused, what))
            }
        }
    }

    /// An error if what this process makes in `base` belongs to somebody who is not believed there.
    fn require_own(&self, base: &Directory) -> Result<()> {
        // Who may not make anything hears of that when it is tried.
        let Some(made) = made_in(base)? else { return Ok(()) };
        if self.is_believed(&made) {
            return Ok(());
        }
        let (uid, own) = (made.stx_uid, self.powers.uid);
        let what = format!(
            "what user {own} makes in the destination belongs to user {uid} there, as a server has it (NFS with root_squash or all_squash, CIFS with uid=), \
             and --fake-super believes attributes on files of its own alone; run it as user {uid}, or name another destination"
        );
        Err(Error::new(ErrorKind::Unsupported, what))
    }

    /// Makes the file that stands for the link, fifo, socket or device `kind`, under `name` where nothing is.
    pub(super) fn make_stand_in(
        &self,
        directory: &Directory,
        name: &[u8],
        kind: &Kind,
        mode: u32,
        metadata: &Metadata,
    ) -> io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOCTTY;
        let file = directory.open_at(name, flags, Mode::RUSR | Mode::WUSR)?;
        let fill = || {
            let mut left: &[u8] = if let Kind::Symlink { target } = kind { target } else { &[] };
            while !left.is_empty() {
                match rustix::io::write(&file, left) {
                    Ok(written) => left = &left[written..],
                    Err(Errno::INTR) => {}
                    Err(error) => return Err(error),
                }
            }
            let real =
                stat_fd(file.as_fd()).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            let stat = self.wanted(kind, mode, metadata, (real.stx_uid, real.stx_gid), false);
            At::Open(file.as_fd()).set(&stat.value())
        };
        // Without the attribute it would be taken for a file.
        fill().map_err(|error| {
            let _ = rustix::fs::unlinkat(directory, name, rustix::fs::AtFlags::empty());
            error.into()
        })
    }

    /// What is to be said of an entry, where one is that belongs to `owner`.
    fn wanted(
        &self,
        kind: &Kind,
        mode: u32,
        metadata: &Metadata,
        owner: (u32, u32),
        is_directory: bool,
    ) -> FakeStat {
        let (mut uid, mut gid) = owner;
        let mut mode = mode;
        if self.owners {
            let given = self.owner_of(metadata.uid, metadata.gid);
            (uid, gid) = (given.0.unwrap_or(uid), given.1.unwrap_or(gid));
            mode = self.without_foreign_powers(mode, metadata, given, true, is_directory);
        }
        let device = match *kind {
            Kind::CharacterDevice { major, minor } | Kind::BlockDevice { major, minor } => (major, minor),
            _ => (0, 0),
        };
        FakeStat { mode: mode_of(kind, mode), device, uid, gid }
    }

    /// Says in the attribute of what is at `at` what it stands for, as far as it is not just that; `mode` are its bits, if they are to be others.
    pub(super) fn apply_fake(
        &self,
        at: At<'_>,
        fd: BorrowedFd<'_>,
        kind: &Kind,
        mode: Option<u32>,
        metadata: &Metadata,
    ) {
        let Ok(mut real) = stat_fd(fd) else { return self.count("owner and bits", Errno::IO) };
        let says = self.read_opened(at, fd);
        let seen = self.seen(real, || says);
        let mode = mode.unwrap_or(u32::from(seen.stx_mode) & 0o7777);
        let is_directory = matches!(kind, Kind::Directory { .. });
        let wanted = self.wanted(kind, mode, metadata, (seen.stx_uid, seen.stx_gid), is_directory);
        let failed = |error| self.count(&format!("owner, bits and kind, in {ATTRIBUTE}"), error);
        // With its owner and its bits what it says would be believed, whoever set it: it makes way before, or they stay.
        let said = at.say(&wanted, &real).or_else(|_| {
            self.open_for_attributes(at, fd);
            at.say(&wanted, &real)
        });
        if let Err(error) = said
            && !at.read().is_ok_and(|says| says == Found::None || says == Found::Says(wanted))
        {
            return failed(error);
        }
        // First, as another owner could change the attribute later, and its bits may keep even its owner from that.
        match self.own_fake(fd, &real) {
            Ok(uid) => real.stx_uid = uid,
            Err(error) => return self.count("owner", error),
        }
        let bits = wanted.real_bits(real.stx_gid);
        if u32::from(real.stx_mode) & 0o7777 != bits
            && let Err(error) = at.set_mode(bits)
        {
            self.count("permissions", error);
        }
        // Until now others may have been able to write it.
        if let Err(error) = at.say(&wanted, &real) {
            failed(error);
        }
    }

    /// Gives the file `fd`, which `found` tells of, to root where its owner is not believed, who could change its attribute, and read what comes; who owns it then.
    fn own_fake(&self, fd: BorrowedFd<'_>, found: &Statx) -> Result<u32, Errno> {
        if !self.powers.is_root || self.is_believed(found) {
            return Ok(found.stx_uid);
        }
        let root = rustix::fs::Uid::ROOT;
        rustix::fs::chownat(fd, "", Some(root), None, rustix::fs::AtFlags::EMPTY_PATH)?;
        Ok(root.as_raw())
    }

    /// Says of the file `fd`, which is about to be changed and which `found` told of before its bits were narrowed, nothing more than that it had and is to have, and that it is root's where it
    /// gets another owner: who is killed then leaves none of what comes under what was said of other bytes, and none of those under what is said of it. Then it gives it to root where its owner is not believed. To be called before the bits
    /// are narrowed, as those would have it believed, and after that, as others may have been able to write it until then.
    pub(super) fn narrow_fake(
        &self,
        fd: BorrowedFd<'_>,
        found: &Statx,
        metadata: &Metadata,
        mode: u32,
    ) -> Result<()> {
        let at = At::Open(fd);
        // Not as a full disk, which would end the run: whoever may write to a file may leave no room there.
        let refused = |what: String, error: Errno| {
            Error::new(ErrorKind::Refused, format!("{what}: {}", io::Error::from(error)))
                .advise("leave out --inplace: then it is replaced by a new file")
        };
        let failed = |error| {
            refused(
                format!("cannot say whose it is, in its attribute {ATTRIBUTE}, before it is changed"),
                error,
            )
        };
        let says = self.read_opened(at, fd).map_err(failed)?;
        let seen = self.seen(*found, || Ok(says));
        let mode = u32::from(seen.stx_mode) & (mode | 0o700) & 0o1777;
        let file = Kind::File { size_bytes: 0, oid: None };
        let mut wanted = self.wanted(&file, mode, metadata, (seen.stx_uid, seen.stx_gid), false);
        if wanted.uid != seen.stx_uid {
            wanted.uid = rustix::fs::Uid::ROOT.as_raw();
        }
        if wanted.gid != seen.stx_gid {
            // Neither group has more than others.
            wanted.mode &= !0o070 | ((mode & 0o007) << 3);
        }
        let is_said = says == Found::Says(wanted)
            || (says == Found::None && wanted.is_plain(found.stx_uid, found.stx_gid));
        if !is_said {
            self.open_for_attributes(at, fd);
            at.set_or_remove(&wanted).map_err(failed)?;
        }
        let given = self.own_fake(fd, found).map(|_| ());
        given.map_err(|error| refused("cannot give it to root before it is changed".into(), error))
    }

    /// The attribute of what is at `at`, also where its bits keep even its owner from that: then it has other bits.
    fn read_opened(&self, at: At<'_>, fd: BorrowedFd<'_>) -> Result<Found, Errno> {
        match at.read() {
            Err(Errno::ACCESS) => {
                self.open_for_attributes(at, fd);
                at.read()
            }
            says => says,
        }
    }

    /// Gives the owner of what is at `at` the bits without which its attributes cannot be set.
    pub(super) fn open_for_attributes(&self, at: At<'_>, fd: BorrowedFd<'_>) {
        let Ok(real) = stat_fd(fd) else { return };
        let (mode, least) = (u32::from(real.stx_mode) & 0o7777, 0o600);
        if mode & least != least {
            // What comes of that is seen when they are set.
            let _ = at.set_mode(mode | least);
        }
    }

    /// The bits that what stands for a directory with these bits has, of whatever group that is.
    pub(super) fn real_directory_bits(&self, bits: u32) -> u32 {
        let stat =
            FakeStat { mode: FileType::Directory.as_raw_mode() | bits, device: (0, 0), uid: 0, gid: 0 };
        if self.fakes() { stat.real_bits(u32::MAX) } else { bits }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Values that rsync 3.5 wrote.
    #[test]
    fn what_rsync_writes_is_read() {
        for (value, mode, device, uid, gid) in [
            ("100444 0,0 0:0", 0o100_444, (0, 0), 0, 0),
            ("10644 0,0 0:0", 0o10_644, (0, 0), 0, 0),
            ("20666 1,3 0:0", 0o20_666, (1, 3), 0, 0),
            ("104755 0,0 1000:4294967294", 0o104_755, (0, 0), 1000, u32::MAX - 1),
            ("120777 0,0 12:13", 0o120_777, (0, 0), 12, 13),
            ("41777 0,0 0:5", 0o41_777, (0, 0), 0, 5),
            ("60660 4294967295,7 0:6", 0o60_660, (u32::MAX, 7), 0, 6),
        ] {
            let stat = FakeStat { mode, device, uid, gid };
            assert_eq!(FakeStat::parse(value.as_bytes()), Some(stat), "{value}");
            assert_eq!(stat.value(), value);
        }
    }

    /// S88: what nobody writes is not believed: other forms, kinds that there are none of, numbers that are none.
    #[test]
    fn what_nobody_writes_is_rubbish() {
        for value in [
            "",
            "100644",
            "100644 0,0",
            "100644 0,0 0",
            "100644 0,0 0:0 ",
            " 100644 0,0 0:0",
            "100644  0,0 0:0",
            "100644 0,0 0:0\n",
            "100644 0,0 0:0\0",
            "+100644 0,0 0:0",
            "0100644 0,0 0:0",
            "100648 0,0 0:0",
            "100644 0,0 +0:0",
            "100644 0,0 -1:0",
            "100644 0,0 00:0",
            "100644 0,0 4294967295:0",
            "100644 0,0 0:4294967295",
            "100644 0,0 4294967296:0",
            "644 0,0 0:0",
            "30644 0,0 0:0",
            "170644 0,0 0:0",
            "1100644 0,0 0:0",
            "37777777777 0,0 0:0",
            "100644 1,3 0:0",
            "20644 1,3,5 0:0",
            "20644 1 3 0:0",
            "20644 1,3 0:0:0",
            "\u{661}00644 0,0 0:0",
            "100644 0,0 0:0xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        ] {
            assert_eq!(FakeStat::parse(value.as_bytes()), None, "{value:?}");
        }
        assert_eq!(FakeStat::parse(b"100644 0,0 0:\xff"), None);
    }

    /// What somebody else removed a moment ago is removed.
    #[test]
    fn what_is_gone_is_removed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap().as_bytes();
        for at in [At::Path(path), At::Open(file.as_file().as_fd())] {
            at.set("100644 0,0 1:1").unwrap();
            assert_eq!((at.remove(), at.read(), at.remove()), (Ok(()), Ok(Found::None), Ok(())));
        }
    }

    /// The longest value there is has room.
    #[test]
    fn values_have_room() {
        let longest =
            FakeStat { mode: 0o147_777, device: (u32::MAX, u32::MAX), uid: u32::MAX - 1, gid: u32::MAX - 1 };
        assert!(longest.value().len() <= VALUE_BYTES_MAX);
    }

    proptest! {
        /// Whatever is read was written in just this form, and stands for a mode that there is.
        #[test]
        fn nothing_is_read_in_two_forms(value in "[0-7]{0,7} ?[0-9,+-]{0,12} ?[0-9:+-]{0,12}|.{0,70}") {
            if let Some(stat) = FakeStat::parse(value.as_bytes()) {
                prop_assert_eq!(stat.value(), value);
                prop_assert!(stat.mode <= u32::from(u16::MAX));
            }
        }

        #[test]
        fn what_is_written_is_read(
            kind in prop::sample::select(vec![1_u32, 2, 4, 6, 8, 10, 12]),
            bits in 0_u32..0o10_000,
            device in any::<(u32, u32)>(),
            uid in 0..u32::MAX,
            gid in 0..u32::MAX,
        ) {
            let device = if matches!(kind, 2 | 6) { device } else { (0, 0) };
            let stat = FakeStat { mode: kind << 12 | bits, device, uid, gid };
            prop_assert_eq!(FakeStat::parse(stat.value().as_bytes()), Some(stat));
            // Its account can read and write it, and nobody else writes to it.
            let real = stat.real_bits(gid);
            prop_assert!(real & 0o600 == 0o600 && real & 0o7022 == 0);
            // Another group gets no more than others.
            let foreign = stat.real_bits(gid ^ 1);
            prop_assert!(foreign & !real == 0 && foreign >> 3 & 7 & !bits == 0);
            prop_assert!(!stat.is_plain(uid, gid) || real == bits);
        }
    }
}
