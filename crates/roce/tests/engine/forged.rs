//! Queue pairs without acknowledgements that get forged packets in any order.

use std::time::Duration;

use portolan_provider::verbs::{Access, QpState, QpType};
use portolan_wire::Psn;
use portolan_wire::bth::Opcode;
use portolan_wire::eth::{DethRepr, ImmDtRepr, RethRepr};
use portolan_wire::rocev2::Headers;
use portolan_wire::{QKey, Qpn};
use proptest::prelude::*;

use crate::harness::{Host, Options, QKEY, piece, post_recv};

/// Receives, each with its own buffer between stretches that must stay untouched.
const RECEIVES: u64 = 4;
const STRIDE: u64 = 8192;
/// Memory that peers may write, and its key.
const OPEN_AT: u64 = 0x8_0000;
const OPEN_BYTES: u64 = 2048;
const OPEN_KEY: u32 = 0x2000_0002;

/// A forged packet.
#[derive(Clone, Debug)]
struct Forged {
    opcode: Opcode,
    psn: u32,
    payload: usize,
    /// Target of a write, beginning slightly before the open memory.
    at: u64,
    dma_len: u32,
    knows_the_key: bool,
    knows_the_q_key: bool,
}

fn forged() -> impl Strategy<Value = Forged> {
    use Opcode::*;
    let opcode = prop::sample::select(vec![
        UcSendFirst,
        UcSendMiddle,
        UcSendLast,
        UcSendLastImm,
        UcSendOnly,
        UcSendOnlyImm,
        UcWriteFirst,
        UcWriteMiddle,
        UcWriteLast,
        UcWriteLastImm,
        UcWriteOnly,
        UcWriteOnlyImm,
        UdSendOnly,
        UdSendOnlyImm,
        RcSendOnly,
        RcAck,
    ]);
    let payload = prop_oneof![Just(0usize), Just(1024), 0usize..1100];
    let dma_len = prop_oneof![Just(0u32), Just(1024), Just(2048), 0u32..3000, any::<u32>()];
    let numbers = (98u32..106, payload, 0u64..OPEN_BYTES + 64, dma_len);
    (opcode, numbers, any::<bool>(), any::<bool>()).prop_map(
        |(opcode, (psn, payload, at, dma_len), knows_the_key, knows_the_q_key)| Forged {
            opcode,
            psn,
            payload: if opcode == RcAck { 0 } else { payload },
            at,
            dma_len,
            knows_the_key,
            knows_the_q_key,
        },
    )
}

impl Forged {
    fn headers(&self, host: &Host, psn: u32) -> Headers {
        let mut headers = Headers::new(self.opcode, Host::qpn(1), Psn::new(psn));
        headers.deth = self.opcode.has_deth().then(|| DethRepr {
            qkey: if self.knows_the_q_key { QKEY } else { QKey(1) },
            src_qp: Qpn::new(9),
        });
        headers.reth = self.opcode.has_reth().then(|| RethRepr {
            va: host.base + OPEN_AT - 32 + self.at,
            rkey: if self.knows_the_key { OPEN_KEY } else { 0xdead },
            dma_len: self.dma_len,
        });
        headers.immdt = self.opcode.has_immdt().then_some(ImmDtRepr([1, 2, 3, 4]));
        headers.aeth = self
            .opcode
            .has_aeth()
            .then_some(portolan_wire::eth::AethRepr {
                syndrome: portolan_wire::eth::Syndrome::Ack { credits: 31 },
                msn: 0,
            });
        headers
    }
}

proptest! {
    #[test]
    fn strangers_write_only_to_posted_receives_and_open_memory(
        packets in prop::collection::vec((forged(), any::<bool>()), 1..40),
        lengths in prop::collection::vec(0u32..3000, RECEIVES as usize),
        datagrams: bool,
    ) {
        let qp_type = if datagrams { QpType::Ud } else { QpType::Uc };
        let options = Options { qp_type, ..Options::default() };
        let mut host = Host::new(1, &options);
        host.connect(&options);
        let (pd, access) = (host.pd(), Access::LOCAL_WRITE | Access::REMOTE_WRITE);
        host.register(OPEN_KEY, OPEN_AT, OPEN_BYTES, access, pd);
        for (wr_id, length) in (0..).zip(&lengths) {
            let buffer = piece(&host, wr_id * STRIDE, *length);
            post_recv(&mut host, wr_id, &[buffer]);
        }
        let mut psn = 100;
        for (packet, in_order) in &packets {
            let number = if *in_order { psn } else { packet.psn };
            psn = number + 1;
            let headers = packet.headers(&host, number);
            host.receive_headers(&headers, &vec![0xff; packet.payload]);
            prop_assert_eq!(host.next_packet(Duration::ZERO), None, "a forged packet was answered");
        }
        prop_assert_eq!(host.qp.state(), QpState::Rts);
        // Each receive ends once and in order.
        let ended: Vec<u64> = host.receives.iter().map(|(wc, _)| wc.wr_id).collect();
        prop_assert_eq!(&ended, &(0..ended.len() as u64).collect::<Vec<_>>());
        let buffers = (0..)
            .zip(&lengths)
            .map(|(wr_id, length)| wr_id * STRIDE..wr_id * STRIDE + u64::from(*length));
        let open = OPEN_AT..OPEN_AT + OPEN_BYTES;
        let may_change: Vec<_> = buffers.chain([open]).collect();
        for (at, byte) in (0..).zip(&host.ram) {
            if *byte != 0 {
                prop_assert!(may_change.iter().any(|range| range.contains(&at)), "at {at:#x}");
            }
        }
    }
}
