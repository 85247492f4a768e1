//! Generates a C program that names all declarations of headers and prints their layout.

use std::fmt::Write;

use super::declarations::Declarations;

/// A program that prints the size and alignment of each structure, the offset and size of each field, and each
/// number. It compiles only if all functions exist with their types, and all macros.
pub(crate) fn source(headers: &[&str], declared: &Declarations) -> String {
    let mut text = String::from("#include <stddef.h>\n#include <stdio.h>\n");
    for header in headers {
        writeln!(text, "#include <{header}>").unwrap();
    }
    for name in declared.macros.keys() {
        writeln!(text, "#ifndef {name}\n#error \"no macro {name}\"\n#endif").unwrap();
    }
    // The optimizer removes them again, so that no library is needed.
    for (name, pointer) in &declared.functions {
        let pointer = pointer.replacen("(*)", &format!("(*of_{name})"), 1);
        writeln!(text, "static {pointer} = {name};").unwrap();
    }
    text.push_str("int main(void) {\n");
    for (name, fields) in &declared.structures {
        writeln!(
            text,
            "printf(\"{name} %zu %zu\\n\", sizeof({name}), _Alignof({name}));"
        )
        .unwrap();
        for field in fields {
            writeln!(
                text,
                "printf(\"{name}.{field} %zu %zu\\n\", offsetof({name}, {field}), \
                 sizeof((({name} *)0)->{field}));"
            )
            .unwrap();
        }
    }
    let numbers = declared.macros.iter().filter(|(_, is_number)| **is_number);
    let numbers = numbers.map(|(name, _)| name).chain(&declared.enumerators);
    for name in numbers {
        writeln!(text, "printf(\"{name} %lld\\n\", (long long)({name}));").unwrap();
    }
    text.push_str("return 0; }\n");
    text
}
