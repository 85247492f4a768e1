//! The report of a process to an observer: lines of text, packed into parts.
//!
//! Words are separated by one space; the last word takes the rest of the line. Unknown lines are ignored, so that
//! versions can differ.

use std::net::SocketAddr;

use portolan_port_sharing::{Block, REPORT_PARTS_MAX, REQUEST_BYTES_MAX};
use portolan_wire::addr::{PortSpace, Qpn, ServiceId};

use super::SurveyedWay;

/// Maximum length of a line, bytes.
const LINE_BYTES_MAX: usize = 512;
/// Replaces a missing address or number.
const NONE: &str = "-";

/// One fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Line {
    /// From a member: the program that it runs.
    Program(String),
    /// From a member: a count.
    Counter { name: String, value: u64 },
    /// From a member: a connection, or an address resolution for one.
    Connection {
        local: Option<SocketAddr>,
        remote: Option<SocketAddr>,
        qpn: Option<Qpn>,
        state: String,
    },
    /// From a member: how a queue pair's packets are sent.
    Way { qpn: Qpn, way: SurveyedWay },
    /// From a member: a service that it listens to.
    Service(ServiceId),
    /// From the coordinator: a port in use.
    Port {
        block: Block,
        port_space: PortSpace,
        address: SocketAddr,
        listening: bool,
    },
}

impl Line {
    fn encode(&self) -> String {
        match self {
            Self::Program(name) => format!("program {}", name.escape_default()),
            Self::Counter { name, value } => format!("counter {name} {value}"),
            Self::Connection {
                local,
                remote,
                qpn,
                state,
            } => {
                let (local, remote) = (or_none(local.as_ref()), or_none(remote.as_ref()));
                let qpn = or_none(qpn.map(Qpn::value).as_ref());
                format!("connection {local} {remote} {qpn} {state}")
            }
            Self::Way { qpn, way } => match way {
                SurveyedWay::Memory => format!("way {} memory", qpn.value()),
                SurveyedWay::Rings { why } => format!("way {} rings {why}", qpn.value()),
                SurveyedWay::Socket { why } => format!("way {} socket {why}", qpn.value()),
            },
            Self::Service(service) => format!("service {}", service.0),
            Self::Port {
                block,
                port_space,
                address,
                listening,
            } => {
                let (block, space) = (block.index(), port_space.value());
                format!("port {block} {space} {address} {}", u8::from(*listening))
            }
        }
    }

    /// Returns `None` for an unknown line.
    fn decode(line: &str) -> Option<Self> {
        let (kind, rest) = line.split_once(' ')?;
        match kind {
            "program" => Some(Self::Program(unescape(rest))),
            "counter" => {
                let (name, value) = rest.split_once(' ')?;
                Some(Self::Counter {
                    name: name.to_owned(),
                    value: value.parse().ok()?,
                })
            }
            "connection" => {
                let mut words = rest.splitn(4, ' ');
                Some(Self::Connection {
                    local: maybe(words.next()?)?,
                    remote: maybe(words.next()?)?,
                    qpn: maybe::<u32>(words.next()?)?.map(Qpn::new),
                    state: words.next()?.to_owned(),
                })
            }
            "way" => {
                let (qpn, rest) = rest.split_once(' ')?;
                let way = match rest.split_once(' ') {
                    None if rest == "memory" => SurveyedWay::Memory,
                    Some(("rings", why)) => SurveyedWay::Rings {
                        why: why.to_owned(),
                    },
                    Some(("socket", why)) => SurveyedWay::Socket {
                        why: why.to_owned(),
                    },
                    _ => return None,
                };
                let qpn = Qpn::new(qpn.parse().ok()?);
                Some(Self::Way { qpn, way })
            }
            "service" => Some(Self::Service(ServiceId(rest.parse().ok()?))),
            "port" => {
                let mut words = rest.splitn(4, ' ');
                Some(Self::Port {
                    block: Block::new(words.next()?.parse().ok()?)?,
                    port_space: PortSpace::from_value(words.next()?.parse().ok()?)?,
                    address: words.next()?.parse().ok()?,
                    listening: words.next()? == "1",
                })
            }
            _ => None,
        }
    }
}

/// Undoes `escape_default`. What is no escape sequence of it stays as it is.
fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        let (before, sequence) = rest.split_at(at);
        plain.push_str(before);
        let (character, length) = escaped(sequence).unwrap_or(('\\', 1));
        plain.push(character);
        rest = sequence.get(length..).unwrap_or_default();
    }
    plain + rest
}

/// The character that an escape sequence at the start of the text means, and the sequence's length.
fn escaped(text: &str) -> Option<(char, usize)> {
    let kind = text.chars().nth(1)?;
    let character = match kind {
        't' => '\t',
        'r' => '\r',
        'n' => '\n',
        '\'' | '"' | '\\' => kind,
        'u' => {
            let digits = text.strip_prefix("\\u{")?.split_once('}')?.0;
            let number = u32::from_str_radix(digits, 16).ok()?;
            return Some((char::from_u32(number)?, digits.len() + "\\u{}".len()));
        }
        _ => return None,
    };
    Some((character, 2))
}

fn or_none(value: Option<&impl ToString>) -> String {
    value.map_or_else(|| NONE.to_owned(), ToString::to_string)
}

