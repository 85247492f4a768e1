//! Plays one pair: our end on this host, Debian's in the machine.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::far::{ADDRESS, Far, SOON};
use super::{OWN_ADDRESS, Ours, PROGRAMS, Play};

/// The options of both ends. Both compare all data. Their calls block: an end that polled would take processor time from the
/// other, and each message would last until the end of a time slice.
pub(super) const OPTIONS: &str = "-S all -T v -T b";
/// The niceness of our end if it spins: the emulator's threads need the processors, and get half as much done without this.
const SPINS: &str = "10";
/// The port where the programs listen by default.
const PORT: u16 = 7471;
/// Number of sizes. Each is measured twice.
const SIZES: usize = 33;
/// Far longer than a pair takes.
const LIMIT: Duration = Duration::from_secs(2 * 3600);
/// How long a server may take to listen.
const LISTEN_MAX: Duration = Duration::from_secs(60);
/// How long an end may run after the other.
const SURVIVAL_MAX: Duration = Duration::from_secs(60);
/// How often to look whether our end has ended.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How many questions in a row the machine may leave unanswered.
const UNANSWERED_MAX: u32 = 3;
/// How often to ask the machine whether Debian's end has ended.
const FAR_LOOK_INTERVAL: Duration = Duration::from_secs(30);
/// How many of an end's last lines are shown after a failure.
const TAIL_LINES: usize = 8;

/// This host's side of the pairs.
#[derive(Debug)]
pub(super) struct Host<'a> {
    pub(super) portolan: &'a Path,
    /// Folder of our ends' output.
    pub(super) folder: &'a Path,
}

impl Host<'_> {
    /// Plays a pair.
    ///
    /// # Errors
    /// Why it failed, with the last output of both ends.
    pub(super) fn play(&self, play: Play, far: &Far) -> Result<(), String> {
        // What an earlier pair may have left would have the port.
        far.tell(&PROGRAMS.map(kill).join("; "), SOON)?;
        let mut ours;
        match play.ours {
            Ours::Serves => {
                ours = self.start(play, &[])?;
                self.await_listener(&mut ours)?;
                let command = format!("begin pair {} -s {OWN_ADDRESS} {OPTIONS}", play.program);
                far.tell(&command, LIMIT)?;
            }
            Ours::Calls => {
                let command = format!(
                    "begin pair {} {OPTIONS}; await 40 kernel_listens {PORT}",
                    play.program
                );
                far.tell(&command, LIMIT)?;
                ours = self.start(play, &["-s", &ADDRESS.to_string()])?;
            }
        }
        let ended = ours.wait(far);
        if ended.is_err() {
            ours.stop();
            // It may have ended by itself.
            let _ = far.tell(&kill(play.program), SOON);
        }
        let theirs = far
            .tell("finish pair", SURVIVAL_MAX)
            .unwrap_or_else(|why| why);
        let said = ours.said();
        ended
            .and_then(|status| judge(status, &said, &theirs))
            .map_err(|why| {
                let (ours, theirs) = (tail(&said), tail(&theirs));
                format!(
                    "{why}\n--- the last of our end's output:\n{ours}\n--- of Debian's:\n{theirs}"
                )
            })
    }

    /// Starts our end, which ends with this thread.
    fn start(&self, play: Play, options: &[&str]) -> Result<Program, String> {
        let output = self.folder.join("ours");
        let told = |error| format!("our end cannot be started: {error}");
        let file = File::create(&output).map_err(told)?;
        let errors = file.try_clone().map_err(told)?;
        let niceness = if play.spins() { SPINS } else { "0" };
        let child = Command::new("nice")
            .args(["-n", niceness])
            .args(["setpriv", "--pdeathsig", "KILL"])
            .arg(self.portolan)
            .args(["exec", "--", play.program])
            .args(options)
            .args(OPTIONS.split(' '))
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .map_err(told)?;
        Ok(Program { child, output })
    }

    /// Waits until our end listens.
    fn await_listener(&self, ours: &mut Program) -> Result<(), String> {
        let started = Instant::now();
        let listener = format!(":{PORT}");
        while started.elapsed() < LISTEN_MAX {
            let listed = Command::new(self.portolan).arg("ps").output();
            let listed = listed.map_err(|error| format!("portolan ps: {error}"))?;
            let text = String::from_utf8_lossy(&listed.stdout);
            if text
                .lines()
                .any(|line| line.contains("listens on ") && line.ends_with(&listener))
            {
                return Ok(());
            }
            if let Ok(Some(status)) = ours.child.try_wait() {
                return Err(format!(
                    "our end ended with {status}:\n{}",
                    tail(&ours.said())
                ));
            }
            thread::sleep(LOOK_INTERVAL);
        }
        Err(format!("our end does not listen:\n{}", tail(&ours.said())))
    }
}

