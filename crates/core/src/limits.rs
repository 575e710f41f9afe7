//! Every bound on what comes from outside, in one place. `docs/limits.md` lists them with their reasons; a test
//! there keeps the two equal.

/// Bytes in one group, the smallest piece proven on its own (64 KiB, 64 BLAKE3 chunks).
pub const GROUP_BYTES: u64 = 64 * 1024;
/// Groups in one unit, the smallest piece that is planned, requested and remembered (1 MiB).
pub const UNIT_GROUPS: u64 = 16;
/// Bytes in one unit.
pub const UNIT_BYTES: u64 = GROUP_BYTES * UNIT_GROUPS;
/// Largest object, 2^60 bytes: every offset then fits an `i64` with room for arithmetic.
pub const OBJECT_BYTES_MAX: u64 = 1 << 60;
/// Largest object that is received into a file, 64 TiB: its unit maps then take at most 8 MiB each.
pub const DELIVERY_BYTES_MAX: u64 = 1 << 46;
/// Bytes of one object record or file hint on disk.
pub const RECORD_BYTES_MAX: usize = 64 * 1024;

/// Largest request: a subtree of this many groups (64 MiB).
pub const REQUEST_GROUPS_MAX: u64 = 1024;
/// Requests one connection may have outstanding.
pub const REQUESTS_PER_CONNECTION_MAX: usize = 64;
/// Subtrees one comparison may name.
pub const COMPARED_SUBTREES_MAX: usize = 256;
/// Recipe nodes one message may ask for.
pub const RECIPE_NODES_ASKED_MAX: usize = 32;
/// Objects one connection may have open.
pub const OBJECTS_PER_CONNECTION_MAX: usize = 16;

/// Bytes of one control message (a CBOR item).
pub const CONTROL_FRAME_BYTES_MAX: usize = 64 * 1024;
/// Bytes of one data frame.
pub const DATA_FRAME_BYTES_MAX: usize = 1024 * 1024;
/// Bytes of one frame of parent pairs: the interior of the largest request and the longest path to it.
pub const PARENT_FRAME_BYTES_MAX: usize = (REQUEST_GROUPS_MAX as usize + 64) * 64;
/// Nesting of arrays and maps in one CBOR item.
pub const CBOR_DEPTH_MAX: usize = 8;
/// Elements in one CBOR item, those of arrays and maps within it included: as many as the largest message has, which asks for
/// [`TREE_PULL_RUNS_MAX`] parts of files.
pub const CBOR_ELEMENTS_MAX: u64 = 8192;

/// Characters of a printed ticket.
pub const TICKET_CHARS_MAX: usize = 1024;
/// Hints in a ticket.
pub const HINTS_MAX: usize = 8;
/// Bytes of one hint's URI.
pub const HINT_URI_BYTES_MAX: usize = 255;
/// Feature names in one hello or ticket, and bytes of one name.
pub const FEATURES_MAX: usize = 32;
/// Bytes of one feature name.
pub const FEATURE_BYTES_MAX: usize = 64;
/// Bytes of a file name suggested by a peer (Linux `NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;
/// Bytes of a path in a message (Linux `PATH_MAX`).
pub const PATH_BYTES_MAX: usize = 4096;
/// Bytes of a human-readable text in a message.
pub const TEXT_BYTES_MAX: usize = 1024;
/// Objects up to this size travel inside the offer itself (D34).
pub const INLINE_BYTES_MAX: usize = 32 * 1024;

/// Milliseconds an unauthenticated connection may take to say a complete hello.
pub const HELLO_TIMEOUT_MS: u64 = 10_000;
/// Milliseconds without a byte after which a source is given up, when it owes some.
pub const PROGRESS_TIMEOUT_MS: u64 = 10_000;
/// Connections one listener serves at once.
pub const CONNECTIONS_MAX: usize = 256;

