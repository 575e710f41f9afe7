//! The simulator (design 6): a few seeds of the fault mix, that a seed decides a run to the byte, and experiments whose outcome is
//! known.

use std::collections::BTreeMap;
use std::process::Command;

use dray_core::error::ErrorKind;
use dray_testkit::sim::{
    Conduct, DiskModel, Fault, Hints, LinkModel, NodePlan, Plan, PlannedFault, Report, Role, experiment, run,
};

const SECOND_NS: u64 = 1_000_000_000;

/// Nodes that hold the object, each with its conduct, and one that fetches it from all of them, over 100 Mbit/s and 20 ms.
fn one_receiver(size_bytes: u64, conducts: &[Conduct]) -> Plan {
    let link = LinkModel::new(12_500_000, 5_000_000);
    let mut nodes: Vec<NodePlan> =
        conducts.iter().map(|&conduct| NodePlan { conduct, ..NodePlan::new(Role::Holder, link) }).collect();
    let hints = Hints::These((0..conducts.len()).map(|holder| (holder, 0)).collect());
    nodes.push(NodePlan::new(Role::Receiver { starts_ns: 0, hints, serves: false }, link));
    Plan::new(1, size_bytes, nodes)
}

fn fault(at_ns: u64, for_ns: u64, fault: Fault) -> PlannedFault {
    PlannedFault { at_ns, for_ns: Some(for_ns), fault }
}

/// The run, with nothing wrong about it.
fn clean(plan: &Plan) -> Report {
    let report = run(plan, None);
    assert_eq!(report.findings, Vec::<String>::new(), "{plan:?}");
    report
}

/// What it takes one receiver to get so many bytes from an honest holder, after `change` to the plan.
fn took_ns(size_bytes: u64, change: impl FnOnce(&mut Plan)) -> u64 {
    let mut plan = one_receiver(size_bytes, &[Conduct::Honest]);
    change(&mut plan);
    let report = clean(&plan);
    assert_eq!(report.ended[0].result, Ok(()), "{plan:?}");
    report.took_ns()
}

/// Design 9: the fault mix, a few seeds of it; `cargo xtask sim` runs more. What is in the mix happens: receivers serve others what they
/// have fetched, under faults, too, and every kind of fault is planned.
#[test]
fn a_few_seeds_of_the_fault_mix() {
    let (mut done, mut served_groups) = (0, 0);
    let (mut kinds, mut traits) = (BTreeMap::new(), [0; 3]);
    for seed in 1_000_000..1_000_040 {
        let plan = Plan::mix(seed, None);
        let report = clean(&plan);
        done += report.done();
        let sent = plan.nodes.iter().zip(&report.sent_groups);
        let by_receivers = sent.filter(|(node, _)| matches!(node.role, Role::Receiver { .. }));
        served_groups +=
            by_receivers.map(|(_, groups)| *groups).sum::<u64>() * u64::from(!plan.faults.is_empty());
        for node in &plan.nodes {
            traits[0] += usize::from(node.conduct != Conduct::Honest);
            traits[1] += usize::from(node.up.lost_per_million + node.down.lost_per_million > 0);
            traits[2] += usize::from(node.under_way_bytes > 0);
        }
        for planned in &plan.faults {
            let name = format!("{:?}", planned.fault);
            *kinds.entry(name.split('(').next().unwrap().to_owned()).or_insert(0) += 1;
        }
    }
    assert!(done > 100, "most receivers get the object: {done}");
    assert!(served_groups > 0, "no receiver served another one");
    assert_eq!(kinds.len(), 7, "{kinds:?}");
    assert!(traits.iter().all(|count| *count > 10), "who lies, loses packets, is behind ssh: {traits:?}");
}

