//! `cc-env`: prints the settings for building C programs against our headers and libraries.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;

use super::exec::libraries::{Libraries, headers};
use crate::args::{CcEnvArgs, LibrarySet};
use crate::exit::Outcome;
use crate::output::Output;

/// Path of installed pkg-config files, relative to the libraries' folder.
const DESCRIPTIONS: &str = "../pkgconfig";

/// Prints the settings.
///
/// # Errors
///
/// Headers or libraries are missing.
pub(crate) fn run(args: &CcEnvArgs, output: &mut Output) -> Result<Outcome> {
    let libraries = Libraries::find(args.libraries)?;
    // The linker needs the links.
    libraries.prepare()?;
    // They describe the full set alone.
    let is_described = libraries.is_installed() && args.libraries == LibrarySet::Full;
    let descriptions = is_described
        .then(|| libraries.folder().join(DESCRIPTIONS).canonicalize().ok())
        .flatten();
    let environment = Environment {
        include: headers()?,
        lib: libraries.folder().to_owned(),
        descriptions,
        set: args.libraries,
    };
    if output.json {
        output.object(&environment.object())?;
    } else if args.cflags || args.libs {
        let mut options = Vec::new();
        options.extend(args.cflags.then(|| environment.cflags()));
        options.extend(args.libs.then(|| environment.libs()));
        output.line(&options.join(" "))?;
    } else {
        for line in environment.shell()? {
            output.line(&line)?;
        }
    }
    Ok(Outcome::Good)
}

struct Environment {
    include: PathBuf,
    lib: PathBuf,
    /// For pkg-config.
    descriptions: Option<PathBuf>,
    set: LibrarySet,
}

impl Environment {
    fn cflags(&self) -> String {
        format!("-I{}", escaped(&self.include))
    }

    fn libs(&self) -> String {
        let names = match self.set {
            LibrarySet::Full => "-lrdmacm -libverbs",
            LibrarySet::Rdmacm => "-lrdmacm",
        };
        format!("-L{} {names}", escaped(&self.lib))
    }

    /// Commands that prepend our paths to the variables.
    fn shell(&self) -> Result<Vec<String>> {
        let mut variables = vec![("CPATH", &self.include), ("LIBRARY_PATH", &self.lib)];
        variables.extend(
            self.descriptions
                .iter()
                .map(|place| ("PKG_CONFIG_PATH", place)),
        );
        variables
            .into_iter()
            .map(|(name, place)| {
                let place = quoted(place)?;
                Ok(format!("export {name}={place}\"${{{name}:+:${name}}}\""))
            })
            .collect()
    }

    fn object(&self) -> serde_json::Value {
        json!({
            "type": "cc-env",
            "include": self.include.to_string_lossy(),
            "lib": self.lib.to_string_lossy(),
            "pkgconfig": self.descriptions.as_ref().map(|place| place.to_string_lossy()),
            "cflags": self.cflags(),
            "libs": self.libs(),
        })
    }
}

/// A path in an option. A backslash precedes each character that a shell may not take literally, as in pkg-config's
/// output.
fn escaped(path: &Path) -> String {
    let is_literal =
        |c: char| !c.is_ascii() || c.is_ascii_alphanumeric() || "%+,-./:=@_".contains(c);
    let mut text = String::new();
    for c in path.to_string_lossy().chars() {
        if !is_literal(c) {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

/// A path, quoted for a shell.
fn quoted(path: &Path) -> Result<String> {
    let text = path.to_str().context("a path that is no text")?;
    Ok(format!("'{}'", text.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_parses_quoted_text_to_the_same_text() {
        let environment = Environment {
            include: "/it's here/include".into(),
            lib: "/lib".into(),
            descriptions: None,
            set: LibrarySet::Full,
        };
        let script =
            environment.shell().unwrap().join("\n") + "\nprintf %s \"$CPATH|$LIBRARY_PATH\"";
        let said = std::process::Command::new("sh")
            .args(["-c", &script])
            .env_remove("CPATH")
            .env("LIBRARY_PATH", "/before")
            .output()
            .unwrap();
        let said = String::from_utf8(said.stdout).unwrap();
        assert_eq!(said, "/it's here/include|/lib:/before");
        let script = format!("printf %s {}", environment.cflags());
        let said = std::process::Command::new("sh")
            .args(["-c", &script])
            .output()
            .unwrap();
        assert_eq!(said.stdout, b"-I/it's here/include");
    }
}
