//! One entry of a tree: what it is and how it is kept, encoded as deterministic CBOR with integer keys.

use minicbor::bytes::{ByteArray, ByteVec};
use minicbor::{Decode, Encode};

use crate::limits::{
    FEATURE_BYTES_MAX, FEATURES_MAX, OBJECT_BYTES_MAX, PATH_BYTES_MAX, TREE_DIRECTORY_ENTRIES_MAX,
    TREE_ENTRY_BYTES_MAX, TREE_XATTRS_BYTES_MAX, TREE_XATTRS_MAX,
};
use crate::{Error, ErrorKind, Oid, Result, cbor};

use super::{Name, TreeId};

/// One entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name in its directory; `None` for the root of a tree, whose name is the business of who places it.
    pub name: Option<Name>,
    /// What it is.
    pub kind: Kind,
    /// How it is kept.
    pub metadata: Metadata,
}

/// What an entry is: the half that is content.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file. Holes are the business of its content.
    File {
        /// Its size.
        size_bytes: u64,
        /// Its content; `None` while it is not known yet.
        oid: Option<Oid>,
    },
    /// A directory.
    Directory {
        /// What it lists, in a stored tree; `None` where its entries follow in a stream.
        entries: Option<DirectoryContent>,
    },
    /// A symbolic link, never followed.
    Symlink {
        /// Where it points: any bytes but NUL, 1 to 4,096.
        target: Vec<u8>,
    },
    /// A named pipe.
    Fifo,
    /// A socket of the file system.
    Socket,
    /// A character device.
    CharacterDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Major number.
        major: u32,
        /// Minor number.
        minor: u32,
    },
}

/// What a stored directory lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectoryContent {
    /// Uppermost node of its entries' content.
    pub content: TreeId,
    /// Uppermost node of its entries' metadata.
    pub metadata: TreeId,
    /// Its entries, not counting those below them.
    pub entries: u64,
}

/// How an entry is kept: the half that is metadata.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Metadata {
    /// Permission bits, `0o7777` at most.
    pub mode: u32,
    /// Modification time, seconds since 1970.
    pub mtime_s: i64,
    /// Nanoseconds of the modification time, below 10^9.
    pub mtime_ns: u32,
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Entries of a tree with the same group are names of one file.
    pub link_group: Option<[u8; 16]>,
    /// In a stream: names that the file has where it comes from, so that a group can be forgotten after its last; 0 if that is not
    /// said.
    pub link_names: u32,
    /// In a stream: its extended attributes could not be read, which is not that it has none.
    pub xattrs_unread: bool,
    /// Extended attributes by ascending name; ACLs are among them.
    pub xattrs: Vec<Xattr>,
}

/// An extended attribute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Xattr {
    /// Its whole name, for example `user.comment`.
    pub name: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
}

fn bad(name: Option<&Name>, why: impl std::fmt::Display) -> Error {
    let entry = name.map_or_else(|| "root entry".to_owned(), |name| format!("entry {name:?}"));
    Error::new(ErrorKind::Protocol, format!("{entry} is malformed: {why}"))
}

impl Entry {
    /// True for a directory.
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory { .. })
    }

    /// The encoding of the whole entry, at most `TREE_ENTRY_BYTES_MAX` bytes if its fields are within their limits.
    pub fn to_bytes(&self) -> Vec<u8> {
        cbor::encode(&WireEntry {
            name: self.name.as_ref().map(|name| name.as_bytes().to_vec().into()),
            content: WireContent::of(&self.kind),
            metadata: WireMetadata::of(self),
            required: None,
        })
    }

    /// Inverse of [`Entry::to_bytes`]; unknown keys are ignored. `Protocol` for what no entry is, `Unsupported`, by name,
    /// for what this version must not ignore.
    pub fn from_bytes(bytes: &[u8]) -> Result<Entry> {
        if bytes.len() > TREE_ENTRY_BYTES_MAX {
            return Err(bad(None, format_args!("{} bytes, limit {TREE_ENTRY_BYTES_MAX}", bytes.len())));
        }
        let wire: WireEntry = cbor::decode(bytes, "tree entry")?;
        let name = wire.name.as_ref().map(|name| Name::new(name)).transpose()?;
        refuse_unknown(name.as_ref(), wire.required.as_deref().unwrap_or_default())?;
        let metadata_node = wire.metadata.entries.as_ref().map(|id| TreeId::from_bytes(**id));
        let kind = wire.content.kind(name.as_ref(), metadata_node)?;
        let metadata = wire.metadata.metadata(name.as_ref())?;
        if metadata.link_group.is_some() && matches!(kind, Kind::Directory { .. }) {
            return Err(bad(name.as_ref(), "a directory with hard links"));
        }
        Ok(Entry { name, kind, metadata })
    }
}