/// Issue: "one printed seed reproduces a run to the byte": twice here, and in two other processes.
#[test]
fn a_seed_decides_a_run_to_the_byte() {
    for seed in [3, 4] {
        let plan = Plan::mix(seed, Some(12));
        let hash = clean(&plan).trace_hash;
        assert_eq!(hash.len(), 64);
        assert_eq!(run(&plan, Some(Box::new(|_| {}))).trace_hash, hash, "to be looked at changes nothing");
        for _ in 0..2 {
            let seed = seed.to_string();
            let output = Command::new(env!("CARGO_BIN_EXE_dray-sim"))
                .args(["--seeds", "1", "--from", &seed, "--nodes", "12"])
                .output()
                .unwrap();
            let printed = String::from_utf8(output.stdout).unwrap();
            assert!(output.status.success() && printed.contains(&hash), "{printed}");
        }
    }
    let other = clean(&Plan::mix(5, Some(12))).trace_hash;
    assert_ne!(other, clean(&Plan::mix(6, Some(12))).trace_hash);
}

/// S2, S4: whoever lies alone is a typed error; beside an honest holder nobody is worse off than by a few groups.
#[test]
fn every_kind_of_liar() {
    let size_bytes = 6 << 20;
    let of = |number: u64| {
        [
            (Conduct::Corrupts { every: 1 }, ErrorKind::VerificationFailed),
            (Conduct::CorruptsPairs { after: number }, ErrorKind::VerificationFailed),
            (Conduct::WrongSize, ErrorKind::VerificationFailed),
            (Conduct::EndsEarly { after: number }, ErrorKind::Protocol),
            (Conduct::Overruns { after: number }, ErrorKind::Protocol),
            (Conduct::Garbage { after: number }, ErrorKind::Protocol),
            (Conduct::Mute { after: number }, ErrorKind::TimedOut),
            (Conduct::Changed { after: number }, ErrorKind::Changed),
            (Conduct::Refuses, ErrorKind::Refused),
            (Conduct::NotFound, ErrorKind::NotFound),
        ]
    };
    for number in [0, 20] {
        for (conduct, kind) in of(number) {
            let report = clean(&one_receiver(size_bytes, &[conduct]));
            let ended = &report.ended[0];
            let (found, text) = ended.result.as_ref().unwrap_err();
            assert_eq!(*found, kind, "{conduct:?}: {text}");
            assert!(text.contains("holder 0"), "{text}");
            assert!(ended.ended_ns <= 30 * SECOND_NS + SECOND_NS, "{conduct:?} took {} ns", ended.ended_ns);
            let report = clean(&one_receiver(size_bytes, &[conduct, Conduct::Honest]));
            assert_eq!(report.ended[0].result, Ok(()), "{conduct:?}");
        }
    }
    // Asked to check, it sends what is right.
    clean(&one_receiver(size_bytes, &[Conduct::CorruptsOnce { after: 10 }])).ended[0]
        .result
        .as_ref()
        .unwrap();
}

/// S14, S15: a receiver that is killed goes on where it was.
#[test]
fn a_killed_receiver_goes_on() {
    let size_bytes = 48 << 20;
    let mut plan = one_receiver(size_bytes, &[Conduct::Honest]);
    plan.faults = vec![
        fault(SECOND_NS, SECOND_NS / 2, Fault::Kill(1)),
        fault(3 * SECOND_NS, SECOND_NS / 2, Fault::Kill(1)),
    ];
    let report = clean(&plan);
    assert_eq!(report.ended[0].result, Ok(()));
    assert_eq!(report.kills, [0, 2]);
    let again = report.written_groups[1] - size_bytes.div_ceil(65_536);
    assert!(again > 0 && again <= 2 * 256, "{again} groups were written again");
    // The whole of it takes four seconds: what is asked for again is little.
    assert!(report.sent_groups[0] < (size_bytes + (40 << 20)) / 65_536, "{:?}", report.sent_groups);
}

