//! Twins: `dray sync` and rsync with the same options on two copies of one tree, and what they say and make held against each other; and
//! small trees for other tests of `sync`.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::process::{Outcome, Program, Running};
use crate::{Host, data};

/// How long one command may take.
pub const LONG: Duration = Duration::from_secs(300);

/// Whole seconds, which is what rsync compares.
pub fn time(seconds: i64) -> SystemTime {
    let begin = 1_700_000_000_i64;
    SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(begin + seconds).unwrap())
}

/// Writes a file, with the directories above it, that was changed so many seconds after a fixed time.
pub fn write(path: &Path, content: &[u8], seconds: i64) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    fs::File::open(path).unwrap().set_modified(time(seconds)).unwrap();
}

/// A source, and a destination in which of everything something is older, newer, of another kind, too much or missing.
/// Where that is deleted, what makes way is full.
pub fn source_and_destination(source: &Path, copy: &Path, deletes: bool) {
    for (name, content, seconds) in [
        ("same", "same", 0),
        ("changed", "new bytes", 5),
        ("touched", "touched", 9),
        ("older", "from the source", -100),
        ("bits", "bits", 0),
        ("new", "new", 0),
        ("quiet", "AAAA", 0),
        ("sub/a.c", "c", 0),
        ("sub/a.o", "o", 0),
        ("sub/deep/b.c", "c2", 0),
        ("sub/deep/b.o", "o2", 0),
        ("build/x.o", "x", 0),
        ("only/f", "f", 0),
        ("becomes-file", "a file now", 0),
        ("becomes-dir/inner", "inner", 0),
        ("hard", "hard", 0),
    ] {
        write(&source.join(name), content.as_bytes(), seconds);
    }
    fs::set_permissions(source.join("bits"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(source.join("hard"), source.join("hard-again")).unwrap();
    fs::create_dir(source.join("empty")).unwrap();
    symlink("new", source.join("link")).unwrap();
    symlink("other", source.join("relink")).unwrap();
    std::os::unix::fs::chown(source.join("new"), Some(1234), Some(4321)).unwrap();
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, source.join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    for (name, content, seconds) in [
        ("same", "same", 0),
        ("changed", "old", 0),
        ("touched", "touched", 0),
        ("older", "newer here", 100),
        ("bits", "bits", 0),
        ("quiet", "BBBB", 0),
        ("sub/a.c", "c", 0),
        ("sub/extra.c", "e", 0),
        ("sub/extra.o", "e", 0),
        ("build/x.o", "other", 0),
        ("build/y.o", "y", 0),
        ("gone/one/f", "1", 0),
        ("gone/two.o", "2", 0),
        ("zfile", "z", 0),
        ("becomes-dir", "was a file", 0),
    ] {
        write(&copy.join(name), content.as_bytes(), seconds);
    }
    fs::create_dir(copy.join("becomes-file")).unwrap();
    if deletes {
        write(&copy.join("becomes-file/inner/f"), b"in the way", 0);
    }
    symlink("old", copy.join("relink")).unwrap();
    symlink("/etc", copy.join("away")).unwrap();
    set_times(source, 0);
    set_times(copy, -50);
}

/// Names in `top` that are hard to tell apart on one line, or are no text.
pub fn odd_names(top: &Path) {
    let of = |name| top.join(OsStr::from_bytes(name));
    for name in [
        &b"a\nb"[..],
        b"a b",
        b"t\tx",
        b"x\xff",
        b"x\xfe",
        b"half\xc3",
        b"\xed\xa0\x80",
        b"esc\x1b[2J\r",
        br"lit\#012",
        br"lit\#01",
        br"lit\\#9990",
        b"end\\#\n",
        "Gr\u{fc}\u{df}e \u{6771}\u{4eac}".as_bytes(),
        b"d\n\xff/in",
    ] {
        write(&of(name), name, 0);
    }
    symlink(OsStr::from_bytes(b"to\n\xff\\#012"), of(b"odd-link")).unwrap();
}

/// Of directories and links, which change as something is put into them, times that differ.
pub fn set_times(root: &Path, seconds: i64) {
    use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
    let mut left = vec![root.to_owned()];
    while let Some(path) = left.pop() {
        let kind = fs::symlink_metadata(&path).unwrap().file_type();
        if kind.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        if kind.is_dir() || kind.is_symlink() {
            let time = Timespec { tv_sec: 1_700_000_000 + seconds, tv_nsec: 0 };
            let times = Timestamps { last_access: time, last_modification: time };
            utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
        }
    }
}

/// What a command said of entries, without what rsync says besides.
pub fn told(outcome: &Outcome) -> BTreeSet<String> {
    let is_besides = |line: &str| {
        let words = [
            "created directory",
            "created 1 directory for",
            "skipping non-regular",
            "cannot delete non-empty",
            "Deletions stopped",
        ];
        line.is_empty() || words.iter().any(|word| line.starts_with(word))
    };
    let line = |line: &str| line.replacen('<', ">", 1);
    outcome.stdout_text().lines().filter(|line| !is_besides(line)).map(line).collect()
}

/// What both are told in one case: options, the source with or without a slash, and whether the destination is there.
#[derive(Debug)]
pub struct Case {
    /// `{place}` stands for the directory that everything is in.
    pub options: &'static [&'static str],
    /// The source is named with a slash at its end.
    pub is_slashed: bool,
    /// The destination is there.
    pub is_there: bool,
    /// rsync's account of a dry run is not what it does, or says more.
    pub skips_dry_account: bool,
    /// Something that is asked for is not there, or cannot be done.
    pub fails: bool,
    /// The same again does more.
    pub goes_on: bool,
    /// Files of rules, `.rules`, that the source has not stay as long as they protect something; rsync deletes them, and what they protected with the next run.
    pub keeps_rules: bool,
    /// What is there besides, made in the directory that everything is in.
    pub prepare: fn(&Path),
}

/// A case with these options.
pub const fn case(options: &'static [&'static str]) -> Case {
    Case {
        options,
        is_slashed: true,
        is_there: true,
        skips_dry_account: false,
        fails: false,
        goes_on: false,
        keeps_rules: false,
        prepare: |_| {},
    }
}

