//! The mutations: each one breaks one promise in one line, and names the test that must turn red. The table in
//! `docs/testing.md` lists them; a test there keeps the two equal.

/// One mutation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mutation {
    /// Name, as in the table.
    pub(crate) name: &'static str,
    /// File, below the repository.
    pub(crate) file: &'static str,
    /// Text that stands there exactly once, and what takes its place.
    pub(crate) from: &'static str,
    /// See `from`.
    pub(crate) to: &'static str,
    /// Package whose test must turn red.
    pub(crate) package: &'static str,
    /// Which of its test programs: `--lib`, or the name of one in `tests/`.
    pub(crate) program: &'static str,
    /// The test.
    pub(crate) test: &'static str,
}

impl Mutation {
    /// Package, program and name of the test that must turn red.
    pub(super) fn proven_by(&self) -> [&'static str; 3] {
        [self.package, self.program, self.test]
    }
}

const fn mutation(
    name: &'static str,
    file: &'static str,
    [from, to]: [&'static str; 2],
    [package, program, test]: [&'static str; 3],
) -> Mutation {
    Mutation { name, file, from, to, package, program, test }
}

/// All of them, cheapest packages first.
pub(crate) const MUTATIONS: [Mutation; 35] = [
    mutation(
        "parents-unproven",
        "crates/core/src/hash_tree/verify.rs",
        ["if merge(&left, &right, *ancestor == self.geometry.root()) != expected {", "if false {"],
        ["dray-core", "--lib", "proves_units_in_any_order"],
    ),
    mutation(
        "marks-believed",
        "crates/core/src/hash_tree/verify.rs",
        ["!= expected {\n            return Ok(());", "!= expected && false {\n            return Ok(());"],
        ["dray-core", "--lib", "recovers_only_what_is_intact"],
    ),
    mutation(
        "permit-kept",
        "crates/core/src/permit.rs",
        [
            "        self.budget.0.used_bytes.fetch_sub(self.bytes, ",
            "        self.budget.0.used_bytes.fetch_sub(0, ",
        ],
        ["dray-core", "--lib", "reserves_up_to_the_limit_and_gives_back_on_drop"],
    ),
    mutation(
        "budget-unbounded",
        "crates/core/src/permit.rs",
        ["wanted <= self.0.limit_bytes", "wanted <= u64::MAX"],
        ["dray-core", "--lib", "reserves_up_to_the_limit_and_gives_back_on_drop"],
    ),
    mutation(
        "length-unbounded",
        "crates/core/src/frame.rs",
        ["    body_bytes <= limit(kind)\n", "    body_bytes <= limit(kind) << 1\n"],
        ["dray-core", "--lib", "lengths_are_bounded_before_anybody_allocates"],
    ),
    mutation(
        "deadline-ignored",
        "crates/engine/src/planner/deadline.rs",
        ["if idle_us >= self.config.give_up_us {", "if idle_us >= u64::MAX {"],
        ["dray-engine", "--lib", "gives_up_and_names_the_silent"],
    ),
    mutation(
        "silence-ignored",
        "crates/engine/src/planner/deadline.rs",
        [">= timeout_us\n", ">= u64::MAX\n"],
        ["dray-engine", "--lib", "a_silent_source_is_set_aside_until_it_delivers"],
    ),
    mutation(
        "liar-kept",
        "crates/engine/src/planner/mod.rs",
        ["if !recheck && !has_others {", "if !recheck {"],
        ["dray-engine", "--lib", "a_liar_among_several_has_no_second_chance"],
    ),
    mutation(
        "fullest-first",
        "crates/engine/src/planner/assign.rs",
        ["fullness < least", "fullness > least"],
        ["dray-engine", "--lib", "who_has_failed_is_asked_last"],
    ),
    mutation(
        "duplicates-unbounded",
        "crates/engine/src/planner/borrow.rs",
        ["at_risk_bytes + risk_bytes > DUPLICATE_BYTES_MAX", "at_risk_bytes > u64::MAX"],
        ["dray-engine", "--lib", "duplicates_are_bounded"],
    ),
    mutation(
        "answers-unordered",
        "crates/engine/src/session/receiver.rs",
        ["if expected.request != head.request {", "if false {"],
        ["dray-engine", "--lib", "answers_that_were_not_asked_for_are_refused"],
    ),
    mutation(
        "more-than-owed",
        "crates/engine/src/session/receiver.rs",
        ["if head.body_bytes as u64 > owed {", "if head.body_bytes as u64 > owed + 1 {"],
        ["dray-engine", "--lib", "answers_that_were_not_asked_for_are_refused"],
    ),
    mutation(
        "requests-unbounded",
        "crates/engine/src/session/holder.rs",
        [
            "if self.jobs.len() >= REQUESTS_PER_CONNECTION_MAX {",
            "if self.jobs.len() > REQUESTS_PER_CONNECTION_MAX {",
        ],
        ["dray-engine", "--lib", "rule_breakers_are_named"],
    ),
    mutation(
        "work-forgotten",
        "crates/engine/src/planner/books.rs",
        ["if is_forgotten(entry) {", "if entry.reported_groups > 0 {"],
        ["dray-testkit", "sim_canary", "forgotten_work_is_found_if_and_only_if_it_is_there"],
    ),
    mutation(
        "window-collapses",
        "crates/engine/src/planner/window.rs",
        ["self.slow_start && is_full && ", "self.slow_start && "],
        ["dray-engine", "--lib", "a_slow_start_below_is_not_taken_for_a_slow_path"],
    ),
    mutation(
        "holder-dry",
        "crates/engine/src/planner/window.rs",
        ["const ROUND_TRIPS: u64 = 4;", "const ROUND_TRIPS: u64 = 2;"],
        ["dray-engine", "--lib", "a_source_is_not_left_dry_while_something_is_sent_again"],
    ),
    mutation(
        "simulated-permit-kept",
        "testing/testkit/src/sim/receiver/mod.rs",
        ["            drop(queued.permit);\n", "            std::mem::forget(queued.permit);\n"],
        ["dray-testkit", "sim", "a_few_seeds_of_the_fault_mix"],
    ),
    mutation(
        "durable-before-synced",
        "crates/store/src/local/delivery/checkpoint.rs",
        ["        if let Err(error) = &outcome {\n            self.fall_back(error);\n        }\n", ""],
        ["dray-store", "--lib", "a_failed_checkpoint_is_not_forgotten"],
    ),
    mutation(
        "bytes-unproven",
        "crates/node/src/transfer/arrival.rs",
        [
            "Ok(Some((expected, _))) if expected == value() => expected,",
            "Ok(Some((expected, _))) => expected,",
        ],
        ["dray-node", "--lib", "one_honest_holder_among_random_liars_is_enough"],
    ),
    mutation(
        "costs-remembered",
        "crates/engine/src/search/cost.rs",
        ["const SMOOTHING: f64 = 0.2;", "const SMOOTHING: f64 = 0.5;"],
        ["dray-engine", "--lib", "costs_follow_what_is_measured"],
    ),
    mutation(
        "hash-by-chunk",
        "crates/engine/src/search/cost.rs",
        ["self.chunk_hash_us * chunks / expected", "self.chunk_hash_us / expected"],
        ["dray-engine", "--lib", "table_1_of_the_paper"],
    ),
    mutation(
        "stat-unweighted",
        "crates/engine/src/search/cost.rs",
        ["weight * (self.stat_us", "1.0 * (self.stat_us"],
        ["dray-engine", "--lib", "table_1_of_the_paper"],
    ),
    mutation(
        "arrival-certain",
        "crates/engine/src/search/cost.rs",
        ["left *= 1.0 - likelihood;", "left *= likelihood;"],
        ["dray-engine", "--lib", "the_arrival_of_the_paper"],
    ),
    mutation(
        "dearest-first",
        "crates/engine/src/search/mod.rs",
        ["other.cost.total_cmp(&self.cost)", "self.cost.total_cmp(&other.cost)"],
        ["dray-engine", "--lib", "policies_rank_differently"],
    ),
    mutation(
        "ranking-unbounded",
        "crates/engine/src/search/mod.rs",
        ["self.ranking_us.saturating_mul(RANKING_PART) <=", "self.ranking_us.saturating_mul(0) <="],
        ["dray-engine", "--lib", "ranking_takes_steps_by_files"],
    ),
    mutation(
        "ranked-at-once",
        "crates/engine/src/search/mod.rs",
        ["> CHANGE_MIN * before as f64", "> 0.0 * before as f64"],
        ["dray-engine", "--lib", "ranking_takes_steps_by_files"],
    ),
    mutation(
        "paths-unlike",
        "crates/engine/src/search/likeness.rs",
        ["right.max(elsewhere * elsewhere)", "right.max(elsewhere)"],
        ["dray-engine", "--lib", "table_1_of_the_paper"],
    ),
    mutation(
        "search-in-the-way",
        "crates/node/src/search/pressure.rs",
        ["self.works.load(Ordering::Acquire) > 0 || ", ""],
        ["dray-node", "--lib", "a_search_stands_back_for_the_transfer"],
    ),
    mutation(
        "sockets-unheeded",
        "crates/node/src/search/pressure.rs",
        ["source.upgrade().is_some_and(|source| source.has_unread())", "source.upgrade().is_none()"],
        ["dray-node", "--lib", "a_search_stands_back_for_the_transfer"],
    ),
    mutation(
        "changed-file-told",
        "crates/node/src/search/mod.rs",
        ["is_ok_and(|stat| scope::changed_at(&stat) == *before)", "is_ok()"],
        ["dray-node", "--lib", "a_file_that_changes_is_forgotten"],
    ),
    mutation(
        "partial-files-read",
        "crates/node/src/search/scope.rs",
        ["self.is_usual(&stat) && !is_partial(name)", "self.is_usual(&stat)"],
        ["dray-node", "--lib", "a_search_stays_in_its_scope"],
    ),
    mutation(
        "late-find-fetched",
        "crates/node/src/transfer/update/late.rs",
        ["if lock(&self.planner).handle_found(self.now_us(), group) {", "if false {"],
        ["dray-node", "--lib", "what_is_found_late_is_taken_back_from_the_network"],
    ),
    mutation(
        "overwritten-trusted",
        "crates/store/src/local/object.rs",
        ["Ok(now) if self.trusted == Some(now) &&", "Ok(now) if self.trusted.map(|_| now) == Some(now) &&"],
        ["dray-transfer", "changed", "an_overwritten_file_is_changed"],
    ),
    mutation(
        "changed-file-kept",
        "crates/store/src/local/tree/regular.rs",
        [
            "let mut is_held = target.compared.is_none_or(|compared| compared.is(&now));",
            "let mut is_held = target.compared.is_none_or(|compared| compared.is(&now) || true);",
        ],
        ["dray-node", "--lib", "a_file_that_changes_after_it_was_hashed_is_not_kept"],
    ),
    mutation(
        "times-lost",
        "crates/store/src/local/tree/place.rs",
        ["            && now.mtime != Some(kept.mtime)\n", "            && now.mtime == Some(kept.mtime)\n"],
        ["dray-store", "--lib", "a_tree_arrives_as_it_is"],
    ),
];
