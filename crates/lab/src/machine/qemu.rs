//! Boots the emulator, waits with a deadline and brings the results back.
//!
//! Input goes through the initramfs. Output comes through a raw disk, on which the guest writes a
//! tar archive. There is no file system or protocol, so a guest that dies half-way cannot leave
//! something that looks like results.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::command::{command, output, tail};
use super::host_clock;
use super::job::Clock;
use super::outcome::{CAPTURE_FILE, CONSOLE_FILE, RESULTS_FOLDER, RunFolder, read_lossy};
use super::wire::Link;
use super::{Job, Machine, MachineError, Outcome};

/// Memory for the base tree, programs with debug information, and the guest itself.
const MEMORY_MIB: u32 = 1536;
/// Memory of a guest that runs the host's programs: a test of libfabric takes 1 GiB at each end.
const MEMORY_WITH_HOST_FILES_MIB: u32 = 4096;
/// A panic ends the machine at once (with `-no-reboot`). The kernel's timer check is disabled
/// because the emulated timer can be late on a busy host.
const COMMAND_LINE: &str = "console=ttyS0 rdinit=/init panic=-1 no_timer_check mitigations=off \
     nokaslr";
/// Everything that can be emulated, except protections that slow down kernel entries and page table
/// walks (without them programs need about half the time), and an instruction that takes longer than the loops that do without
/// it: carry-less multiplication, which checksums use, is emulated bit by bit.
const PROCESSOR: &str = "max,-smap,-smep,-la57,-pku,-pclmulqdq";
/// The same for copies: the instructions for strings are emulated byte by byte.
const WITHOUT_STRINGS: &str = ",-erms,-fsrm";
/// By default the kernel does not trust an emulated processor's counter, and uses a clock that only
/// the kernel can read, slowly.
const TRUST_COUNTER: &str = " tsc=reliable";
/// Time counted in instructions: 2^0 ns each, and no sleeping while idle.
const COUNTED: &str = "shift=0,sleep=off";
/// Size limit of the results. The file is sparse, so only written data take space.
const RESULTS_BYTES_MAX: u64 = 256 << 20;
/// How often to check a running machine.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// How many characters of each serial line go into an error.
const TAIL_CHARS: usize = 3000;
/// How many folders of earlier failed runs are kept.
const KEPT_RUNS_MAX: usize = 10;
/// Block size of a tar archive. A valid archive never begins with a block of zeros.
const TAR_BLOCK_BYTES: usize = 512;

/// The host's files, which the guest may read.
const HOST_FILES: &str =
    "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap";

/// Names below the run's folder. They are passed relative, since the emulator gives commas in
/// paths a meaning.
const INITRAMFS_FILE: &str = "initramfs";
const DISK_FILE: &str = "results.img";
const STEPS_FILE: &str = "steps.log";
const EMULATOR_FILE: &str = "emulator.log";

pub(crate) fn run(
    machine: &Machine,
    job: &Job,
    link: Link<'_>,
    live: &mut (dyn Write + Send),
) -> Result<Outcome, MachineError> {
    let folder = run_folder(machine)?;
    let mut tree = machine.base.clone();
    job.add_to(&mut tree)?;
    tree.write_archive(&folder.path.join(INITRAMFS_FILE))?;
    create_disk(&folder.path.join(DISK_FILE))?;

    let started = Instant::now();
    let mut emulator = Running::start(machine, job, link, &folder.path)?;
    let status = thread::scope(|scope| {
        if let Some(lines) = emulator.child.stdout.take() {
            let log = folder.path.join(STEPS_FILE);
            scope.spawn(move || relay(lines, &log, live));
        }
        emulator.wait(started + job.deadline, link)
    })?;
    let elapsed = started.elapsed();
    match status {
        None if elapsed < job.deadline => Err(MachineError::LeftBehind {
            console_tail: console_tail(&folder.path),
        }),
        None => Err(MachineError::Deadline {
            deadline: job.deadline,
            console_tail: console_tail(&folder.path),
        }),
        Some(status) => {
            if !unpack_results(&folder.path)? {
                return Err(MachineError::Died {
                    status: status.to_string(),
                    console_tail: console_tail(&folder.path),
                });
            }
            Outcome::read(folder, &job.steps, elapsed)
        }
    }
}

/// The kernel's command line. With the host's clock it includes the time-stamp counter's frequency.
fn command_line(job: &Job) -> String {
    let counter = match (job.clock, host_clock::tsc_khz()) {
        (Clock::Host, Some(khz)) => format!("{TRUST_COUNTER} tsc_early_khz={khz}"),
        (Clock::Host, None) if job.measures => TRUST_COUNTER.to_owned(),
        _ => String::new(),
    };
    format!("{COMMAND_LINE}{counter}")
}

/// A running emulator, killed when dropped.
struct Running {
    child: Child,
}

