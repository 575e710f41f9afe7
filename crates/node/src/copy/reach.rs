//! What a path from the other end means here: relative to the home directory, with `~user` and patterns as a shell would
//! have read them; or, for a login that is confined to one directory, relative to that and never out of it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dray_core::{Error, ErrorKind, Result};
use dray_store::local::{SourceFile, Within};
use rustix::fs::{CWD, Mode, OFlags};

use super::pattern;

/// The one directory in which a login may read, and write unless it is read-only.
///
/// Whatever is opened is opened below it: see [`Within`].
#[derive(Debug)]
pub struct Confinement {
    directory: Within,
    /// As it was given, and without links.
    names: [PathBuf; 2],
    is_read_only: bool,
}

impl Confinement {
    /// Confines to `directory`, which must be there.
    pub fn new(directory: &Path, is_read_only: bool) -> Result<Confinement> {
        let failed = |error: std::io::Error| {
            Error::io(format!("cannot open the directory {directory:?} of --only"), error)
                .advise("mend the command= of this key in authorized_keys")
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened =
            rustix::fs::open(directory, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let names = [directory.to_owned(), directory.canonicalize().map_err(failed)?];
        Ok(Confinement { directory: Within::new(opened)?, names, is_read_only })
    }

    /// `Refused` unless this login may write.
    pub(super) fn require_writable(&self) -> Result<()> {
        if self.is_read_only {
            return Err(Error::new(ErrorKind::Refused, "this login may only read (--read-only)"));
        }
        Ok(())
    }

    /// `wish` relative to the directory. An absolute path must begin with the directory's own.
    pub(super) fn relative(&self, wish: &OsStr) -> Result<PathBuf> {
        let bytes = match wish.as_bytes() {
            b"" | b"~" => b".",
            [b'~', b'/', rest @ ..] => rest,
            bytes => bytes,
        };
        let path = Path::new(OsStr::from_bytes(bytes));
        if !path.has_root() {
            return Ok(path.to_owned());
        }
        let inside = self.names.iter().find_map(|name| path.strip_prefix(name).ok());
        inside.map(|path| if path.as_os_str().is_empty() { ".".into() } else { path.to_owned() }).ok_or_else(
            || Error::new(ErrorKind::Refused, format!("{wish:?} is outside of the directory of this login")),
        )
    }

    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd> {
        self.directory.open(path, flags)
    }

    /// The directory.
    pub(super) fn directory(&self) -> &Within {
        &self.directory
    }
}

/// Where a file goes.
#[derive(Debug)]
pub(super) struct Target {
    /// From the working directory; in a confined login, from the directory of that.
    pub(super) path: PathBuf,
    /// The opened folder and where the login is confined to; `None` if it is not.
    confined: Option<(OwnedFd, PathBuf)>,
}

impl Target {
    /// A target that is not confined.
    pub(super) fn anywhere(path: PathBuf) -> Target {
        Target { path, confined: None }
    }

    /// The opened folder of a confined login.
    pub(super) fn folder(&self) -> Option<&OwnedFd> {
        self.confined.as_ref().map(|(folder, _)| folder)
    }

    /// The path that whoever owns this account knows the file by.
    pub(super) fn own_path(&self) -> PathBuf {
        let path = match &self.confined {
            Some((_, directory)) => directory.join(&self.path),
            None => self.path.clone(),
        };
        std::path::absolute(&path).unwrap_or(path)
    }

    /// The path that the other side is told: a confined one is told what it may name, and nothing of what lies above.
    pub(super) fn told_path(&self) -> PathBuf {
        if self.confined.is_some() { self.path.clone() } else { self.own_path() }
    }

    /// What [`Target::name`] is relative to.
    pub(super) fn directory(&self) -> BorrowedFd<'_> {
        self.folder().map_or(CWD, AsFd::as_fd)
    }

    /// The file, from [`Target::directory`].
    pub(super) fn name(&self) -> &Path {
        match &self.confined {
            Some(_) => Path::new(self.path.file_name().unwrap_or_default()),
            None => &self.path,
        }
    }
}

/// Where a file that is to be called `name` in a directory goes if `wish` was asked for, in a confined login.
pub(super) fn confined_target(within: &Confinement, wish: &Path, name: &OsStr) -> Result<Target> {
    within.require_writable()?;
    let wish = within.relative(wish.as_os_str())?;
    let directory = OFlags::PATH | OFlags::DIRECTORY;
    let target = |path: PathBuf, opened| {
        // Told as the user would name it.
        let path = path.strip_prefix(".").map(Path::to_owned).unwrap_or(path);
        Target { path, confined: Some((opened, within.names[0].clone())) }
    };
    match within.open(&wish, directory) {
        Ok(_) => {
            // A directory is opened for reading, as a delivery does: it may have to be synced.
            let opened = within.open(&wish, OFlags::RDONLY | OFlags::DIRECTORY)?;
            Ok(target(wish.join(name), opened))
        }
        Err(error) if Within::forbids(&error) => Err(error),
        Err(_) => {
            // `a/..` has no name, and `a/.` would lose its dot.
            let is_plain =
                !wish.as_os_str().as_bytes().ends_with(b"/") && !wish.as_os_str().as_bytes().ends_with(b"/.");
            let (Some(_), Some(parent), true) = (wish.file_name(), wish.parent(), is_plain) else {
                return Err(Error::new(ErrorKind::NotFound, format!("{wish:?} is no directory there")));
            };
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            let opened = within.open(parent, OFlags::RDONLY | OFlags::DIRECTORY)?;
            Ok(target(wish, opened))
        }
    }
}

/// What is to be sent.
#[derive(Debug)]
pub(super) enum Source {
    /// One file.
    One(SourceFile),
    /// One whose metadata does not say how many bytes it has, as in `/proc`.
    Unsized,
    /// The pattern stands for several files; the error where one was wanted.
    Several(Error),
}

impl Source {
    /// The one file that was wanted.
    pub(super) fn one(self) -> Result<SourceFile> {
        match self {
            Source::One(file) => Ok(file),
            Source::Unsized => {
                Err(Error::new(ErrorKind::Unsupported, "it does not say how many bytes it has"))
            }
            Source::Several(error) => Err(error),
        }
    }
}

/// Opens what `wish` names: by that very name, or else as a pattern.
pub(super) fn source(
    wish: &OsStr,
    within: Option<&Confinement>,
    is_stopped: &dyn Fn() -> bool,
) -> Result<Source> {
    let path = match within {
        Some(within) => within.relative(wish)?,
        None => home_path(wish),
    };
    let open = |path: &Path| match within {
        None if SourceFile::is_unsized(path) => Ok(Source::Unsized),
        None => SourceFile::open(path).map(Source::One),
        Some(within) => {
            // Looked at before it is opened: a device or fifo may act on being opened.
            let look = File::from(within.open(path, OFlags::PATH)?);
            SourceFile::require_regular(&look, path)?;
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
            let file = File::from(within.open(path, flags)?);
            if SourceFile::is_open_unsized(&file) {
                return Ok(Source::Unsized);
            }
            SourceFile::opened(file, path).map(Source::One)
        }
    };
    let error = match open(&path) {
        Err(error) if error.kind() == ErrorKind::NotFound && pattern::is_pattern(&path) => error,
        result => return result,
    };
    let list = |dir: &Path| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        Ok(match within {
            Some(within) => within.open(dir, flags).ok(),
            None => rustix::fs::open(dir, flags | OFlags::CLOEXEC, Mode::empty()).ok(),
        })
    };
    let mut found = pattern::expand(&path, pattern::MATCHES_MAX, &list, is_stopped)?;
    match (found.pop(), found.len()) {
        (None, _) => Err(error),
        (Some(one), 0) => open(&one),
        (Some(last), _) => {
            found.push(last);
            let more = if found.len() > pattern::MATCHES_MAX { ", …" } else { "" };
            found.truncate(pattern::MATCHES_MAX);
            let names: Vec<String> = found.iter().map(|path| format!("{path:?}")).collect();
            // What to do does not cross the wire, so it stands here.
            let what =
                format!("{wish:?} stands for several files, name one or say -r: {}{more}", names.join(", "));
            Ok(Source::Several(Error::new(ErrorKind::NotFound, what)))
        }
    }
}