/// `Some(None)` for a missing value, `None` for a malformed one.
fn maybe<T: std::str::FromStr>(word: &str) -> Option<Option<T>> {
    match word {
        NONE => Some(None),
        word => word.parse().ok().map(Some),
    }
}

/// Packs lines into the parts of a report, up to the maximum number of parts.
pub(super) fn pack(lines: impl IntoIterator<Item = Line>) -> Vec<Vec<u8>> {
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for line in lines {
        let text = line.encode();
        if text.len() > LINE_BYTES_MAX {
            continue;
        }
        let has_room = |part: &Vec<u8>| part.len() + text.len() < REQUEST_BYTES_MAX;
        if !parts.last().is_some_and(has_room) {
            if parts.len() == REPORT_PARTS_MAX - 1 {
                break;
            }
            parts.push(Vec::new());
        }
        if let Some(part) = parts.last_mut() {
            part.extend_from_slice(text.as_bytes());
            part.push(b'\n');
        }
    }
    parts
}

/// The known lines of a report.
pub(super) fn unpack(parts: &[Vec<u8>]) -> impl Iterator<Item = Line> {
    let lines = parts
        .iter()
        .flat_map(|part| part.split(|byte| *byte == b'\n'));
    lines.filter_map(|line| Line::decode(std::str::from_utf8(line).ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn connection(remote: &str, qpn: Option<u32>) -> Line {
        Line::Connection {
            local: Some("[fe80::1%3]:7471".parse().unwrap()),
            remote: remote.parse().ok(),
            qpn: qpn.map(Qpn::new),
            state: "REQ acknowledged by MRA".into(),
        }
    }

    #[test]
    fn packed_lines_are_unpacked_unchanged() {
        let lines = vec![
            Line::Program("a program".into()),
            Line::Counter {
                name: "sent_packets".into(),
                value: u64::MAX,
            },
            connection("127.0.0.1:40000", Some(0x01_0005)),
            connection("", None),
            Line::Way {
                qpn: Qpn::new(0x01_0005),
                way: SurveyedWay::Memory,
            },
            Line::Way {
                qpn: Qpn::new(0x01_0007),
                way: SurveyedWay::Rings {
                    why: "it is forbidden".into(),
                },
            },
            Line::Way {
                qpn: Qpn::new(0x01_0006),
                way: SurveyedWay::Socket {
                    why: "it is elsewhere".into(),
                },
            },
            Line::Service(ServiceId::from_port(PortSpace::Tcp, 7471)),
            Line::Port {
                block: Block::new(127).unwrap(),
                port_space: PortSpace::Udp,
                address: "[::]:7471".parse().unwrap(),
                listening: true,
            },
        ];
        assert_eq!(unpack(&pack(lines.clone())).collect::<Vec<_>>(), lines);
    }

    #[test]
    fn a_long_report_has_many_parts_and_an_endless_one_is_truncated() {
        let lines = |count| std::iter::repeat_n(connection("127.0.0.1:40000", Some(1)), count);
        let parts = pack(lines(10_000));
        assert!(parts.iter().all(|part| part.len() <= REQUEST_BYTES_MAX));
        assert_eq!(unpack(&parts).count(), 10_000);
        let cut = pack(lines(1_000_000));
        assert_eq!(cut.len(), REPORT_PARTS_MAX - 1);
    }

    #[test]
    fn a_name_cannot_pass_for_another_line() {
        let name = "x\nport 1 262 0.0.0.0:22 1".to_owned();
        let lines: Vec<_> = unpack(&pack([Line::Program(name)])).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
    }

    #[test]
    fn a_name_arrives_as_it_was_reported() {
        for name in [
            "it's \"x\"",
            "tab\tback\\slash",
            "\u{e9}\u{1f680}",
            "x\ny",
            "\\u{0}",
            "",
        ] {
            let reported = Line::Program(name.to_owned());
            let lines: Vec<_> = unpack(&pack([reported.clone()])).collect();
            assert_eq!(lines, [reported]);
        }
    }

    #[test]
    fn what_is_no_escape_sequence_is_taken_literally() {
        for text in [
            "\\",
            "\\u",
            "\\u{",
            "\\u{}",
            "\\u{110000}",
            "\\u{d800}",
            "\\u{fffffffff}",
            "\\x",
        ] {
            let lines: Vec<_> = unpack(&[format!("program {text}").into_bytes()]).collect();
            assert_eq!(lines, [Line::Program(text.to_owned())]);
        }
    }

    proptest! {
        #[test]
        fn any_name_arrives_as_it_was_reported(name in ".{0,40}") {
            let reported = Line::Program(name);
            let lines: Vec<_> = unpack(&pack([reported.clone()])).collect();
            prop_assert_eq!(lines, [reported]);
        }

        #[test]
        fn any_escape_sequences_are_parsed(text in r"[\\u{}'0-9a-fnrt\x22]{0,40}") {
            let lines = unpack(&[format!("program {text}").into_bytes()]).count();
            prop_assert_eq!(lines, 1);
        }

        #[test]
        fn any_bytes_are_parsed_or_skipped(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            for line in unpack(&[bytes]) {
                prop_assert!(line.encode().len() > 4);
            }
        }
    }
}
