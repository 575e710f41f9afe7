//! Target `recipe-reader`: sequences of operations on a recipe reader, with an honest recipe or a forged one. It never
//! gives a wrong chunk, never holds more than its limits, and never gets stuck.

use std::collections::HashMap;
use std::sync::LazyLock;

use dray_core::ErrorKind;
use dray_core::chunker::{Algorithm, Profile};
use dray_core::limits::RECIPE_NODE_BYTES_MAX;
use dray_core::recipe::{
    ChunkDescriptor, NodeRequest, ReaderLimits, RecipeBuilder, RecipeId, RecipeReader, RecipeRoot,
};

use crate::input::Input;
use crate::{Seed, novelty};

/// Operations of one input.
const OPERATIONS_MAX: usize = 96;

/// A recipe as its holder keeps it: nodes in the order they were made.
pub(super) struct Recipe {
    pub(super) root: RecipeRoot,
    pub(super) nodes: Vec<(RecipeId, Vec<u8>)>,
    chunks: Vec<ChunkDescriptor>,
}

/// Recipes of 0, 1, 17, 600 and 3,000 chunks, and a run of 600 times the same chunk.
pub(super) static RECIPES: LazyLock<Vec<Recipe>> = LazyLock::new(|| {
    let profile = Profile::new(Algorithm::FastCdc, 4096).expect("in range");
    let chunk = |index: u32| ChunkDescriptor {
        hash: *blake3::hash(&index.to_be_bytes()).as_bytes(),
        len: profile.chunk_bytes_min() + index % 97,
    };
    let runs = [0, 1, 17, 600, 3000].map(|count| (0..count).map(chunk).collect());
    runs.into_iter().chain([vec![chunk(0); 600]]).map(|chunks| Recipe::new(profile, chunks)).collect()
});

impl Recipe {
    fn new(profile: Profile, chunks: Vec<ChunkDescriptor>) -> Recipe {
        let mut nodes = Vec::new();
        let mut builder = RecipeBuilder::new(profile);
        for chunk in &chunks {
            builder.push(*chunk, &mut |node| nodes.push((node.id, node.bytes))).expect("fits the profile");
        }
        let root = builder.finish(&mut |node| nodes.push((node.id, node.bytes)));
        Recipe { root, nodes, chunks }
    }

    /// The recipe with one byte of one node changed, and ids that fit, as a liar would make it. `None` if the change
    /// makes a root that is refused at once.
    fn forged(&self, input: &mut Input<'_>) -> Option<(RecipeRoot, HashMap<RecipeId, Vec<u8>>)> {
        let target = input.below(self.nodes.len());
        let mut nodes = self.nodes.clone();
        let at = input.below(nodes[target].1.len());
        nodes[target].1[at] ^= input.byte().max(1);
        let mut root = self.root.to_bytes();
        for index in target..nodes.len() {
            let (old, new) = (nodes[index].0, RecipeId::of_node(&nodes[index].1));
            if old == new {
                continue;
            }
            nodes[index].0 = new;
            for (_, bytes) in &mut nodes[index + 1..] {
                replace(bytes, old, new);
            }
            replace(&mut root, old, new);
        }
        Some((RecipeRoot::from_bytes(&root).ok()?, nodes.into_iter().collect()))
    }
}

fn replace(bytes: &mut [u8], old: RecipeId, new: RecipeId) {
    while let Some(at) = bytes.windows(RecipeId::BYTES).position(|window| window == old.as_bytes()) {
        bytes[at..at + RecipeId::BYTES].copy_from_slice(new.as_bytes());
    }
}

/// Whatever is done in whatever order: chunks tile the object in order, an honest recipe is never refused and can always be
/// read to its end, and a forged one ends in an error or adds up to what its root says.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let recipe = &RECIPES[input.below(RECIPES.len())];
    let is_honest = input.byte() & 3 != 3;
    let honest = || Some((recipe.root, recipe.nodes.iter().cloned().collect::<HashMap<_, _>>()));
    let Some((root, nodes)) = (if is_honest { honest() } else { recipe.forged(&mut input) }) else {
        return novelty::note("forged root refused");
    };
    let limits = ReaderLimits { nodes: input.below(70), bytes: input.below(1 << 16) * 16 };
    let mut reading = Reading {
        reader: RecipeReader::new(&root, limits),
        nodes: &nodes,
        recipe,
        root,
        limits,
        is_honest,
        has_failed: false,
        asked: Vec::new(),
        given: 0,
        offset: 0,
    };
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        reading.operate(&mut input);
        reading.check();
    }
    reading.finish();
}

struct Reading<'a> {
    reader: RecipeReader,
    nodes: &'a HashMap<RecipeId, Vec<u8>>,
    recipe: &'a Recipe,
    root: RecipeRoot,
    limits: ReaderLimits,
    is_honest: bool,
    has_failed: bool,
    asked: Vec<NodeRequest>,
    given: usize,
    offset: u64,
}

