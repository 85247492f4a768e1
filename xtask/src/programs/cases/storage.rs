//! Storage over RDMA: fio's engine, and iSER with tgt's target and libiscsi's initiator.

use super::super::case::{Case, Data, Expected, Ready, Saying, c};
use crate::namespace::ETHERNET_ADDRESS;

const GROUP: &str = "storage";
const FIO_PORT: u16 = 4420;
/// The port of tgt's iSER target.
const ISER_PORT: u16 = 3261;
/// 256 requests of 64 KiB.
const FIO: &str = "fio --thread --ioengine=rdma --port=4420 --bs=64k --size=16m";
/// fio's server posts one receive per unit of depth, and reposts one only after it has verified a block. Its
/// connections do not retry when no receive is posted (`rnr_retry_count` 0). So the server posts a receive for every
/// block.
const ALL_RECEIVES: u32 = 256;
const ENDED: &[Saying] = &[("err= 0", 1)];

pub(super) fn cases() -> Vec<Case> {
    let tgt = |end: &str| {
        c(&format!(
            "sh xtask/src/programs/tgt.sh {end} {ETHERNET_ADDRESS}"
        ))
    };
    vec![
        sends(),
        fio("write", "", "").data(Data::Unseen),
        fio("read", "", "").data(Data::Unseen),
        overrun(),
        Case::pair(GROUP, tgt("serve"), Ready::Listener(ISER_PORT), tgt("call"))
            .server(Expected::stays())
            .client_says(&[("iSER: right", 1)])
            .data(Data::ComparedByClient)
            .on_ethernet()
            .quick(),
    ]
}

/// Whatever the verb is, fio's client has `--rw=write` and the server `--rw=read`.
fn fio(verb: &str, serves: &str, calls: &str) -> Case {
    let server = c(&format!("{} {serves}", server(ALL_RECEIVES)));
    let client = c(&format!("{} {calls}", client(verb)));
    Case::pair(GROUP, server, Ready::Listener(FIO_PORT), client)
        .both_say(ENDED)
        .on_ethernet()
}

fn server(receives: u32) -> String {
    format!("{FIO} --name=server --rw=read --iodepth={receives}")
}

fn client(verb: &str) -> String {
    format!(
        "{FIO} --name=client --rw=write --iodepth=8 --verb={verb} --hostname={ETHERNET_ADDRESS}"
    )
}

/// The receiver verifies sent data. With reads and writes, fio's passive end does not know the data.
fn sends() -> Case {
    let verify = "--verify=crc32c --verify_state_save=0";
    fio("send", verify, &format!("{verify} --do_verify=0"))
        .data(Data::ComparedByBoth)
        .quick()
}

/// A server with one receive, and a client that sends eight blocks at once. The client gets an error and then hangs:
/// after a completion with an error, fio's engine waits for another event.
fn overrun() -> Case {
    let client = c(&format!(
        "timeout --foreground --signal=KILL 30 {}",
        client("send")
    ));
    Case::pair(GROUP, c(&server(1)), Ready::Listener(FIO_PORT), client)
        .server(Expected::stays())
        .client(Expected::refused(&[(
            "cq completion status 13(RNR retry counter exceeded)",
            1,
        )]))
        .on_ethernet()
}
