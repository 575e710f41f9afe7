//! Directory trees of the user's file system: read by [`Walker`], written by [`TreeWriter`].
//!
//! Both go by descriptors. A path that the user named is resolved once; from there on each step is one name below an open
//! directory, and a symbolic link is never followed (`openat2` with `RESOLVE_BENEATH` and `RESOLVE_NO_SYMLINKS`). Whoever
//! swaps a directory for a link meanwhile gets an error for that entry, not a way out.

mod attributes;
mod backup;
mod basis;
mod beside;
mod chmod;
mod chosen;
mod content;
mod contested;
mod cut;
mod delete;
mod digest;
mod directory;
mod exclude;
mod fake;
mod filter;
mod guard;
mod landing;
mod lasting;
mod links;
mod listing;
mod look;
mod mounts;
mod opened;
mod origin;
mod others;
mod overwrite;
mod own;
mod owners;
mod partial;
mod place;
mod preview;
mod prune;
mod refused;
mod regular;
mod removing;
mod renew;
mod reserving;
mod settings;
mod shared;
mod special;
mod stage;
mod sync;
mod temporary;
#[cfg(test)]
mod tests;
mod unfinished;
mod unsynced;
mod walk;
mod write;
mod writing_over;

pub use attributes::AttributeSort;
pub use backup::BackupOptions;
pub use basis::{BasisOptions, BasisUse};
pub use beside::Beside;
pub use chmod::ModeChange;
pub use chosen::Chosen;
pub use content::{FileState, Piece, ReadSize, hash_content};
pub use cut::{Cut, CutEnd, cut_content};
pub use digest::{DigestOptions, Held, ReceivingEnd, Scan, Scanned, Told};
pub use directory::{Directory, raise_open_files};
pub use exclude::Excludes;
pub use fake::FakeSuper;
pub use filter::read_rule;
pub use guard::{DirectoryKey, Guard, Pulse};
pub use landing::{Above, Landing, Places};
pub use lasting::LastingIdentity;
pub use mounts::{MountNumber, ReadMounts};
pub use origin::Origin;
pub use others::{Others, OthersToFind, SizeAndTime};
pub use own::own_directory;
pub use owners::{OwnerChange, OwnerNames};
pub(super) use place::identity_of;
pub use place::{FileTarget, Identity, NewFile, OlderFile};
pub use preview::{Planned, Preview};
pub use removing::{Remover, ToldEntry};
pub use settings::{Changes, Differences, WriteOptions};
pub use shared::{SharedDirectory, directory_key, touches};
pub use sync::{DeleteOptions, Done, SyncOptions};
pub use unfinished::Landed;
pub use walk::{FileToSend, OpenFile, WalkOptions, Walked, Walker};
pub use write::{NotKept, Placed, TreeWriter, Unmade};
