//! What `dray sync` brings over: lists of files and filters, beside rsync with the same; and patterns of git, beside git.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stderr)]

use std::fs;
use std::path::Path;

use dray_e2e::twins::{Case, Way, case, check, set_times, sync, write};
use dray_e2e::{Lab, data};

fn lists(place: &Path) {
    let lines =
        "# a note\nsub/a.c\n/sub/deep/b.c\n./new\nempty\nonly/\nlink\nbuild\nhard\nsub/a.c\n\ntouched\n";
    fs::write(place.join("list"), lines).unwrap();
    fs::write(place.join("without"), lines.replace("./", "")).unwrap();
    fs::write(place.join("list0"), lines.replace('\n', "\0").replace("# a note", "pipe")).unwrap();
    fs::write(place.join("whole"), "sub\nbuild/\nbecomes-dir\nbits\n").unwrap();
    fs::write(place.join("inner"), "sub/a.c\n").unwrap();
    fs::write(
        place.join("missing"),
        "new\nnot/there\nsub/nothing\nsame/below\nsub/a.c\nonly/\nonly/nothing\n",
    )
    .unwrap();
}

fn listed(options: &'static [&'static str]) -> Case {
    Case { prepare: lists, ..case(options) }
}

fn cases() -> Vec<Case> {
    let mut all: Vec<Case> = [
        &["-a", "--files-from={place}/list"][..],
        &["-a", "--files-from={place}/without"],
        &["-a0", "--files-from={place}/list0"],
        &["-a", "--files-from={place}/whole"],
        &["-ar", "--files-from={place}/whole"],
        &["-ar", "--exclude=*.o", "--files-from={place}/whole"],
        &["-a", "--exclude=/sub/", "--files-from={place}/inner"],
        &["-rt", "--existing", "--files-from={place}/list"],
    ]
    .into_iter()
    .map(listed)
    .collect();
    all.push(Case { is_slashed: false, ..listed(&["-a", "--files-from={place}/list"]) });
    all.push(Case { is_there: false, ..listed(&["-a", "--files-from={place}/list"]) });
    all.push(Case { fails: true, ..listed(&["-a", "--files-from={place}/missing"]) });
    all
}

/// Issue "--files-from": each list brings what it brings with rsync, and both say the same, within a host.
#[test]
fn lists_are_those_of_rsync() {
    let Some(lab) = Lab::of(1).build() else { return };
    check(lab.host(0), &Way::Here, &cases());
}

/// The same over ssh, both ways.
#[test]
fn lists_are_those_of_rsync_over_ssh() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    check(a, &Way::Up(b), &cases());
    check(a, &Way::Down(b), &cases());
}

fn rules(place: &Path) {
    for top in ["source", "ours", "theirs"] {
        for (name, text) in [
            ("sub/.rules", "- *.o\n+ /deep/\nP extra.*\n"),
            ("sub/deep/.rules", "+ b.o\n- /b.c\n"),
            ("build/.patterns", "x.*\n# note\n+ y.o\n"),
            (".rsync-filter", "- /only\nhide new\n- gone/one\n"),
        ] {
            write(&place.join(top).join(name), text.as_bytes(), 0);
        }
        set_times(&place.join(top), 0);
    }
    fs::write(place.join("rules"), "# note\n- *.o\nP /zfile\n").unwrap();
    fs::write(place.join("patterns"), "*.o\n+ a.c\n").unwrap();
}

fn filtered(options: &'static [&'static str]) -> Case {
    Case { prepare: rules, ..case(options) }
}

fn filters() -> Vec<Case> {
    let mut all: Vec<Case> = [
        &["-a", "--filter=- *.o"][..],
        &["-a", "-f", "+ a.o", "-f", "- *.o", "--delete"],
        &["-a", "--filter=P extra.*", "--delete"],
        &["-a", "--filter=R /becomes-file/***", "--filter=protect,! *.c", "--delete"],
        &["-a", "--filter=H *.o", "--delete"],
        &["-a", "--filter=S a.o", "--filter=H *.o", "--delete"],
        &["-a", "-f", "R /becomes-file/***", "-f", "R *.o", "-f", "P *", "--delete"],
        &["-a", "--filter=-s *.o", "--delete"],
        &["-a", "--filter=-r *.o", "--delete"],
        &["-a", "--filter=-p *.o", "--delete"],
        &["-a", "--filter=P *.o", "--filter=- *.c", "--delete", "--delete-excluded"],
        &["-a", "--filter=merge {place}/rules", "--delete"],
        &["-a", "--filter=.- {place}/patterns", "--delete"],
        &["-a", "--exclude=*.c", "--filter=clear", "--exclude=*.o"],
        &["-a", "--filter=: .rules"],
        &["-a", "--filter=:n .rules"],
        &["-a", "--filter=:e .rules"],
        &["-a", "--filter=:- .patterns"],
        &["-a", "--filter=dir-merge,-s .patterns"],
        &["-a", "--filter=-sr *.o", "--delete", "--delete-excluded"],
        &["-aF"],
        &["-aF", "--exclude=*.o", "-F"],
        &["-aFF"],
    ]
    .into_iter()
    .map(filtered)
    .collect();
    all.push(Case { is_slashed: false, ..filtered(&["-a", "--filter=: .rules"]) });
    all.push(Case { is_slashed: false, ..filtered(&["-aF"]) });
    all
}

