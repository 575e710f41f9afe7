//! One rule of the planner at a time. Whole transfers, and the rules that need many steps, are tested against the
//! reference model in the testkit.

mod books;
mod bounds;
mod hearing;
mod many;
mod telling;
mod under_way;

use dray_core::hash_tree::Geometry;
use dray_core::limits::{GROUP_BYTES, UNIT_BYTES, UNIT_GROUPS};
use dray_core::permit::Budget;
use dray_core::source::{Grade, SourceCapabilities};

use super::*;

const A: SourceId = SourceId(1);
const B: SourceId = SourceId(2);
const MS: u64 = 1_000;
const S: u64 = 1_000_000;

fn planner_of(units: u64, delivery: DeliveryMode, budget: &Budget) -> Planner {
    let config = PlannerConfig {
        geometry: Geometry::new(units * UNIT_BYTES),
        piece_groups: UNIT_GROUPS,
        is_open: false,
        delivery,
        budget: budget.clone(),
        window: WindowLimits::default(),
        strategy: Strategy::default(),
        progress_timeout_us: 10 * S,
        give_up_us: 25 * S,
        last_request: 0,
    };
    let mut wanted = RangeSet::new();
    wanted.insert(0..units);
    Planner::new(config, wanted)
}

fn planner(units: u64) -> Planner {
    planner_of(units, DeliveryMode::OutOfOrder, &Budget::new(1 << 30))
}

fn add(planner: &mut Planner, source: SourceId, label: &str, priority: u16) {
    let capabilities =
        SourceCapabilities { grade: Grade::Proven, cancel: true, holes: true, under_way_bytes: 0 };
    let description = SourceDescription { label: label.into(), priority, weight: 1, capabilities };
    planner.add_source(source, description);
}

fn add_up(planner: &mut Planner, now_us: u64, source: SourceId, label: &str, priority: u16) {
    add(planner, source, label, priority);
    planner.handle_up(now_us, source, Some(MS));
}

/// A source A that is up, and takes no cancellation.
fn add_up_stubborn(planner: &mut Planner) {
    let capabilities =
        SourceCapabilities { grade: Grade::Proven, cancel: false, holes: true, under_way_bytes: 0 };
    let description = SourceDescription { label: "stubborn".into(), priority: 0, weight: 1, capabilities };
    planner.add_source(A, description);
    planner.handle_up(0, A, Some(MS));
}

#[derive(Debug)]
struct Asked {
    source: SourceId,
    request: RequestId,
    groups: Subtree,
    recheck: bool,
    permit: Permit,
}

/// Everything the planner asks for now, what it cancels, and whom it closes.
fn drain(planner: &mut Planner, now_us: u64) -> (Vec<Asked>, Vec<RequestId>, Vec<SourceId>) {
    let (mut asked, mut cancelled, mut closed) = (Vec::new(), Vec::new(), Vec::new());
    while let Some(command) = planner.poll(now_us) {
        match command {
            PlannerCommand::Fetch { source, request, groups, recheck, permit } => {
                asked.push(Asked { source, request, groups, recheck, permit });
            }
            PlannerCommand::Cancel { request, .. } => cancelled.push(request),
            PlannerCommand::CloseSource { source } => closed.push(source),
        }
    }
    (asked, cancelled, closed)
}

/// Serves a request whole.
fn serve(planner: &mut Planner, now_us: u64, asked: &Asked) {
    planner.handle_parents(now_us, asked.source, asked.request);
    for group in asked.groups.start..asked.groups.end() {
        assert_eq!(
            planner.handle_group(now_us, asked.source, asked.request, group),
            Disposition::Deliver,
            "{group}"
        );
    }
    planner.handle_done(now_us, asked.source, asked.request);
}

fn failure(planner: &Planner) -> Error {
    planner.outcome().expect("decided").expect_err("failed")
}

fn state(planner: &Planner, source: SourceId) -> SourceState {
    planner.stats().iter().find(|figures| figures.source == source).unwrap().state
}

/// The lowest units first, within the initial window, each with its permit.
#[test]
fn asks_for_the_lowest_units_within_the_window() {
    let budget = Budget::new(1 << 30);
    let mut planner = planner_of(8, DeliveryMode::OutOfOrder, &budget);
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, ..) = drain(&mut planner, 0);
    let starts: Vec<u64> = asked.iter().map(|asked| asked.groups.start).collect();
    assert_eq!(starts, [0, 16]);
    assert_eq!(budget.used_bytes(), 2 * UNIT_BYTES);
    assert!(asked.iter().all(|asked| asked.permit.bytes() == UNIT_BYTES && !asked.recheck));
    for asked in asked {
        serve(&mut planner, MS, &asked);
    }
    assert_eq!(budget.used_bytes(), 0);
    assert_eq!(planner.stats()[0].delivered_bytes, 2 * UNIT_BYTES);
}

