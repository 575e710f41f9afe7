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

const fn mutation(
    name: &'static str,
    file: &'static str,
    [from, to]: [&'static str; 2],
    [package, program, test]: [&'static str; 3],
) -> Mutation {
    Mutation { name, file, from, to, package, program, test }
}

/// All of them, cheapest packages first.
pub(crate) const MUTATIONS: [Mutation; 19] = [
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
        "crates/node/src/transfer.rs",
        [
            "Ok(Some((expected, _))) if expected == value() => expected,",
            "Ok(Some((expected, _))) => expected,",
        ],
        ["dray-node", "--lib", "one_honest_holder_among_random_liars_is_enough"],
    ),
];