/// Smallest average chunk of a profile (4 KiB).
pub const CHUNK_AVERAGE_BYTES_MIN: u32 = 4 * 1024;
/// Largest average chunk of a profile (4 MiB).
pub const CHUNK_AVERAGE_BYTES_MAX: u32 = 4 * 1024 * 1024;
/// Largest object that has a recipe, 4 TiB: 2^20 chunks of the largest average.
pub const RECIPE_OBJECT_BYTES_MAX: u64 = 1 << 42;
/// Chunks in one recipe: four times what the choice of the average aims at, which all chunks being shortest would need.
pub const RECIPE_CHUNKS_MAX: u32 = 1 << 22;
/// Recipes that one process makes at a time for its receivers: each has a thread, which reads the object.
pub const RECIPES_MAKING_MAX: usize = 4;
/// Memory of all recipes that one process has made for its receivers or is making.
pub const RECIPES_BYTES_MAX: u64 = 128 << 20;
/// Entries of one recipe node.
pub const RECIPE_NODE_ENTRIES_MAX: usize = 256;
/// Entries of one recipe node, those on the right edge excepted.
pub const RECIPE_NODE_ENTRIES_MIN: usize = 16;
/// Bytes of one recipe node: its head and the most entries of the longer sort.
pub const RECIPE_NODE_BYTES_MAX: usize = 8 + RECIPE_NODE_ENTRIES_MAX * 44;
/// Level of a recipe's root; leaves have level 0. With 16 entries a node this is enough for the most chunks.
pub const RECIPE_LEVEL_MAX: u8 = 5;
/// Recipe nodes a reader may have asked for or hold at once, by default.
pub const RECIPE_NODES_HELD_MAX: usize = 64;
/// Bytes of these nodes.
pub const RECIPE_BYTES_HELD_MAX: usize = 512 * 1024;
/// Objects, and older versions of them, that an update is made of (64 GiB): the pairs it proves are kept in memory.
pub const UPDATE_BYTES_MAX: u64 = 64 << 30;
/// Chunks of an older version; one that has more is not used.
pub const UPDATE_CHUNKS_MAX: usize = 1 << 21;
/// Fetched chunks that are remembered in case they stand in the object again.
pub const UPDATE_FETCHED_CHUNKS_MAX: usize = 1 << 19;
/// Groups that wait to be filled from fetched chunks.
pub const UPDATE_DEFERRED_GROUPS_MAX: usize = 1 << 16;

/// Smallest block that sums are told of; the last block of an object, if it is shorter, has none.
pub const SUMS_BLOCK_BYTES_MIN: u32 = 64;
/// Largest block that sums are told of.
pub const SUMS_BLOCK_BYTES_MAX: u32 = 64 * 1024;
/// Runs of blocks that one question for sums names.
pub const SUMS_RUNS_MAX: usize = 256;
/// Bytes of sums in one answer.
pub const SUMS_BYTES_MAX: usize = 32 * 1024;
/// Bytes that the sums of one answer stand for: the holder reads and hashes them before it goes on.
pub const SUMS_COVERED_BYTES_MAX: u64 = 16 << 20;
/// Groups of an update that are looked at closely together, before they are fetched (16 MiB).
pub const UPDATE_LACKING_GROUPS_MAX: usize = 256;
/// Groups of an update that are put together from blocks that are here and a rest that comes (1 GiB); those beyond come whole.
pub const UPDATE_RESTS_MAX: usize = 1 << 14;
/// Pieces of all those groups together, 32 bytes each.
pub const UPDATE_REST_PARTS_MAX: usize = 1 << 20;
/// Bytes of the stream that both ends of packed data look back to, as a power of two.
pub const PACKED_WINDOW_LOG: u32 = 23;
/// Connections of a process on which packed data may come at a time.
pub const UNPACKING_MAX: usize = 16;
/// Bytes of memory that all that packs data in a process may take together.
pub const PACKING_BYTES_MAX: usize = 256 << 20;

