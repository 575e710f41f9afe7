//! What comes whether it is wanted or not, because no cancellation reaches it, and who is at work though no group of it is whole:
//! slow paths, where several connections share a line.

use super::many::serve_some;
use super::*;

/// Bytes in the buffers of an ssh channel.
const CHANNEL_BYTES: u64 = 2 * UNIT_BYTES;

/// B is up, over a channel.
fn add_channel(planner: &mut Planner, priority: u16) {
    let capabilities = SourceCapabilities {
        grade: Grade::Proven,
        cancel: true,
        holes: true,
        under_way_bytes: CHANNEL_BYTES,
    };
    planner.add_source(B, SourceDescription { label: "ssh".into(), priority, weight: 1, capabilities });
    planner.handle_up(0, B, Some(MS));
}

/// All of `units` are wanted, windows begin with four of them, and B is up whose channel holds two: it is asked for the first four.
fn begun_over_a_channel(units: u64) -> (Planner, Vec<Asked>) {
    let mut planner = bounds::wide(units, 4);
    add_channel(&mut planner, 1);
    let (of_b, ..) = drain(&mut planner, 0);
    assert_eq!(of_b.iter().map(|asked| asked.groups.groups).collect::<Vec<_>>(), [UNIT_GROUPS; 4]);
    (planner, of_b)
}

fn numbers(asked: &[Asked]) -> Vec<RequestId> {
    asked.iter().map(|asked| asked.request).collect()
}

/// Y20: a spare that stands back keeps what would come all the same, begun or not, and gives the rest back.
#[test]
fn a_spare_keeps_what_is_under_way() {
    let (mut planner, of_b) = begun_over_a_channel(8);
    add_up(&mut planner, 10 * MS, A, "direct", 0);
    let (of_a, cancelled, _) = drain(&mut planner, 10 * MS);
    assert_eq!(cancelled, numbers(&of_b[2..]));
    let starts: Vec<u64> = of_a.iter().map(|asked| asked.groups.start / UNIT_GROUPS).collect();
    assert_eq!(starts, [2, 3, 4, 5]);
    // What was told to leave comes first in the channel, so what stands behind it is no more under way than it was.
    let (mut planner, of_b) = begun_over_a_channel(8);
    planner.handle_misfit(MS, B, of_b[0].request);
    add_up(&mut planner, 10 * MS, A, "direct", 0);
    assert_eq!(drain(&mut planner, 10 * MS).1, [&numbers(&of_b[..1])[..], &numbers(&of_b[2..])].concat());
}

/// R6, P12: a spare that is silent gives everything back.
#[test]
fn a_silent_spare_keeps_nothing() {
    let (mut planner, of_b) = begun_over_a_channel(8);
    add_up(&mut planner, S, A, "direct", 0);
    assert_eq!(drain(&mut planner, S).1, numbers(&of_b));
}

/// B has sent three groups of its four units, `b_us` apart; A, which came up meanwhile, the four others, `a_us` apart, and has nothing
/// to do. What is asked for and cancelled then; and the planner, whose last word of B was at the time returned.
fn dry_beside_a_channel(a_us: u64, b_us: u64) -> (Planner, Vec<Asked>, Vec<Asked>, Vec<RequestId>, u64) {
    let (mut planner, of_b) = begun_over_a_channel(6);
    add_up(&mut planner, 10 * MS, A, "direct", 0);
    let (of_a, cancelled, _) = drain(&mut planner, 10 * MS);
    assert_eq!((of_a.len(), cancelled.len()), (4, 2));
    let last_us = 20 * S;
    serve_some(&mut planner, last_us - 3 * b_us, b_us, &of_b[0], 3);
    let mut now_us = last_us - 64 * a_us;
    for asked in &of_a {
        now_us = serve_some(&mut planner, now_us, a_us, asked, UNIT_GROUPS);
        planner.handle_done(now_us, A, asked.request);
    }
    let (asked, cancelled, _) = drain(&mut planner, last_us);
    (planner, of_b, asked, cancelled, last_us)
}

