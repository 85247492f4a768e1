//! The matrix of exchanges and networks.

use std::fmt;

/// How much of the matrix to play.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// Everything.
    Whole,
    /// A selection that is fast enough for tests.
    Selected,
}

/// Properties of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Network {
    /// The interfaces' MTU in bytes.
    pub(super) mtu: u32,
    /// Percentage of packets lost in each direction.
    pub(super) loss_percent: u32,
}

/// One exchange, over one IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Play {
    pub(super) kind: Kind,
    pub(super) family: Family,
    extent: Extent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// rping serves, our ping connects.
    RpingServes,
    /// Our listener serves, rping connects.
    RpingCalls,
    /// udaddy serves: it echoes our datagrams.
    UdaddyServes,
    /// Our service echoes udaddy's datagrams.
    UdaddyCalls,
    /// mckey sends to a group that our program has joined.
    MckeySends,
    /// Our program sends to a group that mckey has joined.
    MckeyJoins,
    /// Sends, writes, reads and atomics, each by either end.
    Verify,
    /// For comparison: reads between two kernel devices.
    KernelsReads,
}

/// Iterations of rping. With losses many of them wait for a timer.
const ITERATIONS: u32 = 100;
const ITERATIONS_LOSSY: u32 = 20;
/// Several packets each way on both path MTUs.
const RPING_BYTES: u32 = 10_000;
const DATAGRAMS: u32 = 20;
/// Largest read in bytes on a network that loses packets. In longer reads rdma_rxe waits for its
/// timer again and again: two of them need half a minute or more for a MiB
/// ([`Kind::KernelsReads`]).
pub(super) const LOSSY_READ_BYTES_MAX: u32 = 64 << 10;
/// Size and number of reads between two kernels on such a network.
const KERNELS_READ_BYTES: u32 = 1 << 20;
const KERNELS_READS: u32 = 3;

impl Network {
    const fn new(mtu: u32, loss_percent: u32) -> Self {
        Self { mtu, loss_percent }
    }

    pub(super) fn is_lossy(self) -> bool {
        self.loss_percent > 0
    }

    /// Payload of a full packet in bytes, as Linux computes it.
    fn path_mtu(self) -> u32 {
        match self.mtu {
            ..4192 => 1024,
            _ => 4096,
        }
    }
}

/// The exchanges to play, grouped by network.
pub(super) fn plan(extent: Extent) -> Vec<(Network, Vec<Play>)> {
    let networks = [
        Network::new(1500, 0),
        Network::new(9000, 0),
        Network::new(1500, 2),
        Network::new(9000, 2),
    ];
    let mut plan = Vec::new();
    for network in networks {
        let mut plays = Vec::new();
        for family in [Family::V4, Family::V6] {
            let kinds = KINDS
                .iter()
                .filter(|kind| kind.is_played(family, network, extent));
            plays.extend(kinds.map(|kind| Play {
                kind: *kind,
                family,
                extent,
            }));
        }
        if !plays.is_empty() {
            plan.push((network, plays));
        }
    }
    plan
}

const KINDS: [Kind; 8] = [
    Kind::RpingServes,
    Kind::RpingCalls,
    Kind::UdaddyServes,
    Kind::UdaddyCalls,
    Kind::MckeySends,
    Kind::MckeyJoins,
    Kind::Verify,
    Kind::KernelsReads,
];

impl Kind {
    fn is_played(self, family: Family, network: Network, extent: Extent) -> bool {
        let is_possible = match self {
            Self::RpingServes | Self::RpingCalls | Self::Verify => true,
            // These end only when every datagram has arrived.
            Self::UdaddyServes | Self::UdaddyCalls => !network.is_lossy(),
            // The kernel's rdma_cm refuses IPv6 groups over RoCEv2.
            Self::MckeySends | Self::MckeyJoins => !network.is_lossy() && family == Family::V4,
            Self::KernelsReads => network.is_lossy() && network.mtu == 1500 && family == Family::V4,
        };
        let is_selected = match self {
            Self::Verify => network != Network::new(9000, 2),
            Self::KernelsReads => false,
            // The others: each family once, on one network.
            _ => network == Network::new(1500, 0),
        };
        is_possible && (extent == Extent::Whole || is_selected)
    }
}

impl Play {
    /// Name of the file with `portolan-verify`'s report.
    pub(super) fn file_name(&self, network: Network) -> String {
        let word = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        format!("{self}, {network}").chars().map(word).collect()
    }

