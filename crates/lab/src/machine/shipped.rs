//! Files from a Debian package, whether or not this host has them installed.

use std::fs;
use std::path::{Path, PathBuf};

use super::candidate::Candidate;
use super::command::{command, output};
use super::lists::Lists;
use super::packages::unpack;
use super::{Cache, MachineError, Suite};

/// Returns the text of a file in a package, compressed or not. If the installed file is missing
/// (some hosts exclude documentation), the package is unpacked into the cache.
///
/// # Errors
/// [`MachineError`] if the package is not available or does not have the file.
pub(crate) fn shipped_text(
    cache: &Cache,
    package: &str,
    path: &str,
) -> Result<String, MachineError> {
    if let Some(text) = text_of(Path::new(path))? {
        return Ok(text);
    }
    let _lock = cache.lock()?;
    let newest = |candidate: &Candidate| Ok(vec![candidate.version.clone()]);
    let unpacked = unpack(cache, &Lists::of_host(), package, newest, |_, _| Ok(()))?;
    let inside = unpacked.root.join(path.trim_start_matches('/'));
    text_of(&inside)?.ok_or_else(|| MachineError::unexpected(package, format!("it has no {path}")))
}

/// The folder with the user-space headers of the newest kernel of `suite`, unpacked into the cache.
///
/// # Errors
/// [`MachineError`] if the package is not available.
pub(crate) fn kernel_headers(cache: &Cache, suite: Suite) -> Result<PathBuf, MachineError> {
    let _lock = cache.lock()?;
    let lists = Lists::of_suite(cache, suite.codename())?;
    let newest = |candidate: &Candidate| Ok(vec![candidate.version.clone()]);
    let unpacked = unpack(cache, &lists, "linux-libc-dev", newest, |_, _| Ok(()))?;
    Ok(unpacked.root.join("usr/include"))
}

/// The text of the file or of its compressed version; `None` if neither exists.
fn text_of(path: &Path) -> Result<Option<String>, MachineError> {
    if path.is_file() {
        let text = fs::read_to_string(path).map_err(MachineError::io("read", path))?;
        return Ok(Some(text));
    }
    let mut compressed = path.as_os_str().to_owned();
    compressed.push(".gz");
    let compressed = PathBuf::from(compressed);
    if !compressed.is_file() {
        return Ok(None);
    }
    output(command("gzip").arg("-dc").arg(&compressed)).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_as_it_is_or_from_its_compressed_form() {
        let folder =
            std::env::temp_dir().join(format!("portolan-lab-shipped-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("net");
        assert_eq!(text_of(&path).unwrap(), None);
        fs::write(&path, "Switch\n").unwrap();
        assert_eq!(text_of(&path).unwrap().as_deref(), Some("Switch\n"));
        output(command("gzip").arg(&path)).unwrap();
        assert!(!path.exists());
        assert_eq!(text_of(&path).unwrap().as_deref(), Some("Switch\n"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
