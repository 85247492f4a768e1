//! Hints from C programs: numbers, and unvalidated bytes.

use portolan_provider::Address;
use portolan_provider::address::SockaddrError;
use portolan_wire::addr::PortSpace;

use super::{Family, Flags, Hints, QpType};
use crate::error::{AddrInfoError, CONNECT_DATA_MAX, Problem};
use crate::path::PathData;

/// The unvalidated fields of `struct rdma_addrinfo` as hints. An empty slice has a length of 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RawHints<'a> {
    /// `ai_flags`.
    pub flags: i32,
    /// `ai_family`; 0 (`AF_UNSPEC`) for any.
    pub family: i32,
    /// `ai_qp_type`; 0 for any.
    pub qp_type: i32,
    /// `ai_port_space`; 0 for any.
    pub port_space: i32,
    /// `ai_src_addr`: a `struct sockaddr_in`, `sockaddr_in6` or `sockaddr_ib`.
    pub src_addr: &'a [u8],
    /// `ai_dst_addr`, in the same formats.
    pub dst_addr: &'a [u8],
    /// `ai_route`: an array of `struct ibv_path_record` or `struct ibv_path_data`.
    pub route: &'a [u8],
    /// `ai_connect`.
    pub connect: &'a [u8],
}

impl RawHints<'_> {
    /// Validates each field by itself. Combinations of fields are checked when they are used.
    ///
    /// # Errors
    /// * `EAI_BADFLAGS`: unknown flags.
    /// * `EAI_FAMILY`: `ai_family`, if `RAI_FAMILY` is set, or the family of an address is not supported.
    /// * `EAI_QPTYPE`: an unknown queue pair type or port space.
    /// * `EAI_SYSTEM` with `EINVAL`: an address, route or connection data of invalid length.
    pub fn read(&self) -> Result<Hints, AddrInfoError> {
        self.fields().map_err(AddrInfoError::of_hints)
    }

    fn fields(&self) -> Result<Hints, Problem> {
        let bits = self.flags.cast_unsigned();
        let flags = Flags::from_bits(bits).ok_or(Problem::UnknownFlags {
            unknown: bits & !Flags::all().bits(),
        })?;
        let family = optional(self.family, |number| {
            Family::from_number(u16::try_from(number).ok()?)
        });
        // Without RAI_FAMILY the family is ignored, so an unknown one is no error.
        let family = family.or((!flags.contains(Flags::FAMILY)).then_some(None));
        let qp_type = optional(self.qp_type, |number| {
            QpType::from_number(u8::try_from(number).ok()?)
        });
        let port_space = optional(self.port_space, |number| {
            PortSpace::from_value(u16::try_from(number).ok()?)
        });
        Ok(Hints {
            flags,
            family: family.ok_or(Problem::UnknownFamily(self.family))?,
            qp_type: qp_type.ok_or(Problem::UnknownQpType(self.qp_type))?,
            port_space: port_space.ok_or(Problem::UnknownPortSpace(self.port_space))?,
            src_addr: address("ai_src_addr", self.src_addr)?,
            dst_addr: address("ai_dst_addr", self.dst_addr)?,
            route: PathData::parse_array(self.route).ok_or(Problem::RouteLength {
                length: self.route.len(),
            })?,
            connect: match self.connect.len() {
                length if length > CONNECT_DATA_MAX => {
                    return Err(Problem::ConnectTooLong { length });
                }
                _ => self.connect.to_vec(),
            },
        })
    }
}

/// Reads a number where 0 means unspecified; the outer `None` means that the number is invalid.
fn optional<T>(number: i32, read: impl FnOnce(i32) -> Option<T>) -> Option<Option<T>> {
    match number {
        0 => Some(None),
        number => read(number).map(Some),
    }
}