/// Issue "--filter, per-directory merge files": each rule leaves out and protects what it does with rsync, within a host.
#[test]
fn filters_are_those_of_rsync() {
    let Some(lab) = Lab::of(1).build() else { return };
    check(lab.host(0), &Way::Here, &filters());
}

/// The same over ssh, both ways.
#[test]
fn filters_are_those_of_rsync_over_ssh() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let is_wanted = |case: &Case| {
        ["--filter=: .rules", "-aF", "--filter=H *.o", "--filter=protect,! *.c"]
            .iter()
            .any(|word| case.options.contains(word))
    };
    let some: Vec<Case> = filters().into_iter().filter(is_wanted).collect();
    check(a, &Way::Up(b), &some);
    check(a, &Way::Down(b), &some);
}

/// Issue "entries that are missing: named, exit 8; `..` refused": each is named, what leads up brings nothing, and nothing is deleted.
#[test]
fn a_list_names_what_it_lacks() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy, list) = (a.directory("source"), a.directory("copy"), a.file("list"));
    write(&source.join("d/f"), b"f", 0);
    write(&a.file("outside"), b"outside", 0);
    write(&copy.join("d/extra"), b"extra", 0);
    std::os::unix::fs::symlink("d", source.join("link")).unwrap();
    let run = |lines: &str| {
        fs::write(&list, lines).unwrap();
        let mut from = std::ffi::OsString::from("--files-from=");
        from.push(&list);
        a.dray().args(["sync", "-ar"]).arg(from).arg(&source).arg(&copy).run()
    };
    let outcome = run("d\nd/lacking\nlink/f\nmissing\n").expect(8);
    for name in ["d/lacking", "link", "missing"] {
        assert!(outcome.stderr_text().contains(name), "{outcome}");
    }
    assert!(copy.join("d/f").exists());
    fs::remove_file(copy.join("d/f")).unwrap();
    let outcome = run("d\n../outside\n").expect(2);
    assert!(outcome.stderr_text().contains("../outside"), "{outcome}");
    assert!(!copy.join("d/f").exists());
    run("d\n").expect(0);
    assert!(copy.join("d/f").exists() && copy.join("d/extra").exists());
}

fn rules_at_one_end(top: &str, place: &Path) {
    for (name, text) in [("sub/.rules", "- *.o\nP extra.*\n"), (".rules", "- /gone/\n- z*\n")] {
        write(&place.join(top).join(name), text.as_bytes(), 0);
    }
    set_times(&place.join(top), 0);
}

fn rules_of_the_destination(place: &Path) {
    rules_at_one_end("ours", place);
    rules_at_one_end("theirs", place);
    // In what is deleted, too, before and behind what it protects.
    for top in ["ours", "theirs"] {
        for name in ["old/.rules", "old/!", "old/keep/deep/x", "old/keep/y", "old/z"] {
            write(&place.join(top).join(name), b"- keep\n", 0);
        }
    }
}

fn rules_of_the_source(place: &Path) {
    rules_at_one_end("source", place);
}

fn protecting() -> Vec<Case> {
    // The next run finds what the destination's own rules protect as this one did.
    let with = |prepare, options| Case { prepare, keeps_rules: true, ..case(options) };
    let mut all: Vec<Case> = [
        &["-a", "--delete", "--filter=: .rules"][..],
        &["-a", "--delete", "--filter=:n .rules"],
        &["-a", "--delete", "--filter=:e .rules"],
        &["-a", "--delete", "--filter=:-r .patterns"],
        &["-a", "--delete", "--filter=:-s .patterns"],
        &["-a", "--delete", "--filter=:p .rules"],
        &["-a", "--delete-excluded", "--filter=: .rules"],
        &["-a", "--delete", "--filter=:- .patterns"],
        &["-aF", "--delete"],
        &["-aFF", "--delete"],
        &["-aF", "--delete", "--delete-excluded"],
    ]
    .into_iter()
    .map(filtered)
    .collect();
    all.push(with(rules_of_the_destination, &["-a", "--delete", "--filter=: .rules"]));
    all.push(with(rules_of_the_destination, &["-a", "--delete", "--filter=:n .rules"]));
    // What came protects, too, as with --delete-after; of that rsync's dry run knows as little as ours.
    all.push(with(rules_of_the_source, &["-a", "--delete-after", "--filter=: .rules"]));
    all.push(Case { is_slashed: false, ..filtered(&["-aF", "--delete"]) });
    all
}

