//! Compares two records of one scenario, field by field.

use serde_json::Value;

/// One line that a player printed.
pub(super) type Record = serde_json::Map<String, Value>;

/// Header of the documentation's table of differences from librdmacm.
const TABLE_HEAD: &str = "| provider | scenario | at | field | librdmacm | Portolan | reason |";
/// In a row: matches any scenario or place.
const ANY: &str = "each";
/// In a row: both providers must differ in this way.
const BOTH: &str = "both";
/// The providers by their names in the table.
const PROVIDERS: [&str; 2] = ["kernel", "software"];
/// Fields that identify a record.
const KINDS: [&str; 3] = ["event", "call", "path"];
/// Prefix of event names.
const NAME_PREFIX: &str = "RDMA_CM_EVENT_";

/// A field that two players reported differently.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The provider that reported `other`.
    provider: String,
    scenario: String,
    /// The event, or the command.
    at: String,
    field: String,
    model: String,
    other: String,
}

/// Parses a player's output.
pub(super) fn parse(text: &str) -> Result<Vec<Record>, String> {
    let record =
        |line: &str| serde_json::from_str(line).map_err(|error| format!("{error}: {line}"));
    text.lines().map(record).collect()
}

/// Returns the differences in the order of play.
pub(super) fn differences(
    provider: &str,
    scenario: &str,
    script: &str,
    model: &[Record],
    other: &[Record],
) -> Vec<Difference> {
    let mut all = Vec::new();
    let longest = model.len().max(other.len());
    let nothing = Record::new();
    for at in 0..longest {
        let ours = other.get(at).unwrap_or(&nothing);
        let theirs = model.get(at).unwrap_or(&nothing);
        let place = place(script, if theirs.is_empty() { ours } else { theirs });
        let mut fields: Vec<&String> = theirs.keys().chain(ours.keys()).collect();
        fields.sort();
        fields.dedup();
        // If the events differ, report only that: all other fields differ too.
        let told = |field: &&String| {
            KINDS.contains(&field.as_str()) && theirs.get(*field) != ours.get(*field)
        };
        let kind: Option<&String> = fields.iter().copied().find(|field| told(field));
        if let Some(kind) = kind {
            fields = vec![kind];
        }
        for field in fields {
            let [model, other] = [theirs, ours].map(|record| text(record.get(field)));
            if model != other {
                let difference = Difference {
                    provider: provider.to_owned(),
                    scenario: scenario.to_owned(),
                    at: place.clone(),
                    field: field.clone(),
                    model,
                    other,
                };
                all.push(difference);
            }
        }
        // From here on the records are about different commands.
        if theirs.get("line") != ours.get("line") {
            break;
        }
    }
    all
}

/// Describes what a record is about: the event and its id, or the command.
fn place(script: &str, record: &Record) -> String {
    let word = |field: &str| record.get(field).and_then(Value::as_str);
    if let (Some(event), Some(id)) = (word("event"), word("id")) {
        let event = event.strip_prefix(NAME_PREFIX).unwrap_or(event);
        return format!("{event} of {id}");
    }
    let number = record.get("line").and_then(Value::as_u64).unwrap_or(0);
    let at = usize::try_from(number)
        .unwrap_or(usize::MAX)
        .wrapping_sub(1);
    script.lines().nth(at).unwrap_or("the end").to_owned()
}

fn text(value: Option<&Value>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(Value::String(text)) if text.is_empty() => "none".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    }
}

/// Formats the differences as rows of the table, without reasons.
pub(super) fn rows(differences: &[Difference]) -> String {
    let rows = differences.iter().map(|difference| {
        let Difference {
            provider,
            scenario,
            at,
            field,
            model,
            other,
        } = difference;
        format!("| {provider} | {scenario} | {at} | {field} | {model} | {other} | |")
    });
    rows.collect::<Vec<_>>().join("\n")
}

/// The differences that the documentation explains.
#[derive(Debug)]
pub(super) struct Tolerated {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    /// Provider, scenario, place, field, and both values.
    cells: [String; 6],
}

impl Tolerated {
    /// Parses the table in the documentation.
    pub(super) fn parse(documented: &str) -> Result<Self, String> {
        let mut lines = documented.lines().skip_while(|line| *line != TABLE_HEAD);
        lines
            .next()
            .ok_or_else(|| format!("no table begins with {TABLE_HEAD}"))?;
        let rows = lines.skip(1).take_while(|line| line.starts_with('|'));
        let rows: Vec<Row> = rows.map(Row::parse).collect::<Result<_, _>>()?;
        let rows = rows.into_iter().flat_map(Row::of_each_provider).collect();
        Ok(Self { rows })
    }

