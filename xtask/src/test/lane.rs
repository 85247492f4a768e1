//! Runs parts in parallel, each in its own process. Its output is shown line by line with its name in front.

use std::io::{self, BufRead, BufReader, PipeReader};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::parts::Profile;
use super::{Part, Place, Report, Workspace};

/// How long to wait for output of a part that has ended, if a process that it left holds the pipe.
const LAST_WORDS_TIME_MAX: Duration = Duration::from_secs(5);
/// Programs on this host run at a lower priority than machines, whose processors are emulated.
const NICENESS_OF_HOST: &str = "5";
/// Work that only computes has an even lower priority.
const NICENESS_OF_COMPUTING: &str = "15";
/// Which parts a lane takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// Those that need this host, then those of [`Lane::Anywhere`].
    Host,
    /// Those that need neither this host nor a processor all the time.
    Anywhere,
    /// Those that only compute. They use what the other lanes leave idle, from the beginning.
    Computing,
}

/// The lanes. Parts that run anywhere wait about half the time, so they have two.
const LANES: [Lane; 4] = [Lane::Host, Lane::Anywhere, Lane::Anywhere, Lane::Computing];

/// Runs the building parts: those of one profile one after the other, and the two profiles in parallel. The
/// reports are in the order of the parts.
pub(super) fn build(parts: &[&Part], workspace: &Workspace) -> Vec<Report> {
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for profile in [Profile::Dev, Profile::Release] {
            let done = &done;
            scope.spawn(move || {
                let parts = parts.iter().enumerate();
                for (at, part) in parts.filter(|(_, part)| part.place == Place::Building(profile)) {
                    tell_and_watch(at, part, workspace, done);
                }
            });
        }
    });
    in_order(done)
}

/// Runs the parts in lanes. The reports are in the order of the parts.
///
/// Only one lane takes parts that need this host, so that there is one of them at a time, and only one those
/// that compute.
pub(super) fn run(parts: &[&Part], workspace: &Workspace) -> Vec<Report> {
    let waiting = Mutex::new(parts.iter().copied().enumerate().collect::<Vec<_>>());
    let done = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for lane in LANES {
            let (waiting, done) = (&waiting, &done);
            scope.spawn(move || {
                while let Some((at, part)) = next(waiting, lane) {
                    tell_and_watch(at, part, workspace, done);
                }
            });
        }
    });
    in_order(done)
}

fn tell_and_watch(
    at: usize,
    part: &Part,
    workspace: &Workspace,
    done: &Mutex<Vec<(usize, Report)>>,
) {
    println!("\n==> {}: {}", part.name, part.what);
    let report = watch(part, workspace);
    println!("<== {}: {}", part.name, report.word());
    lock(done).push((at, report));
}

fn in_order(done: Mutex<Vec<(usize, Report)>>) -> Vec<Report> {
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, report)| report).collect()
}

/// The next part for a lane, and its place in the order of the parts.
fn next<'a>(waiting: &Mutex<Vec<(usize, &'a Part)>>, lane: Lane) -> Option<(usize, &'a Part)> {
    let mut waiting = lock(waiting);
    let first = |of: Lane| waiting.iter().position(|(_, part)| lane_of(part) == of);
    let at = match lane {
        Lane::Host => first(Lane::Host).or_else(|| first(Lane::Anywhere)),
        lane => first(lane),
    };
    Some(waiting.remove(at?))
}

fn lane_of(part: &Part) -> Lane {
    match part.place {
        Place::Host => Lane::Host,
        Place::Computing => Lane::Computing,
        Place::Anywhere | Place::Namespace | Place::Alone | Place::Building(_) => Lane::Anywhere,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn watch(part: &Part, workspace: &Workspace) -> Report {
    let started = Instant::now();
    let verdict = workspace.target.join(format!("{}.verdict", part.name));
    // Do not mistake an earlier run's verdict for this one's.
    let _ = std::fs::remove_file(&verdict);
    match run_in_process(part, &verdict) {
        Ok(()) => Report::read(part, started.elapsed(), &verdict),
        Err(error) => Report::failure(part, started.elapsed(), format!("{error:#}")),
    }
}

fn run_in_process(part: &Part, verdict: &Path) -> Result<()> {
    let (output, input) = io::pipe().context("cannot make a pipe")?;
    let mut command = Command::new("nice");
    let niceness = match part.place {
        Place::Host | Place::Namespace => NICENESS_OF_HOST,
        Place::Computing => NICENESS_OF_COMPUTING,
        Place::Anywhere | Place::Alone | Place::Building(_) => "0",
    };
    command
        .args(["-n", niceness])
        .arg(std::env::current_exe()?)
        .args(["part", part.name])
        .arg(verdict)
        .stdout(input.try_clone()?)
        .stderr(input);
    let mut child = command.spawn().context("cannot start nice")?;
    // Drops the parent's copies of the pipe's end.
    drop(command);
    let name = part.name;
    let reader = thread::spawn(move || show(name, output));
    child.wait()?;
    let ended = Instant::now();
    while !reader.is_finished() && ended.elapsed() < LAST_WORDS_TIME_MAX {
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn show(name: &str, output: PipeReader) {
    let mut output = BufReader::new(output);
    let mut line = Vec::new();
    while output
        .read_until(b'\n', &mut line)
        .is_ok_and(|read| read > 0)
    {
        println!("{name:>15} | {}", String::from_utf8_lossy(&line).trim_end());
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::super::parts::PARTS;
    use super::*;

    fn taken_by(lane: Lane) -> Vec<Lane> {
        let parallel = PARTS.iter().filter(|part| part.place.runs_in_parallel());
        let waiting = Mutex::new(parallel.enumerate().collect());
        std::iter::from_fn(|| next(&waiting, lane))
            .map(|(_, part)| lane_of(part))
            .collect()
    }

    #[test]
    fn the_lane_of_the_host_takes_its_parts_first_and_the_others_never_do() {
        let of_host = taken_by(Lane::Host);
        let switch = of_host.iter().position(|lane| *lane != Lane::Host);
        let switch = switch.expect("parts that run anywhere");
        assert!(of_host[..switch].iter().all(|lane| *lane == Lane::Host));
        assert!(of_host[switch..].iter().all(|lane| *lane == Lane::Anywhere));
        for lane in [Lane::Anywhere, Lane::Computing] {
            let taken = taken_by(lane);
            assert!(!taken.is_empty() && taken.iter().all(|of| *of == lane));
        }
    }

    #[test]
    fn each_parallel_part_is_taken_once() {
        let parallel = PARTS.iter().filter(|part| part.place.runs_in_parallel());
        let taken = taken_by(Lane::Host).len() + taken_by(Lane::Computing).len();
        assert_eq!(taken, parallel.count());
    }
}
