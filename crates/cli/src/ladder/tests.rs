use proptest::prelude::*;

use super::*;

const THEME: Theme = Theme {
    width: 72,
    color: false,
    unicode: true,
};

fn us(us: u64) -> Duration {
    Duration::from_micros(us)
}

fn arrow(at: u64, from: Lane, to: Lane, kind: Kind, label: &str, payload_len: u64) -> Arrow {
    Arrow {
        at: us(at),
        from,
        to,
        label: label.into(),
        kind,
        payload_len,
    }
}

/// A connection with `pings` exchanges, a large write and a disconnect.
fn conversation(pings: u64) -> Ladder {
    let mut ladder = Ladder::new();
    let a = ladder.lane("10.0.0.1");
    let b = ladder.lane("10.0.0.2");
    ladder.local(Local {
        at: us(0),
        lane: a,
        label: "ROUTE_RESOLVED".into(),
    });
    ladder.arrow(arrow(10, a, b, Kind::Handshake, "REQ tcp:7471", 0));
    ladder.local(Local {
        at: us(20),
        lane: b,
        label: "CONNECT_REQUEST".into(),
    });
    ladder.arrow(arrow(30, b, a, Kind::Handshake, "REP", 0));
    for ping in 0..pings {
        ladder.arrow(arrow(100 + ping, a, b, Kind::Data, "SEND Only", 16));
        ladder.arrow(arrow(100 + ping, b, a, Kind::Ack, "ACK", 0));
    }
    ladder.local(Local {
        at: us(9_000),
        lane: a,
        label: "writing".into(),
    });
    for packet in 0..120 {
        ladder.arrow(arrow(10_000 + packet, a, b, Kind::Data, "WRITE", 1024));
    }
    ladder.arrow(arrow(
        2_000_000,
        a,
        b,
        Kind::Failure,
        "a label that is far too long for the room it has",
        0,
    ));
    ladder
}

/// Compares with a snapshot file; `BLESS=1` in the environment rewrites it.
fn assert_snapshot(name: &str, lines: &[String]) {
    let path = format!(
        "{}/src/ladder/snapshots/{name}.txt",
        env!("CARGO_MANIFEST_DIR")
    );
    let drawn = lines.join("\n") + "\n";
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &drawn).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap();
    assert!(
        drawn == expected,
        "{name} differs:\n{drawn}\nexpected:\n{expected}"
    );
}

#[test]
fn a_conversation_is_drawn_with_its_runs_folded() {
    assert_snapshot("conversation", &conversation(1000).finish(&THEME));
}

#[test]
fn ascii_and_colors_follow_the_theme() {
    let ascii = Theme {
        unicode: false,
        ..THEME
    };
    let lines = conversation(20).finish(&ascii);
    assert!(lines.iter().all(|line| line.is_ascii()));
    assert_snapshot("ascii", &lines);
    let color = Theme {
        color: true,
        ..THEME
    };
    assert_snapshot("color", &conversation(0).finish(&color));
}

#[test]
fn three_hosts_are_side_by_side_and_arrows_cross_the_middle_one() {
    let mut ladder = Ladder::new();
    let [a, b, c] =
        ["left", "middle", "2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff"].map(|name| ladder.lane(name));
    ladder.arrow(arrow(1, a, c, Kind::Handshake, "REQ", 0));
    ladder.arrow(arrow(2, c, b, Kind::Failure, "REJ", 0));
    ladder.local(Local {
        at: us(3),
        lane: b,
        label: "REJECTED".into(),
    });
    ladder.arrow(arrow(4, b, b, Kind::Data, "to itself", 0));
    assert_snapshot("three-hosts", &ladder.finish(&THEME));
}

#[test]
fn hosts_beyond_the_last_column_share_it() {
    let mut ladder = Ladder::new();
    let lanes: Vec<_> = (0..MAX_LANES + 3)
        .map(|i| ladder.lane(&format!("host {i}")))
        .collect();
    assert_eq!(lanes.last(), Some(&Lane(MAX_LANES - 1)));
    assert_eq!(ladder.lanes.last().map(String::as_str), Some(OTHERS));
    assert_eq!(ladder.lane("host 3"), Lane(3));
}

