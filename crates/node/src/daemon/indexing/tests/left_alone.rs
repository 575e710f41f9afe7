//! What is not read for the index, and not even looked at.

use super::*;

/// What lies on a network, or behind a program, is not read: it would cross that twice, for nobody who asked for it. Nor is it looked at.
#[test]
fn what_lies_on_a_network_is_left_out() {
    let bed = Bed::new();
    let root = fs::canonicalize(bed.dir.path()).unwrap();
    fs::create_dir(root.join("nas")).unwrap();
    bed.put("nas/a", &random(2 * MIB, 81));
    let mounts =
        format!("1 0 8:1 / / rw - ext4 x rw\n2 1 0:9 / {} rw - nfs4 x rw\n", root.join("nas").display());
    *bed.mounts.borrow_mut() = mounts;
    bed.round();
    assert!(!bed.indexing.state().open, "an index of nothing");
    bed.put("here", &random(MIB, 80));
    bed.round();
    assert_eq!(bed.figures(), (MIB as u64, 1));
    // A link leads there by now.
    fs::create_dir(root.join("dir")).unwrap();
    bed.put("dir/a", &random(MIB, 82));
    fs::rename(root.join("dir"), root.join("nas/dir")).unwrap();
    std::os::unix::fs::symlink("nas/dir", root.join("dir")).unwrap();
    bed.round();
    assert_eq!(bed.figures(), (MIB as u64, 1));
    bed.mounts.borrow_mut().clear();
    bed.round();
    assert_eq!(bed.figures(), (3 * MIB as u64, 2));
}

/// Disks that sleep, or that a look mounts, are left alone: of what is in the index nothing is looked at as long as there is room, and what
/// leads nowhere not again in a day; what is put there anew is taken in.
#[test]
fn what_is_known_is_not_looked_at() {
    let bed = Bed::new();
    for (name, seed) in [("known", 83), ("gone", 84)] {
        bed.put(name, &random(MIB, seed));
    }
    fs::rename(bed.dir.path().join("gone"), bed.dir.path().join("aside")).unwrap();
    bed.round();
    assert_eq!(bed.figures(), (MIB as u64, 1));
    fs::remove_file(bed.dir.path().join("known")).unwrap();
    bed.memory.borrow_mut().progress.begin_late();
    bed.try_round(&|| false, None, false).unwrap();
    assert_eq!(bed.figures().1, 1, "it was looked at");
    let passed = || {
        let asked = Cell::new(0);
        let count = || {
            asked.set(asked.get() + 1);
            false
        };
        bed.try_round(&count, None, true).unwrap();
        asked.get()
    };
    // The round, what was missed, and two records; no file.
    assert_eq!(passed(), 3);
    bed.put("gone", &random(2 * MIB, 85));
    bed.round();
    assert_eq!(bed.figures(), (3 * MIB as u64, 2));
    // A question misses what is gone.
    assert!(!bed.is_hopeful(MIB));
    bed.round();
    assert_eq!(bed.figures().1, 1);
}