/// Refuses, by name, what the entry cannot be understood without.
pub(super) fn refuse_unknown(name: Option<&Name>, required: &[String]) -> Result<()> {
    if required.len() > FEATURES_MAX || required.iter().any(|feature| feature.len() > FEATURE_BYTES_MAX) {
        return Err(bad(name, "too many or too long required features"));
    }
    match required.first() {
        None => Ok(()),
        Some(feature) => {
            let entry =
                name.map_or_else(|| "the root of the tree".to_owned(), |name| format!("entry {name:?}"));
            let what = format!("{entry} needs the feature {feature:?}, which this dray lacks");
            Err(Error::new(ErrorKind::Unsupported, what).advise("install a newer dray"))
        }
    }
}

/// The entry as it travels.
#[derive(Encode, Decode)]
#[cbor(map)]
struct WireEntry {
    #[n(0)]
    name: Option<ByteVec>,
    #[n(1)]
    content: WireContent,
    #[n(2)]
    metadata: WireMetadata,
    #[n(3)]
    required: Option<Vec<String>>,
}

/// The content half.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
#[cbor(map)]
pub(super) struct WireContent {
    #[n(0)]
    kind: u8,
    #[n(1)]
    size_bytes: Option<u64>,
    #[n(2)]
    oid: Option<Oid>,
    #[n(3)]
    target: Option<ByteVec>,
    #[n(4)]
    major: Option<u32>,
    #[n(5)]
    minor: Option<u32>,
    /// Uppermost content node of a directory, and how many entries it has.
    #[n(6)]
    node: Option<ByteArray<{ TreeId::BYTES }>>,
    #[n(7)]
    entries: Option<u64>,
}

/// The metadata half.
#[derive(Clone, PartialEq, Debug, Encode, Decode)]
#[cbor(map)]
pub(super) struct WireMetadata {
    #[n(0)]
    mode: u32,
    #[n(1)]
    mtime_s: i64,
    #[n(2)]
    mtime_ns: u32,
    #[n(3)]
    uid: u32,
    #[n(4)]
    gid: u32,
    #[n(5)]
    link_group: Option<ByteArray<16>>,
    #[n(6)]
    xattrs: Option<Vec<WireXattr>>,
    /// Uppermost metadata node of a directory.
    #[n(7)]
    entries: Option<ByteArray<{ TreeId::BYTES }>>,
    #[n(8)]
    link_names: Option<u32>,
    #[n(9)]
    xattrs_unread: Option<bool>,
}

#[derive(Clone, PartialEq, Debug, Encode, Decode)]
#[cbor(map)]
pub(super) struct WireXattr {
    #[n(0)]
    name: ByteVec,
    #[n(1)]
    value: ByteVec,
}

impl WireContent {
    pub(super) fn of(kind: &Kind) -> WireContent {
        let mut wire = WireContent {
            kind: 0,
            size_bytes: None,
            oid: None,
            target: None,
            major: None,
            minor: None,
            node: None,
            entries: None,
        };
        wire.kind = match kind {
            Kind::File { size_bytes, oid } => {
                (wire.size_bytes, wire.oid) = (Some(*size_bytes), *oid);
                1
            }
            Kind::Directory { entries } => {
                wire.node = entries.map(|entries| (*entries.content.as_bytes()).into());
                wire.entries = entries.map(|entries| entries.entries);
                2
            }
            Kind::Symlink { target } => {
                wire.target = Some(target.clone().into());
                3
            }
            Kind::Fifo => 4,
            Kind::Socket => 5,
            Kind::CharacterDevice { major, minor } => {
                (wire.major, wire.minor) = (Some(*major), Some(*minor));
                6
            }
            Kind::BlockDevice { major, minor } => {
                (wire.major, wire.minor) = (Some(*major), Some(*minor));
                7
            }
        };
        wire
    }

