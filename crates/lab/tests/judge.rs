//! Tests of the judge: it passes correct results and fails wrong ones.

use std::time::Duration;

use portolan_lab::judge::{dissect, prepare_host};
use portolan_lab::machine::{Cache, Job, Machine, MachineError, Step, Suite, Unavailable, Wire};

/// Returns the test's requirement, or `None` if this host lacks it. Then it prints the reason;
/// under continuous integration it fails.
fn available<T>(test: &str, result: Result<T, MachineError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(MachineError::Unavailable(reason)) if !Unavailable::is_failure() => {
            eprintln!("left out: {test}: {reason}");
            None
        }
        Err(error) => panic!("{test}: {error}"),
    }
}

fn cache() -> Cache {
    Cache::locate().expect("the cache folder can be made")
}

/// Tests that boot machines. They are selected by the module's name.
mod in_machines {
    use super::*;

    /// Two machines on one wire, each with rdma_rxe on its interface.
    #[test]
    fn two_machines_talk_over_a_wire_and_tshark_reads_their_packets() {
        let test = "two_machines_talk_over_a_wire_and_tshark_reads_their_packets";
        let Some(machine) = available(test, Machine::prepare(&cache(), Suite::Bookworm)) else {
            return;
        };
        let Some(()) = available(test, prepare_host()) else {
            return;
        };
        let setup = |own: u8| {
            format!(
                "ip addr add 192.168.7.{own}/24 dev eth0
                 ip link set eth0 up
                 until [ \"$(cat /sys/class/net/eth0/carrier)\" = 1 ]; do sleep 0.1; done
                 rdma link add rxe0 type rxe netdev eth0
                 until rdma link show | grep -q ACTIVE; do sleep 0.1; done"
            )
        };
        let job = |own: u8, script: &str| {
            Job::new()
                .deadline(Duration::from_secs(120))
                .step(Step::new("set up", setup(own)))
                .step(Step::new("rping", script).limit(Duration::from_secs(90)))
        };
        let passive = job(1, "rping -s -a 192.168.7.1 -C 3 -V");
        let active = job(
            2,
            "until ping -q -c 1 -W 1 192.168.7.1; do sleep 0.1; done
             until rping -c -a 192.168.7.1 -C 3 -V -v; do sleep 0.5; done",
        );
        let outcomes = machine.run_pair([&passive, &active], Wire::Captured);
        let [passive, active] = outcomes.unwrap().map(Result::unwrap);
        for outcome in [&passive, &active] {
            assert_eq!(outcome.status, 0, "{outcome}\n{:?}", outcome.steps);
        }
        for outcome in [&passive, &active] {
            let capture = outcome
                .wire_capture()
                .expect("a machine on a wire has a capture");
            let dissection = dissect(&capture).unwrap();
            dissection.check().unwrap();
            // REQ, REP, RTU, DREQ and DREP are UD SENDs; each iteration has one READ and one WRITE.
            for (opcode, at_least) in [(0x64, 5), (0x0c, 3), (0x0a, 3)] {
                let count = dissection.opcodes.get(&opcode).copied().unwrap_or(0);
                assert!(count >= at_least, "opcode {opcode:#x}: {dissection:?}");
            }
        }
    }
}

#[test]
fn tshark_distinguishes_a_whole_packet_from_one_without_its_header() {
    let test = "tshark_distinguishes_a_whole_packet_from_one_without_its_header";
    let Some(()) = available(test, prepare_host()) else {
        return;
    };
    const SEND_ONLY: u8 = 0x04;
    const RDMA_READ_REQUEST: u8 = 0x0c;
    let path = std::env::temp_dir().join(format!("portolan-judge-{}.pcap", std::process::id()));
    // Short payloads, some of which tshark's dissectors would take for their own protocols.
    let sends: Vec<_> = [0, 4, 8, 16, 20, 64]
        .iter()
        .map(|size| bth_packet(SEND_ONLY, &vec![0; *size]))
        .collect();
    std::fs::write(&path, pcap(&sends)).unwrap();
    let whole = dissect(&path).unwrap();
    // A READ request without its RETH (16 bytes).
    std::fs::write(
        &path,
        pcap(&[
            bth_packet(SEND_ONLY, &[0; 8]),
            bth_packet(RDMA_READ_REQUEST, &[]),
        ]),
    )
    .unwrap();
    let headless = dissect(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    whole.check().unwrap();
    assert_eq!(headless.malformed, [2], "{headless:?}");
    assert!(headless.check().is_err());
}

/// An Ethernet frame with a RoCEv2 packet: base transport header, `rest`, and a zero ICRC.
fn bth_packet(opcode: u8, rest: &[u8]) -> Vec<u8> {
    let udp_bytes = u16::try_from(8 + 12 + rest.len() + 4).unwrap();
    let mut packet = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00];
    packet.extend([0x45, 0]);
    packet.extend((20 + udp_bytes).to_be_bytes());
    packet.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 7, 0, 1, 10, 7, 0, 2]);
    packet.extend(50_000_u16.to_be_bytes());
    packet.extend(4791_u16.to_be_bytes());
    packet.extend(udp_bytes.to_be_bytes());
    packet.extend([0, 0]);
    packet.extend([opcode, 0x40, 0xff, 0xff, 0, 0, 0, 17, 0, 0, 0, 0]);
    packet.extend(rest);
    packet.extend([0; 4]);
    packet
}

/// A capture file, in the classic format with microseconds, link type Ethernet.
fn pcap(packets: &[Vec<u8>]) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for packet in packets {
        let length = u32::try_from(packet.len()).unwrap();
        for word in [0, 0, length, length] {
            file.extend(word.to_le_bytes());
        }
        file.extend(packet);
    }
    file
}