/// Connections to the local API served at once; with all taken, the one idle longest gives way.
pub const API_CONNECTIONS_MAX: usize = 128;
/// Connections to it that were answered that they are not let in, and are kept until they have asked.
pub const API_TURNED_AWAY_MAX: usize = 32;
/// Milliseconds for which one of them is kept at most.
pub const API_TURNED_AWAY_MS: u64 = 1_000;
/// API requests that are worked on at once, also those whose client has gone meanwhile.
pub const API_QUESTIONS_MAX: usize = 128;
/// Head of one API request: its first line and all headers, bytes.
pub const API_HEAD_BYTES_MAX: usize = 16 << 10;
/// Headers of one API request.
pub const API_HEADERS_MAX: usize = 64;
/// Body of one API request or answer, bytes.
pub const API_BODY_BYTES_MAX: usize = 1 << 20;
/// For a complete head, for a complete body, and for a client to take the next bytes of an answer, milliseconds.
pub const API_TIMEOUT_MS: u64 = 10_000;
/// Events that wait for one slow reader; those beyond are counted and dropped.
pub const API_EVENTS_WAITING_MAX: usize = 1024;
/// Sessions open at once.
pub const API_SESSIONS_MAX: usize = 64;
/// Transactions open at once, over all sessions.
pub const API_TRANSACTIONS_MAX: usize = 128;
/// Ended transactions whose outcome is kept, in case that its answer was lost; the oldest go first.
pub const API_OUTCOMES_MAX: usize = 1024;
/// Objects fetched at once for clients of the API.
pub const API_GETS_MAX: usize = 32;
/// File descriptors handed over and not used yet.
pub const API_DESCRIPTORS_MAX: usize = 64;
/// How long a descriptor handed over waits to be used, milliseconds.
pub const API_DESCRIPTOR_TIMEOUT_MS: u64 = 30_000;
/// Objects that one daemon shares.
pub const SHARES_MAX: usize = 65_536;
/// Objects that stay open for the next receiver.
pub const SHARES_OPEN_MAX: usize = 64;
/// Connections to a socket of the daemon that wait to be taken.
pub const API_WAITING_MAX: i32 = 128;
/// What a client reads of one answer that comes with its length, bytes.
pub const API_DOCUMENT_BYTES_MAX: usize = 64 << 20;
/// Warnings of one get that are kept for its answer.
pub const API_WARNINGS_MAX: usize = 32;
/// First line and headers of a request for figures over TCP, bytes.
pub const METRICS_HEAD_BYTES_MAX: usize = 4096;

/// Bytes of one snapshot of a transfer, as JSON.
pub const SNAPSHOT_BYTES_MAX: usize = 256 * 1024;
/// Sources told in one snapshot.
pub const SNAPSHOT_SOURCES_MAX: usize = 64;
/// Snapshots of ended transfers that are kept.
pub const SNAPSHOTS_KEPT_MAX: usize = 16;
/// Running commands asked at once.
pub const SNAPSHOTS_ASKED_MAX: usize = 256;

/// Directories below each other in one tree.
pub const TREE_DEPTH_MAX: usize = 512;
/// Entries of one directory of a stored tree (2^40).
pub const TREE_DIRECTORY_ENTRIES_MAX: u64 = 1 << 40;
/// Bytes of one encoded entry: a name, a link target or the extended attributes, and what stands around them.
pub const TREE_ENTRY_BYTES_MAX: usize = 40 * 1024;
/// Bytes of names and values of the extended attributes of one entry.
pub const TREE_XATTRS_BYTES_MAX: usize = 32 * 1024;
/// Extended attributes of one entry.
pub const TREE_XATTRS_MAX: usize = 256;
/// Entries of one tree node.
pub const TREE_NODE_ENTRIES_MAX: usize = 256;
/// Entries of one tree node, unless its bytes or the directory end it before.
pub const TREE_NODE_ENTRIES_MIN: usize = 16;
/// Bytes of entries with which a tree node is full.
pub const TREE_NODE_FULL_BYTES: usize = 32 * 1024;
/// Bytes of one tree node: nearly full, one more entry, and what stands around 256 of them.
pub const TREE_NODE_BYTES_MAX: usize = 96 * 1024;
/// Level of the uppermost node of a directory; leaves have level 0.
pub const TREE_LEVEL_MAX: u8 = 10;

