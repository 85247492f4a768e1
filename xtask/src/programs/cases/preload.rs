//! Unmodified socket programs on rsockets.

use super::super::case::{Case, Data, End, Expected, Ready, Saying, c, sockets};
use super::super::running;

const GROUP: &str = "programs of sockets, both ends under `portolan exec --sockets`";
const TCP_GROUP: &str = "programs of sockets, one end with `--sockets` and the other with TCP";
const SCRIPT: &str = "sh xtask/src/programs/sockets.sh";
/// No connection may use TCP.
const NO_TCP: Saying = (running::NO_TCP, 1);
const RIGHT: &[Saying] = &[("the data are right", 1), NO_TCP];

pub(super) fn cases() -> Vec<Case> {
    vec![
        measured(
            "iperf3 -s -p 5201",
            5201,
            "iperf3 -c 127.0.0.1 -p 5201 -t 1",
            &[("iperf Done.", 1), NO_TCP],
        ),
        measured(
            "iperf3 -s -p 5202",
            5202,
            "iperf3 -c 127.0.0.1 -p 5202 -t 1 -P 4 -R",
            &[("iperf Done.", 1), NO_TCP],
        ),
        compared(
            &role("serve-redis"),
            6379,
            &role("values-redis"),
            &[
                ("the data are right", 1),
                ("requests per second", 2),
                NO_TCP,
            ],
        ),
        compared(
            "memcached -u root -l 127.0.0.1 -p 11211",
            11211,
            "memccapable -h 127.0.0.1 -p 11211 -a",
            &[("All tests passed", 1), NO_TCP],
        ),
        compared(&role("serve-nginx"), 8080, &role("get-nginx"), RIGHT),
        measured(
            &role("serve-nginx"),
            8080,
            &role("load-nginx"),
            &[("Failed requests:        0", 2), NO_TCP],
        ),
        compared(&role("serve-http"), 8000, &role("get-http"), RIGHT).quick(),
        compared(&role("asyncio serve"), 9000, &role("asyncio call"), RIGHT).quick(),
        compared(&role("node serve"), 9003, &role("node call"), RIGHT).quick(),
        compared(&role("serve-asio"), 9001, &role("call-asio"), RIGHT),
        // Workers that share a listening socket: one of them gets the rsockets.
        compared(&role("prefork serve"), 9002, &role("prefork call"), RIGHT),
        compared(
            &role("serve-nginx-workers"),
            8080,
            &role("get-nginx-workers"),
            RIGHT,
        ),
        measured(
            &role("serve-nginx-workers"),
            8080,
            &role("load-nginx-workers"),
            &[("Failed requests:        0", 2), NO_TCP],
        ),
        compared(&role("serve-rsync"), 8730, &role("copy-rsync"), RIGHT).quick(),
        compared(&role("serve-postgres"), 5432, &role("load-postgres"), RIGHT),
        compared(&role("serve-ssh"), 2222, &role("copy-ssh"), RIGHT),
        compared(&role("serve-nc"), 7000, &role("send-nc"), RIGHT)
            .server(Expected::well(&[]))
            .quick(),
        compared(
            "socat TCP-LISTEN:7001,reuseaddr,fork EXEC:cat",
            7001,
            &role("echo-socat"),
            RIGHT,
        )
        .quick(),
        // Peers without rsockets.
        with_tcp(
            sockets(&role("serve-http")),
            c(&role("get-http")),
            &[("the data are right", 1)],
        ),
        with_tcp(
            c(&role("serve-http")),
            sockets(&role("get-http")),
            &[("the data are right", 1), ("TCP 1 connected", 1)],
        ),
    ]
}

/// One end runs without the library.
fn with_tcp(server: End, client: End, says: &'static [Saying]) -> Case {
    Case::pair(TCP_GROUP, server, Ready::Tcp(8000), client)
        .server(Expected::stays())
        .client_says(says)
        .data(Data::ComparedByClient)
        .quick()
}

fn role(name: &str) -> String {
    format!("{SCRIPT} {name}")
}

fn pair(server: &str, port: u16, client: &str, says: &'static [Saying]) -> Case {
    Case::pair(GROUP, sockets(server), Ready::Tcp(port), sockets(client))
        .server(Expected::stays())
        .client_says(says)
}

fn compared(server: &str, port: u16, client: &str, says: &'static [Saying]) -> Case {
    pair(server, port, client, says).data(Data::ComparedByClient)
}

fn measured(server: &str, port: u16, client: &str, says: &'static [Saying]) -> Case {
    pair(server, port, client, says).data(Data::Unseen)
}
