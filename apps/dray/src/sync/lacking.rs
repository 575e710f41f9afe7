//! Options of rsync that `dray sync` has not, and why, or what to say instead. The program answers with these words, and docs/sync.md shows them:
//! a test holds both against each other.

/// Options, as the user writes them, and what is said of them.
pub(crate) type Lacking = (&'static [&'static str], &'static str);

/// One for each row of the table that tells of what is not taken.
pub(crate) const LACKING: &[Lacking] = &[
    (&["--delete-before"], "no: nothing is deleted before SRC has been read; say `--delete`"),
    (&["--ignore-errors"], "no: nothing is deleted where SRC cannot be read; mend that first"),
    (&["--force"], "no: `--delete` lets a directory that is not empty make way for a file"),
    (
        &["--modify-window", "-@"],
        "no: times are compared to the nanosecond; `--size-only` and `-c` do not ask for them",
    ),
    (&["--contimeout"], "say it to ssh: `-e 'ssh -o ConnectTimeout=5'`"),
    (
        &["--append", "--append-verify", "--write-devices"],
        "no: what comes is proven as a whole, beside its place",
    ),
    (
        &["--temp-dir", "-T"],
        "no: what comes has no name until it is whole, or a temporary one (`.dray-…`) beside its place",
    ),
    (
        &["--fuzzy", "-y"],
        "leave it out: files that were moved in DST are found by their size and time; --search DIR looks elsewhere",
    ),
    (
        &[
            "-L",
            "--copy-links",
            "-k",
            "--copy-dirlinks",
            "--copy-unsafe-links",
            "--safe-links",
            "--munge-links",
        ],
        "no: links are copied as links. `DIR/` is what is in DIR, also where a link leads to it",
    ),
    (&["-K", "--keep-dirlinks"], "no: no link in DST is followed"),
    (
        &["--old-dirs", "--old-d"],
        "leave it out: `-d` does not go into directories, whatever the other end is",
    ),
    (
        &["-R", "--relative", "--no-implied-dirs"],
        "not yet: SRC goes to DST under its last name; name the directory it belongs to as DST",
    ),
    (&["-E", "--executability"], "not yet: `-p` keeps all permission bits, `--chmod` changes some"),
    (&["-U", "--atimes", "--open-noatime"], "no: times at which something was read are not kept"),
    (&["-N", "--crtimes"], "no: Linux lets nobody set the time at which a file was made"),
    (&["--ignore-missing-args", "--delete-missing-args"], "no: a SRC that is not there is an error"),
    (&["-C", "--cvs-exclude"], "no: say `--gitignore`, or `--exclude` for what is to be left out"),
    (
        &[
            "--info",
            "--debug",
            "--out-format",
            "--log-format",
            "--outbuf",
            "-8",
            "--8-bit-output",
            "--stderr",
        ],
        "not yet: `-v`, `-i` and `--stats` are taken, and `--json` tells every event",
    ),
    (
        &["--log-file", "--log-file-format"],
        "not yet: standard output of `-i` goes to a file as the shell has it",
    ),
    (&["--usermap", "--groupmap"], "not yet: `--chown` gives everything to one user and group"),
    (&["--copy-devices"], "no: `-D` copies devices as devices"),
    (&["--daemon", "--config", "--dparam"], "no: `dray serve`, and tickets for what it shares"),
    (&["--super", "--drop-D"], "leave it out: root keeps owners and devices, others what they may"),
    (
        &["--copy-as", "--trust-sender", "--insecure-links", "--confine-root"],
        "no: the login there decides who writes, and nothing is written outside of DST",
    ),
    (&["--preallocate"], "leave it out: what a file needs is asked for when it is written"),
    (&["--delay-updates"], "not yet: each file takes its place when it is whole"),
    (
        &["-B", "--block-size", "--max-alloc", "--checksum-choice", "--cc", "--checksum-seed"],
        "leave it out: BLAKE3 proves every file, and chunks are sized by the file",
    ),
    (
        &[
            "--compress-choice",
            "--zc",
            "--compress-level",
            "--zl",
            "--compress-threads",
            "--zt",
            "--skip-compress",
            "--old-compress",
            "--new-compress",
        ],
        "leave it out: `-z` is zstd, and costs little where nothing is to be gained",
    ),
    (
        &["--inc-recursive", "--i-r", "--no-inc-recursive", "--no-i-r"],
        "leave it out: trees are always told while they are read",
    ),
    (
        &["-s", "--secluded-args", "--protect-args", "--old-args"],
        "leave it out: no shell there reads the names",
    ),
    (
        &["-M", "--remote-option"],
        "no: both ends do what this command says; of `-M--fake-super` say the second half",
    ),
    (
        &["-4", "--ipv4", "-6", "--ipv6", "--port", "--address", "--sockopts", "--blocking-io"],
        "say it to ssh: `-e 'ssh -4'`, `-e 'ssh -p PORT'`, `-e 'ssh -o BindAddress=…'`",
    ),
    (
        &["--password-file", "--no-motd", "--early-input", "--protocol"],
        "no: no daemon of rsync's is spoken to",
    ),
    (&["--version", "-V"], "say `dray --version`"),
    (&["--iconv"], "no: names are bytes, and come as they are"),
    (
        &["--stop-after", "--stop-at"],
        "no: say `timeout -s INT 1h dray sync …`; the same command again goes on",
    ),
    (&["--write-batch", "--only-write-batch", "--read-batch"], "no"),
];

