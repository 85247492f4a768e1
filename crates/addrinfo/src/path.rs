//! Paths in the form of rdma_getaddrinfo(3): `struct ibv_path_data`.

use std::fmt;

use portolan_wire::Gid;
use portolan_wire::sa::{PathRecord, Selected, Selector, rate_mbps};

/// Maximum number of records of a route: as many as the rdma_cm returns for a query.
///
/// The limit also keeps the length of an array unambiguous: 9 records without flags are as long as 8 with flags.
pub const ROUTE_RECORDS_MAX: usize = 6;

/// A path and its purpose (`struct ibv_path_data` of `infiniband/sa.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct PathData {
    /// `IBV_PATH_FLAG_*`.
    pub flags: u32,
    /// The path.
    pub record: PathRecord,
}

impl PathData {
    /// Bytes of `struct ibv_path_data`.
    pub const LEN: usize = 8 + PathRecord::LEN;
    /// `IBV_PATH_FLAG_GMP`: may carry management datagrams.
    pub const GMP: u32 = 1 << 0;
    /// `IBV_PATH_FLAG_PRIMARY`: the path to use first.
    pub const PRIMARY: u32 = 1 << 1;
    /// `IBV_PATH_FLAG_ALTERNATE`.
    pub const ALTERNATE: u32 = 1 << 2;
    /// `IBV_PATH_FLAG_OUTBOUND`: away from here.
    pub const OUTBOUND: u32 = 1 << 3;
    /// `IBV_PATH_FLAG_INBOUND`: towards here.
    pub const INBOUND: u32 = 1 << 4;
    /// `IBV_PATH_FLAG_INBOUND_REVERSE`: inbound, as the reverse of the outbound path.
    pub const INBOUND_REVERSE: u32 = 1 << 5;
    /// `IBV_PATH_FLAG_BIDIRECTIONAL`: outbound, and inbound in reverse.
    pub const BIDIRECTIONAL: u32 = Self::OUTBOUND | Self::INBOUND_REVERSE;

    /// A path with flags.
    pub const fn new(flags: u32, record: PathRecord) -> Self {
        Self { flags, record }
    }

    /// Reads an array of `struct ibv_path_data`, or of `struct ibv_path_record`, which has no flags; `None` if the
    /// length matches neither.
    pub(crate) fn parse_array(bytes: &[u8]) -> Option<Vec<Self>> {
        let count = |length: usize| bytes.len() / length;
        if bytes.len().is_multiple_of(Self::LEN) && count(Self::LEN) <= ROUTE_RECORDS_MAX {
            return bytes.chunks(Self::LEN).map(Self::parse).collect();
        }
        let fits = bytes.len().is_multiple_of(PathRecord::LEN);
        if !fits || count(PathRecord::LEN) > ROUTE_RECORDS_MAX {
            return None;
        }
        let read = |chunk| {
            let record = PathRecord::parse(chunk).ok()?;
            Some(Self { flags: 0, record })
        };
        bytes.chunks(PathRecord::LEN).map(read).collect()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        Some(Self {
            flags: u32::from_ne_bytes(*bytes.first_chunk()?),
            record: PathRecord::parse(bytes.get(8..)?).ok()?,
        })
    }

    /// The bytes of `struct ibv_path_data`: flags in host order, the record as on the wire.
    ///
    /// # Errors
    /// [`portolan_wire::Error::OutOfRange`] for a value wider than its field.
    pub fn to_bytes(&self) -> Result<[u8; Self::LEN], portolan_wire::Error> {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&self.flags.to_ne_bytes());
        self.record.emit(&mut out[8..])?;
        Ok(out)
    }

    /// Whether this path satisfies `wanted`: each nonzero field of `wanted` must match. A GID matches as
    /// [`Gid::is_answered_by`] says. A value with a selector (MTU,
    /// rate, lifetime) is compared as its selector says, rates by their speed.
    pub fn meets(&self, wanted: &Self) -> bool {
        let (have, want) = (&self.record, &wanted.record);
        fn same<T: PartialEq + Default>(have: T, want: T) -> bool {
            want == T::default() || have == want
        }
        let answers = |have, want: Gid| want.is_unspecified() || want.is_answered_by(have);
        fn selected<T: PartialOrd>(
            have: Selected,
            want: Selected,
            size: fn(u8) -> Option<T>,
        ) -> bool {
            let both = size(have.value).zip(size(want.value));
            want.value == 0
                || match want.selector {
                    Selector::GreaterThan => both.is_some_and(|(have, want)| have > want),
                    Selector::LessThan => both.is_some_and(|(have, want)| have < want),
                    Selector::Exactly => have.value == want.value,
                    Selector::Largest => true,
                }
        }
        same(have.service_id, want.service_id)
            && answers(have.dgid, want.dgid)
            && answers(have.sgid, want.sgid)
            && same(have.dlid, want.dlid)
            && same(have.slid, want.slid)
            && same(have.flow_label, want.flow_label)
            && same(have.hop_limit, want.hop_limit)
            && same(have.traffic_class, want.traffic_class)
            && (have.reversible || !want.reversible)
            && same(have.pkey.0, want.pkey.0)
            && same(have.qos_class, want.qos_class)
            && same(have.sl, want.sl)
            && selected(have.mtu, want.mtu, Some)
            && selected(have.rate, want.rate, rate_mbps)
            && selected(have.packet_lifetime, want.packet_lifetime, Some)
            && self.flags & wanted.flags == wanted.flags
    }
}

impl fmt::Display for PathData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} flags {:#x}", self.record, self.flags)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_compared_by_their_speed_and_not_by_their_code() {
        let path = |selector, value| {
            let rate = Selected { selector, value };
            PathData::new(
                0,
                PathRecord {
                    rate,
                    ..PathRecord::default()
                },
            )
        };
        // Codes of 2.5, 5, 10, 14, 20, 25, 30, 40, 100, 120 and 800 Gbit/s.
        let by_speed = [2, 5, 3, 11, 6, 15, 4, 7, 16, 10, 23];
        for (at, have) in by_speed.into_iter().enumerate() {
            for (other, want) in by_speed.into_iter().enumerate() {
                let meets = |selector| path(Selector::Exactly, have).meets(&path(selector, want));
                assert_eq!(meets(Selector::GreaterThan), at > other, "{have} > {want}");
                assert_eq!(meets(Selector::LessThan), at < other, "{have} < {want}");
                assert_eq!(meets(Selector::Exactly), at == other, "{have} = {want}");
                assert!(meets(Selector::Largest));
            }
        }
        // A code without a known speed is neither faster nor slower.
        let unknown = path(Selector::Exactly, 63);
        assert!(!unknown.meets(&path(Selector::GreaterThan, 2)));
        assert!(!unknown.meets(&path(Selector::LessThan, 23)));
        assert!(unknown.meets(&path(Selector::Exactly, 63)));
    }
}
