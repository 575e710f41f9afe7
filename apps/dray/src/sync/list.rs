//! The list of `--files-from`: read line by line, whatever its length, up to the bounds of a list.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use dray_core::limits::PATH_BYTES_MAX;
use dray_core::{Error, ErrorKind, Result};
use dray_node::Chosen;

/// Standard input, which one alone reads: a second one would find nothing in it, and take that for what it was given.
#[derive(Debug, Default)]
pub(super) struct Input {
    is_read: bool,
}

impl Input {
    /// Opens a file, or for `-` standard input; `Usage` if that is read already.
    pub(super) fn open(&mut self, path: &OsStr) -> Result<io::Result<Box<dyn BufRead>>> {
        let named = Path::new("/dev/stdin");
        // Under another name, too, unless each who opens it reads it from its beginning.
        let is_pipe = |found: &Metadata| found.file_type().is_fifo() || found.file_type().is_socket();
        let is_input = path == "-"
            || fs::metadata(path).and_then(|found| Ok((found, fs::metadata(named)?))).is_ok_and(
                |(found, input)| is_pipe(&found) && (found.dev(), found.ino()) == (input.dev(), input.ino()),
            );
        if is_input && std::mem::replace(&mut self.is_read, true) {
            let what = "two lists or files of rules are to be read from standard input";
            return Err(Error::new(ErrorKind::Usage, what).advise("write one of them to a file"));
        }
        if path == "-" {
            let input: Box<dyn BufRead> = Box::new(io::stdin().lock());
            return Ok(Ok(input));
        }
        Ok(File::open(path).map(|file| -> Box<dyn BufRead> { Box::new(BufReader::new(file)) }))
    }
}

/// Reads what `path` lists, `-` for standard input: a path a line, or up to each NUL. As rsync has it, lines that begin with `#` or `;` are notes.
pub(super) fn read(path: &OsStr, ends_with_nul: bool, input: &mut Input) -> Result<Chosen> {
    let failed = |error| Error::io(format!("cannot read the list in {path:?}"), error);
    let mut file = input.open(path)?.map_err(|error| {
        failed(error).or_advise(
            "a list on another host is fetched with ssh: ssh HOST cat LIST | dray sync --files-from=- …",
        )
    })?;
    lines(&mut file, ends_with_nul, &failed)
}

fn lines(
    input: &mut impl BufRead,
    ends_with_nul: bool,
    failed: &dyn Fn(io::Error) -> Error,
) -> Result<Chosen> {
    let end = if ends_with_nul { 0 } else { b'\n' };
    let (mut chosen, mut line) = (Chosen::default(), Vec::new());
    loop {
        line.clear();
        // One longer than that is refused, not kept.
        let bytes =
            input.by_ref().take(PATH_BYTES_MAX as u64 + 2).read_until(end, &mut line).map_err(failed)?;
        if bytes == 0 {
            break;
        }
        if line.last() == Some(&end) {
            line.pop();
        }
        if !ends_with_nul && line.last() == Some(&b'\r') {
            line.pop();
        }
        if !ends_with_nul && matches!(line.first(), Some(b'#' | b';')) {
            if line.len() > PATH_BYTES_MAX {
                return Err(Error::new(ErrorKind::Usage, "a note in the list is longer than a path may be"));
            }
            continue;
        }
        chosen.add(&line)?;
    }
    chosen.sort();
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &[u8], ends_with_nul: bool) -> Result<Vec<String>> {
        let chosen = lines(&mut &text[..], ends_with_nul, &|error| Error::io("read", error))?;
        Ok(chosen.lines().map(|line| String::from_utf8_lossy(line).into_owned()).collect())
    }

    /// A second reader of standard input would take nothing for what it was given.
    #[test]
    fn standard_input_has_one_reader() {
        let mut input = Input::default();
        for path in ["/dev/null", "/dev/null", "/not/there", "-"] {
            assert!(input.open(OsStr::new(path)).is_ok(), "{path}");
        }
        assert_eq!(input.open(OsStr::new("-")).err().map(|error| error.kind()), Some(ErrorKind::Usage));
        assert!(input.open(OsStr::new("/dev/null")).is_ok());
    }

    /// Issue "--files-from, and -0": lines, notes, names with line ends in them, and the end without one.
    #[test]
    fn a_list_is_read_as_rsync_reads_it() {
        assert_eq!(of(b"b\n# no\n;no\n\n./#c\r\n/a", false).unwrap(), ["#c", "a", "b"]);
        assert_eq!(of(b"b\nc\0#a\0", true).unwrap(), ["#a", "b\nc"]);
        assert!(of(b"", false).unwrap().is_empty());
        for bad in [&b"a\n../b\n"[..], &[b'x'; 20_000], &[b'#'; 20_000]] {
            assert_eq!(of(bad, false).unwrap_err().kind(), ErrorKind::Usage);
        }
    }
}
