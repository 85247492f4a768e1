//! Messages of ibacm's socket (version 1 of its protocol), as pure code. Numbers are in host order
//! because both ends are on one machine.

use std::net::IpAddr;

use portolan_wire::sa::PathRecord;

use super::PathRequest;
use crate::path::PathData;

/// Length of a message's header, in bytes: version, operation, status, three bytes of data, length,
/// transaction.
pub(super) const HEADER_LEN: usize = 16;
/// Length of an entry, in bytes: flags, type, two reserved bytes, and the value.
const ENTRY_LEN: usize = 72;
/// Maximum number of entries in a message.
const ENTRIES_MAX: usize = 8;
/// Maximum length of a message, in bytes.
pub(super) const MESSAGE_MAX: usize = HEADER_LEN + ENTRIES_MAX * ENTRY_LEN;

const VERSION: u8 = 1;
const RESOLVE: u8 = 1;
/// Set in the operation of some answers: refusals, and answers by ibacm itself. Its provider
/// returns the request's operation unchanged (rdma-core 44, `acmp_resolve_response`), and librdmacm
/// ignores this bit.
const ACKNOWLEDGED: u8 = 0x80;
/// Whether an entry is the source or the destination.
const SOURCE: u32 = 1 << 0;
const DESTINATION: u32 = 1 << 1;
/// Types of entries.
const IPV4: u16 = 2;
const IPV6: u16 = 3;
const PATH: u16 = 0x10;

/// The content of an answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Paths(Vec<PathData>),
    /// ibacm's status for a refusal (`ACM_STATUS_*`).
    Refused(u8),
}

/// Why bytes are not a valid answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Garbled(pub(super) &'static str);

/// Encodes a query.
pub(super) fn request(question: &PathRequest, transaction: u64) -> Option<Vec<u8>> {
    let mut bytes = vec![0; HEADER_LEN];
    match *question {
        PathRequest::Ip {
            source,
            destination,
        } => {
            if let Some(source) = source {
                entry_of_ip(&mut bytes, SOURCE, source);
            }
            entry_of_ip(&mut bytes, DESTINATION, destination);
        }
        PathRequest::Gid { ref like } => {
            let mut record = [0; PathRecord::LEN];
            like.emit(&mut record).ok()?;
            entry(&mut bytes, 0, PATH, &record);
        }
    }
    let length = u16::try_from(bytes.len()).ok()?;
    (bytes[0], bytes[1]) = (VERSION, RESOLVE);
    bytes[6..8].copy_from_slice(&length.to_ne_bytes());
    bytes[8..16].copy_from_slice(&transaction.to_ne_bytes());
    Some(bytes)
}

fn entry_of_ip(bytes: &mut Vec<u8>, flags: u32, ip: IpAddr) {
    match ip.to_canonical() {
        IpAddr::V4(v4) => entry(bytes, flags, IPV4, &v4.octets()),
        IpAddr::V6(v6) => entry(bytes, flags, IPV6, &v6.octets()),
    }
}

fn entry(bytes: &mut Vec<u8>, flags: u32, kind: u16, what: &[u8]) {
    let end = bytes.len() + ENTRY_LEN;
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(what);
    bytes.resize(end, 0);
}

/// The length that a message announces, once its header has arrived.
pub(super) fn length(bytes: &[u8]) -> Option<Result<usize, Garbled>> {
    let header = bytes.get(..HEADER_LEN)?;
    let length = usize::from(u16::from_ne_bytes([header[6], header[7]]));
    let entries = length.checked_sub(HEADER_LEN);
    let fits = entries.is_some_and(|entries| entries.is_multiple_of(ENTRY_LEN));
    Some(match fits && length <= MESSAGE_MAX {
        true => Ok(length),
        false => Err(Garbled("its length is not that of a message")),
    })
}

