//! librdmacm's own programs.

use super::super::case::{Case, Data, Expected, Ready, Saying, c};
use super::ADDRESS;

const GROUP: &str = "librdmacm's programs";
/// The port of librdmacm's programs.
pub(super) const RPING_PORT: u16 = 7174;
const PORT: u16 = 7471;
/// The examples' last line on success.
pub(super) const WELL: &[Saying] = &[("return status 0", 1)];

pub(super) fn cases() -> Vec<Case> {
    [rping(), others()].concat()
}

fn rping() -> Vec<Case> {
    let pair_by = |by: &str, server: &str, client: &str| {
        let server = c(&format!("{by} rping -s -a {ADDRESS} {server}"));
        let client = c(&format!("rping -c -a {ADDRESS} {client}"));
        Case::pair(GROUP, server, Ready::Listener(RPING_PORT), client)
    };
    let pair = |server: &str, client: &str| pair_by("", server, client);
    // rping also succeeds if its peer leaves early, so its pings are counted.
    let hundred = Expected::well(&[("ping data: rdma-ping-", 100)]);
    let persistent = |by, client| {
        pair_by(by, "-P", client)
            .server(Expected::stays())
            .data(Data::ComparedByClient)
    };
    // The server has room for one request: without this setting a second one overwrites the first.
    let one_by_one = "env PORTOLAN_HOLD_REQUESTS_MS=250";
    vec![
        pair("-C 100 -v", "-C 100 -v")
            .server(hundred)
            .client(hundred)
            .data(Data::Unseen),
        pair("-C 100 -v -V -S 10000", "-C 100 -v -V -S 10000")
            .server(hundred)
            .client(hundred)
            .data(Data::ComparedByClient)
            .quick(),
        pair("-C 10 -d", "-C 10 -d -V")
            .server(Expected::well(&[("rdma write completion", 10)]))
            .client(Expected::well(&[("send completion", 20)]))
            .data(Data::ComparedByClient),
        persistent("", "-C 100 -v -V").client(hundred),
        Case {
            clients: 100,
            ..persistent(one_by_one, "-v -C 3 -V").client_says(&[("ping data: rdma-ping-", 3)])
        },
        Case::alone(GROUP, c(&format!("rping -c -a {ADDRESS} -p 9999 -C 1")))
            .client(Expected::refused(&[(
                "cma event RDMA_CM_EVENT_REJECTED, error 8",
                1,
            )]))
            .quick(),
    ]
}

fn with_shared_receives(kind: &str) -> Case {
    let server = c(&format!("rdma_xserver -c {kind}"));
    let client = c(&format!("rdma_xclient -s {ADDRESS} -c {kind}"));
    Case::pair(GROUP, server, Ready::Listener(PORT), client)
        .data(Data::Unseen)
        .server(Expected::well(&[("rdma_xserver: end 0", 1)]))
        .client(Expected::well(&[("rdma_xclient: end 0", 1)]))
        .quick()
}

fn others() -> Vec<Case> {
    let pair = |ready, server: &str, client: &str| {
        Case::pair(GROUP, c(server), ready, c(client)).data(Data::Unseen)
    };
    vec![
        pair(
            Ready::Listener(PORT),
            "ucmatose -c 5 -C 10",
            &format!("ucmatose -c 5 -C 10 -s {ADDRESS}"),
        )
        .both_say(WELL)
        .quick(),
        pair(
            Ready::Listener(RPING_PORT),
            "udaddy",
            &format!("udaddy -s {ADDRESS}"),
        )
        .both_say(WELL)
        .quick(),
        pair(
            Ready::Member([239, 7, 0, 9].into()),
            &format!("mckey -m 239.7.0.9 -b {ADDRESS}"),
            &format!("mckey -m 239.7.0.9 -b {ADDRESS} -s"),
        )
        .both_say(WELL)
        .quick(),
        pair(
            Ready::Listener(PORT),
            &format!("cmtime -b {ADDRESS} -c 100"),
            &format!("cmtime -s {ADDRESS} -c 100"),
        )
        .client_says(&[("connect ", 1), ("disconnect", 1), ("destroy", 1)])
        .data(Data::None)
        .server(Expected::stays())
        .quick(),
        pair(
            Ready::Listener(PORT),
            "rdma_server",
            &format!("rdma_client -s {ADDRESS}"),
        )
        .server(Expected::well(&[("rdma_server: end 0", 1)]))
        .client(Expected::well(&[("rdma_client: end 0", 1)]))
        .quick(),
        // Shared receives over a reliable connection and over an extended one.
        with_shared_receives("r"),
        with_shared_receives("x"),
    ]
}