impl Case {
    /// Times of directories or links are not brought: with both they are those at which something was written, which are not the same.
    fn omits_times(&self) -> bool {
        let is_aside = self.options.iter().any(|option| option.starts_with("--backup-dir"));
        let is_short = |word: &str| word.starts_with('-') && !word.starts_with("--");
        let has = |letter| self.options.iter().any(|word| is_short(word) && word.contains(letter));
        has('O') || has('J') || (has('b') && !is_aside)
    }

    fn options(&self, place: &Path) -> Vec<String> {
        self.options.iter().map(|option| option.replace("{place}", place.to_str().unwrap())).collect()
    }
}

/// rsync's and dray's own ways to the other host.
#[derive(Clone, Copy, Debug)]
pub enum Way<'a> {
    /// Within one host.
    Here,
    /// To another one.
    Up(&'a Host),
    /// From another one.
    Down(&'a Host),
}

/// Runs `dray sync` as a case has it.
pub fn sync(from: &Host, case: &Case, extra: &[&str], way: &Way<'_>, source: &Path, copy: &Path) -> Outcome {
    let slashed = |path: &Path| {
        let mut text = OsString::from(path);
        if case.is_slashed {
            text.push("/");
        }
        text
    };
    let options = case.options(copy.parent().unwrap());
    let program = from.dray().arg("sync").args(extra).args(options).time_limit(LONG);
    going(program, way, &slashed(source), copy).run()
}

/// The same command with how it gets to the other host, source and destination.
pub fn going<'a>(program: Program<'a>, way: &Way<'_>, source: &OsStr, copy: &Path) -> Program<'a> {
    let far = match way {
        Way::Here => return program.arg(source).arg(copy),
        Way::Up(host) | Way::Down(host) => host,
    };
    let program = program.arg("-e").arg(far.ssh_command());
    if matches!(way, Way::Up(_)) {
        program.arg(source).arg(far.remote(copy))
    } else {
        program.arg(far.remote(Path::new(source))).arg(copy)
    }
}

/// rsync where text is UTF-8, as it always is with us.
pub fn rsync(host: &Host) -> Program<'_> {
    host.program("rsync").env("LC_ALL", "C.UTF-8")
}