/// A transfer that wants nothing, or the empty object.
#[test]
fn the_smallest_transfers_end() {
    let mut nothing = PlannerConfig { geometry: Geometry::new(5), ..planner(1).config };
    nothing.budget = Budget::new(0);
    assert!(Planner::new(nothing.clone(), RangeSet::new()).outcome().unwrap().is_ok());
    nothing.geometry = Geometry::new(0);
    let mut wanted = RangeSet::new();
    wanted.insert(0..9);
    let mut planner = Planner::new(nothing, wanted);
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, ..) = drain(&mut planner, 0);
    assert_eq!(asked[0].groups, Subtree { start: 0, groups: 1 });
    serve(&mut planner, 1, &asked[0]);
    assert!(planner.outcome().unwrap().is_ok());
}

/// Memory and time do not grow with the object: a terabyte with one gap is three ranges, and requests stay aligned.
#[test]
fn a_terabyte_is_planned_in_a_few_ranges() {
    let units = 1 << 20;
    let config = PlannerConfig {
        window: WindowLimits { initial_bytes: 1 << 30, max_bytes: 1 << 30, ..WindowLimits::default() },
        ..planner(units).config
    };
    let mut wanted = RangeSet::new();
    wanted.insert(3..1000);
    wanted.insert(5000..units);
    let mut planner = Planner::new(config, wanted);
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, ..) = drain(&mut planner, 0);
    let sizes: Vec<u64> = asked.iter().map(|asked| asked.groups.groups / UNIT_GROUPS).collect();
    assert_eq!(sizes[..6], [1, 4, 8, 16, 32, 64], "aligned, and never more than 1024 groups");
    assert!(sizes.iter().all(|&units| units <= 64));
}

/// Design 9: damage asks for a recheck first, and bars only who sends it again; the error names the liar.
#[test]
fn a_mismatch_is_rechecked_and_its_repetition_bars() {
    let mut planner = planner(1);
    add_up(&mut planner, 0, A, "direct 192.0.2.7:4711", 0);
    let (asked, ..) = drain(&mut planner, 0);
    assert_eq!(planner.handle_group(1, A, asked[0].request, 0), Disposition::Deliver);
    planner.handle_mismatch(1, A, asked[0].request);
    let (again, cancelled, _) = drain(&mut planner, 1);
    assert_eq!(cancelled, [asked[0].request]);
    assert_eq!((again[0].groups, again[0].recheck), (asked[0].groups, true));
    assert_eq!(planner.handle_group(2, A, asked[0].request, 1), Disposition::Deliver, "late, but proven");
    assert_eq!(planner.handle_group(2, A, again[0].request, 1), Disposition::Discard, "had");
    assert_eq!(planner.handle_group(2, A, again[0].request, 2), Disposition::Deliver);
    planner.handle_mismatch(3, A, again[0].request);
    let (_, _, closed) = drain(&mut planner, 3);
    assert_eq!(closed, [A]);
    let error = failure(&planner);
    assert_eq!(error.kind(), ErrorKind::VerificationFailed);
    assert!(error.what().contains("direct 192.0.2.7:4711"), "{error}");
    assert!(error.advice().is_some());
}

/// Design 5: an error names its source once, also where the source's own words begin with its name or address.
#[test]
fn a_source_is_named_once() {
    for (label, text, is_named) in [
        ("direct 192.0.2.7:4711", "direct 192.0.2.7:4711 says: no", true),
        ("direct 192.0.2.7:4711", "connect to 192.0.2.7:4711: refused", true),
        ("direct 192.0.2.7:47", "connect to 192.0.2.7:4711: refused", false),
        ("direct 192.0.2.7:4711", "connection lost", false),
        ("ssh", "ssh: connection lost", true),
        ("ssh", "sshd went away", false),
        ("source 0", "bytes between offsets 0 and 9", false),
    ] {
        let mut planner = planner(1);
        add(&mut planner, A, label, 0);
        planner.handle_down(1, A, Some(&Error::new(ErrorKind::Unreachable, text)), true);
        let expected = if is_named { text.to_owned() } else { format!("{label}: {text}") };
        assert_eq!(failure(&planner).what(), expected);
    }
}