/// S17: after a loss of power only what a checkpoint made durable is believed, and that is.
#[test]
fn a_receiver_that_lost_its_power_believes_what_is_durable() {
    let mut plan = one_receiver(48 << 20, &[Conduct::Honest]);
    plan.faults = vec![fault(3 * SECOND_NS, SECOND_NS, Fault::PowerCut(1))];
    let report = clean(&plan);
    assert_eq!(report.ended[0].result, Ok(()));
    let groups = 48 << 4;
    let again = report.written_groups[1] - groups;
    assert!(again > 0 && again < groups * 3 / 4, "{again} of {groups} groups were written again");
}

/// Each fault does what its name says, for as long as it lasts: without an effect no run of the fault mix would prove anything.
#[test]
fn faults_have_their_effect_while_they_last() {
    let took_ns = |faults: &[PlannedFault]| took_ns(16 << 20, |plan| plan.faults = faults.to_vec());
    let calm_ns = took_ns(&[]);
    assert!((SECOND_NS..2 * SECOND_NS).contains(&calm_ns), "{calm_ns}");
    let half_ns = calm_ns / 2;
    // Nothing comes through while an end is stopped or cut off, and it goes on soon after.
    for stops in [Fault::Freeze(0), Fault::Freeze(1), Fault::Partition(vec![0]), Fault::Partition(vec![1])] {
        let stopped_ns = took_ns(&[fault(half_ns, 4 * SECOND_NS, stops.clone())]);
        let bounds_ns = calm_ns + 3 * SECOND_NS..calm_ns + 10 * SECOND_NS;
        assert!(bounds_ns.contains(&stopped_ns), "{stops:?}: {stopped_ns} instead of {calm_ns}");
    }
    // Who is cut off together has each other.
    assert_eq!(took_ns(&[fault(half_ns, 4 * SECOND_NS, Fault::Partition(vec![0, 1]))]), calm_ns);
    // A disk of 1 MB/s instead of 1 GB/s, and a tenth of the links' rate: from the start, and for a second.
    let (disks, links) =
        ([0, 1].map(|node| Fault::SlowDisk(node, 1000)), [0, 1].map(|node| Fault::SlowLinks(node, 10)));
    for slows in disks.into_iter().chain(links) {
        let all_ns = took_ns(&[PlannedFault { at_ns: 0, for_ns: None, fault: slows.clone() }]);
        assert!(all_ns >= 8 * calm_ns, "{slows:?}: {all_ns} instead of {calm_ns}");
        let while_ns = took_ns(&[fault(0, SECOND_NS, slows.clone())]);
        let bounds_ns = calm_ns + SECOND_NS / 2..all_ns / 2;
        assert!(bounds_ns.contains(&while_ns), "{slows:?}: {while_ns} instead of {calm_ns}");
    }
}

/// What keeps a receiver from its holder's answer: a partition lets no new connection through, a machine without power is silent where
/// one without the process says no, and a disk that was full takes bytes again.
#[test]
fn faults_meet_who_comes_later() {
    let outcome = |faults: &[PlannedFault]| {
        let mut plan = one_receiver(1 << 20, &[Conduct::Honest]);
        if let Role::Receiver { starts_ns, .. } = &mut plan.nodes[1].role {
            *starts_ns = 2 * SECOND_NS;
        }
        plan.faults = faults.to_vec();
        let report = clean(&plan);
        (report.ended[0].result.clone().map_err(|(kind, _)| kind), report.took_ns())
    };
    let (calm, calm_ns) = outcome(&[]);
    assert_eq!(calm, Ok(()));
    // Asked at 0, 1, 3 and 7 s: the last time is answered.
    let (cut_off, cut_off_ns) = outcome(&[fault(SECOND_NS, 7 * SECOND_NS, Fault::Partition(vec![0]))]);
    assert_eq!(cut_off, Ok(()));
    assert!((7 * SECOND_NS..7 * SECOND_NS + 2 * calm_ns).contains(&cut_off_ns), "{cut_off_ns}, {calm_ns}");
    // Asked for eight seconds.
    for silent in [Fault::Partition(vec![0]), Fault::PowerCut(0)] {
        let (silent, silent_ns) = outcome(&[fault(SECOND_NS, 30 * SECOND_NS, silent)]);
        assert!(silent.is_err() && silent_ns >= 8 * SECOND_NS, "{silent:?} after {silent_ns}");
    }
    let (killed, killed_ns) = outcome(&[fault(SECOND_NS, 30 * SECOND_NS, Fault::Kill(0))]);
    assert!(killed.is_err() && killed_ns < SECOND_NS, "{killed:?} after {killed_ns}");
    let full = |for_ns| outcome(&[fault(0, for_ns, Fault::FullDisk(1))]);
    assert_eq!(full(SECOND_NS), (Ok(()), calm_ns));
    assert_eq!(full(30 * SECOND_NS).0, Err(ErrorKind::NoSpace));
}