    /// The kind, each field where it belongs and nowhere else. `metadata` is the node of a directory's other half.
    fn kind(self, name: Option<&Name>, metadata: Option<TreeId>) -> Result<Kind> {
        let found = [
            self.size_bytes.is_some(),
            self.oid.is_some(),
            self.target.is_some(),
            self.major.is_some() || self.minor.is_some(),
            self.node.is_some() || self.entries.is_some() || metadata.is_some(),
        ];
        let allowed = match self.kind {
            1 => [true, true, false, false, false],
            2 => [false, false, false, false, true],
            3 => [false, false, true, false, false],
            4 | 5 => [false; 5],
            6 | 7 => [false, false, false, true, false],
            other => {
                let what = match name {
                    Some(name) => format!("entry {name:?} is of kind {other}, which this dray does not know"),
                    None => format!("a root of kind {other}, which this dray does not know"),
                };
                return Err(Error::new(ErrorKind::Unsupported, what).advise("install a newer dray"));
            }
        };
        if found.iter().zip(allowed).any(|(found, allowed)| *found && !allowed) {
            return Err(bad(name, "a field that its kind does not have"));
        }
        let lacks = || bad(name, "a field that its kind has is missing");
        Ok(match self.kind {
            1 => {
                let size_bytes = self.size_bytes.ok_or_else(lacks)?;
                if size_bytes > OBJECT_BYTES_MAX {
                    return Err(bad(name, "an impossible size"));
                }
                Kind::File { size_bytes, oid: self.oid }
            }
            2 => Kind::Directory {
                entries: match (self.node, self.entries, metadata) {
                    (None, None, None) => None,
                    (Some(node), Some(entries), Some(metadata)) if entries <= TREE_DIRECTORY_ENTRIES_MAX => {
                        Some(DirectoryContent { content: TreeId::from_bytes(*node), metadata, entries })
                    }
                    _ => return Err(bad(name, "a directory of which a half is missing")),
                },
            },
            3 => {
                let target = Vec::from(self.target.ok_or_else(lacks)?);
                if target.is_empty() || target.len() > PATH_BYTES_MAX || target.contains(&0) {
                    return Err(bad(name, "an impossible link target"));
                }
                Kind::Symlink { target }
            }
            4 => Kind::Fifo,
            5 => Kind::Socket,
            code => {
                let (major, minor) = (self.major.ok_or_else(lacks)?, self.minor.ok_or_else(lacks)?);
                if code == 6 {
                    Kind::CharacterDevice { major, minor }
                } else {
                    Kind::BlockDevice { major, minor }
                }
            }
        })
    }

    /// What can be checked of the half alone.
    pub(super) fn check(&self, name: &Name) -> Result<()> {
        let other_half = self.node.as_ref().map(|node| TreeId::from_bytes(**node));
        self.clone().kind(Some(name), other_half).map(|_| ())
    }
}

impl WireMetadata {
    pub(super) fn of(entry: &Entry) -> WireMetadata {
        let metadata = &entry.metadata;
        let xattr =
            |xattr: &Xattr| WireXattr { name: xattr.name.clone().into(), value: xattr.value.clone().into() };
        let node = match &entry.kind {
            Kind::Directory { entries } => entries.map(|entries| (*entries.metadata.as_bytes()).into()),
            _ => None,
        };
        WireMetadata {
            mode: metadata.mode,
            mtime_s: metadata.mtime_s,
            mtime_ns: metadata.mtime_ns,
            uid: metadata.uid,
            gid: metadata.gid,
            link_group: metadata.link_group.map(Into::into),
            xattrs: (!metadata.xattrs.is_empty()).then(|| metadata.xattrs.iter().map(xattr).collect()),
            entries: node,
            link_names: metadata.link_group.and(Some(metadata.link_names).filter(|names| *names > 0)),
            xattrs_unread: metadata.xattrs_unread.then_some(true),
        }
    }

    /// Without what only a stream says: a stored tree does not depend on where it came from.
    pub(super) fn stored(self) -> WireMetadata {
        WireMetadata { link_names: None, xattrs_unread: None, ..self }
    }

    pub(super) fn metadata(self, name: Option<&Name>) -> Result<Metadata> {
        if self.mode > 0o7777 {
            return Err(bad(name, "impossible permission bits"));
        }
        if self.mtime_ns >= 1_000_000_000 {
            return Err(bad(name, "an impossible modification time"));
        }
        let listed = self.xattrs.unwrap_or_default();
        if listed.len() > TREE_XATTRS_MAX {
            return Err(bad(name, "too many extended attributes"));
        }
        let xattrs: Vec<Xattr> = listed
            .into_iter()
            .map(|xattr| Xattr { name: xattr.name.into(), value: xattr.value.into() })
            .collect();
        let is_named = |xattr: &Xattr| matches!(xattr.name.len(), 1..=255) && !xattr.name.contains(&0);
        let bytes: usize = xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len()).sum();
        let is_ordered = xattrs.windows(2).all(|pair| pair[0].name < pair[1].name);
        if bytes > TREE_XATTRS_BYTES_MAX || !is_ordered || !xattrs.iter().all(is_named) {
            return Err(bad(name, "extended attributes that are too long, out of order or badly named"));
        }
        let xattrs_unread = self.xattrs_unread.unwrap_or(false);
        if self.link_names.is_some() && self.link_group.is_none() || xattrs_unread && !xattrs.is_empty() {
            return Err(bad(name, "a field without the one that it belongs to"));
        }
        Ok(Metadata {
            mode: self.mode,
            mtime_s: self.mtime_s,
            mtime_ns: self.mtime_ns,
            uid: self.uid,
            gid: self.gid,
            link_group: self.link_group.map(|group| *group),
            link_names: self.link_names.unwrap_or(0),
            xattrs_unread,
            xattrs,
        })
    }
}
