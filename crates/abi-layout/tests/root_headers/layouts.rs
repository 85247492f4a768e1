//! Compares the crate's structures with a compiler's layout of the headers.

use std::collections::BTreeMap;

use portolan_abi_layout::{Field, Structure, nested, structures};

/// A structure that grows at its beginning. Programs find their fields by the distance from its end.
const GROWS_AT_ITS_BEGINNING: &str = "struct verbs_context";

/// Output of the C program of `super::program`, by name. For a structure: size and alignment. For a field
/// (structure, dot, field): offset and size. All in bytes.
pub(crate) type Measures = BTreeMap<String, [usize; 2]>;

/// Parses the C program's output.
pub(crate) fn measures(printed: &str) -> Measures {
    let lines = printed.lines().map(|line| {
        let mut words = line.rsplitn(3, ' ');
        let mut number = || words.next().unwrap().parse().unwrap();
        let (second, first) = (number(), number());
        (words.next().unwrap().to_owned(), [first, second])
    });
    lines.collect()
}

/// Every difference between our structures and the header's. `declared` has the names of its fields.
pub(crate) fn differences(
    declared: &BTreeMap<String, Vec<String>>,
    measured: &Measures,
) -> Vec<String> {
    let mut found = Vec::new();
    for ours in structures() {
        match declared.get(ours.name) {
            Some(fields) => found.extend(differences_of(&ours, fields, measured)),
            None => found.push(format!("the header has no {}", ours.name)),
        }
    }
    for (structure, ours) in nested() {
        found.extend(difference_of_field(structure, &ours, 0, measured));
    }
    found
}

fn differences_of(ours: &Structure, fields: &[String], measured: &Measures) -> Vec<String> {
    let name = ours.name;
    let mut found = Vec::new();
    let [size, align] = measured[name];
    let grown = match name == GROWS_AT_ITS_BEGINNING {
        true => size.saturating_sub(ours.size),
        false => 0,
    };
    if (ours.size + grown, ours.align) != (size, align) {
        let (our_size, our_align) = (ours.size, ours.align);
        found.push(format!(
            "{name}: {our_size} bytes aligned to {our_align}, the header's {size} to {align}"
        ));
    }
    for field in &ours.fields {
        found.extend(difference_of_field(name, field, grown, measured));
    }
    // Members of a union are within one of our fields. A missing field is within none.
    for field in fields {
        let [offset, size] = measured[&format!("{name}.{field}")];
        let has = |ours: &Field| {
            let begin = ours.offset + grown;
            begin <= offset && offset + size <= begin + ours.size
        };
        if offset >= grown && !ours.fields.iter().any(has) {
            found.push(format!("{name} has no {field}"));
        }
    }
    found
}

fn difference_of_field(
    structure: &str,
    ours: &Field,
    grown: usize,
    measured: &Measures,
) -> Option<String> {
    let name = format!("{structure}.{}", ours.name);
    let here = [ours.offset + grown, ours.size];
    let theirs = measured.get(&name);
    (theirs != Some(&here))
        .then(|| format!("{name}: offset and size {here:?}, the header's {theirs:?}"))
}

#[test]
fn any_difference_of_a_structure_is_reported() {
    let field = |name, offset, size| Field { name, offset, size };
    let right = Structure {
        name: "struct a",
        size: 16,
        align: 8,
        fields: vec![field("x", 0, 4), field("y", 8, 8)],
    };
    let header = measures("struct a 16 8\nstruct a.x 0 4\nstruct a.y 8 8\nstruct a.z 8 4\n");
    let fields = ["x", "y", "z"].map(str::to_owned);
    let of = |ours: &Structure| differences_of(ours, &fields, &header);
    assert_eq!(of(&right), [""; 0]);
    let changes: [fn(&mut Structure); 5] = [
        |wrong| wrong.size = 24,
        |wrong| wrong.align = 4,
        |wrong| wrong.fields[1].offset = 4,
        |wrong| wrong.fields[0].name = "w",
        |wrong| {
            wrong.fields.pop();
        },
    ];
    for change in changes {
        let mut wrong = right.clone();
        change(&mut wrong);
        assert_ne!(of(&wrong), [""; 0], "{wrong:?}");
    }
}

#[test]
fn a_structure_that_grew_at_its_beginning_is_counted_from_its_end() {
    let ours = Structure {
        name: GROWS_AT_ITS_BEGINNING,
        size: 8,
        align: 8,
        fields: vec![Field {
            name: "y",
            offset: 0,
            size: 8,
        }],
    };
    let header = measures(
        "struct verbs_context 16 8\nstruct verbs_context.new 0 8\nstruct verbs_context.y 8 8\n",
    );
    let fields = ["new", "y"].map(str::to_owned);
    assert_eq!(differences_of(&ours, &fields, &header), [""; 0]);
}
