//! What a connection is made with.

use std::time::Duration;

use portolan_provider::cm::ConnParam;
use portolan_provider::verbs::{QpCap, QpInit, QpType};
use portolan_provider::{Error, Result, Step};

use crate::work::{Depths, Keepalive};

/// Bytes a receive of the connection's own may be long at most.
const RECEIVE_SIZE_MAX_BYTES: usize = 1 << 30;

/// Sizes and limits of a connection; the same on both sides, each for its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Sends, writes and reads that may be posted at once.
    pub send_depth: u32,
    /// Receives that the connection keeps posted for [`super::Connection::receive`].
    pub receive_depth: u32,
    /// Bytes of each of those receives: the longest message.
    pub receive_size: usize,
    /// Further receives that may be posted by hand.
    pub posted_receives: u32,
    /// RDMA reads of the peer that are served at once.
    pub responder_resources: u8,
    /// RDMA reads that are under way at once.
    pub initiator_depth: u8,
    /// How often an unanswered packet is repeated (0 to 7).
    pub retry_count: u8,
    /// How often the peer repeats a message that found no receive posted here (0 to 7; 7 is for
    /// ever), as `rdma_connect(3)` and `rdma_accept(3)` have it.
    pub rnr_retry_count: u8,
    /// Data for the peer with the request or reply: at most 56 bytes in a request, 196 in a reply.
    pub private_data: Vec<u8>,
    /// The deadline of the whole of connecting or accepting.
    pub timeout: Duration,
    /// How a peer that says nothing is looked after; `None`, as by default, sends nothing to it.
    pub keepalive: Option<Keepalive>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            send_depth: 64,
            receive_depth: 16,
            receive_size: 4096,
            posted_receives: 64,
            responder_resources: 16,
            initiator_depth: 16,
            retry_count: 7,
            rnr_retry_count: 7,
            private_data: Vec::new(),
            timeout: Duration::from_secs(10),
            keepalive: None,
        }
    }
}

impl Options {
    pub(super) fn conn_param(&self) -> ConnParam {
        ConnParam {
            private_data: self.private_data.clone().into_boxed_slice(),
            responder_resources: self.responder_resources,
            initiator_depth: self.initiator_depth,
            flow_control: true,
            retry_count: self.retry_count,
            rnr_retry_count: self.rnr_retry_count,
            ..ConnParam::default()
        }
    }

    /// How much of each kind of work may be posted.
    pub(super) fn depths(&self) -> Depths {
        Depths {
            sends: self.send_depth,
            ring: self.receive_depth,
            by_hand: self.posted_receives,
        }
    }

    pub(super) fn qp_init(&self, max_inline_data: u32) -> Result<QpInit> {
        let receives = self.receive_depth.checked_add(self.posted_receives);
        let max_recv_wr = receives.filter(|sum| *sum > 0).ok_or_else(|| {
            Error::invalid(
                Step::CreateQp,
                "receives",
                "1 or more",
                "none, or more than fit",
            )
        })?;
        if self.send_depth == 0 {
            return Err(Error::invalid(Step::CreateQp, "send_depth", "1 or more", 0));
        }
        if self.receive_depth > 0 && !(1..=RECEIVE_SIZE_MAX_BYTES).contains(&self.receive_size) {
            let expected = format!("1 to {RECEIVE_SIZE_MAX_BYTES}");
            return Err(Error::invalid(
                Step::CreateQp,
                "receive_size",
                expected,
                self.receive_size,
            ));
        }
        if let Some(keepalive) = self.keepalive {
            for (what, time) in [
                ("keepalive interval", keepalive.interval),
                ("keepalive timeout", keepalive.timeout),
            ] {
                if !Keepalive::RANGE.contains(&time) {
                    let (expected, found) = ("1 ms to a day", format_args!("{time:?}"));
                    return Err(Error::invalid(Step::CreateQp, what, expected, found));
                }
            }
        }
        // A question of the keepalive's takes no place of the caller's.
        let questions = u32::from(self.keepalive.is_some());
        let cap = QpCap {
            max_send_wr: self.send_depth.saturating_add(questions),
            max_recv_wr,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data,
        };
        Ok(QpInit {
            qp_type: QpType::Rc,
            cap,
            sq_sig_all: false,
        })
    }
}
