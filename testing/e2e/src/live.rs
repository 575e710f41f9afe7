//! Directories by ticket: what tests of `put DIR` have in common, be it a command or the daemon that serves.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use dray_core::ticket::{AnyTicket, DirectoryTicket};

use crate::data::{self, MIB};
use crate::{Host, Outcome, gate};

/// Runs a program of this machine; what it printed.
#[track_caller]
pub fn tool(argv: &[&str]) -> String {
    let program = gate::find_tool(argv[0]).unwrap_or_else(|| panic!("{} is not installed", argv[0]));
    let output = Command::new(program).args(&argv[1..]).output().unwrap();
    assert!(output.status.success(), "{argv:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// `get TICKET -o to`.
pub fn get(host: &Host, ticket: &str, to: &Path) -> Outcome {
    host.dray().args(["get", ticket, "-o"]).arg(to).run()
}

/// `sync TICKET to`.
pub fn sync(host: &Host, options: &[&str], ticket: &str, to: &Path) -> Outcome {
    host.dray().arg("sync").args(options).arg(ticket).arg(to).run()
}

/// The ticket of a directory, taken apart.
#[track_caller]
pub fn directory_ticket(text: &str) -> DirectoryTicket {
    match text.parse().unwrap() {
        AnyTicket::Directory(ticket) => ticket,
        AnyTicket::Object(_) => panic!("{text} is of an object"),
    }
}

/// What `rsync` would still have to do, by contents; permission bits and owners are the receiver's.
#[track_caller]
pub fn differences(from: &Path, to: &Path) -> String {
    let (from, to) = (format!("{}/", from.display()), format!("{}/", to.display()));
    tool(&["rsync", "-rltn", "--checksum", "--delete", "-i", &from, &to])
}

/// Small and large files, holes, links, and names that are hard to write.
pub fn sample(root: &Path) {
    for directory in ["a/deep/er", "b", "empty"] {
        fs::create_dir_all(root.join(directory)).unwrap();
    }
    data::write_random(&root.join("large"), 5 * MIB + 77, 1);
    data::write_sparse(&root.join("a/sparse"), 64 * MIB, 3, 4);
    for number in 0..300 {
        data::write_random(&root.join(format!("a/deep/er/{number}")), number * 37, number);
    }
    fs::write(root.join("b/two\nlines"), b"x").unwrap();
    symlink("../large", root.join("b/link")).unwrap();
    symlink("nowhere", root.join("b/dangling")).unwrap();
}

/// A new directory on a file system in memory, by which it is known again whatever the machine's own are. The lab unmounts it.
pub fn in_memory(host: &Host, name: &str) -> PathBuf {
    let place = host.directory(name);
    tool(&["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", place.to_str().unwrap()]);
    let directory = place.join("shared");
    fs::create_dir(&directory).unwrap();
    directory
}

/// A new file system of `size_bytes`, which `make` makes of the file named behind its words, mounted under `name`. The lab unmounts it.
pub fn mounted(host: &Host, name: &str, make: &[&str], size_bytes: u64) -> PathBuf {
    let (image, place) = (host.file(format!("{name}.img")), host.directory(name));
    fs::File::create(&image).unwrap().set_len(size_bytes).unwrap();
    let image = image.to_str().unwrap();
    tool(&[make, &[image]].concat());
    tool(&["mount", "-o", "loop", image, place.to_str().unwrap()]);
    place
}