/// Sources that one tree copy may name: more than the longest command line of Linux holds.
pub const TREE_SOURCES_MAX: usize = 1 << 18;
/// Bytes of their paths and names.
pub const TREE_SOURCES_BYTES_MAX: usize = 16 << 20;
/// Sources in one message.
pub const TREE_SOURCES_IN_MESSAGE_MAX: usize = 2048;
/// Patterns that one tree copy may exclude.
pub const TREE_EXCLUDES_MAX: usize = 128;
/// Rules of what one synchronisation leaves out.
pub const SYNC_RULES_MAX: usize = 2048;
/// Bytes of one of them.
pub const SYNC_RULE_BYTES_MAX: usize = 1024;
/// Bytes of all of them, so that they fit the first message.
pub const SYNC_RULES_BYTES_MAX: usize = 32 * 1024;
/// Bytes of one file of rules that a directory has.
pub const SYNC_MERGE_BYTES_MAX: usize = 64 * 1024;
/// Rules of such files that are kept, of a directory and all above it.
pub const SYNC_MERGES_RULES_MAX: usize = 16 * 1024;
/// Bytes of memory that they take.
pub const SYNC_MERGES_BYTES_MAX: usize = 4 << 20;
/// Lines of the list of what one synchronisation brings over.
pub const SYNC_LIST_MAX: usize = 1 << 21;
/// Bytes of all of them.
pub const SYNC_LIST_BYTES_MAX: usize = 64 << 20;
/// Directories of the near end that the far one is told of, in case they are its own.
pub const SYNC_PLACES_MAX: usize = 512;
/// Bytes of names to be deleted that are remembered in memory; those beyond go to a file without a name.
pub const SYNC_CANDIDATES_BYTES_MAX: usize = 4 << 20;
/// Bytes of that file: beyond, nothing is deleted.
pub const SYNC_CANDIDATES_FILE_BYTES_MAX: u64 = 1 << 30;
/// Entries with the names of backups of which is remembered that the source has them, so that no backup takes their place.
pub const SYNC_BACKUP_NAMES_MAX: usize = 1 << 20;
/// Seconds of silence that a synchronisation may bear at most: about 31 years.
pub const SYNC_TIMEOUT_MAX_S: u64 = 1_000_000_000;
/// Entries in place at a receiver after which it makes them durable, so that they may leave their source.
pub const SYNC_IN_PLACE_ENTRIES: u64 = 4096;
/// Messages of a receiver's on what is in place that wait at a sender, which removes more slowly than the receiver writes; their runs are as many as [`SYNC_REMOVALS_MAX`].
pub const SYNC_IN_PLACE_WAITING_MAX: usize = 1 << 16;
/// Entries told that a sender remembers, to remove them once they are in place; of those beyond none is removed.
pub const SYNC_REMOVALS_MAX: usize = 1 << 20;
/// Directories in which a synchronisation looks for what need not come.
pub const SYNC_BASES_MAX: usize = 20;
/// Directories that `sync --watch` is told of changes in; where there are more, all is looked at now and then.
pub const WATCHED_DIRECTORIES_MAX: usize = 1 << 18;
/// Bytes that the names of what a synchronisation keeps end with.
pub const SYNC_SUFFIX_BYTES_MAX: usize = 64;
/// Entries or sources that one message names outside of a batch.
pub const TREE_NAMED_MAX: usize = 256;
/// Items of one batch of entries.
pub const TREE_BATCH_ITEMS_MAX: usize = 1024;
/// Bytes of one of these items.
pub const TREE_BATCH_BYTES_MAX: usize = 56 * 1024;
/// Batches of entries that may be under way.
pub const TREE_BATCHES_MAX: u32 = 32;
/// Runs of entries that one pull names.
pub const TREE_PULL_RUNS_MAX: usize = 512;
/// Pulls that may wait for their end.
pub const TREE_PULLS_MAX: usize = 32;
/// Entries that were asked for and have not come.
pub const TREE_WANTED_MAX: u64 = 16 * 1024;
/// Bytes of a part of a large file that is asked for by itself, at least; larger where a file has more than [`TREE_PARTS_MAX`].
pub const TREE_PART_BYTES: u64 = 4 << 20;
/// Most parts that this implementation asks for of one file.
pub const TREE_PARTS_MAX: u64 = 4096;
/// Cuts that were asked for and have not come.
pub const TREE_CUTS_MAX: usize = 256;
/// Pulls for cuts that may wait for their end.
pub const TREE_CUT_PULLS_MAX: usize = 32;
/// Chunks and holes that a cut may have beyond what its shortest chunks come to: some end at holes.
pub const TREE_CHUNKS_SLACK: u64 = 256;
/// Chunks and holes of one cut besides those, whatever its length.
pub const TREE_CUT_CHUNKS_MAX: u64 = 1 << 18;
/// Largest file that is cut for a difference (256 GiB).
pub const TREE_CUT_BYTES_MAX: u64 = 256 << 30;
/// How many times its size a file is cut for one receiver: once coarsely, once finely.
pub const TREE_CUT_TIMES_MAX: u64 = 2;
/// How many times its size sums are told of one file to one receiver: once of large blocks, once of small ones, and samples.
pub const TREE_SUMS_TIMES_MAX: u64 = 3;
/// How many times its size a file is read for one receiver without being sent, as the receiver has it: once, and again what connections that were
/// lost took with them.
pub const TREE_RESTS_TIMES_MAX: u64 = 4;
/// Runs of blocks that all questions for sums in one pull name together.
pub const TREE_PULL_BLOCK_RUNS_MAX: usize = 512;
/// Parts in one pull of which the receiver has some blocks.
pub const TREE_PULL_RESTS_MAX: usize = 256;
/// Such parts that wait to be asked for or to come, of all files.
pub const TREE_RESTS_MAX: usize = 8192;
/// Bytes that are looked for closely in older versions at a time, of all files.
pub const TREE_LOOKED_AT_BYTES_MAX: u64 = 16 << 20;
/// Files that come as differences at a time.
pub const TREE_DELTAS_MAX: usize = 256;
/// Bytes that the chunks of those may take at the receiver.
pub const TREE_DELTAS_BYTES_MAX: u64 = 48 << 20;
/// Bytes of the list of files that lie in the destination of a tree copy.
pub const TREE_OTHERS_BYTES_MAX: usize = 32 << 20;
/// Direct connections that carry the contents of one tree copy at a time.
pub const TREE_LANES_MAX: usize = 4;
/// Bytes of one record in the answer to a pull.
pub const TREE_RECORD_BYTES_MAX: usize = 256 * 1024;
/// Bytes of entries that wait for their content at the receiver: as they came, and 512 for each, and what is asked of the disk for them.
pub const TREE_PENDING_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Entries that the receiver names when they fail; of more it says how many, by reason.
pub const TREE_FAILED_NAMED_MAX: u64 = 10_000;
/// Reasons that are told apart of those that are not named.
pub const TREE_FAILED_REASONS_MAX: usize = 64;
/// Files of several names that the writer of a tree remembers at once, and the walk.
pub const TREE_LINK_GROUPS_MAX: usize = 1 << 18;
/// Bytes that those take at the writer, names and ways to them included.
pub const TREE_LINK_BYTES_MAX: usize = 64 << 20;
/// Bytes of entries, directories among them, with which the writer of a tree takes no more until some are done.
pub const TREE_HELD_BYTES_MAX: usize = 16 << 20;
/// Bytes by which a file may have grown since it was told, beside its size once more.
pub const TREE_GROWTH_BYTES_MAX: u64 = 1 << 30;
/// Entries of sources that share a name whose paths the writer of a tree remembers.
pub const TREE_CONTESTED_MAX: usize = 1 << 20;
/// Bytes of a digest of a directory: who lies gains nothing, so it only has to be rare that two are the same.
pub const TREE_DIGEST_BYTES: usize = 16;
/// Digests that the sender of a tree tells.
pub const TREE_DIGESTS_MAX: usize = 2048;
/// Directories whose digests each end remembers.
pub const TREE_DIGESTS_HELD_MAX: usize = 1 << 17;
/// Entries from which on a tree is worth digests: those of fewer take no more bytes, and wait for nobody.
pub const TREE_DIGESTS_ENTRIES_MIN: u64 = 128;
/// Directories that one daemon shares as they are.
pub const LIVE_TREES_MAX: usize = 1024;
/// Receivers that fetch shared directories from one process at a time.
pub const LIVE_TREE_RECEIVERS_MAX: usize = 16;
/// Receivers of one directory that have left, or had to, while the holder's disk keeps their threads; with as many, nobody else is let in.
pub const LIVE_TREE_LEAVING_MAX: usize = 4;
/// Receivers of one directory that are gone and whose threads are still there, whatever keeps them; with as many, nobody else is let in.
pub const LIVE_TREE_GONE_MAX: usize = 16;
/// Receivers from one address that are going, and have not been for long; with as many, nobody else is let in from there.
pub const LIVE_TREE_GOING_ADDRESS_MAX: usize = 8;
/// Receivers of shared directories of one process, those that are gone and whose threads are still there included.
pub const LIVE_TREE_PLACES_MAX: usize = 48;
/// Names of owners that the writer of a tree takes.
pub const TREE_OWNERS_MAX: usize = 1 << 16;