/// The command that ends a program in the machine, if it runs.
fn kill(program: &str) -> String {
    format!("kill $(pidof {program}) 2> /dev/null || true")
}

/// Our end, killed on drop.
#[derive(Debug)]
struct Program {
    child: Child,
    output: PathBuf,
}

impl Program {
    /// Waits until it ends, at most a while longer than the far end.
    fn wait(&mut self, far: &Far) -> Result<ExitStatus, String> {
        let mut deadline = Instant::now() + LIMIT;
        let mut next_look = Instant::now() + FAR_LOOK_INTERVAL;
        let mut unanswered = 0;
        let mut why = format!("our end did not end within {LIMIT:?}");
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                Ok(None) => {}
                Err(error) => return Err(error.to_string()),
            }
            let now = Instant::now();
            if now >= deadline {
                return Err(why);
            }
            if now >= next_look {
                match far.tell("if has_ended pair; then echo ended; fi", SOON) {
                    Ok(said) if said.contains("ended") => {
                        why = "our end did not end after Debian's".to_owned();
                        deadline = deadline.min(now + SURVIVAL_MAX);
                    }
                    Ok(_) => unanswered = 0,
                    // A machine that is busy may once not answer in time.
                    Err(_) if unanswered < UNANSWERED_MAX => unanswered += 1,
                    Err(error) => return Err(error),
                }
                next_look = Instant::now() + FAR_LOOK_INTERVAL;
            }
            thread::sleep(LOOK_INTERVAL);
        }
    }

    fn said(&self) -> String {
        fs::read(&self.output)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    fn stop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether both ends ended well and printed each size.
fn judge(ours: ExitStatus, said: &str, theirs: &str) -> Result<(), String> {
    if !ours.success() {
        return Err(format!("our end ended with {ours}"));
    }
    if !theirs.trim_end().ends_with("ended with 0") {
        return Err("Debian's end failed".to_owned());
    }
    for (whose, text) in [("our", said), ("Debian's", theirs)] {
        for measure in ["_lat", "_bw"] {
            let count = text.lines().filter(|line| is_of(line, measure)).count();
            if count != SIZES {
                return Err(format!(
                    "{whose} end printed {count} sizes `{measure}`, not {SIZES}"
                ));
            }
        }
    }
    Ok(())
}

/// Whether a line is a size's result, such as `1.5k_lat …`.
fn is_of(line: &str, measure: &str) -> bool {
    let name = line.split(' ').next().unwrap_or_default();
    name.strip_suffix(measure).is_some_and(|size| {
        let number = size.trim_end_matches(['k', 'm']);
        number.parse::<f64>().is_ok()
    })
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.trim_end().lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// The output of a whole run, without `missing`.
    fn output(missing: &str) -> String {
        let sizes = (0..SIZES).map(|size| format!("{}.5k", size));
        let sizes: Vec<String> = sizes.collect();
        let lines = ["_lat", "_bw"].iter().flat_map(|measure| {
            sizes
                .iter()
                .map(move |size| format!("{size}{measure} 64      100k\n"))
        });
        let lines: String = lines.filter(|line| !line.starts_with(missing)).collect();
        format!("name      bytes   xfers\n{lines}")
    }

    #[test]
    fn both_ends_must_end_well_and_print_each_size_twice() {
        let (well, ill) = (ExitStatus::from_raw(0), ExitStatus::from_raw(256));
        let whole = output("none");
        let ended = |text: &str, status| format!("{text}ended with {status}\n");
        assert_eq!(judge(well, &whole, &ended(&whole, 0)), Ok(()));
        assert!(judge(ill, &whole, &ended(&whole, 0)).is_err());
        assert!(judge(well, &whole, &ended(&whole, 124)).is_err());
        for missing in ["3.5k_lat", "3.5k_bw"] {
            let less = output(missing);
            assert!(judge(well, &less, &ended(&whole, 0)).is_err());
            assert!(judge(well, &whole, &ended(&less, 0)).is_err());
        }
    }

    #[test]
    fn only_a_size_and_its_measure_begin_a_result() {
        assert!(is_of("64_lat    64      1", "_lat"));
        assert!(is_of("1.5m_bw   1.5m    100", "_bw"));
        assert!(!is_of("64_lat    64      1", "_bw"));
        assert!(!is_of("custom    64      1", "_lat"));
    }
}
