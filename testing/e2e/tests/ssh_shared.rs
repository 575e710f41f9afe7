//! `dray` over a connection that ssh shares (`ControlMaster`): it uses that of its user, and leaves to others what it carries for them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use dray_e2e::Lab;
use dray_e2e::actions::assert_delivered;
use dray_e2e::data::{self, MIB};

/// A user's `ControlMaster` is used: the second copy needs no login, and nobody waits for the connection that stays.
#[test]
fn a_shared_connection_is_used() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let source = a.file("source");
    data::write_random(&source, MIB, 1);
    let mut options = b.ssh_options();
    // Not in the lab's directory: the path of a socket is short.
    let sockets = tempdir(&lab);
    for option in
        ["ControlMaster=auto", "ControlPersist=30", &format!("ControlPath={}/%C", sockets.display())]
    {
        options.extend(["-o".into(), option.into()]);
    }
    for number in 0..3 {
        let there = b.directory(&number.to_string()).join("copy");
        // The connection that stays holds standard error: the files are what is looked at.
        let copied = a.dray().arg("cp").args(&options).arg(&source).arg(b.remote(&there)).run().expect(0);
        assert!(copied.elapsed < Duration::from_secs(20), "{copied}");
        assert_delivered(&source, &there, None);
    }
    assert_eq!(b.sshd().logins(), 1);
    let _ = fs::remove_dir_all(sockets);
}

fn tempdir(lab: &Lab) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("{}-s", lab.dir().file_name().unwrap().to_str().unwrap()));
    fs::create_dir(&dir).unwrap();
    dir
}

/// Without `ControlPersist` the ssh of a copy carries what its user does meanwhile beside it: that goes on when the copy is done,
/// whichever way it went, also where nothing was to be done.
#[test]
fn what_shares_the_connection_of_a_copy_outlives_it() {
    // So far away that there is time to join what is shared.
    let Some(lab) = Lab::of(2).round_trip(Duration::from_millis(100)).build() else { return };
    let (a, b) = lab.pair();
    let source = a.directory("source");
    data::write_random(&source.join("file"), MIB, 1);
    let there = b.directory("there");
    let (here, there) = (source.join("").into_os_string(), b.remote(&there.join("")));
    let in_there = |name: &str| {
        let mut path = there.clone();
        path.push(name);
        path
    };
    let sockets = tempdir(&lab);
    let mut options = b.ssh_options();
    let path = format!("ControlPath={}/%C", sockets.display());
    options.extend(["-o", "ControlMaster=auto", "-o", path.as_str()].map(String::from));
    // The session of a user, which begins as soon as there is a connection to share.
    let shared = format!("{}/*", sockets.display());
    let beside = format!(
        "until ls {shared} >/dev/null 2>&1; do sleep 0.01; done; ssh {} root@{} 'sleep 2; echo still here'",
        options.join(" "),
        b.address()
    );
    let by = format!("ssh {}", options.join(" "));
    let sync = ["sync", "-a", "-e", by.as_str()];
    let mut cp = vec!["cp"];
    cp.extend(options.iter().map(String::as_str));
    let list = ["sync", "-a", "--list-only", "-e", by.as_str()];
    let commands: [(&[&str], OsString, Option<OsString>); 6] = [
        (&sync, here.clone(), Some(there.clone())),
        (&sync, here.clone(), Some(there.clone())),
        (&sync, there.clone(), Some(here.clone())),
        (&list, there.clone(), None),
        (&cp, source.join("file").into_os_string(), Some(in_there("copy"))),
        (&cp, in_there("copy"), Some(a.file("copy").into_os_string())),
    ];
    for (words, from, to) in commands {
        let has_joined = (0..5).any(|_| {
            let logins = b.sshd().logins();
            let session = a.program("sh").arg("-c").arg(&beside).start();
            a.dray().args(words).arg(&from).args(&to).run().expect(0);
            let said = session.wait();
            let has_joined = b.sshd().logins() - logins == 1;
            assert!(!has_joined || said.stdout_text().trim() == "still here", "{words:?} {from:?}: {said}");
            has_joined
        });
        assert!(has_joined, "the scene shares a connection: {words:?}");
    }
    let _ = fs::remove_dir_all(sockets);
}