/// Links, processors and holders that hang up are what the plan says of them: each makes the run take longer.
#[test]
fn what_a_plan_says_of_links_and_processors_counts() {
    let took_ns = |change: &dyn Fn(&mut Plan)| took_ns(16 << 20, change);
    let calm_ns = took_ns(&|_| {});
    let lossy_ns = took_ns(&|plan| plan.nodes[0].up.lost_per_million = 100_000);
    assert!(lossy_ns >= calm_ns * 21 / 20, "losses: {lossy_ns} instead of {calm_ns}");
    let full_ns = took_ns(&|plan| plan.nodes[0].up.queue_ns = 1_000_000);
    assert!(full_ns >= calm_ns * 21 / 20, "a short queue: {full_ns} instead of {calm_ns}");
    let far_ns = took_ns(&|plan| plan.nodes[0].up.delay_ns = SECOND_NS / 5);
    assert!(far_ns >= calm_ns + SECOND_NS / 2, "delay: {far_ns} instead of {calm_ns}");
    let shared_ns = took_ns(&|plan| {
        plan.shared.push(LinkModel::new(1_250_000, 0));
        plan.nodes[0].shared_up = vec![0];
    });
    assert!(shared_ns >= 8 * calm_ns, "a narrow link that is shared: {shared_ns} instead of {calm_ns}");
    for node in [0, 1] {
        let slow_ns =
            took_ns(&|plan| (plan.nodes[node].cores, plan.nodes[node].core_bytes_per_s) = (1, 2_000_000));
        assert!(slow_ns >= 5 * calm_ns, "processors of {node}: {slow_ns} instead of {calm_ns}");
    }
    // Its connections come back, after a pause each.
    let hung_up_ns = took_ns(&|plan| plan.nodes[0].conduct = Conduct::HangsUp { every: 32 });
    assert!(hung_up_ns > calm_ns * 11 / 10, "hung up on: {hung_up_ns} instead of {calm_ns}");
}

/// S34, S10: an honest holder to which nothing happens is known as that, or no run would be held to it.
#[test]
fn who_is_steady_is_known() {
    let mut plan = one_receiver(1 << 20, &[Conduct::Honest, Conduct::Refuses]);
    assert_eq!([plan.is_steady(0, 2), plan.is_steady(1, 2), plan.is_steady(2, 0)], [true, false, false]);
    for (disturbs, is_steady) in [
        (Fault::Freeze(0), false),
        (Fault::SlowLinks(2, 2), false),
        (Fault::Partition(vec![2]), false),
        (Fault::Partition(vec![0, 2]), true),
        (Fault::FullDisk(1), true),
    ] {
        plan.faults = vec![fault(0, SECOND_NS, disturbs.clone())];
        assert_eq!(plan.is_steady(0, 2), is_steady, "{disturbs:?}");
    }
}

