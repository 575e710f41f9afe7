//! Target `range-set`: sequences of operations on a set of ranges against a model that is too simple to be wrong.

use dray_core::range::RangeSet;

use crate::input::Input;
use crate::{Seed, novelty};

/// Cells of the model: range ends are the edges between them, anywhere in 0..=u64::MAX.
const CELLS: usize = 24;
/// Operations of one input.
const OPERATIONS_MAX: usize = 64;

/// After every operation, members, counts, gaps and pieces are those of the model.
pub fn target(data: &[u8]) {
    let mut input = Input::new(data);
    let edges = edges(&mut input);
    let mut set = RangeSet::new();
    let mut model = [false; CELLS];
    for _ in 0..OPERATIONS_MAX {
        if input.is_empty() {
            break;
        }
        let insert = input.byte() & 1 == 0;
        let (a, b) = (input.below(CELLS + 1), input.below(CELLS + 1));
        let range = edges[a]..edges[b];
        let cells = a..b.max(a);
        let changed =
            cells.clone().filter(|cell| model[*cell] != insert).map(|cell| width(&edges, cell)).sum::<u64>();
        let reported = if insert { set.insert(range) } else { set.remove(range) };
        assert_eq!(reported, changed);
        model[cells].fill(insert);
        check(&set, &model, &edges);
        novelty::note(("pieces", set.iter().count()));
    }
}

/// Ascending edges from the input: even steps, uneven ones, and at times the end of the number line.
fn edges(input: &mut Input<'_>) -> [u64; CELLS + 1] {
    let mut at = if input.byte() & 1 == 0 { 0 } else { input.near_power() };
    let step = input.near_power();
    std::array::from_fn(|_| {
        let edge = at;
        at = at.saturating_add(step);
        edge
    })
}

fn width(edges: &[u64], cell: usize) -> u64 {
    edges[cell + 1] - edges[cell]
}

fn check(set: &RangeSet, model: &[bool; CELLS], edges: &[u64; CELLS + 1]) {
    let pieces: Vec<_> = set.iter().collect();
    assert!(pieces.iter().all(|piece| piece.start < piece.end));
    assert!(pieces.windows(2).all(|pair| pair[0].end < pair[1].start), "pieces touch: {pieces:?}");
    let members: u64 = (0..CELLS).filter(|cell| model[*cell]).map(|cell| width(edges, cell)).sum();
    assert_eq!(set.count(), members);
    assert_eq!(set.is_empty(), members == 0);
    let gaps = set.gaps(edges[0]..edges[CELLS]);
    assert_eq!(gaps.count(), edges[CELLS] - edges[0] - members);
    for (cell, member) in model.iter().enumerate().filter(|(cell, _)| width(edges, *cell) > 0) {
        let (start, end) = (edges[cell], edges[cell + 1]);
        assert_eq!((set.contains(start), set.contains(end - 1)), (*member, *member));
        assert_eq!((set.contains_range(start..end), gaps.contains(start)), (*member, !*member));
        let next = (cell..CELLS).find(|next| model[*next] && width(edges, *next) > 0).map(|next| edges[next]);
        assert_eq!(set.next_from(start).map(|range| range.start), next);
    }
}

/// Neighbours, overlaps, splits, and the largest numbers.
pub fn seeds() -> Vec<Seed> {
    let operations =
        [[0, 0, 4], [0, 4, 8], [1, 2, 6], [0, 1, 7], [0, 20, 24], [1, 0, 24], [0, 9, 3]].concat();
    vec![
        ("small".into(), [&[0, 0, 0][..], &operations].concat()),
        ("wide".into(), [&[0, 58, 0][..], &operations].concat()),
        ("to-the-end".into(), [&[1, 63, 100, 59, 0][..], &operations].concat()),
    ]
}
