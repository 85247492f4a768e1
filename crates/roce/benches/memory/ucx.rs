//! The same between two processes with UCX, by its `ucx_perftest` over shared memory.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Whether ucx_perftest can be run.
pub fn is_installed() -> bool {
    !time_ns("tag_lat", 64, 1000).is_nan()
}

/// The median of one operation that ucx_perftest reports for a test over its posix transport, in nanoseconds. NaN if it
/// is not installed or fails.
pub fn time_ns(test: &str, size: usize, count: usize) -> f64 {
    let us = column(2, &["-t", test], size, count);
    us.map_or(f64::NAN, |us| us * 1000.0)
}

/// How UCX reads and writes another process's memory.
#[derive(Clone, Copy)]
pub enum Transport {
    /// It has mapped that.
    Posix,
    /// By process_vm_readv(2) and process_vm_writev(2).
    Cma,
}

impl Transport {
    pub fn name(self) -> &'static str {
        match self {
            Self::Posix => "UCX, posix",
            Self::Cma => "UCX, cma",
        }
    }

    /// The GiB per second that ucx_perftest reports for requests that move so many bytes.
    pub fn rate(self, write: bool, size: usize, bytes: usize) -> f64 {
        let args: &[&str] = match (self, write) {
            (Self::Posix, true) => &["-t", "ucp_put_bw"],
            (Self::Posix, false) => &["-t", "ucp_get"],
            (Self::Cma, true) => &["-d", "memory", "-x", "cma", "-D", "zcopy", "-t", "put_bw"],
            (Self::Cma, false) => &["-d", "memory", "-x", "cma", "-D", "zcopy", "-t", "get"],
        };
        let mib = column(5, args, size, bytes / size);
        mib.map_or(f64::NAN, |mib| mib / 1024.0)
    }
}

/// A column of the last line of ucx_perftest.
fn column(column: usize, args: &[&str], size: usize, count: usize) -> Option<f64> {
    let port = free_port().to_string();
    let command = |processor| {
        let mut command = Command::new("taskset");
        let set = command.env("UCX_TLS", "posix,self");
        let set = set.args(["-c", processor, "ucx_perftest", "-p", &port]);
        set.stdout(Stdio::piped()).stderr(Stdio::null());
        command
    };
    let mut server = command("1").spawn().ok()?;
    std::thread::sleep(Duration::from_millis(500));
    let [size, count] = [size, count].map(|number| number.to_string());
    let client = ["127.0.0.1", "-s", &size, "-n", &count];
    let ended = command("0").args(client).args(args).output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("Final:"))?;
    line.split_whitespace().nth(column)?.parse().ok()
}

/// A free TCP port.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