fn address(field: &'static str, bytes: &[u8]) -> Result<Option<Address>, Problem> {
    if bytes.is_empty() {
        return Ok(None);
    }
    match Address::from_sockaddr(bytes) {
        Ok(address) => Ok(Some(address)),
        Err(SockaddrError::Family(family)) => Err(Problem::UnknownFamily(family.into())),
        Err(error) => Err(Problem::Address { field, error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::Eai;

    fn code(raw: RawHints<'_>) -> Eai {
        raw.read().expect_err("refused").code()
    }

    #[test]
    fn zeros_mean_no_hints() {
        assert_eq!(RawHints::default().read(), Ok(Hints::default()));
    }

    #[test]
    fn every_number_of_the_header_file_is_known() {
        for (number, flag) in [
            (1, Flags::PASSIVE),
            (2, Flags::NUMERICHOST),
            (4, Flags::NOROUTE),
            (8, Flags::FAMILY),
            (0x10, Flags::SA),
            (0x20, Flags::DNS),
        ] {
            let raw = RawHints {
                flags: number,
                ..Default::default()
            };
            assert_eq!(raw.read().map(|hints| hints.flags), Ok(flag));
        }
        for (number, family) in [(2, Family::Inet), (10, Family::Inet6), (27, Family::Ib)] {
            let raw = RawHints {
                family: number,
                ..Default::default()
            };
            assert_eq!(raw.read().map(|hints| hints.family), Ok(Some(family)));
        }
        for (number, qp_type) in [
            (2, QpType::Rc),
            (3, QpType::Uc),
            (4, QpType::Ud),
            (9, QpType::XrcSend),
            (10, QpType::XrcRecv),
        ] {
            let raw = RawHints {
                qp_type: number,
                ..Default::default()
            };
            assert_eq!(raw.read().map(|hints| hints.qp_type), Ok(Some(qp_type)));
        }
        for (number, space) in [
            (0x0002, PortSpace::Ipoib),
            (0x0106, PortSpace::Tcp),
            (0x0111, PortSpace::Udp),
            (0x013F, PortSpace::Ib),
        ] {
            let raw = RawHints {
                port_space: number,
                ..Default::default()
            };
            assert_eq!(raw.read().map(|hints| hints.port_space), Ok(Some(space)));
        }
    }

    #[test]
    fn unknown_flags_are_eai_badflags() {
        for flags in [0x40, 0x0100_0000, -1, i32::MIN] {
            let raw = RawHints {
                flags,
                ..Default::default()
            };
            assert_eq!(code(raw), Eai::BadFlags, "{flags:#x}");
        }
    }

    #[test]
    fn unknown_families_are_eai_family_in_the_field_and_in_addresses() {
        for family in [1, 3, 28, -1, 0x1_0002, i32::MAX] {
            let raw = RawHints {
                family,
                flags: Flags::FAMILY.bits() as i32,
                ..Default::default()
            };
            assert_eq!(code(raw), Eai::Family, "{family}");
            let without = RawHints { flags: 0, ..raw };
            assert_eq!(without.read(), Ok(Hints::default()), "{family}");
        }
        let unix = 1u16.to_ne_bytes();
        let raw = RawHints {
            src_addr: &unix,
            ..Default::default()
        };
        assert_eq!(code(raw), Eai::Family);
    }

    #[test]
    fn connection_data_that_no_message_carries_is_refused() {
        let data = [0; CONNECT_DATA_MAX + 1];
        for (length, is_good) in [(CONNECT_DATA_MAX, true), (CONNECT_DATA_MAX + 1, false)] {
            let raw = RawHints {
                connect: &data[..length],
                ..Default::default()
            };
            assert_eq!(raw.read().is_ok(), is_good, "{length}");
        }
    }

    #[test]
    fn unknown_queue_pair_types_and_port_spaces_are_eai_qptype() {
        for number in [1, 5, 8, 0x102, -2] {
            let raw = RawHints {
                qp_type: number,
                ..Default::default()
            };
            assert_eq!(code(raw), Eai::QpType, "{number}");
        }
        for number in [1, 0x0107, 0x1_0106, -1] {
            let raw = RawHints {
                port_space: number,
                ..Default::default()
            };
            assert_eq!(code(raw), Eai::QpType, "{number}");
        }
    }

    #[test]
    fn addresses_whose_length_does_not_fit_their_family_are_einval() {
        let good = Address::Inet("192.0.2.1:7471".parse().expect("address")).to_sockaddr();
        let raw = |src_addr| RawHints {
            src_addr,
            ..Default::default()
        };
        assert!(raw(&good).read().is_ok());
        let mut longer = good.clone();
        longer.extend([0; 112]);
        for bytes in [&good[..1], &good[..15], &longer[..17], &longer[..128]] {
            assert_eq!(code(raw(bytes)), Eai::System(22), "{}", bytes.len());
        }
    }

    #[test]
    fn truncated_and_surplus_route_records_are_einval() {
        let bytes = [0u8; 1024];
        for length in [1, 63, 65, 71, 73, 127, 136, 143, 145, 576, 1024] {
            let raw = RawHints {
                route: &bytes[..length],
                ..Default::default()
            };
            assert_eq!(code(raw), Eai::System(22), "{length}");
        }
        for (length, records) in [(0, 0), (64, 1), (72, 1), (128, 2), (384, 6), (432, 6)] {
            let raw = RawHints {
                route: &bytes[..length],
                ..Default::default()
            };
            assert_eq!(
                raw.read().map(|hints| hints.route.len()),
                Ok(records),
                "{length}"
            );
        }
    }
}
