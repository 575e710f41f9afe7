//! The command line.

use std::path::PathBuf;

pub(crate) const HELP: &str = "\
usage: cargo xtask bench [ROW]... [OPTION]...

Measures Drayman beside its rivals in turn (A B A B …), as root, and writes raw numbers to bench/results/ and the page
docs/performance.md. Without a ROW: all of them, which takes hours.

  --list             the rows, and what they take
  --pairs N          rounds of each cell (5); every contender runs once a round, in an order that rotates
  --sizes A,B        bytes of single files instead of the row's own; K, M, G and T mean KiB, MiB, GiB and TiB;
                     none for no single files
  --files A,B        numbers of files in trees instead of the row's own; none for no trees
  --links A,B        links instead of the row's own: unshaped, RATE/ROUND-TRIP[/LOSS%] or a name of the network lab
  --only A,B         only contenders whose name begins so, for example dray-cp-push,rsync-ssh
  --cells A,B        only cells whose name begins so, its commas left out, for example Similar-99,'Empty load midway'
  --dray NAME=PATH   time this build instead of one made now; several may be given, and each is a contender
  --dir DIR          files on the file system of DIR instead of a tmpfs
  --fsync            every contender makes its files durable before it ends; those that cannot are left out
  --pin              each end on a core of its own
  --congestion NAME  TCP congestion control of both ends (what the machine has)
  --seed N           of the data, and of the moments at which something happens (1)
  --note TEXT        kept beside the numbers, for example what else the machine did
  --no-install       install no rival; those that are missing are named
  --smoke            every row at tiny sizes, one round, nothing installed or kept; fails if a run of Drayman does
  --render           only render docs/performance.md from the newest numbers of each cell
";

/// Of which the numbers tell what matters: builds by their hash, the folder by its file system.
const ELSEWHERE: [&str; 4] = ["--dray", "--dir", "--note", "--no-install"];

/// What the user wants.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) rows: Vec<String>,
    pub(crate) pairs: u32,
    pub(crate) sizes: Option<Vec<u64>>,
    pub(crate) files: Option<Vec<u64>>,
    pub(crate) links: Option<Vec<String>>,
    pub(crate) only: Vec<String>,
    pub(crate) cells: Vec<String>,
    pub(crate) builds: Vec<(String, PathBuf)>,
    pub(crate) folder: Option<PathBuf>,
    pub(crate) syncs: bool,
    pub(crate) is_pinned: bool,
    pub(crate) congestion: Option<String>,
    pub(crate) seed: u64,
    pub(crate) note: String,
    pub(crate) installs: bool,
    pub(crate) is_smoke: bool,
    pub(crate) lists: bool,
    pub(crate) renders: bool,
    /// What to say again for the same numbers: the words, but for what is told elsewhere.
    pub(crate) words: Vec<String>,
}

impl Options {
    pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Options, String> {
        let mut options = Options {
            rows: Vec::new(),
            pairs: 5,
            sizes: None,
            files: None,
            links: None,
            only: Vec::new(),
            cells: Vec::new(),
            builds: Vec::new(),
            folder: None,
            syncs: false,
            is_pinned: false,
            congestion: None,
            seed: 1,
            note: String::new(),
            installs: true,
            is_smoke: false,
            lists: false,
            renders: false,
            words: Vec::new(),
        };
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            if !ELSEWHERE.contains(&word.as_str()) {
                options.words.push(word.clone());
            }
            match word.as_str() {
                "--fsync" => options.syncs = true,
                "--pin" => options.is_pinned = true,
                "--no-install" => options.installs = false,
                "--smoke" => options.is_smoke = true,
                "--list" => options.lists = true,
                "--render" => options.renders = true,
                flag if flag.starts_with('-') => {
                    let value =
                        words.next().ok_or_else(|| format!("{flag} needs a value, or is no option"))?;
                    options.take(flag, &value)?;
                    if !ELSEWHERE.contains(&flag) {
                        options.words.push(value);
                    }
                }
                _ => options.rows.push(word),
            }
        }
        Ok(options)
    }

    fn take(&mut self, flag: &str, value: &str) -> Result<(), String> {
        let list = || match value {
            "none" => Vec::new(),
            _ => value.split(',').map(str::to_owned).collect::<Vec<_>>(),
        };
        let number = |text: &str| text.parse::<u64>().map_err(|error| format!("{flag} {value}: {error}"));
        match flag {
            "--pairs" => {
                let pairs = number(value)?;
                self.pairs = u32::try_from(pairs)
                    .ok()
                    .filter(|pairs| (1..=1000).contains(pairs))
                    .ok_or("--pairs: use 1 to 1000")?;
            }
            "--sizes" => {
                let sizes = list().iter().map(|text| size(text)).collect::<Option<Vec<_>>>();
                self.sizes = Some(sizes.ok_or_else(|| format!("--sizes {value}: use for example 1K,2G"))?);
            }
            "--files" => {
                let files = list().iter().map(|text| number(text)).collect::<Result<Vec<_>, _>>()?;
                self.files = Some(files);
                if self.files.iter().flatten().any(|files| *files == 0) {
                    return Err("--files: use 1 or more, or none".into());
                }
            }
            "--links" => self.links = Some(list()),
            "--only" => self.only = list(),
            "--cells" => self.cells = list(),
            "--dray" => {
                let (name, path) =
                    value.split_once('=').ok_or_else(|| format!("--dray {value}: use NAME=PATH"))?;
                self.builds.push((name.into(), path.into()));
            }
            "--dir" => self.folder = Some(value.into()),
            "--congestion" => self.congestion = Some(value.into()),
            "--seed" => self.seed = number(value)?,
            "--note" => self.note = value.into(),
            _ => return Err(format!("there is no option {flag}")),
        }
        Ok(())
    }
}

/// `1024`, `1K`, `2G`.
fn size(text: &str) -> Option<u64> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        b'G' => (&text[..text.len() - 1], 1 << 30),
        b'T' => (&text[..text.len() - 1], 1 << 40),
        _ => (text, 1_u64),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor).filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(text.split(' ').map(str::to_owned))
    }

    #[test]
    fn rows_and_options_mix() {
        let options = parse("P1 --pairs 3 P2 --sizes 1K,2G,77 --pin --dray a=/b --dray c=/d=e").unwrap();
        assert_eq!(options.rows, ["P1", "P2"]);
        assert_eq!((options.pairs, options.is_pinned, options.syncs), (3, true, false));
        assert_eq!(options.sizes, Some(vec![1024, 2 << 30, 77]));
        assert_eq!(parse("floor --sizes none --files 5").unwrap().sizes, Some(Vec::new()));
        assert_eq!(options.builds, [("a".into(), "/b".into()), ("c".into(), "/d=e".into())]);
    }

    #[test]
    fn slips_are_refused() {
        for text in [
            "--pairs",
            "--pairs 0",
            "--pairs x",
            "--files 0",
            "--sizes 1X",
            "--sizes 99999999999T",
            "--colour red",
            "--dray x",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
