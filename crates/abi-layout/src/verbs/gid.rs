//! GIDs in C's format.

use portolan_wire::addr as wire;

use super::layouts;

layouts! {
    /// A union in C, aligned to eight; big-endian.
    struct Gid = "union ibv_gid" { raw: [u64; 2] }
    struct GidEntry = "struct ibv_gid_entry" {
        gid: Gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }
}

impl From<wire::Gid> for Gid {
    fn from(gid: wire::Gid) -> Self {
        let (words, _) = gid.0.as_chunks::<8>();
        Self {
            raw: [words[0], words[1]].map(u64::from_ne_bytes),
        }
    }
}

impl From<Gid> for wire::Gid {
    fn from(gid: Gid) -> Self {
        let [high, low] = gid.raw.map(u64::to_ne_bytes);
        Self(std::array::from_fn(|at| {
            if at < 8 { high[at] } else { low[at - 8] }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_keeps_the_order_of_its_bytes_in_both_directions() {
        let bytes = wire::Gid(std::array::from_fn(|at| at as u8));
        let gid = Gid::from(bytes);
        assert_eq!(gid.raw[1].to_ne_bytes(), [8, 9, 10, 11, 12, 13, 14, 15]);
        assert_eq!(wire::Gid::from(gid), bytes);
    }
}
