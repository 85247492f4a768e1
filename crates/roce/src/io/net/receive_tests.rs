use super::*;

#[test]
fn the_memory_for_packets_is_kept() {
    let arrived = Vec::with_capacity(100);
    let memory = arrived.as_ptr();
    let kept = emptied(arrived);
    assert_eq!((kept.as_ptr(), kept.capacity()), (memory, 100));
}

#[test]
fn every_dropped_packet_is_counted() {
    let monitor = Monitor::default();
    let (v4, v6) = ("10.0.0.1:4791", "[2001:db8::1]:4791");
    let good_form = [
        0x04, 0, 0xff, 0xff, 0, 0, 0, 7, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    for (source, payload) in [(v4, &[][..]), (v6, &good_form[..]), (v4, &good_form[..])] {
        let unchecked = Unchecked {
            source: source.parse().unwrap(),
            destination: v4.parse().unwrap(),
            ip: IpFields::default(),
            payload,
        };
        assert!(check(&unchecked, Identification::Guessed(0), &monitor).is_none());
    }
    let counters = monitor.counters.read();
    assert_eq!((counters.dropped_malformed, counters.dropped_icrc), (2, 1));
}