#[test]
fn rows_beyond_the_bound_are_counted_instead_of_kept() {
    let mut ladder = Ladder::new();
    let a = ladder.lane("a");
    for i in 0..MAX_ROWS as u64 + 5 {
        ladder.local(Local {
            at: us(i),
            lane: a,
            label: String::new(),
        });
    }
    let lines = ladder.finish(&THEME);
    assert_eq!(
        lines.last().map(String::as_str),
        Some("5 more rows are not drawn")
    );
}

#[test]
fn rows_that_overtook_each_other_are_drawn_in_the_order_of_time() {
    let mut ladder = Ladder::new();
    let a = ladder.lane("a");
    for at in [3, 1, 2, 2] {
        ladder.local(Local {
            at: us(at),
            lane: a,
            label: format!("at {at}"),
        });
    }
    let lines = ladder.finish(&THEME);
    let labels: Vec<_> = lines
        .iter()
        .filter_map(|line| line.split("at ").nth(1))
        .collect();
    assert_eq!(labels, ["1", "2", "2", "3"]);
}

#[test]
fn an_empty_ladder_draws_nothing() {
    assert!(Ladder::new().finish(&THEME).is_empty());
}

#[test]
fn a_hostile_label_cannot_write_control_sequences() {
    let mut ladder = Ladder::new();
    let a = ladder.lane("a\x1b[2J");
    ladder.local(Local {
        at: us(0),
        lane: a,
        label: "\x1b]0;title\x07".into(),
    });
    assert!(
        ladder
            .finish(&THEME)
            .iter()
            .all(|line| !line.contains('\x1b'))
    );
}

proptest! {
    /// Shown and folded packets add up to the input, and memory stays bounded.
    #[test]
    fn folding_loses_no_packet_and_no_byte(
        traffic in prop::collection::vec((0_usize..3, 0_usize..3, 0_u8..4, 0_u64..5000), 0..400)
    ) {
        let mut ladder = Ladder::new();
        let lanes = ["a", "b", "c"].map(|name| ladder.lane(name));
        for (i, &(from, to, kind, len)) in traffic.iter().enumerate() {
            let kind = [Kind::Data, Kind::Data, Kind::Ack, Kind::Handshake][usize::from(kind)];
            ladder.arrow(arrow(i as u64, lanes[from], lanes[to], kind, "x", len));
        }
        let mut rows = Vec::new();
        for row in ladder.order.drain() {
            ladder.folder.push(row, &mut |row| rows.push(row));
        }
        ladder.folder.finish(&mut |row| rows.push(row));
        let (mut packets, mut bytes) = (0, 0);
        for row in ladder.rows.iter().chain(&rows) {
            match row {
                Row::Arrow(arrow) => { packets += 1; bytes += arrow.payload_len }
                Row::Fold(fold) => {
                    let (forward, backward) = (fold.forward, fold.backward);
                    prop_assert!(forward.packets + backward.packets > 1, "a fold of one");
                    packets += forward.packets + backward.packets;
                    bytes += forward.payload_len + backward.payload_len;
                }
                Row::Local(_) => {}
            }
        }
        prop_assert_eq!(packets, traffic.len() as u64);
        prop_assert_eq!(bytes, traffic.iter().map(|packet| packet.3).sum::<u64>());
    }

    #[test]
    fn no_line_is_wider_than_the_terminal(width in 60_usize..160, label in ".{0,200}", left: bool) {
        let mut ladder = Ladder::new();
        let (a, b) = (ladder.lane(&label), ladder.lane("b"));
        let (from, to) = if left { (b, a) } else { (a, b) };
        ladder.arrow(arrow(0, from, to, Kind::Data, &label, 0));
        ladder.local(Local { at: us(1), lane: from, label });
        for line in ladder.finish(&Theme { width, ..THEME }) {
            prop_assert!(line.chars().count() <= width, "{}", line);
        }
    }
}
