//! The events of `dray --json` and their schema. That each event of each command is one of the schema is seen to wherever a test runs
//! one ([`dray_e2e::events`]); here, that each of the schema occurs.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeSet;
use std::fs;

use dray_core::rights::Secret;
use dray_core::ticket::Ticket;
use dray_e2e::actions::{self, Share};
use dray_e2e::daemon::{Daemon, event};
use dray_e2e::data::{self, MIB};
use dray_e2e::{Lab, Outcome, events};
use rustix::process::Signal;

/// Issue "events as NDJSON with a checked schema": every event of `docs/events.schema.json` is told by some command.
#[test]
fn every_event_occurs() {
    // So slow that a sender can be lost in the middle.
    let Some(lab) = Lab::of(2).rate_mbit(40).build() else { return };
    let (a, b) = lab.pair();
    let mut seen = BTreeSet::new();
    let mut hear = |outcome: &Outcome| seen.extend(events::check(&outcome.stdout_text()));
    let told = |line: &str, name: &str| event(line) == name;
    let ticket_in = |line: String| {
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        value["ticket"].as_str().unwrap().to_owned()
    };
    let (small, large) = (a.file("small"), a.file("large"));
    data::write_random(&small, MIB / 4, 1);
    data::write_random(&large, 24 * MIB, 2);

    let put = actions::put(a, &small).arg("--json").start();
    let ticket = ticket_in(put.line_with(|line| told(line, "shared")));
    let copy = b.file("copy");
    hear(&actions::get(b, &ticket, &copy).arg("--json").run().expect(0));
    let parsed: Ticket = ticket.parse().unwrap();
    let forged = Ticket { secret: Some(Secret::from_bytes([7; 16])), ..parsed.clone() };
    hear(&actions::get(b, &forged.to_text().unwrap(), &b.file("no")).arg("--json").run().expect(6));
    put.line_with(|line| told(line, "served"));
    hear(&put.terminate().expect(0));

    let share = Share::of(actions::put(a, &large).start());
    let get = actions::get(b, &share.ticket, &b.file("lost")).arg("--json").start();
    get.line_with(|line| told(line, "source-up"));
    share.process.kill();
    get.line_with(|line| told(line, "source-down"));
    hear(&get.terminate());
    hear(&b.dray().args(["explain", "--json"]).run().expect(0));

    hear(&b.dray().args(["verify", "--json"]).arg(&copy).arg(parsed.oid.to_string()).run().expect(0));
    hear(&a.dray().args(["demo", "--json"]).arg(&small).run().expect(0));
    // A host of the lab lacks some of what it looks for.
    hear(&a.dray().args(["doctor", "--json"]).run());

    let tree = a.directory("tree");
    fs::write(tree.join("file"), b"bytes").unwrap();
    let put = a.dray().args(["put", "--json"]).arg(&tree).start();
    let ticket = ticket_in(put.line_with(|line| told(line, "shared-directory")));
    hear(&b.dray().args(["get", &ticket, "--json", "-o"]).arg(b.file("tree")).run().expect(0));
    put.line_with(|line| told(line, "served-directory"));
    hear(&put.terminate().expect(0));
    let cp = |options: &[&str]| a.dray().args(["cp", "-r", "--json"]).args(options).arg(&tree);
    hear(&cp(&["-n"]).arg(a.file("new")).run().expect(0));
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    hear(&cp(&[]).arg(&tree).arg(a.directory("into")).run().expect(8));
    hear(&a.dray().args(["sync", "-r", "--json"]).arg(&tree).arg(a.file("other")).run());
    hear(&a.dray().args(["sync", "--list-only", "--json"]).arg(&tree).run().expect(0));

    let daemon = Daemon::start(a);
    let kept = a.dray().args(["put", "--json"]).arg(&small).run().expect(0);
    let kept = ticket_in(kept.stdout_text());
    let shared = a.dray().args(["put", "--json"]).arg(&tree).run().expect(0);
    hear(&shared);
    let directory = ticket_in(shared.stdout_text());
    for command in [&["ls"][..], &["status"], &["done", &kept], &["done", &directory]] {
        hear(&a.dray().args(command).arg("--json").run().expect(0));
    }
    daemon.process.signal(Signal::HUP);
    daemon.process.line_with(|line| told(line, "note"));
    hear(&daemon.process.terminate().expect(0));

    assert_eq!(seen, events::names(), "told, and listed");
}
