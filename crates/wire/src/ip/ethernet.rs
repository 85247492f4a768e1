//! Ethernet II and VLAN tags.

use core::fmt;

use crate::bytes::{Builder, Fields, put, split};
use crate::{Error, Result};

/// A 48-bit hardware address.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MacAddr(pub [u8; 6]);

impl fmt::Display for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for MacAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MacAddr({self})")
    }
}

/// The protocol of a frame's payload.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4.
    pub const IPV4: EtherType = EtherType(0x0800);
    /// IPv6.
    pub const IPV6: EtherType = EtherType(0x86DD);
    /// A VLAN tag follows (IEEE 802.1Q).
    pub const VLAN: EtherType = EtherType(0x8100);
    /// An outer VLAN tag follows (IEEE 802.1ad).
    pub const SERVICE_VLAN: EtherType = EtherType(0x88A8);

    const fn is_tag(self) -> bool {
        matches!(self, EtherType::VLAN | EtherType::SERVICE_VLAN)
    }
}

impl fmt::Debug for EtherType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EtherType(0x{:04x})", self.0)
    }
}

/// A VLAN tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VlanTag {
    /// Tag protocol: [`EtherType::VLAN`] or [`EtherType::SERVICE_VLAN`].
    pub tpid: EtherType,
    /// Priority 3 bits, drop eligible 1, VLAN id 12.
    pub tci: u16,
}

impl VlanTag {
    /// The VLAN's number, 12 bits.
    pub const fn id(self) -> u16 {
        self.tci & 0xFFF
    }
}

/// An Ethernet II header with up to two VLAN tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EthernetRepr {
    /// Destination.
    pub dst: MacAddr,
    /// Source.
    pub src: MacAddr,
    /// VLAN tags, the outer one first.
    pub tags: [Option<VlanTag>; 2],
    /// Protocol of the payload.
    pub ether_type: EtherType,
}

impl EthernetRepr {
    /// Bytes of a header without tags.
    pub const UNTAGGED_LEN: usize = Self::ADDRESSES_LEN + Self::TYPE_LEN;

    const ADDRESSES_LEN: usize = 12;
    const TYPE_LEN: usize = 2;
    const TAG_LEN: usize = 4;

    /// Length on the wire: 14 bytes plus 4 per tag.
    #[expect(clippy::len_without_is_empty, reason = "a header is never empty")]
    pub fn len(&self) -> usize {
        let tags = self.tags.iter().flatten().count();
        Self::UNTAGGED_LEN + tags * Self::TAG_LEN
    }

    /// Reads the header at the front of a frame; also returns the payload.
    ///
    /// # Errors
    ///
    /// [`Error::Truncated`]; [`Error::Unsupported`] for more than two tags.
    pub fn parse(frame: &[u8]) -> Result<(EthernetRepr, &[u8])> {
        let (addresses, mut rest) = split::<{ Self::ADDRESSES_LEN }>("Ethernet header", frame)?;
        let f = Fields(addresses);
        let mut header = EthernetRepr {
            dst: MacAddr(f.array::<0, 6>()),
            src: MacAddr(f.array::<6, 6>()),
            tags: [None; 2],
            ether_type: EtherType(0),
        };
        for tag in &mut header.tags {
            let Some(tpid) = rest
                .first_chunk()
                .map(|b| EtherType(u16::from_be_bytes(*b)))
            else {
                break;
            };
            if !tpid.is_tag() {
                break;
            }
            let (bytes, after) = split::<{ Self::TAG_LEN }>("VLAN tag", rest)?;
            let tci = Fields(bytes).u16::<2>();
            *tag = Some(VlanTag { tpid, tci });
            rest = after;
        }
        let (ether_type, rest) = split::<{ Self::TYPE_LEN }>("Ethernet type", rest)?;
        header.ether_type = EtherType(u16::from_be_bytes(*ether_type));
        if header.ether_type.is_tag() {
            return Err(Error::Unsupported {
                what: "third VLAN tag of type",
                got: header.ether_type.0.into(),
            });
        }
        Ok((header, rest))
    }

    /// Writes the header at the front of `out`; returns its length.
    ///
    /// # Errors
    ///
    /// [`Error::NoRoom`].
    pub fn emit(&self, out: &mut [u8]) -> Result<usize> {
        let mut addresses = Builder::<{ Self::ADDRESSES_LEN }>::new();
        addresses
            .array::<0, 6>(&self.dst.0)
            .array::<6, 6>(&self.src.0);
        let mut at = put("Ethernet header", &addresses.finish(), out)?;
        for tag in self.tags.iter().flatten() {
            let mut bytes = Builder::<{ Self::TAG_LEN }>::new();
            bytes.u16::<0>(tag.tpid.0).u16::<2>(tag.tci);
            at += put(
                "VLAN tag",
                &bytes.finish(),
                out.get_mut(at..).unwrap_or_default(),
            )?;
        }
        at += put(
            "Ethernet type",
            &self.ether_type.0.to_be_bytes(),
            out.get_mut(at..).unwrap_or_default(),
        )?;
        Ok(at)
    }
}
