//! Rewinding a CRC register: arithmetic modulo the CRC polynomial.
//!
//! A register is a polynomial over GF(2) modulo P, reflected: bit 31 is the coefficient of x^0.
//! Processing a zero bit multiplies it by x. Because x has an inverse modulo P, multiplying by
//! x^(-8n) undoes n zero bytes.

/// CRC-32's polynomial, reflected, without x^32.
const POLYNOMIAL: u32 = 0xEDB8_8320;

/// x^0.
const ONE: u32 = 1 << 31;

/// x^(-8n) for n from 0 to 255.
static UNSHIFT_LOW: [u32; 256] = powers(unshift_one_byte());

/// x^(-8·256·n) for n from 0 to 255.
static UNSHIFT_HIGH: [u32; 256] = {
    let low = powers(unshift_one_byte());
    powers(multiply(low[255], unshift_one_byte()))
};

/// Returns the register before it processed `len` zero bytes that led to `register`. `len` is below
/// 65,536, which no UDP datagram exceeds.
pub(super) const fn unshift_bytes(register: u32, len: usize) -> u32 {
    let low = UNSHIFT_LOW[len & 0xFF];
    let high = UNSHIFT_HIGH[len >> 8 & 0xFF];
    multiply(multiply(register, low), high)
}

/// The product modulo P, in constant time.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut bit = 32;
    while bit > 0 {
        bit -= 1;
        product ^= b & (a >> bit & 1).wrapping_neg();
        b = times_x(b);
    }
    product
}

const fn times_x(a: u32) -> u32 {
    a >> 1 ^ POLYNOMIAL & (a & 1).wrapping_neg()
}

/// Divides by x. The polynomial's highest bit is set, so that bit shows whether a multiplication by
/// x was reduced.
const fn over_x(a: u32) -> u32 {
    let reduced = a >> 31;
    (a ^ POLYNOMIAL & reduced.wrapping_neg()) << 1 | reduced
}

/// x^-8.
const fn unshift_one_byte() -> u32 {
    let mut a = ONE;
    let mut bit = 0;
    while bit < 8 {
        a = over_x(a);
        bit += 1;
    }
    a
}

/// Powers of `base`, starting with the zeroth.
const fn powers(base: u32) -> [u32; 256] {
    let mut table = [ONE; 256];
    let mut i = 1;
    while i < table.len() {
        table[i] = multiply(table[i - 1], base);
        i += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn dividing_by_x_undoes_multiplying(a: u32) {
            prop_assert_eq!(over_x(times_x(a)), a);
            prop_assert_eq!(multiply(a, ONE), a);
        }

        #[test]
        fn unshifting_undoes_as_many_zero_bytes(register: u32, len in 0usize..65_536) {
            let mut after = register;
            for _ in 0..8 * len {
                after = times_x(after);
            }
            prop_assert_eq!(unshift_bytes(after, len), register);
        }
    }
}
