//! When a copy may begin, and what a stop finds.

use std::fs;

use super::*;

fn error(kind: ErrorKind) -> Error {
    Error::new(kind, "it")
}

/// An unmounted disk is not a source from which everything was deleted: neither where the root lies elsewhere than at first, nor where
/// something below it is gone and what SRC lacks would be deleted.
#[test]
fn an_unmounted_source_is_no_empty_one() {
    let place = tempfile::tempdir().unwrap();
    let root = place.path().to_owned();
    let mut grounds = Grounds::default();
    grounds.check(std::slice::from_ref(&root), None, true).unwrap();
    grounds.check(std::slice::from_ref(&root), Some(root.clone()), false).unwrap();
    let gone = grounds.check(std::slice::from_ref(&root), Some(root.join("mounted")), true).unwrap_err();
    assert!(gone.kind() == ErrorKind::Changed && gone.to_string().contains("was unmounted"), "{gone}");
    // One that is not there when it was read may have been an empty place then; a link is one, wherever it leads.
    let confirm = |name: &str| Grounds::default().confirm(&[root.join("."), root.join(name)]);
    std::os::unix::fs::symlink("nowhere", root.join("link")).unwrap();
    assert!(confirm("link").is_ok());
    assert_eq!(confirm("gone").unwrap_err().kind(), ErrorKind::NotFound);
    *grounds.devices.get_mut(&root).unwrap() += 1;
    let other = grounds.check(std::slice::from_ref(&root), None, false).unwrap_err();
    assert!(
        other.kind() == ErrorKind::Changed && other.to_string().contains("another file system"),
        "{other}"
    );
}

/// What may pass is tried again, and nothing else: a key that is refused stays so.
#[test]
fn only_what_may_pass_is_tried_again() {
    let place = tempfile::tempdir().unwrap();
    let (here, gone) = ([place.path().to_owned()], [place.path().join("gone")]);
    for kind in [ErrorKind::Unreachable, ErrorKind::TimedOut, ErrorKind::NoSpace] {
        assert!(may_pass(&error(kind), &here, &mut 9));
    }
    for kind in
        [ErrorKind::Refused, ErrorKind::Usage, ErrorKind::NotFound, ErrorKind::Changed, ErrorKind::Internal]
    {
        assert!(
            !may_pass(&error(kind).with_retryable(true), &here, &mut RETRIES_OF_ENTRIES.clone()),
            "{kind:?}"
        );
    }
    assert!(may_pass(&error(ErrorKind::NotFound), &gone, &mut 9));
    // It may have been away for a moment, while the copy looked.
    let mut unfound = 0;
    for _ in 0..RETRIES_OF_ENTRIES {
        assert!(may_pass(&error(ErrorKind::Unreachable), &here, &mut unfound));
        assert!(may_pass(&error(ErrorKind::NotFound), &gone, &mut unfound));
        assert!(may_pass(&error(ErrorKind::NotFound), &here, &mut unfound));
    }
    assert!(!may_pass(&error(ErrorKind::NotFound), &here, &mut unfound));
}

/// A stop finds what the last copy came to.
#[test]
fn the_last_copy_is_what_counts() {
    assert_eq!(ended(Last::Done).unwrap(), 0);
    assert_eq!(ended(Last::EntriesFailed(3)).unwrap(), 3);
    assert_eq!(
        ended(Last::Failed(error(ErrorKind::Unreachable))).unwrap_err().kind(),
        ErrorKind::Unreachable
    );
}

/// A wait without a change ends in time, and looks at everything once more.
#[test]
fn silence_ends_in_a_look() {
    struct Nobody;
    impl Observer for Nobody {
        fn event(&self, _: Event) {}
    }
    let place = tempfile::tempdir().unwrap();
    fs::create_dir(place.path().join("sub")).unwrap();
    let stop = Stop::new();
    let mut changes = Changes::of(&[place.path().to_owned()], false, &Nobody);
    changes.begin(&stop);
    assert_eq!(changes.wait(Some(Duration::from_millis(50)), Duration::ZERO, &stop), Waited::TimedOut);
    fs::write(place.path().join("sub/a"), b"1").unwrap();
    let begun = Instant::now();
    assert_eq!(changes.wait(None, Duration::from_millis(400), &stop), Waited::Changed);
    assert!(
        begun.elapsed() >= Duration::from_millis(400),
        "what had nothing to do is not done again at once"
    );
    stop.set();
    assert_eq!(changes.wait(None, Duration::ZERO, &stop), Waited::Stopped);
}
