//! The cache folder for what is slow to make: unpacked kernels and packages.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::MachineError;

/// Names another cache folder. The default is `target/lab` in the workspace.
const CACHE_VARIABLE: &str = "PORTOLAN_LAB_CACHE";

/// Where unpacked kernels, packages and the working folders of runs are kept.
///
/// Everything in it can be deleted while no machine runs; it is made again when needed. A newer
/// kernel of a suite is fetched only after its folder was deleted.
#[derive(Clone, Debug)]
pub struct Cache {
    root: PathBuf,
}

/// Held while the cache is being filled, so that two processes do not unpack into one folder.
/// Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct CacheLock {
    _file: File,
}

impl Cache {
    /// The cache in the folder that `PORTOLAN_LAB_CACHE` names, or in the workspace's
    /// `target/lab`. The folder is created.
    ///
    /// # Errors
    /// [`MachineError::Io`] if the folder cannot be created.
    pub fn locate() -> Result<Self, MachineError> {
        match std::env::var_os(CACHE_VARIABLE) {
            Some(path) if !path.is_empty() => Self::at(Path::new(&path)),
            _ => Self::at(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/lab")),
        }
    }

    /// The cache in the folder `root`, which is created.
    ///
    /// # Errors
    /// [`MachineError::Io`] if the folder cannot be created or its path not resolved.
    pub fn at(root: &Path) -> Result<Self, MachineError> {
        fs::create_dir_all(root).map_err(MachineError::io("create", root))?;
        let root = root
            .canonicalize()
            .map_err(MachineError::io("resolve", root))?;
        Ok(Self { root })
    }

    /// The cache's folder.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// A folder of the cache, created.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, MachineError> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).map_err(MachineError::io("create", &path))?;
        Ok(path)
    }

    /// Waits until no other process is filling the cache.
    pub(crate) fn lock(&self) -> Result<CacheLock, MachineError> {
        let path = self.root.join("lock");
        let file = File::create(&path).map_err(MachineError::io("create", &path))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|errno| MachineError::io("lock", &path)(errno.into()))?;
        Ok(CacheLock { _file: file })
    }
}
