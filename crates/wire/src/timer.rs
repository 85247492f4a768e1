//! Time values in their wire encodings.

/// The largest exponent of a five-bit timeout field.
pub const TIMEOUT_EXPONENT_MAX: u8 = 31;

/// Microseconds in a CM or ACK timeout: 4.096 µs · 2^exponent, rounded down (IBTA 12.7, 9.7.6.1.3).
///
/// The field is five bits wide; a larger exponent counts as 31 (2 h 26 min). A zero ACK timeout
/// field means no timeout: the caller must check for it first.
pub const fn cm_timeout_us(exponent: u8) -> u64 {
    let exponent = if exponent > TIMEOUT_EXPONENT_MAX {
        TIMEOUT_EXPONENT_MAX
    } else {
        exponent
    };
    (4096 << exponent) / 1000
}

/// The time in microseconds that an RNR NAK's timer code asks the requester to wait (IBTA
/// 9.7.5.2.8).
///
/// The code is five bits wide; higher bits are ignored. Zero is the longest time: 655.36 ms.
pub const fn rnr_timer_us(code: u8) -> u32 {
    const TABLE_US: [u32; 32] = [
        655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560,
        3_840, 5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880,
        163_840, 245_760, 327_680, 491_520,
    ];
    TABLE_US[(code & 0x1F) as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeout_exponents_follow_the_formula() {
        assert_eq!(cm_timeout_us(0), 4);
        assert_eq!(cm_timeout_us(14), 67_108);
        assert_eq!(cm_timeout_us(20), 4_294_967);
        assert_eq!(cm_timeout_us(31), cm_timeout_us(255));
    }

    #[test]
    fn rnr_codes_grow_by_the_standards_steps_and_zero_is_the_longest() {
        assert!((2..32).all(|code| rnr_timer_us(code) > rnr_timer_us(code - 1)));
        assert!((5..32).all(|code| rnr_timer_us(code) == 2 * rnr_timer_us(code - 2)));
        assert!((1..32).all(|code| rnr_timer_us(0) > rnr_timer_us(code)));
    }
}