/// Files that the chunk index knows.
pub const INDEX_FILES_MAX: usize = 1 << 15;
/// Bytes of their paths.
pub const INDEX_PATHS_BYTES_MAX: usize = 4 << 20;
/// Chunks of all of them.
pub const INDEX_CHUNKS_MAX: u64 = 1 << 24;
/// Bytes that stay free on the disk of the chunk index.
pub const INDEX_FREE_BYTES_MIN: u64 = 1 << 30;
/// Bytes of the smallest file in it.
pub const INDEX_FILE_BYTES_MIN: u64 = UNIT_BYTES;
/// Places of one chunk that are looked at for one that may be used.
pub const INDEX_PLACES_LOOKED_AT_MAX: usize = 64;
/// Entries of a directory among which a file is looked for that was renamed.
pub const INDEX_DIRECTORY_ENTRIES_MAX: usize = 4096;
/// Files of its answers that one transfer opens.
pub const INDEX_SOURCE_FILES_MAX: usize = 64;
/// Chunks that one question to the index names.
pub const INDEX_CHUNKS_ASKED_MAX: usize = 4096;

/// Directories and files that one search of the disk remembers.
pub const SEARCH_ENTRIES_MAX: usize = 1 << 16;
/// Chunks that one search of the disk remembers of the files that it read.
pub const SEARCH_CHUNKS_MAX: usize = 1 << 19;
/// Files that one search of the disk holds open.
pub const SEARCH_FILES_OPEN_MAX: usize = 64;
/// Memory that one search of the disk has for recipe nodes of the files that it reads.
pub const SEARCH_NODES_BYTES_MAX: u64 = 4 << 20;
/// Groups of one transfer that are taken back from the network when the disk has them.
pub const SEARCH_LATE_GROUPS_MAX: usize = 1 << 16;
/// Directories of which the receiver of a tree remembers where their like is.
pub const SIBLING_PLACES_MAX: usize = 16;
/// Searches of the disk in one process.
pub const SEARCHES_MAX: usize = 64;
