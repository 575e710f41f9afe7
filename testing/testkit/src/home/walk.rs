//! A search of the home: the engine says what to do, and hears what is there.

use dray_core::limits::UNIT_BYTES;
use dray_engine::search::{Metadata, Operation, Search, SearchConfig, Wanted};

use super::{DESTINATION, File, Home, MTIME_S, NAME, Row, SIZE_BYTES};

/// What listing a directory and reading a chunk took in the paper: 56.17 s for all directories, and some 0.25 s for 12 MB.
const STAT_US: u64 = 1_512;
const CHUNK_US: u64 = 330;

/// What a search did until the useful file was read, that included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Walk {
    /// Directories listed.
    pub stats: u64,
    /// Files read.
    pub hashes: u64,
    /// Their bytes.
    pub hashed_bytes: u64,
    /// What that would have taken in the paper, in microseconds.
    pub took_us: u64,
}

/// How a search ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The file of use was read.
    Useful(Walk),
    /// There was nothing left to do.
    Nothing(Walk),
}

/// Searches `home` until the file of `row` is read, which [`Home::place`] has put there.
pub fn walk(home: &Home, row: &Row, config: SearchConfig) -> Found {
    let chunk_bytes = u64::from(config.chunk_bytes);
    let chunks = SIZE_BYTES / chunk_bytes;
    let wanted = Wanted { name: NAME.into(), size_bytes: SIZE_BYTES, mtime_s: Some(MTIME_S), chunks };
    let destination = DESTINATION.iter().map(|name| name.as_bytes().to_vec()).collect();
    let mut search = Search::new(config, Some(destination), vec![wanted]);
    let useful: Vec<&[u8]> = row.directory.iter().chain([&row.name]).map(|name| name.as_bytes()).collect();
    let mut walk = Walk::default();
    while let Some(operation) = search.next(&mut || walk.took_us) {
        match operation {
            Operation::Stat(id) => {
                let Some(at) = home.find(search.path(id)) else { break };
                walk.stats += 1;
                walk.took_us += STAT_US;
                let directory = &home.directories[at];
                for below in &directory.below {
                    let _ = search.found_directory(id, home.directories[*below].name.as_bytes());
                }
                // What is smaller is not looked at, as in the product.
                for File { name, size_bytes, mtime_s } in
                    directory.files.iter().filter(|file| file.size_bytes >= UNIT_BYTES)
                {
                    let file =
                        Metadata { name: name.as_bytes(), size_bytes: *size_bytes, mtime_s: Some(*mtime_s) };
                    let _ = search.found_file(id, file);
                }
                search.listed(id, STAT_US);
            }
            Operation::Hash(id) => {
                let path = search.path(id);
                let is_useful = path == useful;
                let bytes = size_of(home, &path);
                walk.hashes += 1;
                walk.hashed_bytes += bytes;
                let chunks = bytes.div_ceil(chunk_bytes);
                walk.took_us += chunks * CHUNK_US;
                if is_useful {
                    return Found::Useful(walk);
                }
                search.hashed(id, chunks, chunks * CHUNK_US);
            }
            // There is no index.
            Operation::CacheCheck | Operation::CacheRead(_) => break,
        }
    }
    Found::Nothing(walk)
}

fn size_of(home: &Home, path: &[&[u8]]) -> u64 {
    let file = path.split_last().and_then(|(name, above)| {
        let at = home.find(above.iter().copied())?;
        home.directories[at].files.iter().find(|file| file.name.as_bytes() == *name)
    });
    file.map_or(0, |file| file.size_bytes)
}