/// Parses a whole answer to `question`.
pub(super) fn read(
    bytes: &[u8],
    question: &PathRequest,
    transaction: u64,
) -> Result<Answer, Garbled> {
    let announced = length(bytes).ok_or(Garbled("it ends within its header"))??;
    if announced != bytes.len() {
        return Err(Garbled("its length differs from its header"));
    }
    if bytes[0] != VERSION {
        return Err(Garbled("its version differs"));
    }
    if bytes[1] & !ACKNOWLEDGED != RESOLVE {
        return Err(Garbled("it answers a different operation"));
    }
    if bytes[8..16] != transaction.to_ne_bytes() {
        return Err(Garbled("it answers a different query"));
    }
    if bytes[2] != 0 {
        return Ok(Answer::Refused(bytes[2]));
    }
    let mut paths = Vec::new();
    for entry in bytes[HEADER_LEN..].chunks_exact(ENTRY_LEN) {
        if u16::from_ne_bytes([entry[4], entry[5]]) != PATH {
            continue;
        }
        let record =
            PathRecord::parse(&entry[8..]).map_err(|_| Garbled("it has an invalid path record"))?;
        check(&record, question)?;
        let told = u32::from_ne_bytes([entry[0], entry[1], entry[2], entry[3]]);
        let usual = PathData::GMP | PathData::PRIMARY | PathData::BIDIRECTIONAL;
        let flags = match told & KNOWN_FLAGS {
            0 => usual,
            known => known,
        };
        paths.push(PathData { flags, record });
    }
    match paths.is_empty() {
        true => Err(Garbled("it has no path")),
        false => Ok(Answer::Paths(paths)),
    }
}

/// The flags that a path may have.
const KNOWN_FLAGS: u32 = PathData::GMP
    | PathData::PRIMARY
    | PathData::ALTERNATE
    | PathData::OUTBOUND
    | PathData::INBOUND
    | PathData::INBOUND_REVERSE;

