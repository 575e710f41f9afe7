//! Small experiments with known answers: what the network lab measures with real programs, in virtual time.

use super::network::LinkModel;
use super::plan::{Hints, NodePlan, Plan, Role};
use super::report::Report;

/// One receiver and one holder, each with its own link of `rate_bytes_per_s` and half of `round_trip_ns` both ways taken
/// together; the holder's is the narrow one.
pub fn one_source(rate_bytes_per_s: u64, round_trip_ns: u64, size_bytes: u64) -> Result<u64, String> {
    sources(&[rate_bytes_per_s], round_trip_ns, size_bytes)
}

/// One receiver with a wide link, and two holders with a link of `rate_bytes_per_s` each (bytes per second, headers included)
/// and `round_trip_ns` between each and the receiver. Returns the nanoseconds from the receiver's start to the last byte.
///
/// # Errors
/// Says what was found wrong, or how the transfer failed.
pub fn two_sources(rate_bytes_per_s: u64, round_trip_ns: u64, size_bytes: u64) -> Result<u64, String> {
    sources(&[rate_bytes_per_s; 2], round_trip_ns, size_bytes)
}

/// The same with a holder for each of `rates`.
///
/// # Errors
/// See [`two_sources`].
pub fn sources(rates: &[u64], round_trip_ns: u64, size_bytes: u64) -> Result<u64, String> {
    let links = rates.iter().map(|&rate| LinkModel::new(rate, round_trip_ns / 2));
    over_links(&links.collect::<Vec<_>>(), size_bytes)
}

/// As [`one_source`], and the link loses a segment (16 KiB where it is wide) now and then: so many of a million.
///
/// # Errors
/// See [`two_sources`].
pub fn lossy_source(
    rate_bytes_per_s: u64,
    round_trip_ns: u64,
    lost_per_million: u64,
    size_bytes: u64,
) -> Result<u64, String> {
    let link = LinkModel::new(rate_bytes_per_s, round_trip_ns / 2);
    over_links(&[LinkModel { lost_per_million, ..link }], size_bytes)
}

fn over_links(links: &[LinkModel], size_bytes: u64) -> Result<u64, String> {
    let wide = LinkModel::new(10_000_000_000, 0);
    let mut nodes: Vec<NodePlan> = links.iter().map(|&link| NodePlan::new(Role::Holder, link)).collect();
    let hints = Hints::These((0..links.len()).map(|holder| (holder, 0)).collect());
    nodes.push(NodePlan::new(Role::Receiver { starts_ns: 0, hints, serves: false }, wide));
    took(&super::run(&Plan::new(1, size_bytes, nodes), None))
}

fn took(report: &Report) -> Result<u64, String> {
    if let Some(finding) = report.findings.first() {
        return Err(finding.clone());
    }
    match report.ended.iter().find_map(|ended| ended.result.as_ref().err()) {
        Some((kind, text)) => Err(format!("{kind:?}: {text}")),
        None => Ok(report.took_ns()),
    }
}