/// Y20: over a line that both share, nothing of what is under way is asked for a second time, however much sooner the other seems to have it.
#[test]
fn what_is_under_way_is_not_asked_for_twice_over_one_line() {
    let (_, _, asked, cancelled, _) = dry_beside_a_channel(100 * MS, 700 * MS);
    assert!(asked.is_empty() && cancelled.is_empty(), "{asked:?} {cancelled:?}");
}

/// R6, design 8: who is eight times as fast is on another line, and helps out.
#[test]
fn who_is_much_faster_helps_out_with_what_is_under_way() {
    let (_, of_b, asked, cancelled, _) = dry_beside_a_channel(50 * MS, 450 * MS);
    assert_eq!((asked[0].source, asked[0].groups), (A, of_b[1].groups));
    assert!(cancelled.is_empty(), "it comes in any case");
}

/// R6, P12: who is silent loses what is under way, too, whatever anybody's rate.
#[test]
fn what_is_under_way_moves_at_silence() {
    let (mut planner, of_b, asked, _, last_us) = dry_beside_a_channel(100 * MS, 300 * MS);
    assert!(asked.is_empty());
    let (when_us, asked, cancelled, polls) = bounds::wait(&mut planner, last_us);
    assert!((last_us + S..=last_us + 2 * S).contains(&when_us), "{}", when_us - last_us);
    assert_eq!((asked[0].source, asked[0].groups), (A, of_b[1].groups));
    assert_eq!(cancelled, [of_b[1].request]);
    assert!(polls <= 4, "{polls} looks");
}

/// R6, design 8: what shares a line comes the sooner, the longer others wait for it. If it has not come after a quarter of the time
/// before, it shares none, and is asked for again.
#[test]
fn what_is_under_way_is_not_waited_for_without_end() {
    let (mut planner, of_b, asked, _, last_us) = dry_beside_a_channel(50 * MS, 350 * MS);
    assert!(asked.is_empty());
    for number in 0..14 {
        let asked = &of_b[usize::from(number >= 13)];
        let now_us = serve_some(&mut planner, last_us + number * 350 * MS, 350 * MS, asked, 1);
        assert!(drain(&mut planner, now_us).0.is_empty(), "{number}");
    }
    let (when_us, asked, ..) = bounds::wait(&mut planner, last_us + 14 * 350 * MS);
    assert_eq!((asked[0].source, asked[0].groups), (A, of_b[1].groups));
    let waited_us = when_us - last_us;
    assert!((5 * S..5 * S + 10 * MS).contains(&waited_us), "{waited_us} of {last_us}");
}

/// R6: a rate of before says nothing of who sends but a trickle since: its silence counts, and whoever is through with the same bytes
/// eight times as soon is on another line.
#[test]
fn who_trickles_loses_what_is_under_way_whatever_its_rate_was() {
    let (mut planner, of_b, asked, _, last_us) = dry_beside_a_channel(5 * MS, 5 * MS);
    assert!(asked.is_empty());
    let asked_us = (1..300).find_map(|hundredth| {
        let now_us = last_us + hundredth * 10 * MS;
        planner.handle_received(now_us, B, hundredth * GROUP_BYTES / 4);
        let (asked, ..) = drain(&mut planner, now_us);
        asked.first().map(|asked| assert_eq!((asked.source, asked.groups), (A, of_b[1].groups)))?;
        Some(now_us)
    });
    // 29 groups of 5 ms each, seven times.
    let waited_us = asked_us.expect("asked for again") - last_us;
    assert!((1_015 * MS..1_060 * MS).contains(&waited_us), "{waited_us}");
}

/// No group of B's first two units has come; A, which came up meanwhile, has sent the four others, 5 ms a group.
fn dry_beside_what_has_not_come() -> (Planner, Vec<Asked>, u64) {
    let (mut planner, of_b) = begun_over_a_channel(6);
    add_up(&mut planner, 10 * MS, A, "direct", 0);
    let (of_a, ..) = drain(&mut planner, 10 * MS);
    let mut now_us = 10 * MS;
    for asked in &of_a {
        now_us = serve_some(&mut planner, now_us, 5 * MS, asked, UNIT_GROUPS);
        planner.handle_done(now_us, A, asked.request);
    }
    (planner, of_b, now_us)
}

