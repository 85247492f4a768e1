//! Numbers as text, and rates.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{CStr, c_char, c_int};

use portolan_abi_layout::exports;
use portolan_wire::sa::{RATES, rate_mbps};

/// Exports a function that returns the text of a number.
macro_rules! words {
    ($name:ident: $($number:literal = $text:literal,)*) => {
        exports! {
            fn $name(number: c_int) -> *const c_char {
                let text: &'static CStr = match number {
                    $($number => $text,)*
                    _ => c"unknown",
                };
                text.as_ptr()
            }
        }
    };
}

words! {
    ibv_node_type_str:
    1 = c"InfiniBand channel adapter",
    2 = c"InfiniBand switch",
    3 = c"InfiniBand router",
    4 = c"iWARP NIC",
    5 = c"usNIC",
    6 = c"usNIC UDP",
    7 = c"unspecified",
}

words! {
    ibv_port_state_str:
    0 = c"no state change (NOP)",
    1 = c"down",
    2 = c"init",
    3 = c"armed",
    4 = c"active",
    5 = c"active defer",
}

words! {
    ibv_event_type_str:
    0 = c"CQ error",
    1 = c"local work queue catastrophic error",
    2 = c"invalid request local work queue error",
    3 = c"local access violation work queue error",
    4 = c"communication established",
    5 = c"send queue drained",
    6 = c"path migrated",
    7 = c"path migration request error",
    8 = c"local catastrophic error",
    9 = c"port active",
    10 = c"port error",
    11 = c"LID change",
    12 = c"P_Key change",
    13 = c"SM change",
    14 = c"SRQ catastrophic error",
    15 = c"SRQ limit reached",
    16 = c"last WQE reached",
    17 = c"client reregistration",
    18 = c"GID table change",
    19 = c"WQ fatal",
}

words! {
    ibv_wc_status_str:
    0 = c"success",
    1 = c"local length error",
    2 = c"local QP operation error",
    3 = c"local EE context operation error",
    4 = c"local protection error",
    5 = c"Work Request Flushed Error",
    6 = c"memory management operation error",
    7 = c"bad response error",
    8 = c"local access error",
    9 = c"remote invalid request error",
    10 = c"remote access error",
    11 = c"remote operation error",
    12 = c"transport retry counter exceeded",
    13 = c"RNR retry counter exceeded",
    14 = c"local RDD violation error",
    15 = c"remote invalid RD request",
    16 = c"aborted error",
    17 = c"invalid EE context number",
    18 = c"invalid EE context state",
    19 = c"fatal error",
    20 = c"response timeout error",
    21 = c"general error",
    22 = c"TM error",
    23 = c"TM software rendezvous",
}

/// `enum ibv_rate` and the multiple of 2.5 Gbit/s, where libibverbs defines one.
const MULTIPLES: [(c_int, c_int); 15] = [
    (2, 1),
    (5, 2),
    (3, 4),
    (6, 8),
    (4, 12),
    (7, 16),
    (8, 24),
    (9, 32),
    (10, 48),
    (19, 11),
    (20, 20),
    (21, 160),
    (22, 240),
    (23, 320),
    (24, 480),
];

exports! {
    // A rate as a multiple of 2.5 Gbit/s; -1 if unknown.
    fn ibv_rate_to_mult(rate: c_int) -> c_int {
        MULTIPLES.into_iter().find(|entry| entry.0 == rate).map_or(-1, |entry| entry.1)
    }

    // The rate of this multiple; `IBV_RATE_MAX` if there is none.
    fn mult_to_ibv_rate(mult: c_int) -> c_int {
        MULTIPLES.into_iter().find(|entry| entry.1 == mult).map_or(0, |entry| entry.0)
    }

    // The Mbit/s of a rate; -1 if unknown.
    fn ibv_rate_to_mbps(rate: c_int) -> c_int {
        let mbps = u8::try_from(rate).ok().and_then(rate_mbps);
        mbps.map_or(-1, u32::cast_signed)
    }

    // The rate with exactly this many Mbit/s; `IBV_RATE_MAX` if there is none.
    fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
        let found = RATES.into_iter().find(|entry| i64::from(entry.1) == i64::from(mbps));
        found.map_or(0, |entry| entry.0.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_without_a_name_are_unknown() {
        // SAFETY: the functions have no pointers, and return C strings.
        unsafe {
            for name in [
                ibv_node_type_str(0),
                ibv_port_state_str(-1),
                ibv_event_type_str(20),
                ibv_wc_status_str(24),
            ] {
                assert_eq!(CStr::from_ptr(name), c"unknown");
            }
        }
    }

    #[test]
    fn rates_survive_a_round_trip() {
        // SAFETY: the functions have no pointers.
        unsafe {
            for (rate, mbps) in RATES {
                assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate.into())), rate.into());
                assert_eq!(ibv_rate_to_mbps(rate.into()), mbps.cast_signed());
            }
            for (rate, mult) in MULTIPLES {
                assert_eq!(mult_to_ibv_rate(ibv_rate_to_mult(rate)), rate);
                assert_eq!(ibv_rate_to_mult(rate), mult);
            }
            let unknown = (
                ibv_rate_to_mbps(0),
                mbps_to_ibv_rate(1),
                mult_to_ibv_rate(3),
            );
            assert_eq!(unknown, (-1, 0, 0));
        }
    }
}
