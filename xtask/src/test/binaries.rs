//! Runs the programs of test targets two at a time, because many of them mostly wait.
//!
//! Cargo runs them one after the other. So cargo starts this program as their runner (`note-run`), which writes down how
//! cargo would start each, and they are started here in the same way: same arguments, folder and environment.

use std::collections::VecDeque;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use portolan_lab::own_network;
use serde_json::{Value, json};

use super::workspace::{Workspace, cargo};

/// How many run at a time. Each has its own network namespace, so that none sees another's UDP port.
const AT_A_TIME: usize = 2;

/// Arguments of `note-run`.
#[derive(Debug, clap::Args)]
pub(crate) struct NoteRunArguments {
    /// File to add a line to.
    notes: PathBuf,
    /// The program and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// A program to run, and its name for readers.
pub(super) struct Run {
    name: String,
    command: Command,
}

impl Run {
    pub(super) fn new(name: &str, command: Command) -> Self {
        Self {
            name: name.to_owned(),
            command,
        }
    }
}

/// Writes down how cargo starts a program.
pub(crate) fn note_run(arguments: &NoteRunArguments) -> Result<ExitCode> {
    let utf8 = |text: std::ffi::OsString| text.into_string().ok();
    let environment: Vec<(String, String)> = std::env::vars_os()
        .filter_map(|(name, value)| Some((utf8(name)?, utf8(value)?)))
        .collect();
    let note = json!({
        "command": arguments.command,
        "folder": std::env::current_dir()?.to_str().context("a folder in UTF-8")?,
        "environment": environment,
    });
    let mut notes = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&arguments.notes)?;
    writeln!(notes, "{note}")?;
    Ok(ExitCode::SUCCESS)
}

/// The programs that cargo would run with these arguments, which must exclude the documentation's examples.
pub(super) fn of_cargo(workspace: &Workspace, arguments: &[&str]) -> Result<Vec<Run>> {
    let notes = workspace.target.join("test-runs");
    let _ = fs::remove_file(&notes);
    let this = std::env::current_exe()?;
    let runner = json!([this, "note-run", notes]);
    // An array of JSON's strings is one of TOML's.
    let runner = format!("target.'cfg(unix)'.runner = {runner}");
    workspace.cargo(&[&["--config", &runner], arguments].concat())?;
    let noted = fs::read_to_string(&notes).context("cargo has run no tests")?;
    noted
        .lines()
        .map(|note| read(workspace, &serde_json::from_str(note)?))
        .collect()
}

fn read(workspace: &Workspace, note: &Value) -> Result<Run> {
    let texts = |value: &Value| -> Option<Vec<String>> {
        let texts = value.as_array()?.iter();
        texts.map(|text| text.as_str().map(str::to_owned)).collect()
    };
    let command = texts(&note["command"]).context("a note has a command")?;
    let (program, arguments) = command.split_first().context("a command has a program")?;
    let folder = Path::new(note["folder"].as_str().context("a note has a folder")?);
    let mut run = Command::new(program);
    run.args(arguments).current_dir(folder).env_clear();
    for pair in note["environment"].as_array().into_iter().flatten() {
        let pair = texts(pair).context("a variable is a pair")?;
        let [name, value] = pair.as_slice() else {
            bail!("a variable is a pair");
        };
        run.env(name, value);
    }
    let package = folder.strip_prefix(&workspace.root).unwrap_or(folder);
    // Without cargo's hash.
    let file = Path::new(program).file_name().unwrap_or_default();
    let file = file.to_string_lossy();
    let target = file.rsplit_once('-').map_or(&*file, |(target, _)| target);
    Ok(Run::new(&format!("{} {target}", package.display()), run))
}

/// Runs the programs, in this order, and prints the output of each when it ends. Those that fail are an error, after all
/// have run.
pub(super) fn run(workspace: &Workspace, runs: Vec<Run>) -> Result<()> {
    let count = runs.len();
    let waiting = Mutex::new(VecDeque::from(runs));
    let failed = Mutex::new(Vec::new());
    let next = || lock(&waiting).pop_front();
    thread::scope(|scope| {
        for lane in 0..AT_A_TIME {
            let (next, failed) = (&next, &failed);
            let output = workspace.target.join(format!("test-output-{lane}"));
            scope.spawn(move || {
                own_network::enter_new();
                while let Some(run) = next() {
                    let name = run.name.clone();
                    if let Err(error) = run.show(&output) {
                        println!("{name} FAILED: {error:#}");
                        lock(failed).push(name);
                    }
                }
            });
        }
    });
    let failed = lock(&failed);
    ensure!(
        failed.is_empty(),
        "{} of {count} programs failed: {}",
        failed.len(),
        failed.join(", ")
    );
    Ok(())
}

impl Run {
    /// Runs it with its output in a file: a process that it leaves behind may keep the file open.
    fn show(mut self, output: &Path) -> Result<()> {
        println!("{} starts", self.name);
        let started = Instant::now();
        let file = File::create(output)?;
        let status = self
            .command
            .stdin(Stdio::null())
            .stdout(file.try_clone()?)
            .stderr(file)
            .status()
            .context("cannot be started")?;
        let text = fs::read(output)?;
        let seconds = started.elapsed().as_secs_f64();
        // In one call, so that another program's lines are not among them.
        print!(
            "{} ended after {seconds:.1} s\n{}",
            self.name,
            String::from_utf8_lossy(&text)
        );
        ensure!(status.success(), "{status}");
        Ok(())
    }
}

/// The examples in the documentation, which only cargo can run.
pub(super) fn documented_examples(workspace: &Workspace, arguments: &[&str]) -> Run {
    let mut command = Command::new(cargo());
    command
        .args(arguments)
        .arg("--doc")
        .current_dir(&workspace.root);
    Run::new("examples of the documentation", command)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(name: &str, script: &str) -> Run {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Run::new(name, command)
    }

    #[test]
    fn programs_run_in_parallel_and_those_that_fail_are_named_when_all_have_run() {
        let folder = std::env::temp_dir().join(format!("portolan-binaries-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let workspace = Workspace {
            target: folder.clone(),
            ..Workspace::here().unwrap()
        };
        // Each of the first two waits for the other.
        let waits = |own: &str, other: &str| {
            let folder = folder.display();
            format!("touch {folder}/{own}; until test -e {folder}/{other}; do sleep 0.01; done")
        };
        let runs = vec![
            shell("one", &waits("a", "b")),
            shell("two", &(waits("b", "a") + "; exit 3")),
            shell("three", &format!("touch {}/last", folder.display())),
        ];
        let error = run(&workspace, runs).unwrap_err().to_string();
        assert_eq!(error, "1 of 3 programs failed: two");
        assert!(folder.join("last").exists());
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_noted_program_is_started_as_cargo_would() {
        let workspace = Workspace::here().unwrap();
        let folder = workspace.root.join("crates/cm");
        let note = json!({
            "command": ["/target/debug/deps/bad_input-0123abcd", "--quiet"],
            "folder": folder,
            "environment": [["CARGO_PKG_NAME", "portolan-cm"]],
        });
        let run = read(&workspace, &note).unwrap();
        assert_eq!(run.name, "crates/cm bad_input");
        assert_eq!(run.command.get_current_dir(), Some(&*folder));
        assert_eq!(run.command.get_args().collect::<Vec<_>>(), ["--quiet"]);
        let variables: Vec<_> = run.command.get_envs().collect();
        let expected = ("CARGO_PKG_NAME".as_ref(), Some("portolan-cm".as_ref()));
        assert_eq!(variables, [expected]);
    }
}
