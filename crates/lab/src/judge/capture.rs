//! A capture as seen by tshark, an independent dissector.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::Path;

use crate::machine::{MachineError, tool_output};

/// Opcode field of the base transport header, printed for each packet with such a header.
const OPCODE_FIELD: &str = "infiniband.bth.opcode";
/// tshark's mark on frames that it could not dissect.
const MALFORMED_FIELD: &str = "_ws.malformed";
/// Protocols whose dissectors guess from a payload or private data that it is theirs. A wrong
/// guess, for example on a SEND of eight bytes, shows up as a malformed packet.
const GUESSED_PROTOCOLS: [&str; 8] = [
    "fcoib",
    "infiniband_sdp",
    "iser",
    "lnet",
    "nvme-rdma",
    "rpcordma",
    "smb_direct",
    "smc",
];
/// How many malformed frames an error names at most.
const FRAMES_NAMED_MAX: usize = 10;

/// The dissector's view of a capture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dissection {
    /// Frames to UDP port 4791.
    pub packets: usize,
    /// Frames among them in which tshark found a base transport header, by opcode.
    pub opcodes: BTreeMap<u8, usize>,
    /// Numbers of malformed frames.
    pub malformed: Vec<u64>,
}

/// Dissects the RoCEv2 packets of `capture` with tshark.
///
/// # Errors
/// [`MachineError`] if tshark is missing, fails, or prints something unexpected.
pub fn dissect(capture: &Path) -> Result<Dissection, MachineError> {
    let mut arguments: Vec<&OsStr> = vec!["-n".as_ref(), "-r".as_ref(), capture.as_os_str()];
    arguments.extend(
        [
            "-Y",
            "udp.dstport == 4791",
            "-T",
            "fields",
            "-E",
            "separator=;",
        ]
        .map(OsStr::new),
    );
    for field in ["frame.number", OPCODE_FIELD, MALFORMED_FIELD] {
        arguments.extend(["-e", field].map(OsStr::new));
    }
    for protocol in GUESSED_PROTOCOLS {
        arguments.extend(["--disable-protocol", protocol].map(OsStr::new));
    }
    let text = tool_output("tshark", &arguments)?;
    parse(&text)
}

impl Dissection {
    /// Checks that there are packets, that all are RoCEv2, and that none is malformed.
    ///
    /// # Errors
    /// A description of what is wrong.
    pub fn check(&self) -> Result<(), String> {
        if self.packets == 0 {
            return Err("the capture holds no packet to UDP port 4791".to_owned());
        }
        if !self.malformed.is_empty() {
            let named = &self.malformed[..self.malformed.len().min(FRAMES_NAMED_MAX)];
            return Err(format!(
                "{} frames malformed, first {named:?}",
                self.malformed.len()
            ));
        }
        let dissected: usize = self.opcodes.values().sum();
        if dissected != self.packets {
            let others = self.packets - dissected;
            return Err(format!(
                "{others} of {} packets have no transport header",
                self.packets
            ));
        }
        Ok(())
    }
}

/// Parses lines `NUMBER;OPCODE;MALFORMED`. The last two may be empty.
fn parse(text: &str) -> Result<Dissection, MachineError> {
    let mut dissection = Dissection::default();
    for line in text.lines() {
        let unexpected = || MachineError::Unexpected {
            what: "tshark".to_owned(),
            why: format!("expected `NUMBER;OPCODE;MALFORMED`, found `{line}`"),
        };
        let mut fields = line.split(';');
        let (Some(number), Some(opcode), Some(malformed), None) =
            (fields.next(), fields.next(), fields.next(), fields.next())
        else {
            return Err(unexpected());
        };
        let number = number.parse().map_err(|_| unexpected())?;
        dissection.packets += 1;
        if !opcode.is_empty() {
            let opcode = opcode.parse().map_err(|_| unexpected())?;
            *dissection.opcodes.entry(opcode).or_default() += 1;
        }
        if !malformed.is_empty() {
            dissection.malformed.push(number);
        }
    }
    Ok(dissection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn opcodes_are_counted_and_malformed_frames_named() {
        let dissection = parse("1;100;\n2;4;\n3;100;\n7;4;1\n").unwrap();
        assert_eq!(dissection.packets, 4);
        assert_eq!(dissection.opcodes, BTreeMap::from([(4, 2), (100, 2)]));
        assert_eq!(dissection.malformed, [7]);
        assert!(dissection.check().unwrap_err().contains("[7]"));
    }

    #[test]
    fn a_capture_without_packets_or_with_other_packets_does_not_pass() {
        assert!(Dissection::default().check().is_err());
        assert!(parse("1;;\n2;4;\n").unwrap().check().is_err());
        assert!(parse("1;4;\n").unwrap().check().is_ok());
    }

    #[test]
    fn lines_of_another_form_are_refused() {
        for text in ["x;4;", "1;4", "1;4;;", "1;400;"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
