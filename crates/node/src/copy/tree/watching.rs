//! What whoever runs `dray explain` is told of a copy of trees, from the end where its command was given. What that leaves in the data directory,
//! or makes among sockets, must be no entry of the trees themselves: such a copy is not told.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dray_core::{Error, ErrorKind, Result};

use super::{TreeCopied, TreeRequest, entries_told};
use crate::copy::Location;
use crate::copy::local::is_local_host;
use crate::explain::{Role, Snapshot, Watch};
use crate::{Event, Node, Observer};

/// A copy, for people.
pub(super) struct About<'a> {
    command: &'a str,
    role: Role,
    what: String,
    peer: Option<&'a OsStr>,
    to: &'a Path,
    /// What it reads and writes here, also by way of ssh.
    here: Vec<Cow<'a, Path>>,
    /// It changes nothing, and there is nothing to tell.
    dry_run: bool,
}

impl<'a> About<'a> {
    /// One that was asked for with sources and a destination.
    pub(super) fn request(request: &'a TreeRequest) -> About<'a> {
        let command = if request.options.sync.is_some() { "sync" } else { "cp" };
        let first = request.sources.first();
        let (from_host, from) = first.map_or((None, Path::new("")), parts);
        let (to_host, to) = parts(&request.destination);
        let more = match request.sources.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let role = if to_host.is_some() { Role::Sending } else { Role::Receiving };
        let what = format!("{}{more}", from.display());
        let here = request.sources.iter().chain([&request.destination]).map(parts);
        let here = here.filter_map(|(host, path)| match host {
            None => Some(Cow::Borrowed(path)),
            // Another user's home, perhaps: then this one's data directory is not in it.
            Some(host) => {
                is_local_host(host).then(|| Cow::Owned(home().join(path.strip_prefix("~").unwrap_or(path))))
            }
        });
        let here = here.collect();
        About { command, role, what, peer: to_host.or(from_host), to, here, dry_run: request.options.dry_run }
    }

    /// One of a directory that is shared by a ticket.
    pub(super) fn ticket(command: &'a str, to: &'a Path, dry_run: bool) -> About<'a> {
        let what = "the directory of a ticket".to_owned();
        About { command, role: Role::Receiving, what, peer: None, to, here: vec![to.into()], dry_run }
    }

    /// Whether `directory` lies in what is read or written here, or has it.
    fn has(&self, directory: &Path) -> bool {
        let Ok(directory) = directory.canonicalize() else { return false };
        let meets = |path: PathBuf| directory.starts_with(&path) || path.starts_with(&directory);
        self.here.iter().any(|path| path.canonicalize().is_ok_and(meets))
    }
}

/// Where relative paths begin for a login of this user over ssh.
fn home() -> PathBuf {
    std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default()
}

fn parts(place: &Location) -> (Option<&OsStr>, &Path) {
    match place {
        Location::Local(path) => (None, path),
        Location::Remote { host, path } => (Some(host), path),
    }
}

/// Hears what the copy tells, and passes it on.
struct Watching<'a> {
    observer: &'a dyn Observer,
    watch: &'a Watch,
    done_bytes: Arc<AtomicU64>,
}

impl Observer for Watching<'_> {
    fn event(&self, event: Event) {
        if let Event::TreeProgress { done_bytes } = &event {
            self.done_bytes.store(*done_bytes, Ordering::Relaxed);
            self.watch.tick();
        }
        self.observer.event(event);
    }
}

impl Node {
    /// Does `copy`, of which there is something to tell while it goes on and afterwards.
    pub(super) fn watched(
        &self,
        about: &About<'_>,
        observer: &dyn Observer,
        copy: impl FnOnce(&dyn Observer) -> Result<TreeCopied>,
    ) -> Result<TreeCopied> {
        let paths = &self.config.paths;
        let own = [Some(&paths.data_dir), paths.runtime_dir.as_ref()];
        if about.dry_run || own.into_iter().flatten().any(|own| about.has(own)) {
            return copy(observer);
        }
        let watch = Watch::new(paths, about.command);
        let done_bytes = Arc::new(AtomicU64::new(0));
        let done = done_bytes.clone();
        let figures = move || {
            let done_bytes = done.load(Ordering::Relaxed);
            Some(Snapshot { is_tree: true, done_bytes, ..Snapshot::default() })
        };
        let peer = about.peer.map(|peer| peer.to_string_lossy());
        watch.begin(about.role, &about.what, peer.as_deref(), Box::new(figures));
        match about.role {
            Role::Sending => watch.set_far_path(about.to),
            _ => watch.set_path(about.to),
        }
        let watching = Watching { observer, watch: &watch, done_bytes };
        let result = copy(&watching);
        match &result {
            Ok(copied) => {
                watching.done_bytes.store(copied.bytes, Ordering::Relaxed);
                let failed =
                    || Error::new(ErrorKind::Partial, format!("{} failed", entries_told(copied.failed)));
                watch.end(&if copied.failed > 0 { Err(failed()) } else { Ok(()) });
            }
            // Nothing was begun.
            Err(error) if error.kind() == ErrorKind::Usage => {}
            Err(_) => watch.end(&result),
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::TreeOptions;
    use super::*;

    /// Y2: what is told of a copy changes nothing of what is copied: a sync of a home would find something new each time.
    #[test]
    fn what_holds_the_data_directory_is_not_told() {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().join("home");
        let data = home.join(".local/share/dray");
        fs::create_dir_all(&data).unwrap();
        fs::create_dir(dir.path().join("other")).unwrap();
        std::os::unix::fs::symlink("home", dir.path().join("link")).unwrap();
        let local = |name: &str| Location::Local(dir.path().join(name));
        let far = || Location::Remote { host: "h".into(), path: home.clone() };
        let has = |sources: Vec<Location>, destination: Location| {
            let request = TreeRequest { sources, destination, options: TreeOptions::default() };
            About::request(&request).has(&data)
        };
        assert!(has(vec![local("other"), local("home")], far()));
        assert!(has(vec![local("link/.local")], far()) && has(vec![far()], local("home")));
        fs::create_dir(data.join("ended")).unwrap();
        assert!(has(vec![local("home/.local/share/dray/ended")], far()));
        assert!(!has(vec![local("other")], far()) && !has(vec![far()], local("other")));
        let by_ssh = |path: PathBuf| Location::Remote { host: "me@localhost".into(), path };
        assert!(has(vec![by_ssh(home.clone())], local("other")) && has(vec![local("other")], by_ssh(home)));
        assert!(!has(vec![by_ssh(dir.path().join("other"))], local("other")));
        let request = TreeRequest {
            sources: vec![by_ssh("~/x".into()), by_ssh("~".into()), by_ssh("y".into())],
            destination: local("other"),
            options: TreeOptions::default(),
        };
        let at_home = About::request(&request);
        let own = std::env::var_os("HOME").map(PathBuf::from).unwrap();
        assert_eq!(at_home.here[..3], [own.join("x"), own.clone(), own.join("y")]);
    }
}