impl Running {
    fn start(
        machine: &Machine,
        job: &Job,
        link: Link<'_>,
        folder: &Path,
    ) -> Result<Self, MachineError> {
        let errors = folder.join(EMULATOR_FILE);
        let errors = File::create(&errors).map_err(MachineError::io("create", &errors))?;
        let processors = job.processors.to_string();
        let memory_mib = match machine.shows_host_files {
            true => MEMORY_WITH_HOST_FILES_MIB,
            false => MEMORY_MIB,
        };
        let strings = if job.copies_in_order {
            ""
        } else {
            WITHOUT_STRINGS
        };
        let processor = format!("{PROCESSOR}{strings}");
        let mut emulator = machine.emulator.command();
        emulator
            .current_dir(folder)
            .args([
                "-no-user-config",
                "-nodefaults",
                "-no-reboot",
                "-display",
                "none",
            ])
            // Software emulation even if the processor supports virtualisation, so that the machine
            // behaves the same on every host.
            .args(["-machine", "q35", "-cpu", &processor])
            .args(["-m", &memory_mib.to_string()])
            .args(match job.clock {
                Clock::Host => vec!["-accel", "tcg,thread=multi", "-smp", &processors],
                // Two processors that take turns do not boot.
                Clock::Instructions => vec!["-accel", "tcg,thread=single", "-icount", COUNTED],
            })
            .arg("-kernel")
            .arg(machine.kernel.image())
            .args(["-initrd", INITRAMFS_FILE])
            .args(["-append", &command_line(job)])
            .args(["-chardev", &format!("file,id=console,path={CONSOLE_FILE}")])
            .args(["-serial", "chardev:console"])
            .args([
                "-chardev",
                "stdio,id=steps,signal=off",
                "-serial",
                "chardev:steps",
            ])
            .args(["-drive", &format!("file={DISK_FILE},format=raw,if=virtio")])
            .stderr(errors);
        if machine.shows_host_files {
            emulator.args(["-virtfs", HOST_FILES]);
        }
        link.open_to_children()?;
        emulator.args(link.emulator_arguments(Path::new(CAPTURE_FILE)));
        if job.interactive {
            emulator.stdin(Stdio::inherit()).stdout(Stdio::inherit());
        } else {
            emulator.stdin(Stdio::null()).stdout(Stdio::piped());
        }
        let program = Path::new(emulator.get_program()).to_owned();
        let child = emulator
            .spawn()
            .map_err(MachineError::io("run", &program))?;
        Ok(Self { child })
    }

    /// Returns the exit status, or `None` if the deadline passed first. The emulator has ended
    /// either way.
    fn wait(
        &mut self,
        deadline: Instant,
        link: Link<'_>,
    ) -> Result<Option<ExitStatus>, MachineError> {
        let is_over = || {
            let earlier = link.deadline();
            Instant::now() >= earlier.map_or(deadline, |earlier| earlier.min(deadline))
        };
        let wait_error = MachineError::io("wait for", Path::new("the emulator"));
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if is_over() => break None,
                Ok(None) => thread::sleep(POLL_INTERVAL),
                Err(source) => return Err(wait_error(source)),
            }
        };
        self.stop();
        Ok(status)
    }

    fn stop(&mut self) {
        // Fails only if it has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Forwards the steps' output and logs it. A failed `live` writer does not stop the run.
fn relay(mut lines: ChildStdout, log: &Path, live: &mut (dyn Write + Send)) {
    let mut log = File::create(log).ok();
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = lines.read(&mut buffer) {
        let _ = live.write_all(&buffer[..read]).and_then(|()| live.flush());
        if let Some(log) = &mut log {
            let _ = log.write_all(&buffer[..read]);
        }
    }
}

/// Creates a fresh folder for this run. The newest folders of earlier runs remain.
fn run_folder(machine: &Machine) -> Result<RunFolder, MachineError> {
    static RUN: AtomicU32 = AtomicU32::new(0);
    let run = RUN.fetch_add(1, Ordering::Relaxed);
    let runs = machine.cache.folder("runs")?;
    remove_old_runs(&runs).map_err(MachineError::io("clean", &runs))?;
    let path = runs.join(format!("{}-{run}", std::process::id()));
    if path.exists() {
        // Left by an earlier process with the same process id.
        fs::remove_dir_all(&path).map_err(MachineError::io("remove", &path))?;
    }
    RunFolder::create(path)
}

/// Removes the folders of runs whose process has ended, except the newest.
fn remove_old_runs(runs: &Path) -> io::Result<()> {
    let mut ended = Vec::new();
    for entry in fs::read_dir(runs)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.split('-').next().unwrap_or_default();
        if !Path::new("/proc").join(process).exists() {
            ended.push((entry.metadata()?.modified()?, entry.path()));
        }
    }
    ended.sort();
    let excess = ended.len().saturating_sub(KEPT_RUNS_MAX);
    for (_, path) in &ended[..excess] {
        match fs::remove_dir_all(path) {
            // Another process may be cleaning up too.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

fn create_disk(path: &Path) -> Result<(), MachineError> {
    let disk = File::create(path).map_err(MachineError::io("create", path))?;
    disk.set_len(RESULTS_BYTES_MAX)
        .map_err(MachineError::io("extend", path))
}

/// Unpacks the archive on the results disk. Returns false if the guest wrote none.
fn unpack_results(folder: &Path) -> Result<bool, MachineError> {
    let disk = folder.join(DISK_FILE);
    let mut block = [0; TAR_BLOCK_BYTES];
    File::open(&disk)
        .and_then(|mut file| file.read_exact(&mut block))
        .map_err(MachineError::io("read", &disk))?;
    if block.iter().all(|byte| *byte == 0) {
        return Ok(false);
    }
    let results = folder.join(RESULTS_FOLDER);
    fs::create_dir(&results).map_err(MachineError::io("create", &results))?;
    output(
        command("tar")
            .args(["--extract", "--no-same-owner", "--file"])
            .arg(&disk)
            .arg("-C")
            .arg(&results),
    )?;
    for file in [DISK_FILE, INITRAMFS_FILE] {
        let path = folder.join(file);
        fs::remove_file(&path).map_err(MachineError::io("remove", &path))?;
    }
    Ok(true)
}

fn console_tail(folder: &Path) -> String {
    // A missing file contributes nothing.
    [EMULATOR_FILE, CONSOLE_FILE, STEPS_FILE]
        .iter()
        .filter_map(|name| read_lossy(&folder.join(name)).ok())
        .map(|text| tail(&text, TAIL_CHARS))
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join("\n---\n")
}
