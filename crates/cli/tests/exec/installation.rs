//! An installation in a folder whose name contains a space.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::common::{copy_program, output_of, portolan, stderr, stdout};

/// The folders that `cargo xtask install` makes, in a folder of their own, removed on drop.
struct Installation(PathBuf);

impl Installation {
    fn new(name: &str) -> Self {
        let name = format!("portolan-exec {name}-{}", std::process::id());
        let own = Self(std::env::temp_dir().join(name));
        fs::create_dir(&own.0).unwrap();
        let command = Path::new(env!("CARGO_BIN_EXE_portolan"));
        own.copy(command, "bin/portolan");
        for (library, to) in [
            ("libibverbs.so", "full/libibverbs.so"),
            ("libibverbs.so", "full/libibverbs.so.1"),
            ("librdmacm.so", "full/librdmacm.so"),
            ("librdmacm.so", "full/librdmacm.so.1"),
            ("librdmacm.so", "rdmacm/librdmacm.so"),
            ("librdmacm.so", "rdmacm/librdmacm.so.1"),
            // Any library shows whether the loader finds it.
            ("librdmacm.so", "rsocket/librspreload.so.1"),
        ] {
            let built = command.parent().unwrap();
            let places = [built.join(library), built.join("deps").join(library)];
            let found = places.iter().find(|place| place.is_file()).unwrap();
            own.copy(found, &format!("lib/portolan/{to}"));
        }
        let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include");
        let to = own.0.join("include/portolan");
        fs::create_dir(to.parent().unwrap()).unwrap();
        let copied = Command::new("cp").arg("-r").args([headers, to]).status();
        assert!(copied.unwrap().success());
        own
    }

    fn copy(&self, from: &Path, to: &str) {
        let to = self.0.join(to);
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        copy_program(from, to);
    }

    /// Runs a shell script. Its first argument is the installed command, its second one the installation's folder.
    fn shell(&self, script: &str) -> Output {
        let plain = portolan();
        let mut command = Command::new("sh");
        command.args(["-ec", script, "sh"]);
        command.arg(self.0.join("bin/portolan")).arg(&self.0);
        for (name, _) in plain.get_envs().filter(|(_, value)| value.is_none()) {
            command.env_remove(name);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        output_of(command.spawn().unwrap())
    }
}

impl Drop for Installation {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_library_is_preloaded_also_from_a_folder_with_a_space_in_its_name() {
    let installation = Installation::new("preload");
    let output = installation.shell("\"$1\" exec --sockets -- grep -m 1 rspreload /proc/self/maps");
    let (text, complaint) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{complaint}");
    assert!(text.contains("rsocket/librspreload.so.1"), "{text}");
    assert_eq!(complaint, "");
}

#[test]
fn a_shell_parses_the_options_of_cc_env_to_folders_with_a_space_in_their_names() {
    let installation = Installation::new("options");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/sample.c");
    let script = format!(
        "eval \"cc -o \\\"\\$2/sample\\\" {} $(\"$1\" cc-env --cflags --libs)\"; test -x \"$2/sample\"",
        source.display()
    );
    let output = installation.shell(&script);
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn pkg_config_is_pointed_only_to_descriptions_of_the_same_libraries() {
    let installation = Installation::new("descriptions");
    fs::create_dir(installation.0.join("lib/portolan/pkgconfig")).unwrap();
    let told = |set: &str| {
        let output = installation.shell(&format!("\"$1\" cc-env --libraries {set}"));
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    assert!(told("full").contains("PKG_CONFIG_PATH"));
    let alone = told("rdmacm");
    assert!(alone.contains("lib/portolan/rdmacm"), "{alone}");
    assert!(!alone.contains("PKG_CONFIG_PATH"), "{alone}");
}
