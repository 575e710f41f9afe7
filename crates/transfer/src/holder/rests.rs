//! Sums of blocks, and groups of which the receiver has some (ADR 28).

use dray_core::block_mask::BlockMask;
use dray_core::block_sum::sums_of;
use dray_core::frame::{FrameHead, FrameKind};
use dray_core::hash_tree::{encode_parents, group_cv};
use dray_core::message::{Fault, Message, Summed, Sums};
use dray_core::{Error, ErrorKind, Result, hash_tree::Geometry};
use dray_engine::session::Job;

use super::{Failure, Held, Server, doubts};
use crate::transport::push_control;

impl Server<'_> {
    /// Answers a question for sums, which the session has checked.
    pub(super) fn push_sums(&mut self, asked: &Sums) -> Result<()> {
        let held = self.object(asked.handle)?;
        // Reading for each question is for the one receiver of a copy, not for everybody with a ticket.
        let answer = match held.pairs() {
            Some(_) => Err(Error::new(ErrorKind::Unsupported, "sums of blocks are told of a copy alone")),
            None => sums(&*held, asked),
        };
        let message = match answer {
            Ok(sums) => {
                Message::Summed(Summed { handle: asked.handle, number: asked.number, sums: sums.into() })
            }
            Err(error) => Message::Fault(Fault::from_error(Some(asked.handle), &error)),
        };
        push_control(&mut self.control, &message);
        self.flush_control()
    }

    /// Sends what the receiver lacks of one group, after what proves the group, or its value if nothing does.
    pub(super) fn send_rest(&mut self, job: &Job, held: &dyn Held, have: &BlockMask) -> Result<(), Failure> {
        let geometry = held.geometry();
        let group = job.groups.start;
        let expected = doubts(job, held)?;
        let bytes = read_group(geometry, held, group).map_err(Failure::Object)?;
        // It may have changed between the check and the read.
        let late = if expected.is_empty() { doubts(job, held)? } else { Vec::new() };
        let expected = if expected.is_empty() { &late } else { &expected };
        let proof = match held.pairs() {
            Some(pairs) => {
                if !expected.is_empty() {
                    self.note(job, held, group, &bytes, expected, &mut Vec::new())?;
                }
                encode_parents(geometry, job.groups, job.known_depth, pairs).map_err(Failure::Object)?
            }
            None => group_cv(geometry, group, &bytes).to_vec(),
        };
        if !proof.is_empty() {
            let head = FrameHead::new(FrameKind::Parents, proof.len(), job.request);
            self.out.extend_from_slice(&head.encode());
            self.out.extend_from_slice(&proof);
        }
        let mut rest = Vec::with_capacity(bytes.len());
        for range in have.rest(bytes.len()) {
            rest.extend_from_slice(&bytes[range]);
        }
        if !rest.is_empty() {
            self.push_data(job.request, &rest)?;
        }
        held.sent(rest.len() as u64);
        self.flush().map_err(Failure::Connection)
    }
}

fn read_group(geometry: Geometry, held: &dyn Held, group: u64) -> Result<Vec<u8>> {
    let mut bytes = vec![0; geometry.group_bytes(group)];
    held.read_at(group * dray_core::limits::GROUP_BYTES, &mut bytes)?;
    Ok(bytes)
}

/// The sums that were asked for, in order.
fn sums(held: &dyn Held, asked: &Sums) -> Result<Vec<u8>> {
    sums_of(&asked.runs, asked.block_bytes, asked.sum_bytes, |at, bytes| held.read_at(at, bytes))
}

#[cfg(test)]
mod tests {
    use dray_core::block_sum::sum_of;
    use dray_core::message::BlockRun;
    use dray_core::store::Store;
    use dray_store::memory::MemoryStore;

    use super::*;
    use crate::holder::StoredHeld;

    /// D37: the sums are those of the blocks that were asked for, in order, wherever their runs begin and however long they are.
    #[test]
    fn sums_are_of_the_blocks_asked_for() {
        let data: Vec<u8> = (0..1u32 << 20).map(|at| (at * 31 % 251) as u8 ^ (at >> 16) as u8).collect();
        let mut writer = MemoryStore::new().put().unwrap();
        writer.write(&data).unwrap();
        let held = StoredHeld::new(writer.commit().unwrap(), None);
        for (block_bytes, runs) in [(65_536, [(3, 2), (5, 9)]), (64, [(7, 1), (100, 8000)])] {
            let runs = runs.map(|(start, blocks)| BlockRun { start, blocks });
            let asked = Sums { handle: 1, number: 1, block_bytes, sum_bytes: 6, runs: runs.to_vec() };
            let expected = runs.iter().flat_map(|run| {
                let start = run.start as usize;
                let blocks = data.chunks(block_bytes as usize).skip(start).take(run.blocks as usize);
                blocks.flat_map(|block| sum_of(block)[..6].to_vec())
            });
            assert_eq!(sums(&held, &asked).unwrap(), expected.collect::<Vec<u8>>());
        }
    }
}
