//! Who owns what is in a tree: everything one user and group, as is usual, or several, which then go into the digests by name.

use super::super::owners::{OwnerNames, Powers};
use super::DigestOptions;
use super::canonical::{self, Digest, Hashers};
use dray_core::message::SoleOwner;

/// The only one among those seen, if it is only one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sole {
    One(u32),
    Several,
}

impl Sole {
    fn add(&mut self, other: Sole) {
        if *self != other {
            *self = Sole::Several;
        }
    }

    fn is(self, wanted: Option<u32>) -> bool {
        wanted.is_none_or(|wanted| self == Sole::One(wanted))
    }
}

/// The only user and group of what is in a directory and below it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Owner {
    pub(super) user: Sole,
    pub(super) group: Sole,
}

impl Owner {
    pub(super) fn of(uid: u32, gid: u32) -> Owner {
        Owner { user: Sole::One(uid), group: Sole::One(gid) }
    }

    pub(super) fn add(&mut self, other: Owner) {
        self.user.add(other.user);
        self.group.add(other.group);
    }
}

/// The owners of one directory, entry by entry: how many in a row have the same.
#[derive(Debug)]
pub(super) struct Owners {
    hasher: blake3::Hasher,
    last: (u32, u32),
    count: u64,
}

impl Owners {
    pub(super) fn new(hashers: &Hashers, uid: u32, gid: u32) -> Owners {
        Owners { hasher: hashers.owners.clone(), last: (uid, gid), count: 1 }
    }

    pub(super) fn add(&mut self, uid: u32, gid: u32, names: &Names, scratch: &mut Vec<u8>) {
        if (uid, gid) != self.last {
            self.flush(names, scratch);
            self.last = (uid, gid);
        }
        self.count += 1;
    }

    /// A directory has these.
    pub(super) fn add_below(&mut self, below: &Digest, names: &Names, scratch: &mut Vec<u8>) {
        self.flush(names, scratch);
        self.hasher.update(below);
    }

    pub(super) fn end(mut self, names: &Names, scratch: &mut Vec<u8>) -> Digest {
        self.flush(names, scratch);
        canonical::digest(&self.hasher)
    }

    fn flush(&mut self, names: &Names, scratch: &mut Vec<u8>) {
        if self.count == 0 {
            return;
        }
        scratch.clear();
        scratch.extend_from_slice(&self.count.to_be_bytes());
        names.push(scratch, self.last);
        self.hasher.update(scratch);
        self.count = 0;
    }
}

/// How owners are called.
#[derive(Debug)]
pub(super) struct Names {
    names: OwnerNames,
    users: bool,
    groups: bool,
    is_receiving: bool,
}

impl Names {
    /// Of this host, at the end that sends or the one that receives.
    pub(super) fn new(options: &DigestOptions, is_receiving: bool) -> Names {
        let by_name = options.keeps_owners() && !options.numeric_ids;
        let names = if by_name { OwnerNames::of_this_host() } else { OwnerNames::default() };
        Names::of(names, options, is_receiving)
    }

    /// The same of owners with these names.
    pub(super) fn of(names: OwnerNames, options: &DigestOptions, is_receiving: bool) -> Names {
        Names { names, users: options.users, groups: options.groups, is_receiving }
    }

    fn name(&self, is_group: bool, id: u32) -> Option<&[u8]> {
        // Root is root everywhere.
        self.names.name(is_group, id).filter(|_| id != 0)
    }

    /// Appends a user and group, as far as they are kept.
    pub(super) fn push(&self, out: &mut Vec<u8>, (uid, gid): (u32, u32)) {
        for (is_kept, is_group, id) in [(self.users, false, uid), (self.groups, true, gid)] {
            let name = self.name(is_group, id);
            // The sender tells the name; here that makes another number of it.
            let is_ambiguous =
                self.is_receiving && name.is_some_and(|name| self.names.id(is_group, name) != Some(id));
            if is_kept {
                canonical::push_owner(out, id, name, is_ambiguous);
            }
        }
    }

    /// What the receiver is told of an owner.
    pub(super) fn tell(&self, uid: u32, gid: u32) -> SoleOwner {
        let name = |is_group, id| self.name(is_group, id).map(|name| name.to_vec().into());
        SoleOwner { uid, gid, user: name(false, uid), group: name(true, gid) }
    }

    /// True if the entries of `there` have the owner that they would be given here, as far as this process may: the same as what
    /// [`Settings::owner_of`](super::super::settings::Settings::owner_of) says.
    pub(super) fn is_as_told(&self, told: &SoleOwner, there: Owner) -> bool {
        let here = |is_group, id, name: &Option<minicbor::bytes::ByteVec>| {
            let named = name.as_ref().filter(|_| id != 0);
            named.and_then(|name| self.names.id(is_group, name)).unwrap_or(id)
        };
        let (uid, gid) = (here(false, told.uid, &told.user), here(true, told.gid, &told.group));
        let (uid, gid) = Powers::of_this_process().allowed(uid, gid);
        there.user.is(uid.filter(|_| self.users)) && there.group.is(gid.filter(|_| self.groups))
    }
}
