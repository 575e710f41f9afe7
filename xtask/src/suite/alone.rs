//! The tests that have the machine for themselves, or all of it but a core, and why. [`super::run`] keeps all others away from them; a test that takes a lab alone
//! (`dray_lab::Turn`) and is not named here fails, and so does this list if it names what is not there.

/// Package, program, test, and what would not hold beside others.
pub(super) const ALONE: [(&str, &str, &str, &str); 43] = [
    ("dray-lab", "calibration", "a_link_changes_while_packets_run", TIMES),
    ("dray-lab", "calibration", "a_rate_follows_its_trace", TIMES),
    ("dray-lab", "calibration", "a_round_trip_is_twice_the_delay", TIMES),
    ("dray-lab", "calibration", "fifty_hosts_come_and_go_within_a_second", TIMES),
    ("dray-lab", "calibration", "lateness_that_the_gate_allows_costs_no_throughput", TIMES),
    ("dray-lab", "calibration", "tcp_gets_a_gigabit_in_super_packets", TIMES),
    ("dray-lab", "calibration", "tcp_gets_what_its_headers_leave", TIMES),
    ("dray-lab", "calibration", "two_senders_share_a_bottleneck", TIMES),
    ("dray-lab", "calibration", "udp_overload_gets_the_rate", TIMES),
    (
        "dray-node",
        "dray_node",
        "search::tests::a_search_rests_where_the_transfer_waits_for_a_processor",
        PACE,
    ),
    ("dray-node", "dray_node", "transfer::update::tests::disk::a_sender_hears_of_no_chunk_on_the_disk", PACE),
    (
        "dray-node",
        "dray_node",
        "transfer::update::tests::disk::a_sender_learns_nothing_of_files_outside_of_the_scope",
        PACE,
    ),
    (
        "dray-node",
        "dray_node",
        "transfer::update::tests::disk::a_sibling_is_as_good_as_an_older_version",
        PACE,
    ),
    ("dray-node", "dray_node", "transfer::update::tests::disk::an_index_is_part_of_the_search", PACE),
    (
        "dray-node",
        "dray_node",
        "transfer::update::tests::disk::whoever_may_read_the_disk_sends_the_rest_alone",
        PACE,
    ),
    ("dray-lab", "gate", "the_gate_sees_what_a_senders_device_drops", TIMES),
    ("dray-lab", "gate", "the_gate_sees_what_the_engine_takes", TIMES),
    ("dray-lab", "gate", "the_gate_sees_who_has_the_machine", TIMES),
    (
        "dray-e2e",
        "daemon_directory",
        "what_stands_at_the_place_after_a_reboot_is_known_or_changed",
        "a mount that another test's mount namespace has a copy of is not gone when it is unmounted",
    ),
    (
        "dray-e2e",
        "daemon_edge",
        "a_stopped_command_does_not_hold_up_the_figures",
        "answers within two seconds are counted",
    ),
    ("dray-e2e", "differences", "a_moved_directory_of_many_files_costs_little", PULSE),
    ("dray-e2e", "explain", "figures_agree_with_the_interface_counters", "figures of seconds are compared"),
    ("dray-e2e", "latency", "first_payload_of_a_copy_within_three_round_trips", ROUND_TRIPS),
    ("dray-e2e", "latency", "first_payload_of_a_get_within_three_round_trips", ROUND_TRIPS),
    ("dray-e2e", "latency", "first_payload_over_an_open_channel_within_one_round_trip", ROUND_TRIPS),
    ("dray-e2e", "search", "a_get_that_goes_on_searches_for_the_rest", HOPE),
    ("dray-e2e", "search", "a_search_keeps_to_its_scope", HOPE),
    ("dray-e2e", "search", "a_sibling_costs_next_to_nothing_more_over_a_slow_line", HOPE),
    ("dray-e2e", "search", "a_sibling_costs_what_an_older_version_does", HOPE),
    ("dray-e2e", "search", "a_sibling_on_a_slow_disk_is_used_over_a_slower_network", HOPE),
    ("dray-e2e", "search", "a_tree_beside_costs_what_an_older_one_does", HOPE),
    ("dray-e2e", "search", "a_tree_that_is_fetched_is_looked_for_where_that_is_said", HOPE),
    ("dray-e2e", "search", "each_policy_finds_what_there_is", HOPE),
    ("dray-e2e", "search", "the_kernel_sees_what_a_search_lists_and_reads", HOPE),
    ("dray-e2e", "search", "what_is_of_no_use_costs_nothing", HOPE),
    ("dray-e2e", "search", "what_is_synchronised_by_a_login_is_looked_for", HOPE),
    ("dray-e2e", "search", "what_is_synchronised_is_looked_for_where_that_is_said", HOPE),
    ("dray-e2e", "senders", "ten_senders_seven_of_them_bad", HEALTHY),
    ("dray-e2e", "senders", "three_senders_two_of_them_liars", HEALTHY),
    ("dray-e2e", "senders", "two_senders_one_of_them_bad", HEALTHY),
    ("dray-e2e", "sources", "three_holders_one_frozen_one_killed", HEALTHY),
    ("dray-e2e", "update", "a_missing_chunk_costs_no_group", LATE),
    ("dray-e2e", "update", "an_update_costs_what_changed", LATE),
];

const PACE: &str = "bytes are counted that a search found before the network brought them";
const TIMES: &str = "times and rates are what the test is about";
const HOPE: &str = "a search has 30 ms to give hope, and the sender half a second to tell its recipe";
const ROUND_TRIPS: &str = "times are counted in round trips";
const PULSE: &str = "bytes are counted, and both ends say again and again that they live";
const LATE: &str = "bytes are counted, and what is read late is fetched instead";
const HEALTHY: &str = "the time of a run with trouble is compared with that of one without";

/// Whether what would not hold beside many others holds beside one, each with a core to itself.
pub(super) fn bears_another(why: &str) -> bool {
    [HOPE, ROUND_TRIPS, HEALTHY, PULSE, LATE].contains(&why)
}

/// Whether each one of the list is among `known`: package, program and tests.
pub(super) fn check(known: &[(String, String, Vec<String>)]) -> Result<(), String> {
    for (package, program, test, _) in ALONE {
        let is_there = |(_, _, tests): &(String, String, Vec<String>)| tests.iter().any(|name| name == test);
        let mut programs = known.iter().filter(|(one, other, _)| one == package && other == program);
        if known.iter().any(|(one, ..)| one == package) && !programs.any(is_there) {
            return Err(format!("{package} has no test {program} {test}: mend xtask/src/suite/alone.rs"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_gone_is_noticed() {
        let known = |names: &[&str]| {
            let names = names.iter().map(|name| (*name).to_owned()).collect();
            [("dray-e2e".to_owned(), "sources".to_owned(), names)]
        };
        assert!(check(&known(&["renamed"])).unwrap_err().contains("mend"));
        assert!(check(&[]).is_ok(), "a package that is not chosen");
        assert!(!bears_another(TIMES) && ALONE.iter().any(|(.., why)| bears_another(why)));
        assert!(ALONE.is_sorted_by_key(|(package, program, test, _)| (
            *package == "dray-e2e",
            *program,
            *test
        )));
    }
}
