//! The pairs that have passed, in files, so that a run of hours can be continued where it was cut off.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Play;
use super::pair::OPTIONS;

/// Our libraries, which are beside the command.
const LIBRARIES: [&str; 2] = ["libibverbs.so", "librdmacm.so"];

/// The folder of the files of one kernel's run. Each has what was played, and the seconds that it took.
#[derive(Debug)]
pub(super) struct Kept<'a> {
    folder: &'a Path,
    /// What a result is valid for: the kernel, a digest of our command and libraries, and the programs' options.
    valid_for: String,
}

impl<'a> Kept<'a> {
    /// The results of earlier runs.
    pub(super) fn open(folder: &'a Path, portolan: &Path, release: &str) -> io::Result<Self> {
        let mut digest = DefaultHasher::new();
        fs::read(portolan)?.hash(&mut digest);
        for name in LIBRARIES {
            fs::read(portolan.with_file_name(name))?.hash(&mut digest);
        }
        let valid_for = format!("{release} {:016x} {OPTIONS}", digest.finish());
        Ok(Self { folder, valid_for })
    }

    /// Forgets the results of these pairs.
    pub(super) fn forget(&self, plays: &[Play]) -> io::Result<()> {
        plays
            .iter()
            .try_for_each(|play| match fs::remove_file(self.path(play)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            })
    }

    /// How long a pair took that passed before.
    pub(super) fn time(&self, play: &Play) -> Option<Duration> {
        let text = fs::read_to_string(self.path(play)).ok()?;
        let seconds = text.strip_prefix(&self.valid_for)?.trim().parse().ok()?;
        Some(Duration::from_secs(seconds))
    }

    /// Keeps the result of a pair that has passed.
    pub(super) fn passed(&self, play: &Play, time: Duration) -> io::Result<()> {
        let (path, seconds) = (self.path(play), time.as_secs());
        let whole = path.with_extension("new");
        fs::write(&whole, format!("{} {seconds}\n", self.valid_for))?;
        fs::rename(whole, path)
    }

    fn path(&self, play: &Play) -> PathBuf {
        self.folder.join(play.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::super::plays;
    use super::*;

    #[test]
    fn a_later_run_has_what_the_same_programs_and_kernel_have_passed() {
        let base = std::env::temp_dir().join(format!("portolan-lab-kept-{}", std::process::id()));
        let (folder, portolan) = (base.join("run"), base.join("portolan"));
        fs::create_dir_all(&folder).unwrap();
        for name in ["portolan"].iter().chain(&LIBRARIES) {
            fs::write(base.join(name), name).unwrap();
        }
        let open = |release| Kept::open(&folder, &portolan, release).unwrap();
        let played = plays(None);
        let time = Duration::from_secs(1234);
        for play in &played[..2] {
            open("6.1").passed(play, time).unwrap();
        }
        assert_eq!(open("6.1").time(&played[0]), Some(time));
        assert_eq!(open("6.1").time(&played[2]), None, "never played");
        assert_eq!(open("7.3").time(&played[0]), None, "another kernel");
        open("6.1").forget(&[played[0], played[2]]).unwrap();
        assert_eq!(open("6.1").time(&played[0]), None, "forgotten");
        assert_eq!(open("6.1").time(&played[1]), Some(time));
        fs::write(base.join("librdmacm.so"), "changed").unwrap();
        assert_eq!(open("6.1").time(&played[1]), None, "another library");
        fs::remove_dir_all(base).unwrap();
    }
}
