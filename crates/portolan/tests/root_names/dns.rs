//! The tests' name server: dnsmasq, and behind it a server that fails on purpose.

use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use crate::harness::eventually;

/// UDP port of the server for `foreign.test`.
const FOREIGN_PORT: u16 = 5398;

/// A response code of DNS (RFC 1035 section 4.1.1).
const SERVFAIL: u8 = 2;

/// Names of the zone `lab.test`, in the format of `/etc/hosts`.
const NAMES: &str = "203.0.113.1 many.lab.test
203.0.113.2 many.lab.test
203.0.113.3 many.lab.test
2001:db8:ffff::1 many.lab.test
2001:db8:ffff::2 many.lab.test
203.0.113.9 v4.lab.test
2001:db8:ffff::9 v6.lab.test
2001:db8:1::99 half.lab.test
192.0.2.1 half.lab.test
2001:db8:1::1 both.lab.test
192.0.2.1 both.lab.test
";

/// Serves `lab.test` and `foreign.test` in the calling thread's namespaces, on port 53 of loopback. It ends
/// when its standard input is closed.
///
/// - `lab.test`: [`NAMES`] and `n0` to `n<count - 1>`; `alias` for `many` through `second`; `empty`, which
///   exists without an address. Other names do not exist.
/// - `foreign.test`: `broken` is SERVFAIL; other names get no answer.
pub(crate) fn serve(count: u32) -> Child {
    thread::Builder::new()
        .name("foreign.test".into())
        .spawn({
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, FOREIGN_PORT));
            let socket = socket.expect("the port is free in a fresh namespace");
            move || fail_on_purpose(&socket)
        })
        .expect("a thread");
    let numbered = (0..count).map(|number| format!("{} n{number}.lab.test\n", address_of(number)));
    let names: String = std::iter::once(NAMES.to_owned()).chain(numbered).collect();
    // The namespace's own file system.
    std::fs::write("/mnt/names", names).expect("written");
    let foreign = format!("--server=/foreign.test/127.0.0.1#{FOREIGN_PORT}");
    // dnsmasq changes its user, so it would not be killed when its parent dies.
    let server = Command::new("sh")
        .args([
            "-c",
            "dnsmasq \"$@\" & cat > /dev/null; kill $!; wait",
            "sh",
        ])
        .arg("--keep-in-foreground")
        .args(["--conf-file=/dev/null", "--pid-file=", "--user=root"])
        .args([
            "--log-facility=/mnt/dnsmasq.log",
            "--no-resolv",
            "--no-hosts",
        ])
        .args(["--listen-address=127.0.0.1", "--bind-interfaces"])
        .args(["--dns-forward-max=10000", "--addn-hosts=/mnt/names"])
        .args([
            "--local=/lab.test/",
            "--txt-record=empty.lab.test,no address",
        ])
        .args(["--cname=alias.lab.test,second.lab.test"])
        .args(["--cname=second.lab.test,many.lab.test"])
        .arg(foreign)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a shell");
    eventually("dnsmasq (package dnsmasq-base)", answers);
    server
}

/// Whether the server answers, over UDP. For a TCP connection it would fork a child that outlives it.
fn answers() -> bool {
    // Id 1, recursion desired, one question (RFC 1035 section 4.1): the addresses of empty.lab.test.
    const QUERY: &[u8] = b"\0\x01\x01\0\0\x01\0\0\0\0\0\0\x05empty\x03lab\x04test\0\0\x01\0\x01";
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let patience = Some(Duration::from_millis(200));
    socket.set_read_timeout(patience).expect("a time");
    // Without a listener the error is reported by the next call.
    let asked = socket.connect((Ipv4Addr::LOCALHOST, 53));
    asked.and_then(|()| socket.send(QUERY)).is_ok() && socket.recv(&mut [0; 512]).is_ok()
}

/// The address of a numbered name.
pub(crate) fn address_of(number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(Ipv4Addr::new(10, 1, 0, 0).to_bits() + number)
}

/// Answers queries for `broken` with a failure, and gives no answer to others, such as those for `silent`.
fn fail_on_purpose(socket: &UdpSocket) {
    let mut packet = [0; 512];
    while let Ok((length, client)) = socket.recv_from(&mut packet) {
        let query = &mut packet[..length];
        let asks_for = |name: &[u8]| {
            let mut parts = query.windows(name.len());
            parts.any(|part| part.eq_ignore_ascii_case(name))
        };
        if asks_for(b"broken") && length > 3 {
            // QR, and recursion is available.
            query[2] |= 0x80;
            query[3] = 0x80 | SERVFAIL;
            let _ = socket.send_to(query, client);
        }
    }
}
