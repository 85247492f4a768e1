//! Parses the output of `saquery`, an independent client of the subnet administrator.

use std::net::Ipv6Addr;

use portolan_wire::sa::PathRecord;

/// Parses the path records in the output of `saquery -p`; `None` if any part is not a path record.
#[must_use]
pub fn path_records(printed: &str) -> Option<Vec<PathRecord>> {
    let (before, records) = printed
        .split_once("PathRecord dump:")
        .unwrap_or((printed, ""));
    if !before.trim().is_empty() {
        return None;
    }
    let records = records.split("PathRecord dump:");
    let records = records.filter(|record| !record.trim().is_empty());
    records.map(path_record).collect()
}

/// Parses one record. Writes each field to its offset (IBTA 15.2.5.16), so that every field is
/// compared.
fn path_record(text: &str) -> Option<PathRecord> {
    let mut bytes = [0_u8; PathRecord::LEN];
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_once("..")?;
        let value = value.trim_start_matches('.');
        let (at, len) = match name.trim_end_matches('.') {
            "service_id" => (0, 8),
            "dgid" => (8, 16),
            "sgid" => (24, 16),
            "dlid" => (40, 2),
            "slid" => (42, 2),
            "hop_flow_raw" => (44, 4),
            "tclass" => (48, 1),
            "num_path_revers" => (49, 1),
            "pkey" => (50, 2),
            // These two fields share 16 bits.
            "qos_class" => (52, 2),
            "sl" => (52, 2),
            "mtu" => (54, 1),
            "rate" => (55, 1),
            "pkt_life" => (56, 1),
            "preference" => (57, 1),
            "resv2" => (58, 6),
            _ => return None,
        };
        let shift = if name.starts_with("qos_class") { 4 } else { 0 };
        let number = number(value)?.checked_shl(shift)?;
        let value = number.to_be_bytes();
        let field = bytes.get_mut(at..at + len)?;
        let value = value.get(value.len() - len..)?;
        for (byte, value) in field.iter_mut().zip(value) {
            *byte |= value;
        }
    }
    PathRecord::parse(&bytes).ok()
}

/// Parses a GID, a hexadecimal number with its prefix, or a decimal number.
fn number(text: &str) -> Option<u128> {
    if text.contains(':') {
        return text.parse::<Ipv6Addr>().ok().map(u128::from);
    }
    match text.strip_prefix("0x") {
        Some(digits) => u128::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use portolan_wire::PKey;
    use portolan_wire::sa::Selected;

    const PRINTED: &str = "PathRecord dump:
\t\tservice_id..............0x0000000000000000
\t\tdgid....................fe80::10:7
\t\tsgid....................fe80::20:0
\t\tdlid....................5
\t\tslid....................2
\t\thop_flow_raw............0x0
\t\ttclass..................0x0
\t\tnum_path_revers.........0x80
\t\tpkey....................0xFFFF
\t\tqos_class...............0x12
\t\tsl......................0x3
\t\tmtu.....................0x83
\t\trate....................0x83
\t\tpkt_life................0x92
\t\tpreference..............0x0
\t\tresv2...................0x000000000000
";

    #[test]
    fn every_field_is_read() {
        let records = path_records(&PRINTED.repeat(2)).unwrap();
        assert_eq!(records.len(), 2);
        let record = records[0];
        assert_eq!(record.dgid.to_string(), "fe80::10:7");
        assert_eq!(record.sgid.to_string(), "fe80::20:0");
        assert_eq!((record.slid, record.dlid), (2, 5));
        assert!(record.reversible);
        assert_eq!(record.pkey, PKey(0xffff));
        assert_eq!((record.qos_class, record.sl), (0x12, 3));
        assert_eq!(record.mtu, Selected::exactly(3));
        assert_eq!(record.packet_lifetime, Selected::exactly(18));
    }

    #[test]
    fn no_record_is_none_and_what_is_none_is_an_error() {
        assert_eq!(path_records(""), Some(Vec::new()));
        assert_eq!(path_records("saquery: no such thing"), None);
        assert_eq!(path_records("PathRecord dump:\n\t\tlength....3\n"), None);
    }
}