/// S34: one of three that freezes for good costs little.
#[test]
fn one_frozen_holder_of_three() {
    let mut plan = one_receiver(48 << 20, &[Conduct::Honest; 3]);
    let calm_ns = clean(&plan).took_ns();
    plan.faults = vec![PlannedFault { at_ns: SECOND_NS, for_ns: None, fault: Fault::Freeze(1) }];
    let report = clean(&plan);
    assert_eq!(report.ended[0].result, Ok(()));
    assert!(report.sent_groups[1] < report.sent_groups[0] / 2, "{:?}", report.sent_groups);
    let frozen_ns = report.took_ns();
    assert!(frozen_ns <= calm_ns + (calm_ns / 10).max(2 * SECOND_NS), "{frozen_ns} instead of {calm_ns}");
}

/// S10: nobody blames the holders for the time in which the receiver itself was stopped.
#[test]
fn a_stopped_receiver_goes_on() {
    let mut plan = one_receiver(16 << 20, &[Conduct::Honest]);
    plan.faults = vec![fault(SECOND_NS, 100 * SECOND_NS, Fault::Freeze(1))];
    assert_eq!(clean(&plan).ended[0].result, Ok(()));
}

/// A disk that is full is `no space`, and one that is slow only slow.
#[test]
fn disks_are_full_or_slow() {
    let mut plan = one_receiver(16 << 20, &[Conduct::Honest]);
    plan.faults = vec![PlannedFault { at_ns: SECOND_NS, for_ns: None, fault: Fault::FullDisk(1) }];
    let (kind, _) = clean(&plan).ended[0].result.clone().unwrap_err();
    assert_eq!(kind, ErrorKind::NoSpace);
    let mut plan = one_receiver(16 << 20, &[Conduct::Honest]);
    plan.nodes[1].disk =
        DiskModel { rate_bytes_per_s: 1_000_000, dirty_bytes_max: 1 << 20, ..DiskModel::SPINNING };
    let report = clean(&plan);
    assert_eq!(report.ended[0].result, Ok(()));
    assert!(report.took_ns() > 15 * SECOND_NS, "the disk decides: {} ns", report.took_ns());
}

/// A receiver whose disk is too slow for half a minute: the senders give up (`TCP_USER_TIMEOUT`), and what had come from them by then is
/// still read.
#[test]
fn what_came_before_a_sender_gave_up_is_read() {
    let report = clean(&Plan::mix(55_501_815, None));
    assert_eq!((report.done(), report.ended.len()), (10, 10), "{:?}", report.ended);
}

/// Faults of one kind that overlap: the first that passes takes the other one not with it.
#[test]
fn faults_that_overlap_pass_one_by_one() {
    let took_ns = |faults: Vec<PlannedFault>| took_ns(4 << 20, |plan| plan.faults = faults);
    let long = |fault| PlannedFault { at_ns: 0, for_ns: None, fault };
    let alone_ns = took_ns(vec![long(Fault::SlowLinks(1, 10))]);
    let both_ns = took_ns(vec![
        long(Fault::SlowLinks(1, 10)),
        fault(SECOND_NS / 100, SECOND_NS / 10, Fault::SlowLinks(1, 2)),
    ]);
    assert!(both_ns >= alone_ns * 9 / 10, "{both_ns} instead of {alone_ns}");
    let mut plan = one_receiver(16 << 20, &[Conduct::Honest]);
    plan.faults = vec![long(Fault::FullDisk(1)), fault(SECOND_NS / 100, SECOND_NS / 100, Fault::FullDisk(1))];
    assert_eq!(clean(&plan).ended[0].result.clone().unwrap_err().0, ErrorKind::NoSpace);
}

