//! cmtime's table, with an additional line for all steps together.

use super::clock::Taken;

pub(super) fn lines(connections: u32, provider: &str, taken: &[Taken]) -> Vec<String> {
    let connections = f64::from(connections);
    let mut lines = vec![
        format!("{connections} connections at once, provider {provider}"),
        "step              total ms     max ms     min us  us / conn".to_owned(),
    ];
    lines.extend(taken.iter().map(|taken| {
        format!(
            "{:<13}: {:>11.2}{:>11.2}{:>11.2}{:>11.2}",
            taken.step.name(),
            taken.total_us / 1e3,
            taken.max_us / 1e3,
            taken.min_us,
            taken.total_us / connections,
        )
    }));
    let total_us: f64 = taken.iter().map(|taken| taken.total_us).sum();
    lines.push(format!(
        "{:<13}: {:>11.2}{:>33.2}",
        "all steps",
        total_us / 1e3,
        total_us / connections
    ));
    lines
}

#[cfg(test)]
mod tests {
    use super::super::clock::Step;
    use super::*;

    #[test]
    fn the_table_has_cmtimes_columns_and_the_sum_of_the_steps() {
        let taken = |step, total_us| Taken {
            step,
            total_us,
            max_us: 200.0,
            min_us: 1.5,
        };
        let taken = [
            taken(Step::CreateId, 1000.0),
            taken(Step::ResolveRoute, 3500.0),
        ];
        let lines = lines(100, "kernel", &taken);
        assert_eq!(
            lines[2],
            "create id    :        1.00       0.20       1.50      10.00"
        );
        assert_eq!(
            lines[3],
            "resolve route:        3.50       0.20       1.50      35.00"
        );
        assert_eq!(
            lines[4],
            "all steps    :        4.50                            45.00"
        );
    }
}