/// A path as the far shell would have read it: relative to the home directory, where ssh starts us, `~/` and `~user/` too.
pub(super) fn home_path(path: &OsStr) -> PathBuf {
    let bytes = path.as_bytes();
    let Some(rest) = bytes.strip_prefix(b"~") else {
        return if bytes.is_empty() { PathBuf::from(".") } else { path.into() };
    };
    let (user, rest) = rest.split_at(rest.iter().position(|byte| *byte == b'/').unwrap_or(rest.len()));
    let below = rest.iter().position(|byte| *byte != b'/').map_or(&b""[..], |at| &rest[at..]);
    let home = if user.is_empty() { std::env::var_os("HOME") } else { home_of(user) };
    match home {
        Some(home) if below.is_empty() => home.into(),
        Some(home) => Path::new(&home).join(OsStr::from_bytes(below)),
        // A file may be called so.
        None => path.into(),
    }
}

/// The home directory of a user, from the system's user database.
fn home_of(user: &[u8]) -> Option<OsString> {
    // No name of a user begins or looks otherwise, and no other word is given to a program.
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-@$".contains(byte);
    if user.first() == Some(&b'-') || user.len() > 256 || !user.iter().all(is_plain) {
        return None;
    }
    let mut getent = Command::new("getent");
    getent.arg("passwd").arg(OsStr::from_bytes(user)).stdin(Stdio::null()).stderr(Stdio::null());
    let found = getent.output().map(|output| output.stdout).ok().filter(|text| !text.is_empty());
    let text = found.or_else(|| std::fs::read("/etc/passwd").ok())?;
    home_in(&text, user)
}

