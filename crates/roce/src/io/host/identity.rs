//! The name and the node GUID of a device.

use crate::io::net::interfaces::Interface;

/// `sw_` and the interface's name, followed by the interface's index if another device has that name.
pub(crate) fn device_name(interface: &Interface, is_taken: impl Fn(&str) -> bool) -> String {
    let name = format!("sw_{}", interface.name);
    match is_taken(&name) {
        true => format!("{name}_{}", interface.index),
        false => name,
    }
}

/// The EUI-64 of the hardware address (RFC 4291 appendix A).
///
/// An interface without a hardware address (loopback), or with the address of another device, gets a locally
/// administered number, a hash of its name and the machine id.
pub(crate) fn node_guid(interface: &Interface, is_taken: impl Fn(u64) -> bool) -> u64 {
    if let Some([a, b, c, d, e, f]) = interface.mac {
        let eui_64 = u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f]);
        if !is_taken(eui_64) {
            return eui_64;
        }
    }
    const LOCALLY_ADMINISTERED: u64 = 0x02 << 56;
    const GROUP: u64 = 0x01 << 56;
    // Machines without an id get equal numbers. This is harmless: only loopback traffic carries them.
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    let hash = fnv1a(machine.iter().chain(interface.name.as_bytes()));
    (hash | LOCALLY_ADMINISTERED) & !GROUP
}

/// The FNV-1a hash: short, and stable across processes and releases.
fn fnv1a<'a>(bytes: impl Iterator<Item = &'a u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