impl Reading<'_> {
    fn operate(&mut self, input: &mut Input<'_>) {
        match input.byte() % 8 {
            0 | 1 => {
                let known = input.byte();
                self.ask(known);
            }
            2 | 3 if !self.asked.is_empty() => {
                let request = self.asked.swap_remove(input.below(self.asked.len()));
                self.accept(&request);
            }
            4 if !self.asked.is_empty() => {
                let request = self.asked[input.below(self.asked.len())];
                let mut bytes = self.nodes.get(&request.id).cloned().unwrap_or_default();
                match input.byte() % 3 {
                    0 => bytes.truncate(input.below(bytes.len().max(1))),
                    1 => bytes.extend(input.bytes(9)),
                    _ => {
                        let at = input.below(bytes.len().max(1));
                        bytes.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= 1);
                    }
                }
                if RecipeId::of_node(&bytes) != request.id && !self.has_failed {
                    let error = self.reader.accept(&request.id, &bytes).expect_err("they are not the node");
                    assert!(error.kind() == ErrorKind::VerificationFailed && error.is_retryable());
                    super::assert_clear(&error);
                }
            }
            5 => {
                let stranger = RecipeId::from_bytes([input.byte(); 32]);
                assert!(self.reader.accept(&stranger, input.bytes(40)).is_err());
                self.reader.give_back(&stranger);
            }
            6 if !self.asked.is_empty() => {
                let request = self.asked.swap_remove(input.below(self.asked.len()));
                self.reader.give_back(&request.id);
            }
            _ => {
                for _ in 0..input.byte() {
                    self.take();
                }
            }
        }
    }

    fn ask(&mut self, known: u8) -> bool {
        match self.reader.next_request(&mut |id| id.as_bytes()[0] < known) {
            Ok(Some(request)) => {
                assert_eq!(request.is_known, request.id.as_bytes()[0] < known);
                assert!(request.bytes_max <= RECIPE_NODE_BYTES_MAX);
                assert!(self.asked.iter().all(|other| other.id != request.id), "asked for twice");
                self.asked.push(request);
                true
            }
            Ok(None) => false,
            Err(error) => {
                self.fail(&error);
                false
            }
        }
    }

    /// Hands in the true bytes of a node that was asked for. A forged recipe may name one that nobody has.
    fn accept(&mut self, request: &NodeRequest) {
        match self.nodes.get(&request.id) {
            None => self.has_failed = !self.is_honest,
            Some(bytes) => match self.reader.accept(&request.id, bytes) {
                Ok(()) => novelty::note(("accepted", request.level)),
                Err(error) => self.fail(&error),
            },
        }
        assert!(!self.is_honest || !self.has_failed);
    }

    fn fail(&mut self, error: &dray_core::Error) {
        assert!(!self.is_honest, "an honest recipe is refused: {error}");
        assert!(matches!(error.kind(), ErrorKind::Protocol | ErrorKind::Unsupported), "{error}");
        super::assert_clear(error);
        self.has_failed = true;
    }

    fn take(&mut self) -> bool {
        let Some(placed) = self.reader.next_chunk() else { return false };
        assert_eq!(placed.offset, self.offset, "chunks tile the object");
        assert!(!self.is_honest || placed.chunk == self.recipe.chunks[self.given]);
        self.offset += u64::from(placed.chunk.len);
        self.given += 1;
        assert!(self.offset <= self.root.size_bytes() && self.given <= self.root.chunks() as usize);
        true
    }

    fn check(&self) {
        let (nodes, bytes) = self.reader.held();
        assert!(nodes <= self.limits.nodes + 1, "{nodes} nodes held");
        assert!(bytes <= self.limits.bytes + RECIPE_NODE_BYTES_MAX, "{bytes} bytes held");
    }

    /// Whatever was done before, giving what is asked for reaches the end.
    fn finish(mut self) {
        while !self.reader.is_done() && !self.has_failed {
            let before = (self.given, self.asked.len());
            let mut accepted = 0;
            while self.ask(0) {}
            for request in std::mem::take(&mut self.asked) {
                if !self.has_failed {
                    self.accept(&request);
                    accepted += 1;
                }
            }
            while self.take() {}
            self.check();
            let is_moving = accepted > 0 || self.given > before.0 || self.reader.is_done();
            assert!(is_moving || self.has_failed, "stuck after {} chunks", self.given);
        }
        if !self.has_failed {
            assert_eq!((self.offset, self.given), (self.root.size_bytes(), self.root.chunks() as usize));
            novelty::note(("done", self.is_honest, self.recipe.chunks.len()));
        }
    }
}

/// Each recipe read plainly, and the awkward ways.
pub fn seeds() -> Vec<Seed> {
    let plain = |recipe: u8| vec![recipe, 0, 64, 0x20, 0x00, 0, 0, 2, 0, 7, 200];
    let mut seeds: Vec<Seed> =
        (0..RECIPES.len() as u8).map(|recipe| (format!("plain-{recipe}"), plain(recipe))).collect();
    for (name, bytes) in [
        ("no-limits", &[4, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2, 0][..]),
        ("wrong-bytes", &[3, 0, 8, 1, 0, 0, 0, 4, 0, 2, 9, 4, 0, 0, 1, 4, 0, 1, 5, 5, 5, 2, 0]),
        ("given-back", &[3, 0, 8, 1, 0, 0, 0, 6, 0, 0, 0, 2, 0, 0, 0, 0, 0, 6, 1, 0, 0]),
        ("known", &[4, 0, 40, 9, 0, 0, 255, 2, 0, 0, 128, 0, 128, 0, 128, 2, 1, 2, 0, 7, 99]),
        ("strangers", &[2, 0, 40, 9, 0, 5, 1, 5, 2, 0, 0, 5, 3]),
        ("forged-leaf-hash", &[3, 3, 0, 0, 20, 1, 40, 9, 0]),
        ("forged-leaf-length", &[3, 3, 0, 0, 42, 1, 40, 9, 0]),
        ("forged-totals", &[3, 3, 9, 0, 46, 1, 40, 9, 0]),
        ("forged-level", &[4, 3, 2, 0, 1, 1, 40, 9, 0]),
        ("forged-run", &[5, 3, 0, 0, 43, 1, 40, 9, 0]),
    ] {
        seeds.push((name.into(), bytes.to_vec()));
    }
    seeds
}