/// After a mismatch everything of that source is rechecked until one request comes out clean.
#[test]
fn doubt_ends_with_a_clean_recheck() {
    let mut planner = planner(8);
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, ..) = drain(&mut planner, 0);
    planner.handle_mismatch(1, A, asked[0].request);
    planner.handle_done(1, A, asked[0].request);
    serve(&mut planner, 2, &asked[1]);
    let (again, ..) = drain(&mut planner, 2);
    assert!(again.len() == 2 && again.iter().all(|asked| asked.recheck));
    serve(&mut planner, 3, &again[0]);
    let (later, ..) = drain(&mut planner, 3);
    assert!(!later.is_empty() && later.iter().all(|asked| !asked.recheck));
    assert_eq!(state(&planner, A), SourceState::Up);
}

/// Design 9: a holder that says it changed is no liar; its word is the outcome when nobody else is left, and what
/// tells most wins.
#[test]
fn the_most_telling_cause_is_the_outcome() {
    let mut planner = planner(4);
    add_up(&mut planner, 0, A, "direct", 0);
    add_up(&mut planner, 0, B, "ssh", 0);
    let (asked, ..) = drain(&mut planner, 0);
    let of_a = asked.iter().find(|asked| asked.source == A).unwrap().request;
    planner.handle_failed(1, A, of_a, &Error::new(ErrorKind::Changed, "the file was written to"));
    let (moved, _, closed) = drain(&mut planner, 1);
    assert_eq!(closed, [A]);
    assert!(planner.outcome().is_none() && moved.iter().all(|asked| asked.source == B));
    let reset = Error::new(ErrorKind::Unreachable, "connection reset");
    planner.handle_down(2, B, Some(&reset), true);
    let error = failure(&planner);
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert!(error.what().starts_with("direct: the file was written to"), "{error}");
}

/// A request that ends early breaks the protocol.
#[test]
fn done_before_every_group_bars() {
    let mut planner = planner(1);
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, ..) = drain(&mut planner, 0);
    assert_eq!(planner.handle_group(1, A, asked[0].request, 0), Disposition::Deliver);
    assert_eq!(planner.handle_group(1, A, asked[0].request, 2), Disposition::Deliver);
    assert_eq!(planner.handle_group(1, A, asked[0].request, 1), Disposition::Discard, "out of order");
    planner.handle_done(2, A, asked[0].request);
    assert_eq!(failure(&planner).kind(), ErrorKind::Protocol);
}

/// A spare rests while a better source is up, gives back what it has not begun, and is used when that one is lost.
#[test]
fn spares_stand_back() {
    let mut planner = planner(8);
    add_up(&mut planner, 0, B, "ssh", 10);
    let (asked, ..) = drain(&mut planner, 0);
    assert_eq!(asked.len(), 2);
    planner.handle_parents(1, B, asked[0].request);
    add_up(&mut planner, 2, A, "direct", 0);
    let (better, cancelled, _) = drain(&mut planner, 2);
    assert_eq!(cancelled, [asked[1].request], "the one that has begun goes on");
    assert!(better.iter().all(|asked| asked.source == A));
    assert_eq!(better[0].groups, asked[1].groups, "what was given back is the lowest pending");
    serve(&mut planner, 3, &asked[0]);
    assert!(drain(&mut planner, 3).0.is_empty(), "the spare gets nothing new");
    planner.handle_down(4, A, Some(&Error::new(ErrorKind::Unreachable, "connection reset")), false);
    let (taken, ..) = drain(&mut planner, 4);
    assert!(!taken.is_empty() && taken.iter().all(|asked| asked.source == B));
}

