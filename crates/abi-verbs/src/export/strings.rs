//! Numbers as text, and rates.

#![allow(unsafe_code, reason = "pointers of C programs and libibverbs")]

use std::ffi::{CStr, c_char, c_int};

use portolan_abi_layout::exports;

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

/// `enum ibv_rate`, Mbit/s, and the multiple of 2.5 Gbit/s if libibverbs defines one.
type Rate = (c_int, c_int, Option<c_int>);

const RATES: [Rate; 23] = [
    (2, 2_500, Some(1)),
    (5, 5_000, Some(2)),
    (3, 10_000, Some(4)),
    (6, 20_000, Some(8)),
    (4, 30_000, Some(12)),
    (7, 40_000, Some(16)),
    (8, 60_000, Some(24)),
    (9, 80_000, Some(32)),
    (10, 120_000, Some(48)),
    (11, 14_062, None),
    (12, 56_250, None),
    (13, 112_500, None),
    (14, 168_750, None),
    (15, 25_781, None),
    (16, 103_125, None),
    (17, 206_250, None),
    (18, 309_375, None),
    (19, 28_125, Some(11)),
    (20, 53_125, Some(20)),
    (21, 425_000, Some(160)),
    (22, 637_500, Some(240)),
    (23, 850_000, Some(320)),
    (24, 1_275_000, Some(480)),
];

fn rate_where(is_it: impl Fn(&Rate) -> bool) -> Option<Rate> {
    RATES.into_iter().find(is_it)
}

exports! {
    // A rate as a multiple of 2.5 Gbit/s; -1 if unknown.
    fn ibv_rate_to_mult(rate: c_int) -> c_int {
        rate_where(|entry| entry.0 == rate).and_then(|entry| entry.2).unwrap_or(-1)
    }

    // The rate of this multiple; `IBV_RATE_MAX` if there is none.
    fn mult_to_ibv_rate(mult: c_int) -> c_int {
        rate_where(|entry| entry.2 == Some(mult)).map_or(0, |entry| entry.0)
    }

    // The Mbit/s of a rate; -1 if unknown.
    fn ibv_rate_to_mbps(rate: c_int) -> c_int {
        rate_where(|entry| entry.0 == rate).map_or(-1, |entry| entry.1)
    }

    // The rate with exactly this many Mbit/s; `IBV_RATE_MAX` if there is none.
    fn mbps_to_ibv_rate(mbps: c_int) -> c_int {
        rate_where(|entry| entry.1 == mbps).map_or(0, |entry| entry.0)
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
            for (rate, mbps, mult) in RATES {
                assert_eq!(mbps_to_ibv_rate(ibv_rate_to_mbps(rate)), rate);
                assert_eq!(ibv_rate_to_mbps(rate), mbps);
                if let Some(mult) = mult {
                    assert_eq!(mult_to_ibv_rate(ibv_rate_to_mult(rate)), rate);
                    assert_eq!(ibv_rate_to_mult(rate), mult);
                }
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
