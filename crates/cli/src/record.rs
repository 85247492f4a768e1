//! Records packets while a command runs: into a capture file, into a ladder, or both.

use std::fs::File;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result, ensure};
use portolan::provider::{Choice, chosen};
use portolan::software::{Tap, TappedPacket};
use portolan_wire::ip::Datagram;

use crate::args::RecordArgs;
use crate::capture::{PcapWriter, UdpHeaders, udp_packet};
use crate::decode::dissect;
use crate::decode::trace::{Side, Tracer};
use crate::output::Output;

/// A recording in progress. The device passes packets to it, and the command passes events.
#[derive(Debug)]
pub(crate) struct Recorder {
    state: Mutex<Recorded>,
    /// The ladder's time zero.
    start: SystemTime,
}

#[derive(Debug)]
struct Recorded {
    pcap: Option<(PathBuf, PcapWriter<File>)>,
    tracer: Option<Tracer>,
    /// An IP packet, rebuilt from the socket's data.
    packet: Vec<u8>,
    /// The first error; after it nothing more is written to the file.
    error: Option<anyhow::Error>,
}

/// Runs a command while its packets are recorded, if that is requested.
///
/// # Errors
///
/// A provider other than the software provider is pinned, and a recording is requested; the output or the recording
/// cannot be written; errors of the command.
pub(crate) fn during<T>(
    args: &RecordArgs,
    trace: bool,
    output: &mut Output,
    command: impl FnOnce(&Arc<Recorder>, &mut Output) -> Result<T>,
) -> Result<T> {
    refuse_unseen_provider(args, trace)?;
    let recorder = Recorder::start(args.pcap.as_deref(), trace)?;
    let outcome = command(&recorder, output);
    recorder.finish(output)?;
    output.flush()?;
    outcome
}

fn refuse_unseen_provider(args: &RecordArgs, trace: bool) -> Result<()> {
    let chosen = chosen()?;
    ensure!(
        chosen == Choice::Software || (args.pcap.is_none() && !trace),
        "--pcap and --trace see only packets of software devices, and the provider is `{}`",
        chosen.name()
    );
    Ok(())
}

impl Recorder {
    /// Starts a recording of this process's software devices: a capture file if a path is given, a ladder if `trace` is
    /// set, nothing otherwise.
    ///
    /// # Errors
    ///
    /// The file cannot be created, or the devices cannot start.
    pub(crate) fn start(pcap: Option<&Path>, trace: bool) -> Result<Arc<Recorder>> {
        let pcap = match pcap {
            None => None,
            Some(path) => {
                let cannot = || format!("cannot write {}", path.display());
                let file = File::create(path).with_context(cannot)?;
                let writer = PcapWriter::new(file).with_context(cannot)?;
                Some((path.to_owned(), writer))
            }
        };
        let is_wanted = pcap.is_some() || trace;
        let recorder = Arc::new(Recorder {
            state: Mutex::new(Recorded {
                pcap,
                tracer: trace.then(Tracer::new),
                packet: Vec::new(),
                error: None,
            }),
            start: SystemTime::now(),
        });
        if is_wanted {
            portolan::provider::set_tap(Some(recorder.clone()))?;
        }
        Ok(recorder)
    }

    /// Records an event at our end of a connection, now.
    pub(crate) fn event(&self, side: Side, local: IpAddr, peer: IpAddr, label: impl Into<String>) {
        self.event_at(SystemTime::now(), side, local, peer, label);
    }

    /// Records an event at the given time.
    pub(crate) fn event_at(
        &self,
        time: SystemTime,
        side: Side,
        local: IpAddr,
        peer: IpAddr,
        label: impl Into<String>,
    ) {
        let at = self.since_start(time);
        if let Some(tracer) = &mut self.lock().tracer {
            tracer.event(at, local, peer, side, label);
        }
    }

    /// Ends the recording after its last packet: draws the ladder, and reports whether the whole capture was written.
    ///
    /// # Errors
    ///
    /// The capture or the output could not be written.
    pub(crate) fn finish(&self, output: &mut Output) -> Result<()> {
        let (tracer, pcap, error) = {
            let mut state = self.lock();
            (state.tracer.take(), state.pcap.take(), state.error.take())
        };
        if let Some(tracer) = tracer {
            let theme = output.theme;
            for line in tracer.finish(&theme) {
                output.line(&line)?;
            }
        }
        if let Some(error) = error {
            return Err(error);
        }
        let Some((path, mut writer)) = pcap else {
            return Ok(());
        };
        writer
            .flush()
            .with_context(|| format!("cannot write {}", path.display()))?;
        if !output.json {
            output.line(&format!(
                "{} packets written to {}",
                writer.packets(),
                path.display()
            ))?;
        }
        Ok(())
    }

    fn since_start(&self, time: SystemTime) -> Duration {
        time.duration_since(self.start).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Recorded> {
        // A panic elsewhere leaves this state usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tap for Recorder {
    fn packet(&self, tapped: &TappedPacket<'_>) {
        let at = self.since_start(tapped.time);
        let state = &mut *self.lock();
        if let Some(tracer) = &mut state.tracer
            && let Some(datagram) = datagram(tapped)
        {
            tracer.packet(at, &dissect::whole(&datagram));
        }
        if state.error.is_none()
            && let Some((path, writer)) = &mut state.pcap
        {
            let headers = headers(tapped);
            let written = udp_packet(&headers, tapped.payload, &mut state.packet)
                .map_err(anyhow::Error::from)
                .and_then(|()| Ok(writer.packet(tapped.time, &state.packet)?));
            if let Err(error) = written {
                state.error = Some(error.context(format!("cannot write {}", path.display())));
            }
        }
    }
}

fn headers(tapped: &TappedPacket<'_>) -> UdpHeaders {
    UdpHeaders {
        src: tapped.source,
        dst: tapped.destination,
        identification: tapped.identification,
        traffic_class: tapped.traffic_class,
        hop_limit: tapped.hop_limit,
    }
}

/// The datagram with the headers that the ICRC covers.
fn datagram<'a>(tapped: &TappedPacket<'a>) -> Option<Datagram<'a>> {
    let (headers, payload) = (headers(tapped), tapped.payload);
    Some(Datagram {
        ip: headers.ip(payload.len()).ok()?,
        udp: headers.udp(payload.len()),
        payload,
    })
}
