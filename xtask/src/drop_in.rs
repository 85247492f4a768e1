//! The installed libraries: builds a C program with the output of `portolan cc-env` and runs it with `portolan
//! exec`, both as an ordinary user.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use portolan_lab::own_network;

use crate::install;
use crate::processes::output_within;
use crate::test::{Outcome, Workspace};

/// User for the steps if the tests run as root. Not `nobody`, who gets no user namespace.
const ORDINARY_USER: u32 = 60_001;
/// Time limit of a step, which takes a moment.
const STEP_TIME_MAX: Duration = Duration::from_secs(120);

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    own_network::enter();
    let prefix =
        Prefix(std::env::temp_dir().join(format!("portolan-prefix-{}", std::process::id())));
    // Never use an existing folder: its owner could replace the programs.
    fs::create_dir(&prefix.0)?;
    // Install twice, to cover replacing an older version.
    for _ in 0..2 {
        install::lay_out(workspace, &workspace.target.join("release"), &prefix.0)?;
    }
    let source = workspace.root.join("crates/cli/tests/c/devices.c");
    fs::copy(source, prefix.0.join("devices.c"))?;
    open_to_all(&prefix.0)?;
    let user = User::new(workspace, &prefix.0);
    let built = user.run(
        "eval \"$(bin/portolan cc-env)\" && cc -Wall -Wextra -Werror -o work/devices devices.c -lrdmacm -libverbs",
    );
    built.context("cannot build a C program")?;
    let listed = user.run("bin/portolan devices --provider software --json")?;
    let expected: Vec<String> = listed
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|object| object["name"].as_str().map(str::to_owned))
        .collect();
    ensure!(!expected.is_empty(), "no devices: {listed}");
    let told = user.run("bin/portolan exec -- work/devices 2>&1")?;
    println!("{told}");
    for name in &expected {
        let is_there = told.lines().any(|line| line == format!("verbs {name}"));
        ensure!(is_there, "libibverbs does not list {name}");
    }
    let is_explained = told.contains("sees no devices in /sys/class/infiniband");
    let is_seen = expected
        .iter()
        .all(|name| told.lines().any(|line| line == format!("sysfs {name}")));
    // Ask util-linux what the machine permits.
    let is_allowed = user.run("unshare -Urm true 2>&1").is_ok();
    ensure!(
        is_seen || !is_allowed,
        "no device in /sys/class/infiniband, although this machine allows mount namespaces"
    );
    ensure!(
        is_seen || is_explained,
        "no device in /sys/class/infiniband, and no warning"
    );
    let by_pkg_config = match Command::new("pkg-config").arg("--version").output() {
        Ok(_) => {
            let flags = user
                .run("eval \"$(bin/portolan cc-env)\" && pkg-config --cflags --libs librdmacm")?;
            ensure!(
                flags.contains("-lrdmacm -libverbs"),
                "pkg-config says {flags}"
            );
            ", pkg-config finds it"
        }
        Err(_) => "",
    };
    let view = match is_seen {
        true => "with /sys/class/infiniband",
        false => "/sys/class/infiniband is not possible on this machine",
    };
    Ok(Outcome::Passed(format!(
        "{} devices, {view}{by_pkg_config}",
        expected.len()
    )))
}

/// Lets everybody read it, and work in one of its folders.
fn open_to_all(prefix: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt;

    let work = prefix.join("work");
    fs::create_dir_all(&work)?;
    fs::set_permissions(&work, fs::Permissions::from_mode(0o1777))?;
    Ok(fs::set_permissions(
        prefix,
        fs::Permissions::from_mode(0o755),
    )?)
}

/// The user who runs the steps.
struct User<'a> {
    is_root: bool,
    folder: &'a Path,
}

impl<'a> User<'a> {
    fn new(workspace: &Workspace, folder: &'a Path) -> Self {
        Self {
            is_root: workspace.is_root,
            folder,
        }
    }

    /// Runs a script in the folder and returns its output.
    fn run(&self, script: &str) -> Result<String> {
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .current_dir(self.folder)
            // A folder in which this user may make temporary files, removed with the prefix.
            .env("TMPDIR", self.folder.join("work"))
            .env_remove("XDG_RUNTIME_DIR");
        if self.is_root {
            command.uid(ORDINARY_USER).gid(ORDINARY_USER);
        }
        let output = output_within(&mut command, STEP_TIME_MAX).context(script.to_owned())?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(
            output.status.success(),
            "`{script}` ended with {}: {text}",
            output.status
        );
        Ok(text)
    }
}

/// A folder that is removed on drop.
struct Prefix(PathBuf);

impl Drop for Prefix {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
