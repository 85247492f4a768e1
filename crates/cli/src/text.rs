//! Formats numbers and bytes for people.

use std::borrow::Cow;

/// A number of bytes with a binary unit: `0 B`, `1023 B`, `1.5 KiB`, `120 KiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next().unwrap_or(&"KiB");
    while value >= 1023.95 {
        let Some(next) = units.next() else { break };
        value /= 1024.0;
        unit = next;
    }
    let digits = if value >= 99.95 { 0 } else { 1 };
    let value = format!("{value:.digits$}");
    format!("{} {unit}", value.strip_suffix(".0").unwrap_or(&value))
}

/// Bytes as a quoted string, with everything except printable ASCII escaped: `"hello\x00"`.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    format!("\"{}\"", bytes.escape_ascii())
}

/// A name that others chose, within a line: everything that is not printable is escaped, quotation marks are not.
pub(crate) fn word(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '"' | '\'' => shown.push(character),
            _ => shown.extend(character.escape_debug()),
        }
    }
    shown
}

/// JSON without the control characters that its strings may contain unescaped (U+007F to U+009F): a terminal obeys them.
pub(crate) fn without_controls(json: &str) -> Cow<'_, str> {
    if !json.contains(char::is_control) {
        return json.into();
    }
    let mut shown = String::with_capacity(json.len());
    for character in json.chars() {
        match character.is_control() {
            true => shown += &format!("\\u{:04x}", u32::from(character)),
            false => shown.push(character),
        }
    }
    shown.into()
}

/// Text that is safe for a terminal. Others choose the names of files, interfaces and hosts, and a terminal obeys control
/// characters. All are escaped (`\u{1b}`), except line feeds, tabs, and the colors that the command itself sets.
pub(crate) fn harmless(text: &str) -> Cow<'_, str> {
    let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\t');
    if !text.contains(is_control) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let len = color_len(rest).unwrap_or(0);
        let (as_it_is, after) = rest.split_at(len.max(next.len_utf8()));
        match is_control(next) && len == 0 {
            true => shown.extend(next.escape_debug()),
            false => shown.push_str(as_it_is),
        }
        rest = after;
    }
    shown.into()
}

/// Length of the sequence that sets colors and begins here (ECMA-48, `SGR`).
fn color_len(text: &str) -> Option<usize> {
    let parameters = text.strip_prefix("\x1b[")?;
    let end = parameters.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    let is_color = parameters.get(end..)?.starts_with('m');
    is_color.then_some("\x1b[".len() + end + "m".len())
}

/// Bytes in hexadecimal without separators: `68656c6c6f`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            // Writing to a string cannot fail.
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// `bytes` without trailing zeros: private data before a message padded it, as far as that is visible.
pub(crate) fn without_padding(bytes: &[u8]) -> &[u8] {
    let len = bytes
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last + 1);
    bytes.get(..len).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_the_unit_that_keeps_them_short() {
        for (count, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1 KiB"),
            (1536, "1.5 KiB"),
            (120 * 1024 + 500, "120 KiB"),
            (1024 * 1024 - 1, "1 MiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn a_terminal_gets_colors_and_no_other_control_characters() {
        for same in ["", "plain\ttext\n", "é → \x1b[1;31mred\x1b[0m"] {
            assert_eq!(harmless(same), same);
        }
        for (text, shown) in [
            ("a\x1b]0;title\x07b", r"a\u{1b}]0;title\u{7}b"),
            ("\x1b[2J\x1b[0m", "\\u{1b}[2J\x1b[0m"),
            ("\x1b[31", r"\u{1b}[31"),
            ("\u{9b}é\r\x7f", r"\u{9b}é\r\u{7f}"),
            ("\x1b", r"\u{1b}"),
        ] {
            assert_eq!(harmless(text), shown);
        }
    }

    #[test]
    fn a_word_of_others_stays_within_its_line_and_sets_no_color() {
        assert_eq!(word("it's \"x\" \u{e9}"), "it's \"x\" \u{e9}");
        assert_eq!(word("a\n\t\x1b[31m\\"), r"a\n\t\u{1b}[31m\\");
    }

    #[test]
    fn json_has_no_control_characters_and_keeps_its_meaning() {
        let value = serde_json::json!({ "\u{9b}2J": "\x7f\x1b\n \u{e9}" });
        let text = value.to_string();
        let shown = without_controls(&text);
        assert!(!shown.contains(char::is_control), "{shown}");
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&shown).unwrap(),
            value
        );
    }

    #[test]
    fn private_data_is_shown_without_its_padding_and_without_control_characters() {
        let data = b"hi\x07\0\0\0";
        assert_eq!(quoted(without_padding(data)), r#""hi\x07""#);
        assert_eq!(hex(without_padding(data)), "686907");
        assert_eq!(without_padding(&[0; 56]), b"");
    }
}
