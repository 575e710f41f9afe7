//! `kill -9` of the daemon at every step that changes a file: of a commit, and of the end of a get. The steps are found by the
//! kernel's eye (strace injects the signal at the n-th system call), so none can be forgotten.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::fs::{self, File};
use std::path::Path;

use dray_core::ticket::Ticket;
use dray_e2e::actions::assert_alone;
use dray_e2e::daemon::{Daemon, await_that};
use dray_e2e::{Host, Lab, Running, data};
use serde_json::{Value, json};

/// System calls after which something else is on disk, or in a directory.
const STEPS: &str = "rename,renameat,renameat2,fsync,fdatasync,unlink,unlinkat,link,linkat,mkdir,mkdirat,ftruncate,utimensat,fchmod";
/// More than any commit has; every thread counts for itself.
const STEPS_MAX: u32 = 60;

/// Kills `daemon` when one of its threads begins its `step`-th step from now on.
fn kill_at(host: &Host, daemon: &Daemon, step: u32) -> Running {
    let pid = daemon.process.pid();
    let inject = format!("inject={STEPS}:signal=SIGKILL:when={step}");
    let strace = host
        .program("strace")
        .args(["-f", "-o", "/dev/null", "-e", &format!("trace={STEPS}"), "-e", &inject])
        .args(["-p", &pid.to_string()])
        .start();
    let is_traced = |task: &Path| {
        let status = fs::read_to_string(task.join("status")).unwrap_or_default();
        status.lines().any(|line| line.starts_with("TracerPid:") && !line.ends_with("\t0"))
    };
    await_that("every thread is traced", || {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        tasks.flatten().all(|task| is_traced(&task.path()))
    });
    strace
}

/// Design 10 and 11, B17, issue "at every step of commit (fault points)": whichever step the daemon is killed at, the next one has the whole
/// object, shared, or nothing of it; nothing lies around; the client hears of the end, and the same put again succeeds.
#[test]
fn a_kill_at_every_step_of_a_commit() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let bytes = data::random_bytes(200_000, 1);
    for how in ["bytes", "file", "at-once"] {
        let (mut killed, mut is_through) = (0, false);
        for step in 1..=STEPS_MAX {
            let name = format!("{how}-{step}");
            // Each time another object: the last byte is the step.
            let mut bytes = bytes.clone();
            bytes.extend([how.len() as u8, step as u8]);
            let file = a.file(&name);
            fs::write(&file, &bytes).unwrap();
            let daemon = Daemon::start(a);
            let begin = |daemon: &Daemon, session: &str| {
                let mut wish = json!({"session": session, "pin": true, "name": name});
                if how != "bytes" {
                    wish["descriptor"] = daemon.hand_over(&File::open(&file).unwrap()).unwrap().into();
                }
                if how == "at-once" {
                    return ("POST /v1/shares".to_owned(), wish.to_string());
                }
                let put = daemon.transaction("/v1/puts", &wish);
                if how == "bytes" {
                    assert_eq!(daemon.ask(&format!("POST /v1/puts/{put}/data"), &bytes).0, 200);
                }
                (format!("POST /v1/puts/{put}/commit"), "{}".to_owned())
            };
            let (stream, session) = daemon.session();
            let (request, body) = begin(&daemon, &session);
            let strace = kill_at(a, &daemon, step);
            let (status, answer) = daemon.ask(&request, body.as_bytes());
            is_through = status == 200;
            let ticket = answer["ticket"].as_str().map(str::to_owned);
            drop(stream);
            if is_through {
                strace.interrupt();
                strace.wait();
                daemon.process.kill();
            } else {
                assert_eq!(status, 0, "killed, it says nothing: {answer}");
                killed += 1;
                daemon.process.wait();
                strace.wait();
            }

            let daemon = Daemon::start(a);
            assert_eq!(data::names(&a.data_dir().join("store/tmp")), Vec::<std::ffi::OsString>::new());
            let share = share_called(&daemon, &name);
            assert!(share.is_some() || !is_through, "a pin that was promised is there: {name}");
            let (_stream, session) = daemon.session();
            let (request, body) = begin(&daemon, &session);
            let (status, again) = daemon.ask(&request, body.as_bytes());
            assert_eq!(status, 200, "{name}: {again}");
            if let Some(share) = share {
                assert_eq!((&share["oid"], &share["size_bytes"]), (&again["oid"], &bytes.len().into()));
            }
            if let Some(ticket) = ticket {
                assert_eq!(again["ticket"], ticket, "what was promised stays so");
            }
            let got = b.directory(&name).join("copy");
            let get = b.dray().args(["get", again["ticket"].as_str().unwrap(), "-o"]).arg(&got);
            get.run().expect(0);
            assert!(fs::read(&got).unwrap() == bytes);
            daemon.stop();
            if is_through {
                break;
            }
        }
        assert!(is_through && killed >= 4, "{killed} steps");
    }
}