/// The home directory of `user` in lines of passwd(5).
fn home_in(passwd: &[u8], user: &[u8]) -> Option<OsString> {
    passwd
        .split(|byte| *byte == b'\n')
        .find_map(|line| {
            let mut fields = line.split(|byte| *byte == b':');
            (fields.next() == Some(user)).then(|| fields.nth(4))?.filter(|home| home.starts_with(b"/"))
        })
        .map(|home| OsString::from_vec(home.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn confined(read_only: bool) -> (tempfile::TempDir, Confinement) {
        let dir = tempfile::tempdir().unwrap();
        let inside = dir.path().join("in");
        std::fs::create_dir_all(inside.join("sub")).unwrap();
        std::fs::write(inside.join("file"), b"inside").unwrap();
        std::fs::write(dir.path().join("secret"), b"outside").unwrap();
        std::os::unix::fs::symlink("../secret", inside.join("out")).unwrap();
        std::os::unix::fs::symlink("..", inside.join("up")).unwrap();
        std::os::unix::fs::symlink("/etc", inside.join("etc")).unwrap();
        std::os::unix::fs::symlink("file", inside.join("link")).unwrap();
        let confinement = Confinement::new(&inside, read_only).unwrap();
        (dir, confinement)
    }

    /// Issue "the restricted key cannot read outside its directory": `..`, absolute paths, links to files and directories.
    #[test]
    fn a_confined_login_reads_nothing_outside() {
        let (dir, confinement) = confined(true);
        for wish in ["file", "./file", "~/file", "sub/../file", "link", "f*"] {
            assert!(source(OsStr::new(wish), Some(&confinement), &|| false).is_ok(), "{wish}");
        }
        let absolute = dir.path().join("in/file");
        assert!(source(absolute.as_os_str(), Some(&confinement), &|| false).is_ok());
        let secret = dir.path().join("secret");
        let sneaky = dir.path().join("in/../secret");
        for wish in ["../secret", "out", "up/secret", "etc/passwd", "sub/../../secret", "/etc/passwd"]
            .map(OsStr::new)
            .into_iter()
            .chain([secret.as_os_str(), sneaky.as_os_str()])
        {
            let error = source(wish, Some(&confinement), &|| false).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{wish:?}: {error}");
        }
        // A pattern sees no more than a name.
        for wish in ["../s*", "up/s*", "etc/pass*", "*/secret", "*/passwd"] {
            let found = source(OsStr::new(wish), Some(&confinement), &|| false);
            assert!(found.and_then(Source::one).is_err(), "{wish}");
        }
    }

    /// The same for what is written: neither created nor replaced outside, and nothing at all if read-only.
    #[test]
    fn a_confined_login_writes_nothing_outside() {
        let (dir, confinement) = confined(false);
        let name = OsStr::new("name");
        for (wish, path) in
            [("", "name"), ("new", "new"), ("sub", "sub/name"), ("sub/new", "sub/new"), (".", "name")]
        {
            let target = confined_target(&confinement, Path::new(wish), name).unwrap();
            // The other side hears nothing of what lies above; who owns the account finds the file.
            assert_eq!(target.told_path(), Path::new(path), "{wish}");
            assert_eq!(target.own_path(), dir.path().join("in").join(path));
        }
        for wish in [
            "..",
            "../new",
            "up",
            "up/new",
            "etc",
            "etc/new",
            "/tmp/new",
            "sub/../../new",
            "missing/new",
            "new/.",
            "new/",
        ] {
            assert!(confined_target(&confinement, Path::new(wish), name).is_err(), "{wish}");
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        let (_dir, confinement) = confined(true);
        let error = confined_target(&confinement, Path::new("new"), name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Refused);
    }

    /// Issue: "remote `~`".
    #[test]
    fn home_directories_are_found() {
        let passwd =
            b"root:x:0:0:root:/root:/bin/sh\nann:x:1:1:a,b:/home/ann:/bin/fish\nbad:x:1:1::rel:/bin/sh\n";
        assert_eq!(home_in(passwd, b"ann").as_deref(), Some(OsStr::new("/home/ann")));
        assert_eq!(home_in(passwd, b"bad"), None);
        assert_eq!(home_in(passwd, b"an"), None);
        let home = std::env::var_os("HOME").unwrap();
        assert_eq!(home_path(OsStr::new("~")), Path::new(&home));
        assert_eq!(home_path(OsStr::new("~//a b")), Path::new(&home).join("a b"));
        assert_eq!(home_path(OsStr::new("~no-such-user/x")), Path::new("~no-such-user/x"));
        assert_eq!(home_path(OsStr::new("")), Path::new("."));
        assert_eq!(home_path(OsStr::new("~root")), Path::new("/root"));
        assert_eq!(home_path(OsStr::new("~root/x")), Path::new("/root/x"));
    }
}
