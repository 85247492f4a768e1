//! `exec`: runs a C program on Portolan's libraries without rebuilding it. The program replaces this one: it has its
//! process, terminal and exit code.

pub(super) mod libraries;
mod links;
mod namespace;
mod program;
mod secure_path;
mod trial;
mod view;

use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use portolan::provider::{Choice, TRUST_ENV};
use portolan::software::{DevicePreview, Trust};
use serde_json::json;

use crate::args::{ExecArgs, LibrarySet};
use crate::exit::Outcome;
use crate::output::{Output, complain};
use libraries::{Libraries, Preload};
use namespace::Hidden;
use program::{Missing, Program};
pub(crate) use trial::run as run_trial;

/// The variable with the dynamic loader's first search folders.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// The variable that lists the libraries that the dynamic loader loads first.
const PRELOAD: &str = "LD_PRELOAD";
const PROVIDER: &str = "PORTOLAN_PROVIDER";
/// A shell's exit codes for a missing program, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;

/// Replaces this program by the other one. Returns only if that fails or was not requested.
///
/// # Errors
///
/// The libraries are missing, or a system error cannot be reported.
pub(crate) fn run(args: &ExecArgs, pinned: Option<Choice>, output: &mut Output) -> Result<Outcome> {
    ensure!(
        args.libraries != LibrarySet::Full || pinned != Some(Choice::Kernel),
        "Portolan's libibverbs has software devices only; --provider kernel needs --libraries rdmacm"
    );
    let (name, arguments) = args.command.split_first().context("PROGRAM is missing")?;
    let program = match Program::find(name) {
        Ok(program) => program,
        Err(missing) => {
            complain(&missing);
            return Ok(Outcome::Status(match missing {
                Missing::NotFound(_) | Missing::Unnamed => NOT_FOUND,
                Missing::NotRunnable(_) => NOT_RUNNABLE,
            }));
        }
    };
    let libraries = Libraries::find(args.libraries)?;
    let mut variables = variables(args.libraries, pinned, libraries.folder());
    let preload = args.sockets.then(Preload::find).transpose()?;
    if let Some(preload) = &preload {
        variables.push((PRELOAD, before(&preload.path, PRELOAD)));
    }
    // Socket programs do not look for devices in sysfs, and may depend on the ids of other users.
    let wants_view = args.libraries == LibrarySet::Full && !args.no_sysfs && !args.sockets;
    let devices = match wants_view {
        true => portolan::software::preview()?,
        false => Vec::new(),
    };
    if args.dry_run {
        warn(&program, args);
        tell(&program, &variables, &devices, wants_view, output)?;
        return Ok(Outcome::Good);
    }
    libraries.prepare()?;
    preload.iter().try_for_each(Preload::prepare)?;
    if wants_view {
        let left = namespace::leave(|| may_be_alone().and_then(|()| trial::try_elsewhere()));
        let views = view::views(&devices);
        match left {
            Ok(()) => {
                for view in &views {
                    if let Err(error) = namespace::lay_over(Path::new(view.place), &view.tree) {
                        complain_of_view(name, view.place, &error);
                    }
                }
            }
            Err(Hidden::Kept(error)) => {
                let places = views.each_ref().map(|view| view.place).join(" and ");
                complain_of_view(name, &places, &error);
            }
            Err(lost @ Hidden::Lost(_)) => {
                return Err(lost).context("--no-sysfs runs the program without a view of its own");
            }
        }
    }
    // Not earlier: in another user namespace, file capabilities have no effect.
    warn(&program, args);
    output.flush()?;
    let mut command = Command::new(&program.path);
    command.arg0(name).args(arguments).envs(variables);
    portolan_sigpipe::pass_on(&mut command);
    let error = command.exec();
    let path = program.path.display();
    // The system says of a script without its interpreter, too, that there is no such file.
    let is_missing = error.kind() == std::io::ErrorKind::NotFound;
    let is_there = program.path.exists();
    match is_missing && is_there {
        true => complain(&format_args!(
            "cannot run {path}: there is no such interpreter as it names"
        )),
        false => complain(&format_args!("cannot run {path}: {error}")),
    }
    Ok(Outcome::Status(match is_missing && !is_there {
        true => NOT_FOUND,
        false => NOT_RUNNABLE,
    }))
}

/// Warns if the program will not use the libraries.
fn warn(program: &Program, args: &ExecArgs) {
    let of_sockets = || args.sockets.then(|| program.calls_the_kernel()).flatten();
    if let Some(warning) = program.deaf_to_environment().or_else(of_sockets) {
        complain(&warning);
    }
}

fn complain_of_view(name: &OsStr, places: &str, error: &anyhow::Error) {
    complain(&format_args!(
        "{} sees no devices in {places}: {error:#}; programs that ask libibverbs see them, \
         except UCX (--no-sysfs: no warning)",
        name.display(),
    ));
}

/// Whether the program can do without other users' numbers, which a user namespace does not map.
fn may_be_alone() -> Result<()> {
    match portolan::provider::trust()? {
        Trust::Users(_) => {
            bail!("in a user namespace, the users that {TRUST_ENV} names have no numbers")
        }
        Trust::SameUser | Trust::Anyone => Ok(()),
    }
}

/// The environment variables that the program gets in addition or changed.
fn variables(
    set: LibrarySet,
    pinned: Option<Choice>,
    folder: &Path,
) -> Vec<(&'static str, OsString)> {
    let mut variables = vec![(LIBRARY_PATH, before(folder, LIBRARY_PATH))];
    let pinned = match set {
        LibrarySet::Full => Some(Choice::Software),
        LibrarySet::Rdmacm => pinned,
    };
    if let Some(choice) = pinned {
        variables.push((PROVIDER, choice.name().into()));
    }
    variables
}

/// A variable's value with `path` prepended to its current paths.
fn before(path: &Path, variable: &str) -> OsString {
    let mut path = path.as_os_str().to_owned();
    if let Some(others) = std::env::var_os(variable).filter(|others| !others.is_empty()) {
        path.push(":");
        path.push(others);
    }
    path
}

/// Prints what would be done.
fn tell(
    program: &Program,
    variables: &[(&str, OsString)],
    devices: &[DevicePreview],
    shows_view: bool,
    output: &mut Output,
) -> Result<()> {
    let views = view::views(devices);
    if output.json {
        let [class, nodes] = &views;
        let environment = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.to_string_lossy().into()));
        output.object(&json!({
            "type": "exec",
            "program": program.path.to_string_lossy(),
            "environment": serde_json::Map::from_iter(environment),
            "sysfs": shows_view.then(|| class.names()),
            "dev_infiniband": shows_view.then(|| nodes.names()),
        }))?;
        return Ok(());
    }
    output.line(&format!("program  {}", program.path.display()))?;
    for (name, value) in variables {
        output.line(&format!("{name}={}", value.display()))?;
    }
    if shows_view {
        for view in &views {
            let names = view.names().join(", ");
            output.line(&format!(
                "{}  {names}, for the program alone, if this user may have a mount namespace",
                view.place
            ))?;
        }
    }
    Ok(())
}