/// R6: of whom no group has come, what has come at all tells the rate; if nothing has, nothing is waited for.
#[test]
fn without_a_rate_bytes_tell_what_is_waited_for() {
    for (received_bytes, is_kept) in [(0, false), (6_000, false), (24 * GROUP_BYTES, true)] {
        let (mut planner, of_b, now_us) = dry_beside_what_has_not_come();
        planner.handle_received(now_us, B, received_bytes);
        let (asked, ..) = drain(&mut planner, now_us);
        let expected = (!is_kept).then_some((A, of_b[1].groups));
        assert_eq!(asked.first().map(|asked| (asked.source, asked.groups)), expected, "{received_bytes}");
    }
}

/// P7, design 9: who sends a group over a slow path is not silent; spares have their turn when nothing more comes.
#[test]
fn bytes_are_a_sign_of_work_before_a_group_is_whole() {
    let mut planner = planner(8);
    add_up(&mut planner, 0, A, "direct", 0);
    drain(&mut planner, 0);
    add_up(&mut planner, 0, B, "ssh", 1);
    let sixteenth = GROUP_BYTES / 16;
    for tenth in 1..=15 {
        planner.handle_received(tenth * 100 * MS, A, tenth * sixteenth);
        assert!(drain(&mut planner, tenth * 100 * MS).0.is_empty(), "{tenth}");
    }
    // Of 15 sixteenths, 12 are whole quarters.
    let (when_us, asked, ..) = bounds::wait(&mut planner, 1_500 * MS);
    assert_eq!((when_us, asked[0].source), (1_200 * MS + S, B));
    // Next to nothing is no sign.
    planner.handle_received(2_400 * MS, A, 15 * sixteenth);
    assert_eq!(planner.best_priority(2_400 * MS), Some(1));
    planner.handle_received(2_400 * MS, A, 16 * sixteenth);
    assert_eq!(planner.best_priority(2_400 * MS), Some(0));
}

/// R6, P12: bytes alone, which anybody can send, put silence off to three seconds after the last group; with that, they count anew.
#[test]
fn bytes_without_a_group_are_no_sign_for_long() {
    let mut planner = planner(8);
    add_up(&mut planner, 0, A, "direct", 0);
    let (of_a, ..) = drain(&mut planner, 0);
    add_up(&mut planner, 0, B, "ssh", 1);
    let trickle = |planner: &mut Planner, from_us: u64, before: u64| {
        (1..100).find(|tenth| {
            planner.handle_received(from_us + tenth * 100 * MS, A, (before + tenth) * GROUP_BYTES);
            planner.best_priority(from_us + tenth * 100 * MS) == Some(1)
        })
    };
    assert_eq!(trickle(&mut planner, 0, 0), Some(30));
    let now_us = serve_some(&mut planner, 4 * S, S, &of_a[0], 1);
    assert_eq!(planner.best_priority(now_us), Some(0));
    // What is counted first belongs to the group.
    planner.handle_received(now_us + 500 * MS, A, 200 * GROUP_BYTES);
    assert_eq!(planner.best_priority(now_us + S), Some(1));
    assert_eq!(trickle(&mut planner, now_us, 200), Some(30));
}

/// R6, design 8: of a source of which nothing has come nothing is waited for as under way, also where nobody's rate is known.
#[test]
fn nothing_is_waited_for_of_who_has_sent_nothing() {
    let config = PlannerConfig { geometry: Geometry::new(GROUP_BYTES), ..planner(1).config };
    let mut wanted = RangeSet::new();
    wanted.insert(0..1);
    let mut planner = Planner::new(config, wanted);
    add_channel(&mut planner, 0);
    assert_eq!(drain(&mut planner, 0).0.len(), 1);
    add_up(&mut planner, 0, A, "direct", 0);
    // A sixteenth of a second for the group, and a millisecond; a duplicate wins where it takes half as long again, and 50 ms.
    let (when_us, asked, cancelled, _) = bounds::wait(&mut planner, 0);
    assert_eq!((asked[0].source, cancelled), (A, vec![]));
    assert!((145 * MS..=147 * MS).contains(&when_us), "{when_us}");
}
