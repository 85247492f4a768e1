//! Splits C text into tokens, and matches brackets.

/// The tokens of preprocessed C, without strings.
pub(crate) fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut word = String::new();
    for sign in text.chars() {
        if sign.is_alphanumeric() || sign == '_' {
            word.push(sign);
            continue;
        }
        if !word.is_empty() {
            tokens.push(std::mem::take(&mut word));
        }
        if !sign.is_whitespace() {
            tokens.push(sign.to_string());
        }
    }
    if !word.is_empty() {
        tokens.push(word);
    }
    tokens
}

/// Whether the token is a name or a keyword.
pub(crate) fn is_word(token: &str) -> bool {
    token.starts_with(|sign: char| sign.is_alphabetic() || sign == '_')
}

/// Index of the bracket that closes the one at `open`.
pub(crate) fn closing(tokens: &[String], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.as_str() {
            "(" | "{" | "[" => depth += 1,
            ")" | "}" | "]" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return at;
        }
    }
    panic!("not closed: {:?}", &tokens[open..]);
}

/// Index of the end of a declaration: the first semicolon outside of brackets, or the end of the text.
pub(crate) fn end(tokens: &[String], from: usize) -> usize {
    let mut at = from;
    while at < tokens.len() && tokens[at] != ";" {
        at = match tokens[at].as_str() {
            "(" | "{" | "[" => closing(tokens, at) + 1,
            _ => at + 1,
        };
    }
    at
}

/// Without `__attribute__((...))`.
pub(crate) fn without_attributes(tokens: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        if tokens[at] == "__attribute__" {
            at = closing(tokens, at + 1) + 1;
        } else {
            kept.push(tokens[at].clone());
            at += 1;
        }
    }
    kept
}
