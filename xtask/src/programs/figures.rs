//! What programs measure, from their output.

/// What a program has measured, for a cell of a table. Empty if it measures nothing that is known here.
pub(super) fn of(said: &str) -> String {
    let mut lines = said.lines().map(|line| line.split_whitespace());
    if let Some(words) = lines.find(|words| words.clone().next() == Some("Final:")) {
        return ucx(&words.collect::<Vec<_>>()).unwrap_or_default();
    }
    if said.contains("usec/xfer") {
        return libfabric(said);
    }
    fio(said).unwrap_or_default()
}

/// The last line of `ucx_perftest`: iterations; the time of an operation, as median, average and overall average;
/// MB/s and messages/s, each as average and overall average.
fn ucx(words: &[&str]) -> Option<String> {
    let [median, mean, rate] = [2, 4, 6].map(|at| words.get(at));
    let (median, mean, rate) = (median?, mean?, rate?);
    Some(format!("{median} µs (mean {mean}), {rate} MB/s"))
}

/// The lines of `fi_pingpong` for the smallest and the largest size.
fn libfabric(said: &str) -> String {
    let line = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (size, time) = (words.first()?, words.get(6)?);
        let is_result = time.parse::<f64>().is_ok();
        is_result.then(|| format!("{time} µs ({size})"))
    };
    let results: Vec<String> = said.lines().filter_map(line).collect();
    let ends = match results.as_slice() {
        [first, .., last] => vec![first.as_str(), last],
        few => few.iter().map(String::as_str).collect(),
    };
    ends.join(", ")
}

/// fio's bandwidth.
fn fio(said: &str) -> Option<String> {
    let words = said.lines().find(|line| line.contains("WRITE: bw="))?;
    let (_, rest) = words.split_once("bw=")?;
    let rate = rest.split([' ', ',']).next()?;
    Some(rate.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_in_the_output_of_each_program() {
        let ucx = "Final:  500  3.312  8.100  8.101  7.62  7.60  999  998\n";
        assert_eq!(of(ucx), "3.312 µs (mean 8.101), 7.60 MB/s");
        let libfabric = "bytes #sent #ack total time MB/sec usec/xfer Mxfers/sec\n\
            64 10 =10 1.2k 0.00s 16.00 4.00 0.25\n\
            256 10 =10 5k 0.00s 51.20 5.00 0.20\n\
            1m 10 =10 20m 0.01s 1000.00 1048.58 0.00\n";
        assert_eq!(of(libfabric), "4.00 µs (64), 1048.58 µs (1m)");
        let fio = "  WRITE: bw=66.1MiB/s (69.3MB/s), 66.1MiB/s-66.1MiB/s, io=16.0MiB\n";
        assert_eq!(of(fio), "66.1MiB/s");
        assert_eq!(of("ring: right\n"), "");
    }
}