/// Design 9: who owes something and is silent loses its work to others, and is back when it delivers.
#[test]
fn a_silent_source_is_set_aside_until_it_delivers() {
    let mut planner = planner(64);
    add_up(&mut planner, 0, A, "frozen", 0);
    add_up(&mut planner, 0, B, "lively", 0);
    let (mut asked, ..) = drain(&mut planner, 0);
    let frozen: Vec<RequestId> =
        asked.iter().filter(|asked| asked.source == A).map(|asked| asked.request).collect();
    asked.retain(|asked| asked.source == B);
    serve(&mut planner, 9 * S, &asked[0]);
    assert_eq!(planner.next_deadline_us(), Some(10 * S));
    let (moved, cancelled, _) = drain(&mut planner, 10 * S);
    assert_eq!(cancelled, frozen);
    assert_eq!(state(&planner, A), SourceState::Stalled);
    drain(&mut planner, 10 * S);
    let stalls = planner.stats().iter().map(|stats| (stats.source, stats.stalls)).collect::<Vec<_>>();
    assert_eq!(stalls, [(A, 1), (B, 0)], "counted once, however often it is looked at");
    assert!(moved.iter().all(|asked| asked.source == B));
    assert_eq!(planner.handle_group(11 * S, A, frozen[0], 0), Disposition::Deliver, "nobody was faster");
    assert_eq!(state(&planner, A), SourceState::Up);
    planner.handle_done(11 * S, A, frozen[0]);
    assert!(drain(&mut planner, 11 * S).0.iter().any(|asked| asked.source == A));
}

/// Design 9: nobody makes progress, so the transfer ends with an error that names who should have.
#[test]
fn gives_up_and_names_the_silent() {
    let mut planner = planner(4);
    add_up(&mut planner, S, A, "direct 192.0.2.7:4711", 0);
    let (asked, ..) = drain(&mut planner, S);
    planner.handle_group(2 * S, A, asked[0].request, 0);
    let mut now_us = 2 * S;
    while planner.outcome().is_none() {
        let next_us = planner.next_deadline_us().expect("a deadline");
        assert!(next_us > now_us, "a deadline that has passed would be polled for ever");
        now_us = next_us;
        drain(&mut planner, now_us);
    }
    assert_eq!(now_us, 27 * S);
    let error = failure(&planner);
    assert_eq!(error.kind(), ErrorKind::TimedOut);
    assert!(error.what().contains("25 s") && error.what().contains("direct 192.0.2.7:4711"), "{error}");
    assert_eq!(planner.next_deadline_us(), None);
}

/// Design 5: a lost connection is called that once.
#[test]
fn a_lost_connection_is_said_once() {
    let mut planner = planner(4);
    add_up(&mut planner, S, A, "direct", 0);
    drain(&mut planner, S);
    planner.handle_down(2 * S, A, Some(&Error::new(ErrorKind::Unreachable, "connection lost: reset")), false);
    while planner.outcome().is_none() {
        let next_us = planner.next_deadline_us().expect("a deadline");
        drain(&mut planner, next_us);
    }
    let error = failure(&planner);
    assert!(error.what().contains("direct (connection lost: reset)"), "{error}");
}

/// Signs of life that bring nothing new do not put off the end for ever.
#[test]
fn parents_alone_do_not_keep_a_transfer_alive() {
    let mut planner = planner(4);
    add_up(&mut planner, 0, A, "direct", 0);
    let mut asked = drain(&mut planner, 0).0;
    for second in 1..2_000 {
        if let Some(first) = asked.first() {
            planner.handle_parents(second * S, A, first.request);
        }
        let (more, ..) = drain(&mut planner, second * S);
        asked.extend(more);
        if planner.outcome().is_some() {
            assert!(second < 30, "{second}");
            return;
        }
    }
    panic!("still alive");
}

/// P12, design 9: a source that sends the first groups of a unit, falls, returns and sends them again is given up in time.
/// One that comes further each time is not.
#[test]
fn beginning_again_is_no_progress() {
    for (groups, ends) in [(2, Some(25)), (15, None)] {
        let mut planner = planner(4);
        let lost = Error::new(ErrorKind::Unreachable, "reset");
        let mut comes_to = 2;
        let mut ended = None;
        for second in 0..60 {
            if second == 0 {
                add_up(&mut planner, 0, A, "direct", 0)
            } else {
                planner.handle_up(second * S, A, None)
            }
            let (asked, ..) = drain(&mut planner, second * S + 200 * MS);
            if planner.outcome().is_some() {
                ended = Some(second);
                break;
            }
            let Some(asked) = asked.first() else { continue };
            for group in 0..comes_to {
                planner.handle_group(second * S + 300 * MS, A, asked.request, group);
            }
            comes_to = (comes_to + 1).min(groups);
            planner.handle_down(second * S + 400 * MS, A, Some(&lost), false);
        }
        match ends {
            Some(after) => assert!(ended.is_some_and(|second| (after..=30).contains(&second)), "{ended:?}"),
            None => assert!(ended.is_none_or(|second| second > 35), "{ended:?}"),
        }
    }
}

