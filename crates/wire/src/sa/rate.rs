//! Static rates.

/// Codes of static rates (IBTA 15.2.5.16, `enum ib_rate` of Linux) and their speeds in Mbit/s.
///
/// Codes are not in the order of the speeds: compare rates with [`rate_mbps`].
pub const RATES: [(u8, u32); 23] = [
    (2, 2_500),
    (3, 10_000),
    (4, 30_000),
    (5, 5_000),
    (6, 20_000),
    (7, 40_000),
    (8, 60_000),
    (9, 80_000),
    (10, 120_000),
    (11, 14_062),
    (12, 56_250),
    (13, 112_500),
    (14, 168_750),
    (15, 25_781),
    (16, 103_125),
    (17, 206_250),
    (18, 309_375),
    (19, 28_125),
    (20, 53_125),
    (21, 425_000),
    (22, 637_500),
    (23, 850_000),
    (24, 1_275_000),
];

/// The speed of a rate's code in Mbit/s; `None` for an unknown code.
pub fn rate_mbps(code: u8) -> Option<u32> {
    let found = RATES.into_iter().find(|(known, _)| *known == code);
    found.map(|(_, mbps)| mbps)
}
