//! Writes captures: raw IP packets in a pcap file with nanosecond timestamps, which Wireshark, tshark and tcpdump can
//! open.

use std::io::{self, BufWriter, Write};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::{LinkType, MAX_PACKET_LEN};

const MAGIC_NS: u32 = 0xA1B2_3C4D;
const VERSION: [u16; 2] = [2, 4];

/// Maximum time that packets stay buffered while more arrive, so that the capture is almost complete if the program is
/// killed.
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);

/// A pcap file being written. Packets are buffered. Call [`PcapWriter::flush`] at the end to see errors; dropping also
/// flushes, but cannot report them.
#[derive(Debug)]
pub(crate) struct PcapWriter<W: Write> {
    output: BufWriter<W>,
    flushed: Instant,
    packets: u64,
}

impl<W: Write> PcapWriter<W> {
    /// Writes the file header.
    ///
    /// # Errors
    ///
    /// Errors of `output`.
    pub(crate) fn new(output: W) -> io::Result<Self> {
        let mut output = BufWriter::new(output);
        output.write_all(&MAGIC_NS.to_le_bytes())?;
        for number in VERSION {
            output.write_all(&number.to_le_bytes())?;
        }
        // Zone and accuracy, zero by convention.
        output.write_all(&[0; 8])?;
        output.write_all(&(MAX_PACKET_LEN as u32).to_le_bytes())?;
        output.write_all(&LinkType::RAW.0.to_le_bytes())?;
        output.flush()?;
        Ok(PcapWriter {
            output,
            flushed: Instant::now(),
            packets: 0,
        })
    }

    /// Writes one packet, starting with its IP header. A packet longer than [`MAX_PACKET_LEN`] is truncated, which its
    /// record shows.
    ///
    /// # Errors
    ///
    /// Errors of `output`; a time before 1970 or after 2106 is [`io::ErrorKind::InvalidInput`].
    pub(crate) fn packet(&mut self, time: SystemTime, ip_packet: &[u8]) -> io::Result<()> {
        let out_of_range =
            |_| io::Error::new(io::ErrorKind::InvalidInput, "time outside of pcap's range");
        let since_epoch = time
            .duration_since(UNIX_EPOCH)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        let seconds = u32::try_from(since_epoch.as_secs()).map_err(out_of_range)?;
        let captured = ip_packet.get(..MAX_PACKET_LEN).unwrap_or(ip_packet);
        let wire_len = u32::try_from(ip_packet.len()).unwrap_or(u32::MAX);
        for field in [
            seconds,
            since_epoch.subsec_nanos(),
            captured.len() as u32,
            wire_len,
        ] {
            self.output.write_all(&field.to_le_bytes())?;
        }
        self.output.write_all(captured)?;
        self.packets += 1;
        if self.flushed.elapsed() >= FLUSH_INTERVAL {
            self.flush()?;
        }
        Ok(())
    }

    /// Packets written so far.
    pub(crate) fn packets(&self) -> u64 {
        self.packets
    }

    /// Passes all buffered data to the operating system.
    ///
    /// # Errors
    ///
    /// Errors of the output.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.flushed = Instant::now();
        self.output.flush()
    }
}
