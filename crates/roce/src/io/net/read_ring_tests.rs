use portolan_wire::{Psn, Qpn};

use super::*;
use crate::engine::CompactWrite;
use crate::io::net::shm::pull::{Answer, PullKind};
use crate::io::net::shm::ring::tests::ring;

struct TakesAll;

impl RingSink<()> for TakesAll {
    fn packets(&mut self, _: &[Arrived<'_>]) {}

    fn compact(&mut self, _: Block, _: &CompactWords, _: u64, _: &mut Option<Arc<()>>) -> Handled {
        Handled::Done
    }

    fn pull(&mut self, _: Block, _: &Pull, _: &Asker) {}
}

#[test]
fn bytes_that_a_process_without_rights_says_it_has_placed_break_its_ring() {
    let (mut writer, mut reader, head_page) = ring();
    let monitor = Monitor::default();
    for (len, pid, expected) in [
        (0, None, Ok(())),
        (9, Some(1), Ok(())),
        (9, None, Err(Broken)),
    ] {
        let write = CompactWrite {
            psn: Psn::new(1),
            immediate: [0; 4],
            solicited: false,
            ack_request: false,
            len,
        };
        let compact = Compact {
            source_port: 4791,
            write: Some(write),
            ..Compact::to(Qpn::new(5))
        };
        let place = writer.begin_compact(0).unwrap().unwrap();
        writer.end_compact(place, &CompactWords::of(&compact));
        let _ = writer.publish();
        let asker = Asker::new(reader.mapping(), pid);
        let reading = Reading {
            port: 4791,
            head_page: &head_page,
            monitor: &monitor,
        };
        let (_, result) = reading.drain_compact(&mut reader, &asker, &mut None, &mut TakesAll);
        assert_eq!(result.map(|_| ()), expected, "{len} bytes, {pid:?}");
    }
}

#[test]
fn a_request_or_an_answer_about_copies_of_a_process_without_rights_breaks_its_ring() {
    let (mut writer, mut reader, head_page) = ring();
    for (pid, expected) in [(Some(1), Ok(())), (None, Err(Broken))] {
        let pull = Pull {
            dest_qp: Qpn::new(5),
            tag: 0,
            id: 1,
            kind: PullKind::Answer(Answer::Done),
        };
        assert_eq!(writer.pull(&pull), Ok(true));
        let _ = writer.publish();
        let asker = Asker::new(reader.mapping(), pid);
        let reading = Reading {
            port: 4791,
            head_page: &head_page,
            monitor: &Monitor::default(),
        };
        let (_, result) = reading.drain_compact(&mut reader, &asker, &mut None, &mut TakesAll);
        assert_eq!(result.map(|_| ()), expected, "{pid:?}");
    }
}
