//! What `dray sync` says of entries, in rsync's lines (`-v`, `-i`), and at the end (`--stats`).

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use dray_core::text::{one_line, shown_name};
use dray_node::{Event, Observer, TreeCopied};

use crate::output::Output;

/// Says what is done with each entry as rsync does, and leaves everything else to the output.
pub(super) struct Telling<'a> {
    pub(super) output: &'a Output,
    pub(super) itemizes: bool,
    pub(super) names: bool,
}

impl Observer for Telling<'_> {
    fn event(&self, event: Event) {
        match event {
            Event::Synced { letters, path, link } if !self.output.is_json() => {
                if let Some(line) = self.line(letters.as_deref(), &path, link.as_deref()) {
                    self.output.line(&line);
                }
            }
            event => self.output.event(event),
        }
    }
}

impl Telling<'_> {
    /// What is said of an entry, if anything is. All of it may come from the other end.
    fn line(&self, letters: Option<&str>, path: &Path, link: Option<&Path>) -> Option<String> {
        if self.output.is_quiet() {
            return None;
        }
        let mut line = shown(path);
        if let Some(link) = link {
            let is_hard = letters.is_some_and(|letters| letters.starts_with('h'));
            line = format!("{line} {} {}", if is_hard { "=>" } else { "->" }, shown(link));
        }
        match letters {
            Some(letters) if self.itemizes => Some(format!("{} {line}", one_line(letters))),
            None if self.itemizes => Some(format!("*deleting   {line}")),
            None if self.names => Some(format!("deleting {line}")),
            // Of what stays, only directories are named.
            Some(letters) if self.names && (!letters.starts_with('.') || line.ends_with('/')) => Some(line),
            _ => None,
        }
    }
}

/// A path as rsync shows it.
pub(super) fn shown(path: &Path) -> String {
    shown_name(path.as_os_str().as_bytes())
}

/// Says how much was done, or would be by a run that is not dry, if that is wanted.
pub(super) fn tell_stats(copied: &TreeCopied, is_wanted: bool, is_dry: bool, output: &Output) {
    if is_wanted && !output.is_json() && !output.is_quiet() {
        stats(copied, is_dry).lines().for_each(|line| output.line(line));
    }
}

fn stats(copied: &TreeCopied, is_dry: bool) -> String {
    let TreeCopied { entries, files, unchanged, bytes, deleted, failed, .. } = copied;
    // What a dry run would bring is not compared yet.
    let done = if is_dry {
        format!(
            "Number of entries to make, replace, compare or change: {files}\nNumber of files unchanged: {unchanged}\nNumber of entries to \
             delete: {deleted}"
        )
    } else {
        format!(
            "Number of files transferred: {files}\nNumber of files unchanged: {unchanged}\nTotal bytes of content transferred: {bytes}\n\
             Number of deleted entries: {deleted}"
        )
    };
    format!("Number of entries: {entries}\n{done}\nNumber of failed entries: {failed}")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use dray_node::Stop;

    use super::*;
    use crate::arguments::Show;

    /// Threat model: whatever the other end tells of an entry is one line, without what a terminal obeys, and tells names apart as rsync's does.
    #[test]
    fn an_entry_is_one_line() {
        let output = Output::new(Show { json: false, quiet: false }, Stop::new(), None);
        let told = |letters: Option<&str>, path: &[u8], link: Option<&[u8]>, itemizes| {
            let of = |bytes| Path::new(OsStr::from_bytes(bytes));
            let telling = Telling { output: &output, itemizes, names: true };
            telling.line(letters, of(path), link.map(of)).unwrap()
        };
        assert_eq!(told(Some(">f+++++++++"), b"a\nb", None, true), r">f+++++++++ a\#012b");
        assert_eq!(told(Some(">f\n\u{1b}[2J..."), b"x", None, true), ">f  [2J... x");
        assert_eq!(told(Some("hf         "), b"\xff", Some(b"\xfe"), true), r"hf          \#377 => \#376");
        assert_eq!(told(Some("cL+++++++++"), b"l", Some(b"to\x1b"), false), r"l -> to\#033");
        assert_eq!(told(None, br"\#012", None, true), r"*deleting   \#134#012");
        assert_eq!(told(None, b"\x9b", None, false), r"deleting \#233");
    }
}
