//! Identity: one persistent ed25519 key for each user and machine (design decision 13).

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use dray_core::text::hex;
use dray_core::{Error, ErrorKind, Result};
use dray_transfer::transport::NodeKey;

/// First bytes of the file; the 32-byte seed follows.
const MAGIC: &[u8; 16] = b"dray identity 1\n";

/// The key of this user on this machine, made on first use. Any number of processes may come here at once: they end
/// up with the same key.
pub(crate) fn load_or_create(data_dir: &Path) -> Result<(NodeKey, Secret)> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(data_dir).map_err(|error| {
        unwritable(Error::io(format!("cannot make the data directory {data_dir:?}"), error))
    })?;
    // A home directory shared between machines holds one key for each.
    let path = data_dir.join(format!("identity-{}", machine()));
    if let Some(seed) = read(&path)? {
        return both(&seed);
    }
    let seed = crate::random::<32>()?;
    let fresh = data_dir.join(format!(
        ".identity-{}-{:016x}",
        std::process::id(),
        u64::from_be_bytes(crate::random()?)
    ));
    let result = write(&fresh, &seed, &path);
    let _ = std::fs::remove_file(&fresh);
    result?;
    // Whoever was first decides.
    match read(&path)? {
        Some(seed) => both(&seed),
        None => Err(Error::new(ErrorKind::Internal, format!("{} vanished", path.display()))),
    }
}

/// The key of this user on this machine, if it was made before and can be read, else one that nobody remembers, without a secret that lasts.
/// Makes nothing.
pub(crate) fn load_or_pass(data_dir: &Path) -> Result<(NodeKey, Option<Secret>)> {
    match read(&data_dir.join(format!("identity-{}", machine()))).ok().flatten() {
        Some(seed) => both(&seed).map(|(key, secret)| (key, Some(secret))),
        None => Ok((NodeKey::from_seed(&crate::random::<32>()?)?, None)),
    }
}

fn both(seed: &[u8; 32]) -> Result<(NodeKey, Secret)> {
    Ok((NodeKey::from_seed(seed)?, Secret::of(seed)))
}

/// What only the user of the identity can hash with. It says nothing of the key, and never leaves the process.
#[derive(Clone)]
pub(crate) struct Secret([u8; 32]);

impl Secret {
    fn of(seed: &[u8; 32]) -> Secret {
        Secret(blake3::derive_key("drayman 2026-11-22 secret of the marks of copies 1", seed))
    }

    /// A hash that nobody else can make.
    pub(crate) fn hasher(&self) -> blake3::Hasher {
        blake3::Hasher::new_keyed(&self.0)
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str("Secret")
    }
}

/// Sixteen hex digits that tell this machine from others that share a home directory.
pub(crate) fn machine() -> String {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let machine = blake3::derive_key("drayman 2026-11-21 machine id 1", &machine);
    hex(&machine[..8])
}

fn write(fresh: &Path, seed: &[u8; 32], path: &Path) -> Result<()> {
    let failed = |error| unwritable(Error::io(format!("cannot write {path:?}"), error));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(fresh).map_err(failed)?;
    file.write_all(MAGIC)
        .and_then(|()| file.write_all(seed))
        .and_then(|()| file.sync_all())
        .map_err(failed)?;
    match std::fs::hard_link(fresh, path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        // File systems without hard links: the last rename wins, once.
        Err(_) => std::fs::rename(fresh, path).map_err(failed),
    }
}

/// A file or folder of the data directory could not be made: only room or another place helps.
fn unwritable(error: Error) -> Error {
    if error.kind() == ErrorKind::NoSpace {
        return error.advise("free some space there");
    }
    // Whatever the system's reason: nothing that was asked for is missing, a place is refused.
    Error::new(ErrorKind::Refused, error.to_string())
        .advise("set DRAY_DATA_DIR to a directory that you may write")
}

fn read(path: &Path) -> Result<Option<[u8; 32]>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            return Err(Error::io(format!("cannot read {path:?}"), error)
                .advise("the data directory belongs to another user; set DRAY_DATA_DIR to one of yours"));
        }
    };
    let readable_by_others = file.metadata().is_ok_and(|metadata| metadata.mode() & 0o077 != 0);
    if readable_by_others {
        return Err(Error::new(ErrorKind::Refused, format!("{} can be read by other users", path.display()))
            .advise(format!("chmod 600 {}", path.display())));
    }
    let mut bytes = Vec::with_capacity(64);
    (&mut file)
        .take(64)
        .read_to_end(&mut bytes)
        .map_err(|error| Error::io(format!("cannot read {path:?}"), error))?;
    let seed = bytes.strip_prefix(MAGIC).and_then(|seed| <[u8; 32]>::try_from(seed).ok());
    seed.map(Some).ok_or_else(|| {
        Error::new(ErrorKind::Damaged, format!("{} is not an identity", path.display()))
            .advise("remove it to get a new identity; tickets printed before stop working")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_at_once_get_the_same_key() {
        let dir = tempfile::tempdir().unwrap();
        let ids: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| load_or_create(&dir.path().join("a/b")).unwrap().0.id()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(ids.windows(2).all(|pair| pair[0] == pair[1]));
        let names: Vec<_> = std::fs::read_dir(dir.path().join("a/b")).unwrap().collect();
        assert_eq!(names.len(), 1, "nothing temporary is left");
    }

    /// Design 5: a data directory that cannot be made is refused (exit 6), whatever the system's reason; 3 would mean
    /// that the object was not found.
    #[test]
    fn a_place_that_cannot_be_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), b"").unwrap();
        for place in [dir.path().join("file/below"), "/proc/nowhere/data".into()] {
            let error = load_or_create(&place).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            assert!(error.advice().unwrap().contains("DRAY_DATA_DIR"));
        }
    }

    #[test]
    fn a_damaged_or_open_identity_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        load_or_create(dir.path()).unwrap();
        let path = std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let good = std::fs::read(&path).unwrap();
        std::fs::write(&path, &good[..20]).unwrap();
        assert_eq!(load_or_create(dir.path()).unwrap_err().kind(), ErrorKind::Damaged);
        std::fs::write(&path, &good).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        assert_eq!(load_or_create(dir.path()).unwrap_err().kind(), ErrorKind::Refused);
    }
}