/// What is said of an option that is not taken.
pub(crate) fn why(option: &str) -> Option<&'static str> {
    let name = option.split('=').next().unwrap_or_default();
    let of = |name: &str| LACKING.iter().find(|(names, _)| names.contains(&name)).map(|(_, why)| *why);
    of(name).or_else(|| {
        // Who takes back what there is not has what was asked for.
        let positive = name.strip_prefix("--no-")?;
        of(&format!("--{positive}")).or_else(|| of(&format!("-{positive}")))?;
        Some("leave it out: what it takes back is never done here")
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const DOCUMENT: &str = include_str!("../../../../docs/sync.md");

    /// Every way in which an option that is taken is written.
    fn taken() -> HashSet<String> {
        let all = crate::arguments::command();
        let sync = all.find_subcommand("sync").unwrap();
        let mut taken = HashSet::new();
        for arg in sync.get_arguments() {
            let longs = arg.get_long_and_visible_aliases().unwrap_or_default().into_iter();
            let longs = longs.chain(arg.get_all_aliases().unwrap_or_default());
            taken.extend(longs.map(|long| format!("--{long}")));
            taken.extend(arg.get_short().map(|short| format!("-{short}")));
        }
        taken
    }

    /// Issue "a table in the docs: rsync option -> ours, or why not": the document says of each option what the program says, and tells of
    /// none as taken that is not.
    #[test]
    fn the_document_says_what_the_program_says() {
        let taken = taken();
        let mut seen = HashSet::new();
        for (names, why) in LACKING {
            let cell: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            let row = format!("| {} | {why} |\n", cell.join(" "));
            assert!(DOCUMENT.contains(&row), "docs/sync.md lacks: {row}");
            for name in *names {
                assert!(!taken.contains(*name), "{name} is taken");
                assert!(seen.insert(*name), "{name} twice");
            }
        }
        let table = DOCUMENT.lines().filter(|line| line.starts_with("| `-"));
        for line in table {
            let cell = line.split(" | ").next().unwrap();
            for option in cell.split('`').skip(1).step_by(2) {
                let name = option.split(['=', ' ']).next().unwrap();
                assert!(
                    seen.contains(name) || taken.contains(name) || name == "-xx",
                    "{name}: neither taken nor refused"
                );
            }
        }
        // What rsync 3.5 prints for --help, and what the one here does, if there is one.
        let here = rsync_here();
        for name in RSYNC.split_whitespace().chain(here.iter().map(String::as_str)) {
            assert!(seen.contains(name) || taken.contains(name), "nothing is said of rsync's {name}");
        }
        assert!(here.is_empty() || here.len() > 100, "the help is read: {here:?}");
    }

    /// Options of the rsync that is installed, from its help.
    fn rsync_here() -> Vec<String> {
        let Ok(help) = std::process::Command::new("rsync").arg("--help").output() else { return Vec::new() };
        let text = String::from_utf8_lossy(&help.stdout).into_owned();
        let lines = text.lines().filter(|line| line.starts_with('-'));
        let words = lines.flat_map(|line| line.split("  ").next().unwrap_or_default().split(", "));
        let names = words.map(|word| word.split(['=', ' ']).next().unwrap_or_default().to_owned());
        // That stands for the words themselves.
        names.filter(|name| name.len() > 1 && !["--", "--no-OPTION"].contains(&&name[..])).collect()
    }

    /// Issue "`--no-OPTION`": who takes back what there is not hears that it need not be said.
    #[test]
    fn what_is_never_done_need_not_be_taken_back() {
        for name in ["--no-relative", "--no-R", "--no-append", "--no-y", "--no-super"] {
            assert!(why(name).unwrap().starts_with("leave it out"), "{name}");
        }
        assert!(why("--no-inc-recursive").is_some());
        assert_eq!((why("--no-such"), why("--no-")), (None, None));
    }

    /// Options of rsync 3.5.0, from its help.
    const RSYNC: &str = "--verbose -v --info --debug --stderr --quiet -q --no-motd --checksum -c --archive -a --recursive -r --inc-recursive \
        --no-inc-recursive --no-i-r --relative -R --no-implied-dirs --backup -b --backup-dir --suffix --update -u --inplace --append \
        --append-verify --dirs -d --old-dirs --mkpath --links -l --copy-links -L --copy-unsafe-links --safe-links --insecure-links \
        --confine-root --munge-links --copy-dirlinks -k --keep-dirlinks -K --hard-links -H --perms -p --executability -E --chmod --acls \
        -A --xattrs -X --owner -o --group -g --devices --copy-devices --write-devices --specials --drop-D -D --times -t --atimes -U \
        --open-noatime --crtimes -N --omit-dir-times -O --omit-link-times -J --super --fake-super --sparse -S --preallocate --dry-run -n \
        --whole-file -W --no-whole-file --no-W --checksum-choice --one-file-system -x --block-size -B --rsh -e --rsync-path --existing \
        --ignore-non-existing --ignore-existing --remove-source-files --del --delete --delete-before --delete-during --delete-delay \
        --delete-after --delete-excluded --ignore-missing-args --delete-missing-args --ignore-errors --force --max-delete --max-size \
        --min-size --max-alloc --partial --partial-dir --delay-updates --prune-empty-dirs -m --numeric-ids --usermap --groupmap --chown \
        --timeout --contimeout --ignore-times -I --size-only --modify-window -@ --temp-dir -T --fuzzy -y --compare-dest --copy-dest \
        --link-dest --compress -z --compress-choice --compress-level --compress-threads --skip-compress --cvs-exclude -C --filter -f -F \
        --exclude --exclude-from --include --include-from --files-from --from0 -0 --old-args --secluded-args -s --trust-sender --copy-as \
        --address --port --sockopts --blocking-io --outbuf --stats --8-bit-output -8 --human-readable -h --progress -P \
        --itemize-changes -i --remote-option -M --out-format --log-file --log-file-format --password-file --early-input --list-only \
        --bwlimit --stop-after --stop-at --fsync --write-batch --only-write-batch --read-batch --protocol --iconv --checksum-seed --ipv4 \
        -4 --ipv6 -6 --help --daemon --config --dparam";
}
