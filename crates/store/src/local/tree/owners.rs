//! Owners by name: which number a user or group of the other host has here.
//!
//! Names come from `/etc/passwd` and `/etc/group` alone: this program is one static file and asks no name service.

use std::collections::HashMap;

use dray_core::{Error, ErrorKind, Result};
use rustix::process::{getegid, geteuid, getgroups};

/// Users and groups of this host.
#[derive(Debug, Default)]
pub struct OwnerNames {
    users: HashMap<u32, Vec<u8>>,
    groups: HashMap<u32, Vec<u8>>,
    /// Numbers by whether it is a group and the name.
    ids: HashMap<(bool, Vec<u8>), u32>,
}

impl OwnerNames {
    /// Reads this host's files; what cannot be read has no names.
    pub fn of_this_host() -> OwnerNames {
        OwnerNames::of(read("/etc/passwd"), read("/etc/group"))
    }

    /// Of users and groups that are called so; of several numbers with one name it is the lowest that the name stands for.
    pub(super) fn of(users: HashMap<u32, Vec<u8>>, groups: HashMap<u32, Vec<u8>>) -> OwnerNames {
        let mut ids = HashMap::new();
        for (is_group, names) in [(false, &users), (true, &groups)] {
            for (id, name) in names {
                let known = ids.entry((is_group, name.clone())).or_insert(*id);
                *known = (*known).min(*id);
            }
        }
        OwnerNames { users, groups, ids }
    }

    /// The name of a user or group, if it has one of 1 to 255 bytes.
    pub fn name(&self, is_group: bool, id: u32) -> Option<&[u8]> {
        let names = if is_group { &self.groups } else { &self.users };
        names.get(&id).map(Vec::as_slice)
    }

    /// The number of the user or group called `name`.
    pub fn id(&self, is_group: bool, name: &[u8]) -> Option<u32> {
        self.ids.get(&(is_group, name.to_vec())).copied()
    }
}

/// Numbers by which lines `name:password:number:…` call them; the first of a number counts.
fn read(path: &str) -> HashMap<u32, Vec<u8>> {
    let text = std::fs::read(path).unwrap_or_default();
    let mut found = HashMap::new();
    for line in text.split(|byte| *byte == b'\n') {
        let mut fields = line.split(|byte| *byte == b':');
        let (name, number) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
        let number = std::str::from_utf8(number).ok().and_then(|text| text.parse().ok());
        if let Some(number) = number.filter(|_| matches!(name.len(), 1..=255)) {
            found.entry(number).or_insert_with(|| name.to_vec());
        }
    }
    found
}

/// The owner and group that everything gets, in numbers of this host (`cp --chown`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OwnerChange {
    /// The owner; `None` leaves it.
    pub user: Option<u32>,
    /// The group; `None` leaves it.
    pub group: Option<u32>,
}

impl OwnerChange {
    /// Reads `USER`, `USER:GROUP`, `USER:` or `:GROUP`, each a name of this host or a number, and checks that this process may
    /// give files to them, unless `gives_any`.
    pub fn parse(text: &[u8], gives_any: bool) -> Result<OwnerChange> {
        let mut parts = text.splitn(2, |byte| *byte == b':');
        let (user, group) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let names = OwnerNames::of_this_host();
        let find = |is_group: bool, name: &[u8]| {
            if name.is_empty() {
                return Ok(None);
            }
            let number = || std::str::from_utf8(name).ok()?.parse::<u32>().ok().filter(|id| *id != u32::MAX);
            let found = names.id(is_group, name).or_else(number);
            found.map(Some).ok_or_else(|| {
                let kind = if is_group { "group" } else { "user" };
                // What to do does not cross the wire, so it stands here.
                let what = format!(
                    "there is no {kind} {:?} where the copy goes; --chown takes names and numbers of that host",
                    String::from_utf8_lossy(name)
                );
                Error::new(ErrorKind::NotFound, what)
            })
        };
        let change = OwnerChange { user: find(false, user)?, group: find(true, group)? };
        let powers = Powers { gives_any, ..Powers::of_this_process() };
        let may_user = powers.is_root || gives_any || change.user.is_none_or(|user| user == powers.uid);
        if !may_user || change.group.is_some_and(|group| powers.allowed(0, group).1.is_none()) {
            let text = String::from_utf8_lossy(text);
            let what =
                format!("files cannot be given to {text:?}: only root may, or their owner to a group of his");
            return Err(Error::new(ErrorKind::Refused, what));
        }
        Ok(change)
    }
}

/// What this process may do with owners.
#[derive(Debug)]
pub(super) struct Powers {
    /// It may set any owner.
    pub(super) is_root: bool,
    /// Owners are in attributes, which say anything.
    pub(super) gives_any: bool,
    pub(super) uid: u32,
    pub(super) gid: u32,
    groups: Vec<u32>,
}

impl Powers {
    pub(super) fn of_this_process() -> Powers {
        let mut groups: Vec<u32> = getgroups().unwrap_or_default().iter().map(|gid| gid.as_raw()).collect();
        groups.push(getegid().as_raw());
        let (uid, gid) = (geteuid(), getegid().as_raw());
        Powers { is_root: uid.is_root(), gives_any: false, uid: uid.as_raw(), gid, groups }
    }

    /// The owner and group to set: those that this process may give.
    pub(super) fn allowed(&self, uid: u32, gid: u32) -> (Option<u32>, Option<u32>) {
        if self.is_root || self.gives_any {
            return (Some(uid), Some(gid));
        }
        (None, self.groups.contains(&gid).then_some(gid))
    }
}