/// Issue "--delete with files of rules": what the destination's own files protect stays, with them, also where those are replaced, within a host.
#[test]
fn files_of_rules_protect_as_with_rsync() {
    let Some(lab) = Lab::of(1).build() else { return };
    check(lab.host(0), &Way::Here, &protecting());
}

/// The same over ssh, both ways.
#[test]
fn files_of_rules_protect_as_with_rsync_over_ssh() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    let is_wanted =
        |case: &Case| ["--filter=: .rules", "-aF", "-aFF"].iter().any(|word| case.options.contains(word));
    let some: Vec<Case> = protecting().into_iter().filter(is_wanted).collect();
    check(a, &Way::Up(b), &some);
    check(a, &Way::Down(b), &some);
}

/// Where both ends have other rules, what either set protects stays, which with rsync depends on when it deletes; and the next run goes by the new ones.
#[test]
fn rules_of_both_ends_protect() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    for way in [Way::Here, Way::Up(b), Way::Down(b)] {
        let place = a.directory("case");
        let (source, ours) = (place.join("source"), place.join("ours"));
        for (name, text) in [("f", "f"), (".rules", "P new*\n"), ("file", "makes way")] {
            write(&source.join(name), text.as_bytes(), 9);
        }
        for (name, text) in [
            (".rules", "P old*\n"),
            ("old1", ""),
            ("new1", ""),
            ("x", ""),
            ("d/old2", ""),
            ("d/x", ""),
            ("file/old3", ""),
        ] {
            write(&ours.join(name), text.as_bytes(), 0);
        }
        let case = case(&["-a", "--delete", "--filter=: .rules"]);
        let outcome = sync(a, &case, &["-i"], &way, &source, &ours).expect(8);
        assert!(outcome.stderr_text().contains("\"file\": a directory stands there"), "{way:?} {outcome}");
        assert_eq!(data::names(&ours), [".rules", "d", "f", "file", "new1", "old1"], "{way:?}");
        assert_eq!(data::names(&ours.join("d")), ["old2"]);
        assert!(ours.join("file/old3").exists());
        sync(a, &case, &["-i"], &way, &source, &ours).expect(0);
        assert_eq!(data::names(&ours), [".rules", "f", "file", "new1"], "{way:?}");
        fs::remove_dir_all(&place).unwrap();
    }
}

/// What cannot be read as rules protects everything; so do two sources that go to one place, each of which may bring rules.
#[test]
fn rules_that_nobody_knows_protect_everything() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, other, copy) = (a.directory("source"), a.directory("other"), a.directory("copy"));
    write(&source.join("f"), b"f", 0);
    write(&other.join("g"), b"g", 0);
    write(&copy.join("d/x"), b"x", 0);
    std::os::unix::fs::symlink("nowhere", copy.join(".rules")).unwrap();
    let run = |sources: &[&Path]| {
        let sources = sources.iter().map(|source| source.join(""));
        a.dray().args(["sync", "-a", "--delete", "--filter=: .rules"]).args(sources).arg(&copy).run()
    };
    let outcome = run(&[&source]).expect(8);
    assert!(outcome.stderr_text().contains(".rules"), "{outcome}");
    assert!(copy.join("d/x").exists() && copy.join("f").exists());
    fs::remove_file(copy.join(".rules")).unwrap();
    let outcome = run(&[&source, &other]).expect(8);
    assert!(outcome.stderr_text().contains("several sources go to one place"), "{outcome}");
    assert!(copy.join("d/x").exists() && copy.join("g").exists());
    run(&[&source]).expect(0);
    assert_eq!(data::names(&copy), ["f"]);
}

fn whole_lists(place: &Path) {
    lists(place);
    fs::write(place.join("mixed"), "sub/deep\nbuild/x.o\nbecomes-file\nnew\n").unwrap();
    fs::write(place.join("level"), "sub/\nbuild/x.o\n").unwrap();
    fs::write(place.join("all"), ".\n").unwrap();
    for top in ["ours", "theirs"] {
        write(&place.join(top).join("sub/deep/extra/f"), b"f", 0);
        write(&place.join(top).join("top"), b"top", 0);
    }
}

