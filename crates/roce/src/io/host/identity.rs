//! What a device is called, by people and by its peers.

use crate::io::net::interfaces::Interface;

/// `sw_` and the interface's name; its number, too, if another device has that name.
pub(crate) fn device_name(interface: &Interface, is_taken: impl Fn(&str) -> bool) -> String {
    let name = format!("sw_{}", interface.name);
    match is_taken(&name) {
        true => format!("{name}_{}", interface.index),
        false => name,
    }
}

/// The EUI-64 of the hardware address (RFC 4291 appendix A). An interface without one, such as
/// loopback, or with another device's, gets a number made of its name and the machine's, locally
/// administered.
pub(crate) fn node_guid(interface: &Interface, is_taken: impl Fn(u64) -> bool) -> u64 {
    if let Some([a, b, c, d, e, f]) = interface.mac {
        let eui_64 = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        if !is_taken(eui_64) {
            return eui_64;
        }
    }
    const LOCALLY_ADMINISTERED: u64 = 0x02 << 56;
    const GROUP: u64 = 0x01 << 56;
    // A machine without an id gets the same number as others without one, which only its own
    // loopback traffic ever carries.
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let hash = fnv1a(machine.iter().chain(interface.name.as_bytes()));
    (hash | LOCALLY_ADMINISTERED) & !GROUP
}

/// The FNV-1a hash: short, and the same in every process and release.
fn fnv1a<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
