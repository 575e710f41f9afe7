//! Directories without files are not told (`--prune-empty-dirs`): each is held back until something that is no directory is found in it.

use std::collections::VecDeque;

use super::walk::Walked;

/// What is held back.
#[derive(Debug, Default)]
pub(super) struct Pruning {
    /// Directories entered in which nothing was found yet, from the outermost on.
    held: Vec<Walked>,
    /// What is told next.
    pub(super) released: VecDeque<Walked>,
}

impl Pruning {
    /// Takes a step of the walk: what is told at once, after which the released steps follow; `None` if nothing is, or they come first.
    pub(super) fn take(&mut self, step: Walked) -> Option<Walked> {
        match step {
            Walked::Entry(entry, file) if entry.is_directory() && entry.name.is_some() => {
                self.held.push(Walked::Entry(entry, file));
                None
            }
            Walked::Leave if self.held.pop().is_some() => None,
            // It is told that of what failed, wherever it is.
            Walked::Failed(..) => Some(step),
            // What was not looked into may have files in it.
            step if self.held.is_empty() => Some(step),
            step => {
                self.released.extend(self.held.drain(..));
                self.released.push_back(step);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dray_core::tree::{Entry, Kind, Metadata, Name};

    use super::*;

    fn entry(name: &str, kind: Kind) -> Walked {
        let name = (name != ".").then(|| Name::new(name.as_bytes()).unwrap());
        Walked::Entry(Box::new(Entry { name, kind, metadata: Metadata::default() }), None)
    }

    /// Issue "-m": a directory is told once something is found in it, with those above it, and else never; a source always is, and one that was not looked
    /// into is not taken for empty.
    #[test]
    fn directories_without_files_are_not_told() {
        let directory = |name| entry(name, Kind::Directory { entries: None });
        let file = |name| entry(name, Kind::Fifo);
        let walk = [
            directory("."),
            directory("a"),
            directory("b"),
            Walked::Leave,
            directory("c"),
            file("f"),
            Walked::Leave,
            directory("d"),
            Walked::Leave,
            Walked::Leave,
            directory("empty"),
            directory("inner"),
            Walked::Leave,
            Walked::Leave,
            directory("mount"),
            Walked::Unlisted,
            Walked::Leave,
            Walked::Leave,
        ];
        let mut pruning = Pruning::default();
        let mut told = Vec::new();
        for step in walk {
            let now = pruning.take(step);
            told.extend(now.into_iter().chain(pruning.released.drain(..)).map(|step| match step {
                Walked::Entry(entry, _) => {
                    entry.name.map_or_else(String::new, |name| {
                        String::from_utf8_lossy(name.as_bytes()).into_owned()
                    })
                }
                Walked::Leave => "<".into(),
                _ => "?".into(),
            }));
        }
        assert_eq!(told.join(" "), " a c f < < mount ? < <");
    }
}
