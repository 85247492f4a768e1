//! The command as installed for other users.

#![allow(dead_code, reason = "each test program uses its part of this")]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{copy_program, output_of, own_network, stderr, stdout};

/// The command and its libraries in a folder that every user can read; removed on drop. The folder must not
/// exist before: its owner could replace the programs that root runs.
pub(crate) struct Installed(pub(crate) PathBuf);

impl Installed {
    pub(crate) fn new(name: &str) -> Self {
        let name = format!("portolan-root-exec-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let work = folder.join("work");
        fs::create_dir(&folder).unwrap();
        fs::create_dir(&work).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o755)).unwrap();
        fs::set_permissions(&work, Permissions::from_mode(0o1777)).unwrap();
        let command = Path::new(env!("CARGO_BIN_EXE_portolan"));
        copy_program(command, folder.join("portolan"));
        let built = command.parent().unwrap();
        for library in ["libibverbs.so", "librdmacm.so"] {
            let places = [built.join(library), built.join("deps").join(library)];
            let found = places.iter().find(|place| place.is_file()).unwrap();
            copy_program(found, folder.join(library));
        }
        Self(folder)
    }

    /// Runs a program with `exec` and returns stdout and stderr. The shell words `around` start it.
    pub(crate) fn run(&self, around: &str, script: &str) -> (String, String) {
        let shell = format!("{around} \"$0\" exec -- sh -c \"$1\"");
        own_network::enter();
        let child = Command::new("sh")
            .args(["-ec", &shell])
            .arg(self.0.join("portolan"))
            .arg(script)
            .env("TMPDIR", self.0.join("work"))
            .env_remove("XDG_RUNTIME_DIR")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let output = output_of(child);
        let (text, complaint) = (stdout(&output), stderr(&output));
        assert!(output.status.success(), "{text}{complaint}");
        (text, complaint)
    }
}

impl Drop for Installed {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Shell words that start a program as a user.
pub(crate) fn as_user(user: u32) -> String {
    format!("setpriv --reuid {user} --regid {user} --clear-groups --")
}
