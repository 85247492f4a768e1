//! Checks our captures independently: with tshark's dissector and with a bitwise CRC.

use std::ffi::OsStr;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use portolan_lab::machine::MachineError;
use portolan_lab::{judge, own_network};

use crate::processes::{Listener, ping};
use crate::test::{Outcome, Workspace};

/// Pings per capture.
const PINGS: &str = "20";
/// Bytes per ping: several packets in each direction.
const PING_SIZE: &str = "10000";
/// Link type of the captures: packets begin with the IP header.
const LINKTYPE_RAW: u32 = 101;

pub(crate) fn run(workspace: &Workspace) -> Result<Outcome> {
    match judge::prepare_host() {
        Ok(()) => {}
        Err(MachineError::Unavailable(unavailable)) => {
            return Ok(Outcome::LeftOut(unavailable.to_string()));
        }
        Err(error) => return Err(error.into()),
    }
    own_network::enter();
    let folder = std::env::temp_dir().join(format!("portolan-captures-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let judged = captures(workspace, &folder).and_then(|captures| {
        captures
            .iter()
            .try_fold(0, |sum, capture| Ok(sum + judge_capture(capture)?))
    });
    std::fs::remove_dir_all(&folder)?;
    Ok(Outcome::Passed(format!("{} packets", judged?)))
}

/// Makes captures at both sides, over IPv4 and IPv6.
fn captures(workspace: &Workspace, folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for (name, address) in [("v4", "127.0.0.1:7531"), ("v6", "[::1]:7531")] {
        let [listen, pinged] =
            ["listen", "ping"].map(|side| folder.join(format!("{name}-{side}.pcap")));
        let listener = Listener::start(&workspace.portolan, address, Some(&listen))?;
        let options = [
            "--count",
            PINGS,
            "--size",
            PING_SIZE,
            "--interval",
            "0",
            "--quiet",
        ];
        let mut arguments: Vec<&OsStr> = options.map(AsRef::as_ref).to_vec();
        arguments.extend(["--pcap".as_ref(), pinged.as_os_str()]);
        ping(&workspace.portolan, address, &arguments)?;
        listener.finish()?;
        files.extend([listen, pinged]);
    }
    Ok(files)
}

/// Checks a capture in both ways. Returns the number of packets.
fn judge_capture(capture: &Path) -> Result<usize> {
    let name = capture.display();
    let dissection = judge::dissect(capture)?;
    dissection
        .check()
        .map_err(|why| anyhow::anyhow!("{name}: {why}"))?;
    let bytes = std::fs::read(capture)?;
    let packets = packets(&bytes).with_context(|| format!("{name}"))?;
    for (number, packet) in packets.iter().enumerate() {
        let (expected, found) = icrc(packet).with_context(|| format!("{name}: {number}"))?;
        ensure!(
            expected == found,
            "{name}: packet {number} has ICRC {found:#010x}, expected {expected:#010x}"
        );
    }
    ensure!(
        packets.len() == dissection.packets,
        "{name}: tshark's packet count differs"
    );
    Ok(packets.len())
}

/// The packets of a classic little-endian capture of link type RAW.
fn packets(file: &[u8]) -> Result<Vec<&[u8]>> {
    let word = |at: usize| -> Result<u32> {
        let bytes = file.get(at..at + 4).context("the capture ends early")?;
        Ok(u32::from_le_bytes(bytes.try_into()?))
    };
    ensure!(
        matches!(word(0)?, 0xa1b2_c3d4 | 0xa1b2_3c4d),
        "not a pcap file in host byte order"
    );
    ensure!(
        word(20)? == LINKTYPE_RAW,
        "link type {}, expected {LINKTYPE_RAW}",
        word(20)?
    );
    let (mut at, mut packets) = (24, Vec::new());
    while at < file.len() {
        let length = word(at + 8)? as usize;
        packets.push(
            file.get(at + 16..at + 16 + length)
                .context("a packet ends early")?,
        );
        at += 16 + length;
    }
    Ok(packets)
}

/// The expected ICRC of a packet and its actual one, following IBTA annex A17: CRC-32 over eight bytes of ones
/// and the packet, with variable fields set to ones.
fn icrc(packet: &[u8]) -> Result<(u32, u32)> {
    let version = packet.first().context("empty")? >> 4;
    let header = if version == 4 { 20 } else { 40 };
    ensure!(packet.len() > header + 8 + 12 + 4, "too short for RoCEv2");
    let mut masked = packet[..packet.len() - 4].to_vec();
    let ones: &[std::ops::Range<usize>] = match version {
        4 => &[1..2, 8..9, 10..12],
        _ => &[1..4, 7..8],
    };
    for range in ones {
        masked[range.clone()].fill(0xff);
    }
    if version == 6 {
        // The low half of the first byte is the high half of the traffic class.
        masked[0] |= 0x0f;
    }
    masked[header + 6..header + 8].fill(0xff);
    masked[header + 8 + 4] = 0xff;
    let computed = crc32(&[0xff; 8], &masked);
    let tail = packet[packet.len() - 4..].try_into()?;
    check_addresses(packet, version);
    Ok((computed, u32::from_le_bytes(tail)))
}

/// Captures are made on loopback, so any other address is an error.
fn check_addresses(packet: &[u8], version: u8) {
    let loopback = match version {
        4 => <[u8; 4]>::try_from(&packet[12..16]).is_ok_and(|ip| Ipv4Addr::from(ip).is_loopback()),
        _ => <[u8; 16]>::try_from(&packet[8..24]).is_ok_and(|ip| Ipv6Addr::from(ip).is_loopback()),
    };
    assert!(loopback, "the capture has a packet from another interface");
}

fn crc32(first: &[u8], rest: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in first.iter().chain(rest) {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            };
        }
    }
    !crc
}