    /// Checks that each difference has a row, and each row a difference.
    pub(super) fn check(&self, found: &[Difference]) -> Result<String, String> {
        let unknown: Vec<Difference> = found
            .iter()
            .filter(|difference| !self.rows.iter().any(|row| row.covers(difference)))
            .cloned()
            .collect();
        let idle = self
            .rows
            .iter()
            .filter(|row| !found.iter().any(|difference| row.covers(difference)));
        let idle: Vec<String> = idle.map(|row| row.cells.join(" | ")).collect();
        let mut complaints = Vec::new();
        if !unknown.is_empty() {
            complaints.push(format!("not in the table:\n{}", rows(&unknown)));
        }
        if !idle.is_empty() {
            complaints.push(format!("in the table, but not found:\n{}", idle.join("\n")));
        }
        match complaints.is_empty() {
            true => Ok(format!(
                "{} rows, {} differences",
                self.rows.len(),
                found.len()
            )),
            false => Err(complaints.join("\n")),
        }
    }
}

impl Row {
    fn parse(line: &str) -> Result<Self, String> {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        match cells.as_slice() {
            [cells @ .., reason] if cells.len() == 6 && !reason.is_empty() => Ok(Self {
                cells: std::array::from_fn(|at| cells[at].trim_matches('`').to_owned()),
            }),
            _ => Err(format!("not seven cells with a reason: {line}")),
        }
    }

    fn of_each_provider(self) -> Vec<Self> {
        if self.cells[0] != BOTH {
            return vec![self];
        }
        let of = |provider: &str| {
            let mut cells = self.cells.clone();
            cells[0] = provider.to_owned();
            Self { cells }
        };
        PROVIDERS.map(of).into()
    }

    fn covers(&self, difference: &Difference) -> bool {
        let Difference {
            provider,
            scenario,
            at,
            field,
            model,
            other,
        } = difference;
        let of = [provider, scenario, at, field, model, other];
        let mut cells = self.cells.iter().zip(of).enumerate();
        cells.all(|(column, (cell, value))| cell == value || (column < 3 && cell == ANY))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "channel A\nevent A\nconnect a";
    const MODEL: &str = r#"{"line":1,"call":"channel","errno":0}
        {"line":2,"event":"RDMA_CM_EVENT_ESTABLISHED","id":"a","status":0,"srq":true}
        {"line":3,"call":"connect","errno":22}"#;

    fn compared(other: &str) -> Vec<Difference> {
        let [model, other] = [MODEL, other].map(|text| parse(text).unwrap());
        differences("kernel", "play", SCRIPT, &model, &other)
    }

    #[test]
    fn equal_records_do_not_differ() {
        assert_eq!(compared(MODEL), []);
    }

    #[test]
    fn each_differing_field_is_reported_with_its_place() {
        let other = MODEL
            .replace("\"srq\":true", "\"srq\":false")
            .replace("22", "0");
        let expected = "| kernel | play | ESTABLISHED of a | srq | true | false | |\n\
                        | kernel | play | connect a | errno | 22 | 0 | |";
        assert_eq!(rows(&compared(&other)), expected);
    }

    #[test]
    fn a_field_that_only_one_reports_is_a_difference() {
        let other = MODEL.replace(",\"srq\":true", "");
        let expected = "| kernel | play | ESTABLISHED of a | srq | true | nothing | |";
        assert_eq!(rows(&compared(&other)), expected);
    }

    #[test]
    fn only_the_name_of_a_different_event_is_reported() {
        let other = MODEL
            .replace("ESTABLISHED", "REJECTED")
            .replace("\"status\":0", "\"status\":28");
        let found = compared(&other);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (&*found[0].field, &*found[0].other),
            ("event", "RDMA_CM_EVENT_REJECTED")
        );
    }

    #[test]
    fn a_record_that_ends_early_differs() {
        let two: Vec<&str> = MODEL.lines().take(2).collect();
        let found = compared(&two.join("\n"));
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((&*found[0].at, &*found[0].other), ("connect a", "nothing"));
    }

    #[test]
    fn the_table_covers_what_it_lists_and_nothing_else() {
        let table = |rows: &str| {
            let text =
                format!("Words.\n\n{TABLE_HEAD}\n|---|---|---|---|---|---|---|\n{rows}\n\nMore.");
            Tolerated::parse(&text)
        };
        let found = compared(&MODEL.replace("\"srq\":true", "\"srq\":false"));
        let listed = "| kernel | play | ESTABLISHED of a | srq | true | false | so be it |";
        assert!(table(listed).unwrap().check(&found).is_ok());
        let anywhere = "| kernel | each | each | `srq` | true | false | so be it |";
        assert!(table(anywhere).unwrap().check(&found).is_ok());
        // With `both`, the other provider must differ too.
        let of_both = listed.replace("kernel", "both");
        let error = table(&of_both).unwrap().check(&found).unwrap_err();
        assert!(error.contains("software | play"), "{error}");
        let error = table("").unwrap().check(&found).unwrap_err();
        assert!(error.starts_with("not in the table"), "{error}");
        let error = table(listed).unwrap().check(&[]).unwrap_err();
        assert!(error.starts_with("in the table, but not found"), "{error}");
        assert!(table(&listed.replace("so be it", "")).is_err());
        assert!(Tolerated::parse("no table").is_err());
    }
}