/// Checks that a path connects the requested ends and is usable.
fn check(record: &PathRecord, question: &PathRequest) -> Result<(), Garbled> {
    if record.dlid == 0 && record.hop_limit <= 1 {
        return Err(Garbled("it has a path without a destination LID"));
    }
    let PathRequest::Gid { like } = question else {
        return Ok(());
    };
    let ends = [(record.sgid, like.sgid), (record.dgid, like.dgid)];
    let differs = |(found, asked): &(_, portolan_wire::Gid)| {
        !asked.is_unspecified() && !asked.is_answered_by(*found)
    };
    match ends.iter().any(differs) {
        true => Err(Garbled("it has a path between other ends")),
        false => Ok(()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use portolan_wire::Gid;
    use proptest::prelude::*;

    use super::*;

    pub(in super::super) fn record() -> PathRecord {
        PathRecord {
            sgid: Gid([0xFE; 16]),
            dgid: Gid([0xFD; 16]),
            dlid: 4,
            slid: 1,
            ..PathRecord::default()
        }
    }

    pub(in super::super) fn question() -> PathRequest {
        PathRequest::Gid { like: record() }
    }

    /// Builds an answer with a path.
    pub(in super::super) fn answer(transaction: u64, record: &PathRecord) -> Vec<u8> {
        let like = *record;
        let mut bytes = request(&PathRequest::Gid { like }, transaction).expect("fits");
        bytes[1] |= ACKNOWLEDGED;
        bytes
    }

    #[test]
    fn questions_have_the_entries_of_the_protocol() {
        let (source, destination) = ("10.0.0.1".parse().ok(), "fd00::2".parse().expect("ip"));
        let question = PathRequest::Ip {
            source,
            destination,
        };
        let bytes = request(&question, 7).expect("fits");
        assert_eq!(bytes.len(), 16 + 2 * 72);
        assert_eq!(bytes[..3], [1, 1, 0]);
        assert_eq!(bytes[6..8], 160_u16.to_ne_bytes());
        assert_eq!(bytes[8..16], 7_u64.to_ne_bytes());
        let (from, to) = (&bytes[16..88], &bytes[88..]);
        assert_eq!(
            (&from[..4], &from[4..6]),
            (&1_u32.to_ne_bytes()[..], &2_u16.to_ne_bytes()[..])
        );
        assert_eq!(from[8..12], [10, 0, 0, 1]);
        assert_eq!(
            (&to[..4], &to[4..6]),
            (&2_u32.to_ne_bytes()[..], &3_u16.to_ne_bytes()[..])
        );
        assert_eq!((to[8], to[23]), (0xFD, 2));
    }

    #[test]
    fn a_mapped_address_is_asked_for_as_ipv4() {
        let of = |text: &str| {
            let question = PathRequest::Ip {
                source: text.parse().ok(),
                destination: text.parse().expect("ip"),
            };
            request(&question, 7).expect("fits")
        };
        assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
    }

    #[test]
    fn an_answer_gives_its_paths() {
        let expected = PathData {
            flags: PathData::GMP | PathData::PRIMARY | PathData::BIDIRECTIONAL,
            record: record(),
        };
        let read = read(&answer(7, &record()), &question(), 7);
        assert_eq!(read, Ok(Answer::Paths(vec![expected])));
    }

    #[test]
    fn an_answer_may_have_the_operation_as_it_was_asked() {
        let mut unmarked = answer(7, &record());
        unmarked[1] = RESOLVE;
        let marked = read(&answer(7, &record()), &question(), 7);
        assert!(marked.is_ok());
        assert_eq!(read(&unmarked, &question(), 7), marked);
    }

    #[test]
    fn a_message_that_does_not_answer_the_query_is_garbled() {
        let good = answer(7, &record());
        let with = |at: usize, value: u8| {
            let mut bytes = good.clone();
            bytes[at] = value;
            bytes
        };
        let elsewhere = PathRecord {
            dgid: Gid([1; 16]),
            ..record()
        };
        let nowhere = PathRecord {
            dlid: 0,
            ..record()
        };
        let mut empty = good[..16].to_vec();
        empty[6..8].copy_from_slice(&16_u16.to_ne_bytes());
        for bytes in [
            Vec::new(),
            good[..15].to_vec(),
            good[..87].to_vec(),
            [&good[..], &[0]].concat(),
            with(0, 2),
            with(1, 2),
            with(1, 0x82),
            with(6, 0xFF),
            with(8, 0xEE),
            answer(7, &elsewhere),
            answer(7, &nowhere),
            empty,
        ] {
            assert!(read(&bytes, &question(), 7).is_err(), "{bytes:x?}");
        }
        assert_eq!(read(&with(2, 6), &question(), 7), Ok(Answer::Refused(6)));
    }

    #[test]
    fn the_path_to_a_link_local_gid_may_have_the_subnets_prefix() {
        let link_local = |last| Gid([0xFE, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]);
        let of_subnet = |last| Gid([0xFE, 0xC0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, last]);
        let between = |sgid, dgid| PathRecord {
            sgid,
            dgid,
            ..record()
        };
        let like = between(link_local(1), link_local(2));
        let question = PathRequest::Gid { like };
        let right = between(of_subnet(1), of_subnet(2));
        let read = |record| read(&answer(7, &record), &question, 7);
        assert!(matches!(read(right), Ok(Answer::Paths(_))));
        assert!(read(between(of_subnet(1), of_subnet(3))).is_err());
    }

    proptest! {
        #[test]
        fn no_answer_panics(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
            entries in 0..3_usize,
            is_plausible: bool,
        ) {
            if is_plausible {
                let length = HEADER_LEN + entries * ENTRY_LEN;
                bytes.resize(length, 0);
                (bytes[0], bytes[1], bytes[2]) = (VERSION, RESOLVE | ACKNOWLEDGED, 0);
                bytes[6..8].copy_from_slice(&(length as u16).to_ne_bytes());
                bytes[8..16].copy_from_slice(&7_u64.to_ne_bytes());
                if entries > 0 {
                    bytes[20..22].copy_from_slice(&PATH.to_ne_bytes());
                }
            }
            if let Ok(Answer::Paths(paths)) = read(&bytes, &question(), 7) {
                prop_assert!(!paths.is_empty() && paths.len() <= ENTRIES_MAX);
            }
        }
    }
}
