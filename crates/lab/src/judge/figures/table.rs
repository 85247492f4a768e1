//! The table that cmtime and `portolan-cmtime` print at their end.

/// The steps, one per line of the table.
pub(super) const STEPS: [&str; 8] = [
    "create id",
    "bind addr",
    "resolve addr",
    "resolve route",
    "create qp",
    "connect",
    "disconnect",
    "destroy",
];
/// End of the header line.
const LAST_COLUMN: &str = "us / conn";

/// The total time of each step over all connections, in microseconds, in the order of [`STEPS`].
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Table {
    us: [f64; STEPS.len()],
}

impl Table {
    /// Parses `tables` tables and adds them up.
    ///
    /// # Errors
    /// If the number of tables differs, or a step's time is missing or malformed.
    pub(super) fn read(output: &str, tables: u32) -> Result<Self, String> {
        let mut us = [0.0; STEPS.len()];
        let mut found = 0;
        for lines in output.split(LAST_COLUMN).skip(1) {
            found += 1;
            for (us, name) in us.iter_mut().zip(STEPS) {
                let total_ms = lines.lines().find_map(|line| total_ms(line, name));
                let is_time = |ms: &f64| ms.is_finite() && *ms > 0.0;
                let missing = || format!("no time of {name}:\n{output}");
                *us += total_ms.filter(is_time).ok_or_else(missing)? * 1e3;
            }
        }
        match found == tables {
            true => Ok(Self { us }),
            false => Err(format!("{found} tables instead of {tables}:\n{output}")),
        }
    }

    /// The total time of a step.
    pub(super) fn us(&self, name: &str) -> Option<f64> {
        let at = STEPS.iter().position(|step| *step == name)?;
        self.us.get(at).copied()
    }

    /// The total time of all steps.
    pub(super) fn total_us(&self) -> f64 {
        self.us.iter().sum()
    }

    #[cfg(test)]
    pub(super) fn uniform(us: f64) -> Self {
        let us = [us; STEPS.len()];
        Self { us }
    }
}

/// The first column of a step's line.
fn total_ms(line: &str, name: &str) -> Option<f64> {
    let (step, columns) = line.split_once(':')?;
    let first = columns.split_whitespace().next()?;
    (step.trim_end() == name).then(|| first.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of cmtime of rdma-core 44.
    const PRINTED: &str = "\
creating id
binding source address
step              total ms     max ms     min us  us / conn
create id    :        1.50       0.12      10.00      15.00
bind addr    :        2.00       0.10      10.00      20.00
resolve addr :        3.00       2.80      90.00      30.00
resolve route:        4.00       3.50      80.00      40.00
create qp    :       50.00       1.00     400.00     500.00
connect      :       60.00      50.00     900.00     600.00
disconnect   :       70.00      60.00     300.00     700.00
destroy      :        8.00       0.20      60.00      80.00
";

    #[test]
    fn the_totals_of_a_table_are_read() {
        let table = Table::read(PRINTED, 1).unwrap();
        assert_eq!(table.us("create id"), Some(1500.0));
        assert_eq!(table.us("resolve route"), Some(4000.0));
        assert_eq!(table.us("disconnect"), Some(70_000.0));
        assert_eq!(table.us("no such step"), None);
        assert_eq!(table.total_us(), 198_500.0);
    }

    #[test]
    fn a_line_for_all_steps_is_none_of_them() {
        let more =
            format!("{PRINTED}all steps    :      198.50                          1985.00\n");
        assert_eq!(Table::read(&more, 1), Table::read(PRINTED, 1));
    }

    #[test]
    fn several_tables_are_added_up_and_none_may_be_missing() {
        let three = PRINTED.repeat(3);
        let table = Table::read(&three, 3).unwrap();
        assert_eq!(table.us("create id"), Some(4500.0));
        assert_eq!(table.total_us(), 3.0 * 198_500.0);
        assert!(Table::read(&three, 2).is_err());
        assert!(Table::read(&three, 4).is_err());
    }

    #[test]
    fn a_table_that_lacks_a_step_or_has_none_of_its_times_is_refused() {
        for (line, instead) in [
            ("bind addr    :", "bound addr   :"),
            ("create id    :        1.50", "create id    :        0.00"),
            ("create id    :        1.50", "create id    :         nan"),
            ("create id    :        1.50", "create id    :       -1.50"),
            ("us / conn", "nothing"),
        ] {
            let broken = PRINTED.replace(line, instead);
            assert!(Table::read(&broken, 1).is_err(), "{broken}");
        }
    }
}
