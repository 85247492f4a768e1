//! Parses declarations from preprocessed headers.

use std::collections::BTreeMap;

use super::tokens::{closing, end, is_word, tokens, without_attributes};

/// The declarations of some headers.
#[derive(Debug, Default)]
pub(crate) struct Declarations {
    /// Structures and unions by their C names, with their fields and nested fields.
    pub(crate) structures: BTreeMap<String, Vec<String>>,
    /// Names of enumerators.
    pub(crate) enumerators: Vec<String>,
    /// Functions by name, with the types of pointers to them.
    pub(crate) functions: BTreeMap<String, String>,
    /// Macros, and whether each is a number.
    pub(crate) macros: BTreeMap<String, bool>,
}

impl Declarations {
    /// Collects the declarations of `headers` from the preprocessor's output.
    pub(crate) fn read(preprocessed: &str, headers: &[&str]) -> Self {
        let mut declared = Self::default();
        let mut text = String::new();
        let mut is_theirs = false;
        for line in preprocessed.lines() {
            if let Some(marker) = line.strip_prefix("# ") {
                let file = marker.split('"').nth(1).unwrap_or_default();
                is_theirs = headers.iter().any(|header| file.ends_with(header));
            } else if !is_theirs {
            } else if let Some(definition) = line.strip_prefix("#define ") {
                declared.define(definition);
            } else if let Some(name) = line.strip_prefix("#undef ") {
                declared.macros.remove(name.trim());
            } else {
                text.push_str(line);
                text.push('\n');
            }
        }
        declared.read_all(&tokens(&text));
        declared
    }

    fn define(&mut self, definition: &str) {
        let name_end = definition
            .find(|sign: char| !sign.is_alphanumeric() && sign != '_')
            .unwrap_or(definition.len());
        let (name, body) = definition.split_at(name_end);
        // A parenthesis right after the name begins parameters.
        let is_number = body.starts_with(' ')
            && body
                .trim()
                .starts_with(|sign: char| sign == '(' || sign.is_ascii_digit());
        self.macros.insert(name.to_owned(), is_number);
    }

    fn read_all(&mut self, tokens: &[String]) {
        let mut at = 0;
        while at < tokens.len() {
            at = self.read_one(tokens, at);
        }
    }

    /// Parses one declaration. Returns the index of the next.
    fn read_one(&mut self, tokens: &[String], from: usize) -> usize {
        let brace = tokens[from..].iter().position(|token| token == "{");
        let brace = brace.map_or(usize::MAX, |brace| from + brace);
        let stop = end(tokens, from);
        let head = &tokens[from..stop.min(brace)];
        let is_tag = matches!(tokens[from].as_str(), "struct" | "union" | "enum");
        if tokens[from] == ";" {
            return from + 1;
        }
        if is_tag && !head.iter().any(|token| token == "(") {
            if brace < stop {
                let body = &tokens[brace + 1..closing(tokens, brace)];
                match (head[0].as_str(), head.get(1)) {
                    ("enum", _) => self.read_enumerators(body),
                    (kind, Some(name)) => {
                        let mut fields = Vec::new();
                        read_fields(body, "", &mut fields);
                        self.structures.insert(format!("{kind} {name}"), fields);
                    }
                    (_, None) => panic!("a structure without a name: {head:?}"),
                }
            }
            return stop + 1;
        }
        if head.iter().any(|token| token == "(") {
            self.read_function(head);
        }
        match brace < stop {
            true => closing(tokens, brace) + 1,
            false => stop + 1,
        }
    }

    fn read_enumerators(&mut self, body: &[String]) {
        let mut at = 0;
        while at < body.len() {
            self.enumerators.push(body[at].clone());
            while at < body.len() && body[at] != "," {
                at = match body[at].as_str() {
                    "(" => closing(body, at) + 1,
                    _ => at + 1,
                };
            }
            at += 1;
        }
    }

    fn read_function(&mut self, head: &[String]) {
        let head = without_attributes(head);
        let kept = |token: &&String| {
            !matches!(token.as_str(), "static" | "inline" | "extern" | "__inline")
        };
        let head: Vec<String> = head.iter().filter(kept).cloned().collect();
        let Some(open) = head.iter().position(|token| token == "(") else {
            return;
        };
        let kind = head[..open - 1].join(" ");
        // The three dots of a variadic function are one token of C.
        let arguments = head[open..].join(" ").replace(". . .", "...");
        self.functions
            .insert(head[open - 1].clone(), format!("{kind} (*){arguments}"));
    }
}

/// Adds the fields of a structure, each as a C expression.
fn read_fields(body: &[String], prefix: &str, fields: &mut Vec<String>) {
    let mut at = 0;
    while at < body.len() {
        let stop = end(body, at);
        let field = without_attributes(&body[at..stop]);
        at = stop + 1;
        match field.iter().position(|token| token == "{") {
            Some(open) => {
                let close = closing(&field, open);
                let inner = &field[open + 1..close];
                match field.get(close + 1) {
                    Some(name) => {
                        fields.push(format!("{prefix}{name}"));
                        read_fields(inner, &format!("{prefix}{name}."), fields);
                    }
                    None => read_fields(inner, prefix, fields),
                }
            }
            None => fields.push(format!("{prefix}{}", name_of(&field))),
        }
    }
}

/// The name declared by a field's declaration.
fn name_of(field: &[String]) -> &str {
    let of_function = field
        .windows(3)
        .find(|tokens| tokens[0] == "(" && tokens[1] == "*" && is_word(&tokens[2]));
    if let Some(tokens) = of_function {
        return &tokens[2];
    }
    let array = field.iter().position(|token| token == "[");
    let before = &field[..array.unwrap_or(field.len())];
    before.last().expect("a field has a name")
}

#[test]
fn declarations_of_every_form_are_read() {
    let text = "# 1 \"/usr/include/a.h\" 1\n\
        #define A_H \n#define ONE (1 << 0)\n#define F(x) (x)\n#define GONE 1\n#undef GONE\n\
        enum a { A, B = (1 << 2), C };\nstruct b;\n\
        struct b { int x[4]; union { char *y; struct { int z; } in; }; int (*call)(struct b *b); };\n\
        const char *f(int x);\nstatic inline __attribute__((x)) struct b *g(void) { return 0; }\n\
        # 1 \"/usr/include/other.h\" 2\nint other(void);\n";
    let declared = Declarations::read(text, &["a.h"]);
    assert_eq!(declared.enumerators, ["A", "B", "C"]);
    let fields = &declared.structures["struct b"];
    assert_eq!(*fields, ["x", "y", "in", "in.z", "call"]);
    assert_eq!(declared.functions["f"], "const char * (*)( int x )");
    assert_eq!(declared.functions["g"], "struct b * (*)( void )");
    assert_eq!(declared.functions.len(), 2);
    let macros: Vec<_> = declared
        .macros
        .iter()
        .map(|(name, is)| (&**name, *is))
        .collect();
    assert_eq!(macros, [("A_H", false), ("F", false), ("ONE", true)]);
}