    /// The command for the leading machine.
    pub(super) fn script(&self, network: Network) -> String {
        let family = match self.family {
            Family::V4 => 4,
            Family::V6 => 6,
        };
        let (bytes, rounds) = (RPING_BYTES, self.iterations(network));
        let datagram = network.path_mtu();
        let command = match self.kind {
            Kind::RpingServes => format!("rping_serves {family} {bytes} {rounds}"),
            Kind::RpingCalls => format!("rping_calls {family} {bytes} {rounds}"),
            Kind::UdaddyServes => format!("udaddy_serves {family} {datagram} {DATAGRAMS}"),
            Kind::UdaddyCalls => format!("udaddy_calls {family} {datagram} {DATAGRAMS}"),
            Kind::MckeySends => format!("mckey_sends {datagram} {DATAGRAMS}"),
            Kind::MckeyJoins => format!("mckey_joins {datagram} {DATAGRAMS}"),
            Kind::Verify => return self.verify(family, network),
            Kind::KernelsReads => {
                format!("reads_of_the_kernels {family} {KERNELS_READ_BYTES} {KERNELS_READS}")
            }
        };
        match network.is_lossy() {
            true => format!("lossy {command}"),
            false => command,
        }
    }

    fn iterations(&self, network: Network) -> u32 {
        match network.is_lossy() || self.extent == Extent::Selected {
            true => ITERATIONS_LOSSY,
            false => ITERATIONS,
        }
    }

    fn verify(&self, family: u32, network: Network) -> String {
        let file = self.file_name(network);
        let verify = |options: &str| {
            let lossy = if network.is_lossy() { "lossy " } else { "" };
            format!("{lossy}verify {family} '{file}' --timeout 300 {options}")
        };
        let but_reads = "--operations send,write,fetch-add,compare-swap";
        match (self.extent, network.is_lossy()) {
            (Extent::Whole, false) => verify(""),
            (Extent::Whole, true) => {
                let sizes: Vec<_> = (0..=LOSSY_READ_BYTES_MAX.ilog2())
                    .flat_map(|exponent| [1u32 << exponent, (1 << exponent) * 3 / 2 + 1])
                    .filter(|size| *size <= LOSSY_READ_BYTES_MAX)
                    .map(|size| size.to_string())
                    .collect();
                let reads = format!("--operations read --sizes {}", sizes.join(","));
                format!("{}\n{}", verify(but_reads), verify(&reads))
            }
            (Extent::Selected, is_lossy) => {
                let sizes = match self.family {
                    _ if is_lossy => "1,1025,50000",
                    Family::V4 if network.mtu == 1500 => "1,7,1024,4097,65537,8388608",
                    _ => "1,1025,4097,100003",
                };
                verify(&format!("--sizes {sizes}"))
            }
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::RpingServes => "rping -s, our ping",
            Self::RpingCalls => "rping -c, our listen",
            Self::UdaddyServes => "udaddy, our ping --ud",
            Self::UdaddyCalls => "udaddy -s, our listen --ud",
            Self::MckeySends => "mckey -s, our mcast join",
            Self::MckeyJoins => "mckey, our mcast send",
            Self::Verify => "data of all operations",
            Self::KernelsReads => "reads of two rdma_rxe",
        })
    }
}

impl fmt::Display for Family {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        })
    }
}

impl fmt::Display for Play {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.kind, self.family)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MTU {}", self.mtu)?;
        match self.loss_percent {
            0 => Ok(()),
            percent => write!(f, ", {percent} % loss"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_matrix_has_every_kind_over_both_versions_except_what_linux_refuses() {
        let plan = plan(Extent::Whole);
        assert_eq!(plan.len(), 4);
        for (network, plays) in &plan {
            for family in [Family::V4, Family::V6] {
                let has = |kind| {
                    let is_it = |play: &Play| play.kind == kind && play.family == family;
                    plays.iter().any(is_it)
                };
                assert!(has(Kind::RpingServes) && has(Kind::RpingCalls) && has(Kind::Verify));
                assert_eq!(has(Kind::UdaddyCalls), !network.is_lossy());
                let is_v4 = family == Family::V4;
                assert_eq!(has(Kind::MckeySends), is_v4 && !network.is_lossy());
            }
        }
    }

    #[test]
    fn the_tests_selection_is_part_of_the_whole() {
        let whole = plan(Extent::Whole);
        for (network, plays) in plan(Extent::Selected) {
            let all = &whole.iter().find(|(other, _)| *other == network).unwrap().1;
            for play in plays {
                assert!(
                    all.iter()
                        .any(|other| other.to_string() == play.to_string())
                );
            }
        }
    }

    #[test]
    fn lossy_plays_must_lose_something() {
        for (network, plays) in plan(Extent::Whole) {
            for play in plays {
                let script = play.script(network);
                let is_lossy = script.lines().all(|line| line.starts_with("lossy "));
                assert_eq!(is_lossy, network.is_lossy(), "{script}");
            }
        }
    }
}