/// S17: what was delivered without a sync and went with the power is not served any more: pairs and bytes of different times would make of an
/// honest node a liar.
#[test]
fn who_lost_its_power_serves_nothing_that_it_lost() {
    let mut plan = one_receiver(8 << 20, &[Conduct::Honest]);
    let link = plan.nodes[0].up;
    if let Role::Receiver { serves, .. } = &mut plan.nodes[1].role {
        *serves = true;
    }
    let hints = Hints::These(vec![(1, 0)]);
    plan.nodes.push(NodePlan::new(Role::Receiver { starts_ns: 5 * SECOND_NS, hints, serves: false }, link));
    assert_eq!(clean(&plan).done(), 2, "served by a receiver");
    plan.faults = vec![fault(3 * SECOND_NS, SECOND_NS, Fault::PowerCut(1))];
    let report = clean(&plan);
    assert_eq!((report.done(), report.sent_groups[1]), (1, 0));
    plan.faults = vec![fault(3 * SECOND_NS, SECOND_NS, Fault::Kill(1))];
    assert_eq!(clean(&plan).done(), 2, "a kill takes nothing away");
}

/// P4, P8, Y6, Y24: what a link can carry arrives in the time that it needs for it and a few round trips; two links carry twice as much.
#[test]
fn links_are_used_to_the_full() {
    let (megabyte, millisecond_ns) = (1_u64 << 20, 1_000_000_u64);
    for (rate, round_trip_ns, size_bytes) in [
        (193_000, 40 * millisecond_ns, 8 * megabyte),
        (1_250_000, 40 * millisecond_ns, 16 * megabyte),
        (12_500_000, 66 * millisecond_ns, 48 * megabyte),
        (12_500_000, 132 * millisecond_ns, 48 * megabyte),
        (125_000_000, 50 * millisecond_ns, 64 * megabyte),
    ] {
        let ideal_ns = size_bytes as f64 * 1500.0 / 1448.0 / rate as f64 * 1e9;
        let one_ns = experiment::one_source(rate, round_trip_ns, size_bytes).unwrap() as f64;
        let two_ns = experiment::two_sources(rate, round_trip_ns, size_bytes).unwrap() as f64;
        // Three to connect, nine until one connection fills the path (ADR 34), and three until the planner has asked for as much.
        let few_ns = 15.0 * round_trip_ns as f64;
        assert!(one_ns >= ideal_ns && two_ns >= ideal_ns / 2.0, "faster than the links: {one_ns}, {two_ns}");
        assert!(one_ns <= ideal_ns * 1.03 + few_ns, "{one_ns} of {ideal_ns} at {rate}");
        assert!(two_ns <= ideal_ns / 2.0 * 1.1 + few_ns, "{two_ns} of {ideal_ns} / 2 at {rate}");
    }
}

/// P4: losses cost what is sent again and not more: the holder has enough to send while what it sent waits behind a gap.
#[test]
fn losses_leave_no_holder_dry() {
    let (rate, round_trip_ns, size_bytes) = (12_500_000, 132_000_000, 60 << 20);
    let clean_ns = experiment::one_source(rate, round_trip_ns, size_bytes).unwrap() as f64;
    // One packet of 1,000 is one segment of 16 KiB of 90.
    let lossy_ns = experiment::lossy_source(rate, round_trip_ns, 11_000, size_bytes).unwrap() as f64;
    assert!(lossy_ns <= 1.1 * clean_ns, "{lossy_ns} of {clean_ns}");
}

/// S34: a receiver that is stopped while it makes its connections, for so long that the holder hangs up, was not refused: it dials again.
#[test]
fn a_receiver_that_is_stopped_while_it_dials_goes_on() {
    for at_ns in [0, 1_000_000, 30_000_000] {
        let mut plan = one_receiver(6 << 20, &[Conduct::Honest]);
        plan.faults.push(fault(at_ns, 15 * SECOND_NS, Fault::Freeze(1)));
        assert_eq!(clean(&plan).ended[0].result, Ok(()), "stopped after {at_ns} ns");
    }
}

/// Every receiver of a swarm gets the object, and each of those that have it sends some.
#[test]
fn a_small_swarm() {
    let report = clean(&Plan::swarm(1, 24, 8 << 20));
    assert_eq!(report.done(), 20);
    let serving = report.sent_groups.iter().filter(|groups| **groups > 0).count();
    assert!(serving > 10, "{:?}", report.sent_groups);
}
