//! Sections of documents that `cargo xtask` tasks write from their runs.

/// Replaces the section of `task` in the document, or appends it.
#[must_use]
pub fn document(task: &str, text: &str, section: &str) -> String {
    let begin = format!("<!-- Written by `cargo xtask {task}` from its run: do not edit. -->");
    let end = format!("<!-- End of what `cargo xtask {task}` writes. -->");
    let section = format!("{begin}\n\n{}\n\n{end}\n", section.trim_end());
    let place = text.find(&begin).and_then(|begin| {
        let length = text.get(begin..)?.find(&end)? + end.len();
        Some((begin, begin + length))
    });
    match place {
        Some((begin, end)) => {
            let behind = text[end..].strip_prefix('\n').unwrap_or(&text[end..]);
            format!("{}{section}{behind}", &text[..begin])
        }
        None => format!("{}\n\n{section}", text.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_run_wrote_is_replaced() {
        let first = document("play", "# Interoperation\n\nWords.\n", "one");
        assert!(
            first.starts_with("# Interoperation\n\nWords.\n\n"),
            "{first}"
        );
        let more = format!("{first}\n## More\n");
        let second = document("play", &more, "two");
        assert_eq!(second, more.replace("one", "two"));
        assert_eq!(document("play", &second, "two"), second);
    }

    #[test]
    fn the_section_of_another_task_stays() {
        let one = document("play", "# Interoperation\n", "one");
        let both = document("play --more", &one, "more");
        assert!(both.starts_with(&one), "{both}");
        assert_eq!(document("play", &both, "two"), both.replace("one", "two"));
    }
}