/// D11: only what lies within the window after the consumer is asked for; a consumer that rests is nobody's fault.
#[test]
fn sequential_delivery_waits_for_the_consumer() {
    let mode = DeliveryMode::Sequential { window_bytes: UNIT_BYTES + 5 };
    let mut planner = planner_of(3, mode, &Budget::new(1 << 30));
    add_up(&mut planner, 0, A, "direct", 0);
    let (asked, ..) = drain(&mut planner, 0);
    assert_eq!(asked.len(), 1);
    serve(&mut planner, 1, &asked[0]);
    assert!(drain(&mut planner, 2).0.is_empty());
    assert_eq!(planner.next_deadline_us(), None);
    planner.handle_consumed(1);
    let (asked, ..) = drain(&mut planner, 500 * S);
    assert_eq!(asked[0].groups.start, 16);
    assert!(planner.outcome().is_none());
}

/// Design 7: no request without a permit; when the budget has room again, work goes on.
#[test]
fn waits_for_room_in_the_budget() {
    let budget = Budget::new(UNIT_BYTES + 1);
    let others = budget.try_reserve(2).unwrap();
    let mut planner = planner_of(4, DeliveryMode::OutOfOrder, &budget);
    add_up(&mut planner, 0, A, "direct", 0);
    assert!(drain(&mut planner, 0).0.is_empty());
    let retry_us = planner.next_deadline_us().unwrap();
    assert!(retry_us > 0 && retry_us < S);
    drop(others);
    let (asked, ..) = drain(&mut planner, retry_us);
    assert_eq!((asked.len(), budget.used_bytes()), (1, UNIT_BYTES));
    drop(asked);
    assert_eq!(budget.used_bytes(), 0);
}

/// A failure that may pass: at first asked again at once, then after growing pauses.
#[test]
fn repeated_failures_are_paced() {
    let mut planner = planner(1);
    add_up(&mut planner, 0, A, "direct", 0);
    let busy = Error::new(ErrorKind::TimedOut, "busy");
    let (mut now_us, mut tries) = (0, 0);
    while planner.outcome().is_none() {
        let (asked, ..) = drain(&mut planner, now_us);
        for asked in asked {
            tries += 1;
            planner.handle_failed(now_us, A, asked.request, &busy);
        }
        // The first failure is not paused for: there is no deadline to wait for, only another poll.
        if tries > 1 {
            now_us = planner.next_deadline_us().unwrap_or(now_us);
        }
    }
    assert!((5..20).contains(&tries), "{tries} tries in 25 s");
    assert!(failure(&planner).what().contains("busy"));
}

/// Events about what was never asked, or of whom nobody knows, change nothing.
#[test]
fn unknown_events_are_ignored() {
    let mut planner = planner(2);
    add_up(&mut planner, 0, A, "direct", 0);
    add_up(&mut planner, 0, B, "other", 0);
    let (asked, ..) = drain(&mut planner, 0);
    let of_a = asked.iter().find(|asked| asked.source == A).unwrap();
    let nobody = SourceId(99);
    assert_eq!(planner.handle_group(1, nobody, of_a.request, of_a.groups.start), Disposition::Discard);
    assert_eq!(planner.handle_group(1, B, of_a.request, of_a.groups.start), Disposition::Discard);
    assert_eq!(planner.handle_group(1, A, of_a.request, u64::MAX), Disposition::Discard);
    planner.handle_done(1, B, of_a.request);
    planner.handle_mismatch(1, B, of_a.request);
    planner.handle_failed(1, nobody, of_a.request, &Error::new(ErrorKind::Changed, "x"));
    planner.handle_down(1, nobody, None, true);
    planner.handle_up(1, nobody, None);
    assert_eq!(state(&planner, B), SourceState::Up);
    assert_eq!(planner.handle_group(1, A, of_a.request, of_a.groups.start), Disposition::Deliver);
    assert_eq!(planner.stats()[1].discarded_bytes, GROUP_BYTES);
}