fn deleting_lists() -> Vec<Case> {
    [
        &["-ar", "--delete", "--files-from={place}/mixed"][..],
        &["-ar", "--delete", "--exclude=b.o", "--files-from={place}/mixed"],
        &["-a", "--delete", "--files-from={place}/level"],
        &["-ar", "--delete", "--files-from={place}/level"],
        &["-ar", "--delete", "--files-from={place}/all"],
        &["-ar", "--delete", "--files-from={place}/whole"],
    ]
    .into_iter()
    .map(|options| Case { prepare: whole_lists, ..case(options) })
    .collect()
}

/// Issue "--delete with --files-from": with rsync and here what is in the directories goes that come with what is in them, and nothing else.
#[test]
fn lists_delete_as_with_rsync() {
    let Some(lab) = Lab::of(1).build() else { return };
    check(lab.host(0), &Way::Here, &deleting_lists());
}

/// The same over ssh, both ways.
#[test]
fn lists_delete_as_with_rsync_over_ssh() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    b.sshd();
    check(a, &Way::Up(b), &deleting_lists());
    check(a, &Way::Down(b), &deleting_lists());
}

/// What a list names and is not there may be there under another name: nothing is deleted, where rsync goes on.
#[test]
fn a_list_that_lacks_something_deletes_nothing() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy, list) = (a.directory("source"), a.directory("copy"), a.file("list"));
    write(&source.join("d/f"), b"f", 0);
    write(&copy.join("d/extra"), b"extra", 0);
    let run = |lines: &str| {
        fs::write(&list, lines).unwrap();
        let from = format!("--files-from={}", list.display());
        a.dray().args(["sync", "-ar", "--delete"]).arg(from).arg(&source).arg(&copy).run()
    };
    let outcome = run("d\nmissing\n").expect(8);
    assert!(outcome.stderr_text().contains("nothing was deleted"), "{outcome}");
    assert!(copy.join("d/extra").exists());
    run("d\n").expect(0);
    assert!(!copy.join("d/extra").exists());
}

/// Two readers of standard input: the second would find nothing, and so leave nothing out.
#[test]
fn standard_input_has_one_reader() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy) = (a.directory("source"), a.directory("copy"));
    write(&source.join("f"), b"f", 0);
    for second in ["--exclude-from=-", "--include-from=-", "--filter=. -"] {
        let outcome = a.dray().args(["sync", "-a", "--exclude-from=-", second]).arg(&source).arg(&copy).run();
        assert!(outcome.expect(2).stderr_text().contains("standard input"));
    }
    assert!(fs::read_dir(&copy).unwrap().next().is_none());
}

/// Issue "--gitignore: true gitignore syntax": what comes is what git would add.
#[test]
fn patterns_of_git_are_those_of_git() {
    let Some(lab) = Lab::of(1).build() else { return };
    let a = lab.host(0);
    let (source, copy) = (a.directory("source"), a.directory("copy"));
    for (name, text) in [
        (
            ".gitignore",
            "\u{feff}first\n*.o\n!keep.o\n/top\nbuild/\ndoc/**/*.txt\n**/deep\n\\#note\ntrail\\ \n",
        ),
        ("sub/.gitignore", "!x.o\n/top\n[a-c]?\n"),
    ] {
        write(&source.join(name), text.as_bytes(), 0);
    }
    for name in [
        "first",
        "a.o",
        "keep.o",
        "top",
        "build/x",
        "doc/a.txt",
        "doc/b/c/d.txt",
        "doc/e",
        "deep/x",
        "#note",
        "trail ",
        "trail",
        "sub/x.o",
        "sub/y.o",
        "sub/top",
        "sub/inner/top",
        "sub/ax",
        "sub/dx",
        "sub/build/y",
        "sub/a/deep",
    ] {
        write(&source.join(name), b"x", 0);
    }
    let git =
        |words: &[&str]| a.program("git").arg("-C").arg(&source).args(words).run().expect(0).stdout_text();
    git(&["init", "-q"]);
    let mut wanted: Vec<String> = git(&["ls-files", "-zco", "--exclude-per-directory=.gitignore"])
        .split_terminator('\0')
        .map(Into::into)
        .collect();
    let mut slashed = source.clone().into_os_string();
    slashed.push("/");
    a.dray().args(["sync", "-a", "--gitignore", "--exclude=/.git"]).arg(slashed).arg(&copy).run().expect(0);
    let found =
        a.program("find").arg(&copy).args(["-type", "f", "-printf", "%P\\0"]).run().expect(0).stdout_text();
    let mut found: Vec<String> = found.split_terminator('\0').map(Into::into).collect();
    wanted.sort();
    found.sort();
    assert_eq!(found, wanted);
    assert!(found.len() > 5 && !found.contains(&"first".to_owned()));
}
