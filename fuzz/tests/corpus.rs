//! The committed corpus, the table of targets and the libFuzzer folder name the same targets and inputs.

#![allow(clippy::expect_used, reason = "a test")]

use std::collections::BTreeSet;
use std::path::Path;

use dray_fuzz::TARGETS;

fn names(folder: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let entries = std::fs::read_dir(&folder).expect("the folder is committed");
    entries.map(|entry| entry.expect("readable").file_name().into_string().expect("ASCII")).collect()
}

/// After a change of a format, `dray-fuzz --write-corpus` brings the corpus up to date.
#[test]
fn every_initial_input_is_committed_and_current() {
    for target in TARGETS {
        for (name, bytes) in (target.seeds)() {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name).join(&name);
            let committed = std::fs::read(&path).ok();
            assert!(committed == Some(bytes), "{}/{name} is missing or old: run --write-corpus", target.name);
        }
    }
}

#[test]
fn every_target_has_a_corpus_and_a_libfuzzer_entry() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(targets.len(), TARGETS.len(), "names are distinct");
    assert_eq!(names("corpus"), targets);
    let entries = names("libfuzzer/fuzz_targets")
        .into_iter()
        .map(|file| file.trim_end_matches(".rs").replace('_', "-"));
    assert_eq!(entries.collect::<BTreeSet<_>>(), targets);
}
