//! The same between two processes with UCX, by its `ucx_perftest` over shared memory.

use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The median of one operation that ucx_perftest reports for a test over its posix transport, in nanoseconds. `None` if
/// it is not installed or fails.
pub fn time_ns(test: &str, size: usize, count: usize) -> Option<f64> {
    let us: f64 = last_line(test, size, count)?.get(2)?.parse().ok()?;
    Some(us * 1000.0)
}

/// The GiB per second that ucx_perftest reports for a test that moves so many bytes.
pub fn rate(test: &str, size: usize, bytes: usize) -> f64 {
    let columns = last_line(test, size, bytes / size);
    let mib = columns.and_then(|columns| columns.get(5)?.parse().ok());
    mib.map_or(f64::NAN, |mib: f64| mib / 1024.0)
}

/// The columns of the last line of ucx_perftest.
fn last_line(test: &str, size: usize, count: usize) -> Option<Vec<String>> {
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
    let args = ["127.0.0.1", "-t", test, "-s", &size, "-n", &count];
    let ended = command("0").args(args).output().unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    let text = String::from_utf8_lossy(&ended.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("Final:"))?;
    Some(line.split_whitespace().map(str::to_owned).collect())
}

/// A free TCP port.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
