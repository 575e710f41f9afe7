//! How the home comes about.

use std::collections::HashSet;

use super::{
    BYTES, BYTES_OF_S, BYTES_OF_Y, DESTINATION, DIRECTORIES, DIRECTORIES_OF_S, DIRECTORIES_OF_Y, Directory,
    FILES, FILES_OF_S, FILES_OF_Y, File, Home, MB, MTIME_S, SIZES_OF_TEST,
};
use crate::sample;

/// Standard deviation of the logarithm of sizes.
const SIGMA: f64 = 2.4;
/// Seconds in which all of it was written.
const AGE_S: u64 = 5 * 365 * 86_400;

/// Names of directories: again and again the same ones, those of the destination among them.
const DIRECTORY_NAMES: [&str; 24] = [
    "src", "test", "doc", "CVS", "lib", "include", "c", "n", "bin", "data", "old", "conf", "images", "util",
    "obj", "tools", "examples", "build", "mail", "papers", "y", "logs", "common", "www",
];

/// Extensions and how many of a hundred files have them; the others have none.
const EXTENSIONS: [(&str, u64); 14] = [
    (".c", 12),
    (".h", 14),
    (".o", 9),
    (".html", 9),
    (".txt", 6),
    (".java", 6),
    (".class", 6),
    (".jpg", 5),
    (".pdf", 4),
    (".tex", 3),
    (".gz", 3),
    (".cc", 4),
    (".log", 2),
    (".out", 1),
];

/// Numbers that follow from a seed.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        let bytes = sample::bytes(8, self.0);
        self.0 = self.0.wrapping_add(1);
        bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
    }

    fn below(&mut self, most: u64) -> u64 {
        self.next() % most.max(1)
    }

    /// Nearly normal, by the sum of twelve: no library of the machine has a part in it.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.below(1 << 20) as f64 / f64::from(1 << 20)).sum::<f64>() - 6.0
    }
}

pub(super) fn grown(seed: u64) -> Home {
    let mut draw = Draw(seed << 32);
    let mut home = Home { directories: vec![Directory::default()] };
    let mut at = 0;
    let mut way = vec![0];
    for name in DESTINATION {
        at = add(&mut home, at, name);
        way.push(at);
    }
    let (s, y, test) = (way[1], way[2], way[5]);
    for (number, size) in SIZES_OF_TEST.into_iter().enumerate() {
        let name = format!("part{number}").into();
        home.directories[test].files.push(File {
            name,
            size_bytes: size * MB / 100,
            mtime_s: MTIME_S - 86_400,
        });
    }
    // The destination's directory has none below it: breadth-first lists one before it reads there.
    let mut of_y = way[2..5].to_vec();
    grow(&mut home, &mut of_y, DIRECTORIES_OF_Y - 1, &mut draw);
    of_y.push(test);
    let bytes = BYTES_OF_Y - SIZES_OF_TEST.iter().sum::<u64>() * MB / 100;
    fill(&mut home, &of_y[..of_y.len() - 1], FILES_OF_Y - SIZES_OF_TEST.len(), bytes, &mut draw);
    let old = copy(&mut home, y, s, "y-old");
    let mut of_s: Vec<usize> = vec![s];
    grow(&mut home, &mut of_s, DIRECTORIES_OF_S - 2 * DIRECTORIES_OF_Y, &mut draw);
    fill(&mut home, &of_s, FILES_OF_S - 2 * FILES_OF_Y, BYTES_OF_S - 2 * BYTES_OF_Y, &mut draw);
    // The older copy was written before.
    for number in old {
        home.directories[number].files.iter_mut().for_each(|file| file.mtime_s -= 8_640_000);
    }
    let mut others = vec![0];
    grow(&mut home, &mut others, DIRECTORIES - DIRECTORIES_OF_S, &mut draw);
    fill(&mut home, &others, FILES - FILES_OF_S, BYTES - BYTES_OF_S, &mut draw);
    home
}

fn add(home: &mut Home, above: usize, name: &str) -> usize {
    let number = home.directories.len();
    home.directories.push(Directory { name: name.into(), ..Directory::default() });
    home.directories[above].below.push(number);
    number
}

/// Adds directories below some of `group` until it has `count`.
fn grow(home: &mut Home, group: &mut Vec<usize>, count: usize, draw: &mut Draw) {
    // Each of them once for each subdirectory, and twice.
    let mut tickets: Vec<usize> = Vec::new();
    for at in &*group {
        let own = home.directories[*at].below.iter().filter(|below| group.contains(below)).count();
        tickets.extend(std::iter::repeat_n(*at, own + 2));
    }
    while group.len() < count {
        let above = tickets[draw.below(tickets.len() as u64) as usize];
        let word = DIRECTORY_NAMES[draw.below(DIRECTORY_NAMES.len() as u64) as usize];
        let is_taken =
            |name: &str| home.directories[above].below.iter().any(|at| &*home.directories[*at].name == name);
        let name = if is_taken(word) {
            format!("{word}{}", home.directories[above].below.len())
        } else {
            word.to_owned()
        };
        let number = add(home, above, &name);
        group.push(number);
        tickets.extend([above, number, number]);
    }
}

/// Puts `count` files with so many bytes in all into directories of `group`.
fn fill(home: &mut Home, group: &[usize], count: usize, bytes: u64, draw: &mut Draw) {
    let weights: Vec<f64> = (0..count).map(|_| (SIGMA * draw.normal()).exp()).collect();
    let scale = bytes as f64 / weights.iter().sum::<f64>();
    for weight in weights {
        let at = group[draw.below(group.len() as u64) as usize];
        let mut left = draw.below(100);
        let extension = EXTENSIONS.iter().find_map(|(extension, share)| {
            let is_it = left < *share;
            left = left.saturating_sub(*share);
            is_it.then_some(*extension)
        });
        let stem = draw.below(20_000);
        let name = format!("f{stem}-{}{}", home.directories[at].files.len(), extension.unwrap_or(""));
        let mtime_s = MTIME_S - draw.below(AGE_S).cast_signed();
        let size_bytes = (weight * scale) as u64;
        home.directories[at].files.push(File { name: name.into(), size_bytes, mtime_s });
    }
}

/// A copy of `from` and all below it in `above`; its directories.
fn copy(home: &mut Home, from: usize, above: usize, name: &str) -> HashSet<usize> {
    let mut copied = HashSet::new();
    let mut left = vec![(from, above, Box::<str>::from(name))];
    while let Some((from, above, name)) = left.pop() {
        let to = add(home, above, &name);
        copied.insert(to);
        home.directories[to].files = home.directories[from].files.clone();
        let below = home.directories[from].below.clone();
        left.extend(below.into_iter().rev().map(|below| (below, to, home.directories[below].name.clone())));
    }
    copied
}