/// What a program of others did, which has this exit code.
fn ended(outcome: Outcome, code: i32) -> Outcome {
    assert_eq!(outcome.code(), Some(code), "{outcome}");
    outcome
}

/// The directories and links of the source whose times a copy of it has.
fn times_brought(source: &Path, copy: &Path) -> BTreeSet<PathBuf> {
    let mut brought = BTreeSet::new();
    let mut left = vec![PathBuf::new()];
    while let Some(path) = left.pop() {
        let from = fs::symlink_metadata(source.join(&path)).unwrap();
        if from.is_dir() {
            let entries = fs::read_dir(source.join(&path)).unwrap();
            left.extend(entries.map(|entry| path.join(entry.unwrap().file_name())));
        }
        let is_brought = |there: fs::Metadata| there.modified().unwrap() == from.modified().unwrap();
        if (from.is_dir() || from.is_symlink())
            && fs::symlink_metadata(copy.join(&path)).is_ok_and(is_brought)
        {
            brought.insert(path);
        }
    }
    brought
}

/// Runs rsync and dray in each case, and compares what they say and what is there then.
pub fn check(a: &Host, way: &Way<'_>, cases: &[Case]) {
    for case in cases {
        let place = a.directory("case");
        let (source, ours, theirs) = (place.join("source"), place.join("ours"), place.join("theirs"));
        fs::create_dir(&source).unwrap();
        fs::create_dir(&ours).unwrap();
        let deletes = case.options.iter().any(|option| option.starts_with("--del"));
        source_and_destination(&source, &ours, deletes);
        if !case.is_there {
            fs::remove_dir_all(&ours).unwrap();
        } else {
            a.program("cp").arg("-a").arg(&ours).arg(&theirs).run().expect(0);
        }
        (case.prepare)(&place);
        let (rsync_code, dray_code) = if case.fails { (23, 8) } else { (0, 0) };
        let mut rsync_source = OsString::from(&source);
        if case.is_slashed {
            rsync_source.push("/");
        }
        let what = format!("{:?} slash {} there {}", case.options, case.is_slashed, case.is_there);
        for extra in [&["-i", "-n"][..], &["-i"]] {
            let rsync = rsync(a).args(extra).args(case.options(&place)).arg(&rsync_source).arg(&theirs);
            let (rsync, dray) =
                (ended(rsync.run(), rsync_code), sync(a, case, extra, way, &source, &ours).expect(dray_code));
            // Of what is sent to another host rsync says so; here it is its twin within one host.
            let wrong = if matches!(way, Way::Up(_)) { '>' } else { '<' };
            assert!(!dray.stdout_text().lines().any(|line| line.starts_with(wrong)), "{what}: {dray}");
            // Which of two names of a file is the first depends on the order.
            let is_comparable = !case.options.contains(&"-aHAX") && !case.options.contains(&"-aHAXS");
            let is_dry = extra.contains(&"-n");
            if is_comparable && !(is_dry && case.skips_dry_account) {
                // Of a destination that rsync made with those above it, it says that its time changed.
                let is_way = |line: &String| case.options.contains(&"--mkpath") && line.ends_with(" ./");
                let of = |outcome| -> Vec<String> {
                    told(outcome).into_iter().filter(|line| !is_way(line)).collect()
                };
                let (mut ours_told, mut theirs_told) = (of(&dray), of(&rsync));
                if case.keeps_rules {
                    theirs_told.retain(|line| match line.strip_prefix("*deleting   ") {
                        Some(path) if path.ends_with(".rules") && !ours_told.contains(line) => {
                            assert!(ours.join(path).exists(), "{what}: {line}");
                            false
                        }
                        _ => true,
                    });
                }
                if case.options.iter().any(|option| option.starts_with("--compare-dest")) {
                    // What the other directory has goes; rsync does not say so.
                    ours_told.retain(|line| match line.strip_prefix("*deleting   ") {
                        Some(path) if !theirs_told.contains(line) => {
                            assert!(is_dry || !theirs.join(path).exists(), "{what}: {line}");
                            false
                        }
                        _ => true,
                    });
                }
                assert_eq!(ours_told, theirs_told, "{what} {extra:?}");
            }
            if is_dry && !case.is_there {
                assert!(!ours.exists(), "{what}: a dry run made it");
            }
        }
        let keeps_times = case.options[0].contains(['a', 't']);
        let flags = if keeps_times { "-aHAXn" } else { "-rlpgoDHAXn" };
        let twins = a.program("rsync").args([flags, "--checksum", "-i", "--delete"]);
        let twins = twins.arg(format!("{}/", ours.display())).arg(format!("{}/", theirs.display()));
        let differences = twins.time_limit(LONG).run().expect(0).stdout_text();
        // A directory that is none of the source's has the time at which it was written to.
        let has_list = case.options.iter().any(|option| option.starts_with("--files-from"));
        let is_base = |line: &&str| (!case.is_slashed || has_list) && *line == ".d..t...... ./";
        // So has one that is only kept for what is left out of it, or made for backups.
        let is_kept = |line: &&str| {
            [".d..t...... gone/", ".d..t...... kept/", ".d..t...... old/"]
                .iter()
                .any(|kept| line.starts_with(kept))
        };
        let is_rules =
            |line: &&str| case.keeps_rules && line.starts_with(">f+++") && line.ends_with(".rules");
        let is_time = |line: &&str| {
            (!keeps_times && line.starts_with(".d..T"))
                || (case.omits_times() && (line.starts_with(".d..t") || line.starts_with(".L..t")))
        };
        if case.omits_times() {
            let brought = |copy: &Path| {
                let top = if case.is_slashed { copy.to_owned() } else { copy.join("source") };
                times_brought(&source, &top)
            };
            assert_eq!(brought(&ours), brought(&theirs), "{what}");
        }
        let is_known = |line: &&str| is_base(line) || is_kept(line) || is_time(line) || is_rules(line);
        let differences: Vec<&str> = differences.lines().filter(|line| !is_known(line)).collect();
        assert!(differences.is_empty(), "{what}: {differences:?}");
        // Again, nothing is to do.
        if keeps_times && !case.options.contains(&"-aI") && !case.goes_on {
            let again = sync(a, case, &["-i"], way, &source, &ours).expect(dray_code);
            assert_eq!(told(&again), BTreeSet::new(), "{what}: again");
        }
        fs::remove_dir_all(&place).unwrap();
    }
}

/// A tree of so many small files.
pub fn tree(root: &Path, files: usize) {
    for number in 0..files {
        write(
            &root.join(format!("{:02}/{number:05}", number % 10)),
            &data::random_bytes(3000, number as u64),
            0,
        );
    }
}

/// Starts `dray sync` to another host.
pub fn up(a: &Host, b: &Host, options: &[&str], source: &Path, copy: &Path) -> Running {
    start(a, &Way::Up(b), options, source, copy)
}

/// Starts `dray sync` of what is in a directory.
pub fn start(host: &Host, way: &Way<'_>, options: &[&str], source: &Path, copy: &Path) -> Running {
    let program = host.dray().arg("sync").args(options).time_limit(LONG);
    going(program, way, source.join("").as_os_str(), copy).start()
}
