//! Where the daemon's sockets are.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use dray_core::{Error, ErrorKind, Result};

/// The API's socket: `DRAY_SOCKET`, else `dray/daemon.sock` in `XDG_RUNTIME_DIR`, else in `/run/user/UID` where that is
/// this user's. `Usage` if there is no such place.
pub fn socket_path() -> Result<PathBuf> {
    let var = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = var("DRAY_SOCKET") {
        return std::path::absolute(path).map_err(|error| Error::file("DRAY_SOCKET", error));
    }
    if let Some(dir) = var("XDG_RUNTIME_DIR").filter(|dir| dir.is_absolute()) {
        return Ok(dir.join("dray/daemon.sock"));
    }
    let us = rustix::process::geteuid().as_raw();
    let usual = PathBuf::from(format!("/run/user/{us}"));
    if std::fs::metadata(&usual).is_ok_and(|found| found.is_dir() && found.uid() == us) {
        return Ok(usual.join("dray/daemon.sock"));
    }
    Err(Error::new(ErrorKind::Usage, "there is no place for the daemon's socket: XDG_RUNTIME_DIR is not set")
        .advise("set XDG_RUNTIME_DIR to a directory of yours with mode 0700, or DRAY_SOCKET to a path"))
}

/// Whether `DRAY_SOCKET` names the socket: then the daemon there is meant, and no other will do.
pub fn is_socket_named() -> bool {
    std::env::var_os("DRAY_SOCKET").is_some_and(|value| !value.is_empty())
}

/// The sibling socket for descriptors, beside the API's socket `api`: its name and `.fd`.
pub fn descriptor_socket(api: &Path) -> PathBuf {
    let mut name = OsString::from(api.as_os_str());
    name.push(".fd");
    PathBuf::from(name)
}