fn share_called(daemon: &Daemon, name: &str) -> Option<Value> {
    let listed = daemon.ask("GET /v1/shares", b"").1;
    listed["shares"].as_array().unwrap().iter().find(|share| share["name"] == name).cloned()
}

/// Design 9 and 11, issue "no partial object ever served": whichever step a get into a directory is killed at, the name has nothing or all of the
/// bytes, and the same get by the next daemon has them, with nothing left beside.
#[test]
fn a_kill_at_every_step_of_a_get() {
    let Some(lab) = Lab::of(2).build() else { return };
    let (a, b) = lab.pair();
    let bytes = data::random_bytes(2_500_000, 2);
    let file = a.file("file");
    fs::write(&file, &bytes).unwrap();
    let holder = Daemon::start(a);
    let ticket = dray_e2e::daemon::put(a, &file);
    let (mut killed, mut is_through) = (0, false);
    for step in 1..=STEPS_MAX {
        let folder = b.directory(&step.to_string());
        let opened = File::open(&folder).unwrap();
        let wish = |daemon: &Daemon, session: &str| {
            json!({
                "session": session, "ticket": ticket, "name": "copy", "fsync": true, "whole_file": true,
                "descriptor": daemon.hand_over(&opened).unwrap(),
            })
        };
        let daemon = Daemon::start(b);
        let (stream, session) = daemon.session();
        let strace = kill_at(b, &daemon, step);
        let wanted = wish(&daemon, &session);
        // Killed early, it may not even have answered this; then nothing answers what follows.
        let begun = daemon.ask("POST /v1/gets", wanted.to_string().as_bytes()).1;
        let get = begun["transaction"].as_str().unwrap_or("get-00").to_owned();
        let status = daemon.ask(&format!("POST /v1/gets/{get}/finish"), b"{}").0;
        is_through = status == 200;
        drop(stream);
        if is_through {
            strace.interrupt();
            strace.wait();
            daemon.process.kill();
        } else {
            killed += 1;
            daemon.process.wait();
            strace.wait();
        }
        let copy = folder.join("copy");
        assert!(!copy.exists() || fs::read(&copy).unwrap() == bytes, "a part is under its name, step {step}");
        assert!(copy.exists() || !is_through);
        let daemon = Daemon::start(b);
        let (_stream, session) = daemon.session();
        let get = daemon.transaction("/v1/gets", &wish(&daemon, &session));
        let (status, fetched) = daemon.ask(&format!("POST /v1/gets/{get}/finish"), b"{}");
        assert_eq!(status, 200, "step {step}: {fetched}");
        assert!(fs::read(&copy).unwrap() == bytes);
        assert_alone(&copy);
        daemon.stop();
        if is_through {
            break;
        }
    }
    assert!(is_through && killed >= 3, "{killed} steps");
    assert_eq!(ticket.parse::<Ticket>().unwrap().oid.hex(), data::b3sum(&file));
    holder.stop();
}
