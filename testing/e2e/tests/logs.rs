//! What is logged, where that is asked for: enough to follow one transfer through the daemon and a command, and nothing secret.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs;

use dray_core::ticket::Ticket;
use dray_e2e::Lab;
use dray_e2e::actions;
use dray_e2e::daemon::Daemon;
use dray_e2e::data::{self, MIB};
use serde_json::{Value, json};

/// Issue 4, "logs by tracing with transfer ids", opt-in: each line of a get through the daemon has the name of its transaction, from its
/// beginning to its end; a command's have its process. Without the wish there is nothing, and a ticket's secret is in none.
#[test]
fn a_transfer_is_followed_by_its_name() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let file = a.file("file");
    data::write_random(&file, 3 * MIB, 1);
    let run = a.directory("runtime");
    fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let logging = a.dray().env("XDG_RUNTIME_DIR", &run).env("DRAY_LOG", "debug,json");
    let daemon = Daemon::of(logging, &run);
    let shared = a.dray().env("XDG_RUNTIME_DIR", &run).arg("put").arg(&file).run().expect(0);
    assert_eq!(shared.stderr_text().matches("INFO").count(), 0, "{shared}");
    let ticket = shared.stdout_text().trim().to_owned();
    let parsed: Ticket = ticket.parse().unwrap();

    let copy = b.directory("in").join("copy");
    let get = actions::get(b, &ticket, &copy).env("DRAY_LOG", "info").run().expect(0);
    let log = get.stderr_text();
    assert!(
        log.lines().any(|line| line.contains("a source came up") && line.contains("transfer=\"")),
        "{log}"
    );
    assert!(log.contains(" INFO done"), "{log}");

    let (_stream, session) = daemon.session();
    let put = daemon.begin(&session);
    assert_eq!(daemon.ask(&format!("POST /v1/puts/{put}/data"), b"bytes").0, 200);
    assert_eq!(daemon.ask(&format!("POST /v1/puts/{put}/commit"), b"{}").0, 200);
    let wish = json!({"session": session, "ticket": ticket, "local": true});
    let transaction = daemon.transaction("/v1/gets", &wish);
    let mut number = 0;
    while daemon.fetch(&format!("GET /v1/gets/{transaction}/data?piece={number}"), b"").status == 206 {
        number += 1;
    }
    let log = daemon.process.terminate().expect(0).stderr_text();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let messages = |transfer: &str| -> Vec<&str> {
        let of = lines.iter().filter(|line| line["transfer"] == transfer);
        of.filter_map(|line| line["message"].as_str()).collect()
    };
    let got = messages(&transaction);
    assert!(got.len() >= 3 && got[0] == "begun" && got.last() == Some(&"done"), "{log}");
    assert_eq!(messages(&put), ["done"], "an end is told once: {log}");
    assert!(messages(&parsed.oid.to_string()).contains(&"a receiver was let in"), "{log}");
    assert!(lines.iter().any(|line| line["method"] == "Post" && line["path"] == "/v1/gets"), "{log}");
    let secret: String = parsed.secret.unwrap().as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert!(!log.contains(&ticket) && !log.contains(&secret), "{log}");

    let slip = b.dray().arg("status").env("DRAY_LOG", "loud").run().expect(2);
    assert!(slip.stderr_text().contains("loud"), "{slip}");
}
