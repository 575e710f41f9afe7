//! Many commands of one user at once on one data directory (design 12).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::time::Duration;

use dray_e2e::actions::{self, Share, assert_delivered};
use dray_e2e::data::{self, MIB};
use dray_e2e::{Lab, Running};

/// Issue "eight get and put commands of one user at once on one data directory": four puts, one of them twice the same
/// file and two from standard input, and four gets; then another host takes everything that was put.
#[test]
fn eight_commands_share_a_data_directory() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (busy, other) = lab.pair();
    for round in 0..3 {
        let offered: Vec<_> = (0..4)
            .map(|number| {
                let file = other.file(format!("offered-{round}-{number}"));
                data::write_random(&file, (number + 1) * 5 * MIB + 9, 10 * round + number);
                file
            })
            .collect();
        let shares: Vec<Share> = offered.iter().map(|file| actions::share(other, file)).collect();
        let own: Vec<_> = (0..3)
            .map(|number| {
                let file = busy.file(format!("own-{round}-{number}"));
                data::write_random(&file, (number + 1) * 4 * MIB + 1, 100 + 10 * round + number);
                file
            })
            .collect();
        let destinations: Vec<_> =
            (0..4).map(|number| busy.directory(&format!("in-{round}-{number}")).join("copy")).collect();

        let mut puts: Vec<Running> = Vec::new();
        let mut gets: Vec<Running> = Vec::new();
        for number in 0..4 {
            let put = match number {
                // The same file by two commands; the same bytes by a file and by standard input.
                0 | 1 => actions::put(busy, &own[0]),
                2 => actions::put(busy, &own[1]),
                _ => busy.dray().args(["put", "-"]).input_file(&own[1]).time_limit(Duration::from_secs(300)),
            };
            puts.push(put.start());
            gets.push(actions::get(busy, &shares[number].ticket, &destinations[number]).start());
        }
        let served: Vec<Share> = puts.into_iter().map(Share::of).collect();
        for (number, get) in gets.into_iter().enumerate() {
            get.wait().expect(0);
            assert_delivered(&offered[number], &destinations[number], Some(&shares[number].hash()));
        }
        for (number, share) in served.iter().enumerate() {
            let source = [&own[0], &own[0], &own[1], &own[1]][number];
            assert_eq!(share.hash(), data::b3sum(source), "put {number}");
            let copy = other.directory(&format!("out-{round}-{number}")).join("copy");
            actions::get(other, &share.ticket, &copy).run().expect(0);
            assert_delivered(source, &copy, Some(&share.hash()));
        }
        for share in served {
            share.end();
        }
    }
}

/// Eight gets of one ticket to one name: at least one delivers, the others do too or say that one is at it.
#[test]
fn eight_gets_of_one_ticket_to_one_name() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, 50 * MIB, 1);
    let share = actions::share(holder, &source);
    let copy = taker.directory("got").join("copy");
    let gets: Vec<Running> = (0..8).map(|_| actions::get(taker, &share.ticket, &copy).start()).collect();
    let outcomes: Vec<_> = gets.into_iter().map(Running::wait).collect();
    let done = outcomes.iter().filter(|outcome| outcome.code() == Some(0)).count();
    for outcome in outcomes {
        if outcome.code() != Some(0) {
            outcome.expect(6);
        }
    }
    assert!(done >= 1);
    assert_delivered(&source, &copy, Some(&share.hash()));
}

/// Eight takers of one holder, over one wire.
#[test]
fn eight_gets_of_one_ticket_to_eight_names() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (holder, taker) = lab.pair();
    let source = holder.file("source");
    data::write_random(&source, 30 * MIB, 2);
    let share = actions::share(holder, &source);
    let gets: Vec<_> = (0..8)
        .map(|number| {
            let copy = taker.directory(&number.to_string()).join("copy");
            (actions::get(taker, &share.ticket, &copy).start(), copy)
        })
        .collect();
    for (get, copy) in gets {
        get.wait().expect(0);
        assert_delivered(&source, &copy, Some(&share.hash()));
    }
}
