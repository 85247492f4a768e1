//! Parses perftest's output: a line for each message size. Times are in cycles (option `-C`); the
//! machine prints its clock frequency before them.

/// Start of the line with the cycles per microsecond.
const CLOCK: &str = "cycles a microsecond:";

/// The measured quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Quantity {
    /// Time of one message in microseconds: half a round trip, or for a read the whole one.
    Latency,
    /// MB (2^20 bytes) per second.
    Bandwidth,
}

impl Quantity {
    /// The number of words in a line, and the index of the result: `t_typical` (the median) or `BW
    /// average`.
    fn column(self) -> (usize, usize) {
        match self {
            Self::Latency => (9, 4),
            Self::Bandwidth => (5, 3),
        }
    }
}

/// Parses the result from the line for messages of `bytes`.
///
/// # Errors
/// If there is no such line, or its result is not a positive number.
pub(super) fn read(output: &str, bytes: u32, quantity: Quantity) -> Result<f64, String> {
    let (words, column) = quantity.column();
    let number = output.lines().find_map(|line| {
        let line: Vec<&str> = line.split_whitespace().collect();
        let is_it = line.len() == words && line.first()?.parse() == Ok(bytes);
        is_it.then(|| line.get(column)?.parse::<f64>().ok())?
    });
    let unit = match quantity {
        Quantity::Latency => output.lines().find_map(|line| {
            let cycles = line.strip_prefix(CLOCK)?;
            cycles.trim().parse::<f64>().ok()
        }),
        Quantity::Bandwidth => Some(1.0),
    };
    number
        .zip(unit)
        .map(|(number, unit)| number / unit)
        .filter(|number| number.is_finite() && *number > 0.0)
        .ok_or_else(|| format!("no {quantity:?} of {bytes} bytes:\n{output}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of ib_send_lat of perftest 4.5.
    const LATENCY: &str = "\
cycles a microsecond: 2000.000
 Mtu             : 4096[B]
 #bytes #iterations    t_min[cycles]    t_max[cycles]  t_typical[cycles]    t_avg[cycles]    t_stdev[cycles]   99% percentile[cycles]   99.9% percentile[cycles] 
 64      1000          10220.00           602440.00       12500.00     \t       15000.00        \t6000.00   \t\t40000.00  \t\t602440.00 
";
    /// Output of ib_write_bw.
    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      300            512.50             498.75 \t\t   0.007980
";

    #[test]
    fn the_median_of_a_latency_and_the_average_of_a_bandwidth_are_read() {
        assert_eq!(read(LATENCY, 64, Quantity::Latency), Ok(6.25));
        assert_eq!(read(BANDWIDTH, 65_536, Quantity::Bandwidth), Ok(498.75));
    }

    #[test]
    fn a_line_that_is_missing_cut_short_or_without_a_number_is_no_measurement() {
        assert!(read(LATENCY, 65_536, Quantity::Latency).is_err());
        assert!(read(LATENCY, 64, Quantity::Bandwidth).is_err());
        for (text, instead) in [
            ("12500.00", "nan"),
            ("12500.00", "inf"),
            ("12500.00", "0.00"),
            ("12500.00", "-1"),
            ("6000.00", ""),
            ("cycles a microsecond: 2000.000", ""),
            ("2000.000", "0"),
        ] {
            let broken = LATENCY.replace(text, instead);
            assert!(read(&broken, 64, Quantity::Latency).is_err(), "{broken}");
        }
    }
}
