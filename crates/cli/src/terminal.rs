//! Capabilities of the terminal: colour, Unicode, width.

use std::env;
use std::io;

use anstream::AutoStream;
use anstyle::{AnsiColor, Style};

/// Width if the output is not a terminal.
const DEFAULT_WIDTH: usize = 100;
/// Minimum width; narrower terminals are treated as this wide.
const MIN_WIDTH: usize = 60;
/// Maximum width, for readability.
const MAX_WIDTH: usize = 160;

/// When to colour the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ColorChoice {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// How to draw.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Theme {
    /// Columns to draw in.
    pub(crate) width: usize,
    /// Whether to write ANSI colour sequences.
    pub(crate) color: bool,
    /// Whether to write non-ASCII characters.
    pub(crate) unicode: bool,
}

impl Theme {
    /// The theme for standard output.
    pub(crate) fn for_stdout(color: ColorChoice, ascii: bool) -> Theme {
        let stdout = io::stdout();
        let columns = rustix::termios::tcgetwinsize(&stdout)
            .ok()
            .map(|size| usize::from(size.ws_col))
            .filter(|&columns| columns > 0)
            .or_else(|| env::var("COLUMNS").ok()?.parse().ok());
        Theme {
            width: columns.map_or(DEFAULT_WIDTH, |columns| columns.clamp(MIN_WIDTH, MAX_WIDTH)),
            color: match color {
                ColorChoice::Always => true,
                ColorChoice::Never => false,
                ColorChoice::Auto => AutoStream::choice(&stdout) != anstream::ColorChoice::Never,
            },
            unicode: !ascii && {
                let variables = ["LC_ALL", "LC_CTYPE", "LANG"].map(|name| env::var(name).ok());
                locale_is_utf8(variables.iter().map(Option::as_deref))
            },
        }
    }

    /// `text` in the given colour, if colours are on.
    pub(crate) fn paint(&self, paint: Paint, text: &str) -> String {
        let style = paint.style();
        match self.color && !text.is_empty() {
            true => format!("{style}{text}{style:#}"),
            false => text.to_owned(),
        }
    }

    /// Selects one of two forms of a text, depending on Unicode support.
    pub(crate) fn pick<'a>(&self, unicode: &'a str, ascii: &'a str) -> &'a str {
        if self.unicode { unicode } else { ascii }
    }
}

/// Whether the locale supports Unicode: the first non-empty variable decides, as in locale(7).
fn locale_is_utf8<'a>(variables: impl IntoIterator<Item = Option<&'a str>>) -> bool {
    let locale = variables
        .into_iter()
        .flatten()
        .find(|value| !value.is_empty());
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// The meaning of a colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Paint {
    /// No colour.
    #[default]
    Plain,
    /// Less important text.
    Dim,
    /// A heading.
    Bold,
    /// Connection management.
    Handshake,
    /// Application data.
    Data,
    /// An event inside a host.
    Event,
    /// A check that succeeded.
    Good,
    /// A failure.
    Bad,
}

impl Paint {
    fn style(self) -> Style {
        match self {
            Paint::Plain => Style::new(),
            Paint::Dim => Style::new().dimmed(),
            Paint::Bold => Style::new().bold(),
            Paint::Handshake => AnsiColor::Cyan.on_default(),
            Paint::Data => AnsiColor::Blue.on_default(),
            Paint::Event => AnsiColor::Yellow.on_default(),
            Paint::Good => AnsiColor::Green.on_default(),
            Paint::Bad => AnsiColor::Red.on_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_locale_variable_that_is_set_decides_on_unicode() {
        assert!(locale_is_utf8([None, None, Some("de_DE.UTF-8")]));
        assert!(locale_is_utf8([Some(""), Some("C.utf8"), Some("C")]));
        assert!(!locale_is_utf8([Some("C"), None, Some("de_DE.UTF-8")]));
        assert!(!locale_is_utf8([None, None, None]));
    }

    #[test]
    fn paint_is_written_only_if_colors_are_on() {
        let mut theme = Theme {
            width: 80,
            color: false,
            unicode: true,
        };
        assert_eq!(theme.paint(Paint::Bad, "x"), "x");
        theme.color = true;
        assert_eq!(theme.paint(Paint::Bad, "x"), "\x1b[31mx\x1b[0m");
        assert_eq!(theme.paint(Paint::Plain, "x"), "x");
    }
}