/// D17: what is wanted becomes known bit by bit, in single groups; nothing else is asked for, a run of groups is one request,
/// and having all so far is not the end until nothing more will be wanted.
#[test]
fn wants_grow_group_by_group() {
    let budget = Budget::new(1 << 30);
    let config = PlannerConfig { piece_groups: 1, is_open: true, ..planner(8).config };
    let mut planner = Planner::new(PlannerConfig { budget: budget.clone(), ..config }, RangeSet::new());
    add_up(&mut planner, 0, A, "direct", 0);
    assert!(drain(&mut planner, 0).0.is_empty(), "nothing is wanted yet");
    assert!(planner.outcome().is_none());
    planner.want(3..4);
    planner.want(32..40);
    // Behind the end of what was wanted: heard before, or a mistake.
    planner.want(0..5);
    let (asked, ..) = drain(&mut planner, MS);
    let spans: Vec<_> = asked.iter().map(|asked| (asked.groups.start, asked.groups.groups)).collect();
    assert_eq!(spans, [(3, 1), (32, 8)]);
    assert_eq!(budget.used_bytes(), 9 * GROUP_BYTES);
    asked.iter().for_each(|asked| serve(&mut planner, 2 * MS, asked));
    drop(asked);
    assert!(planner.outcome().is_none(), "more may be wanted");
    // However long that takes, nobody is to blame.
    drain(&mut planner, 100 * S);
    assert!(planner.outcome().is_none());
    planner.want(127..200);
    planner.want_no_more();
    let (asked, ..) = drain(&mut planner, 101 * S);
    assert_eq!(asked.len(), 1, "up to the object's end");
    assert_eq!((asked[0].groups.start, asked[0].groups.groups), (127, 1));
    serve(&mut planner, 101 * S, &asked[0]);
    assert!(planner.outcome().is_some_and(|outcome| outcome.is_ok()));
    assert_eq!(budget.used_bytes(), GROUP_BYTES);
}

/// An update of which nothing has to be fetched ends when that is known.
#[test]
fn nothing_wanted_is_the_end_once_that_is_said() {
    let config = PlannerConfig { piece_groups: 1, is_open: true, ..planner(8).config };
    let mut planner = Planner::new(config, RangeSet::new());
    add_up(&mut planner, 0, A, "direct", 0);
    drain(&mut planner, 0);
    assert!(planner.outcome().is_none());
    planner.want_no_more();
    assert!(planner.outcome().is_some_and(|outcome| outcome.is_ok()));
}

/// Y21: what was found here is not asked for, and its request is cancelled once it can bring nothing else; what of it comes all the same is
/// discarded, and nobody is blamed for having sent less than all.
#[test]
fn what_is_found_here_is_not_fetched() {
    let mut planner = planner(2);
    add_up(&mut planner, 0, A, "a", 0);
    let (asked, ..) = drain(&mut planner, 0);
    let all: u64 = asked.iter().map(|asked| asked.groups.groups).sum();
    assert_eq!(all, 2 * UNIT_GROUPS);
    let first = &asked[0];
    let groups = first.groups;
    for group in groups.start + 1..groups.end() {
        assert!(planner.handle_found(MS, group) && planner.has_group(group));
        assert!(!planner.handle_found(MS, group), "twice");
        assert!(drain(&mut planner, MS).1.is_empty(), "it may still bring its first group");
    }
    assert!(!planner.has_group(groups.start));
    assert!(planner.handle_found(MS, groups.start));
    assert_eq!(drain(&mut planner, MS).1, [first.request]);
    assert_eq!(planner.handle_group(MS, A, first.request, groups.start), Disposition::Discard);
    planner.handle_done(MS, A, first.request);
    assert!(!planner.handle_found(MS, 2 * UNIT_GROUPS), "beyond the end");
    assert_eq!(planner.stats()[0].state, SourceState::Up);
    for group in groups.end()..2 * UNIT_GROUPS {
        assert!(planner.handle_found(MS, group));
    }
    assert!(planner.outcome().is_some_and(|outcome| outcome.is_ok()));
    let late = asked.iter().map(|asked| asked.request).filter(|request| *request != first.request);
    assert_eq!(drain(&mut planner, MS).1, late.collect::<Vec<_>>());
}

/// What was found before anybody was asked for it is never asked for.
#[test]
fn what_is_found_before_is_never_asked_for() {
    let mut planner = planner(2);
    add(&mut planner, A, "a", 0);
    for group in 0..UNIT_GROUPS {
        assert!(planner.handle_found(MS, group));
    }
    planner.handle_up(MS, A, Some(MS));
    let (asked, ..) = drain(&mut planner, MS);
    assert!(asked.iter().all(|asked| asked.groups.start >= UNIT_GROUPS), "{asked:?}");
    assert_eq!(asked.iter().map(|asked| asked.groups.groups).sum::<u64>(), UNIT_GROUPS);
}
