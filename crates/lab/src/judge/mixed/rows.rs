//! The rows: pairs of programs and their ends.

use std::fmt;

/// Clients of one persistent rping, and connections of one cmtime run.
const CLIENTS: u32 = 100;

/// A pair of programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// The heading of its table.
    pub(super) group: Group,
    /// The programs and their significant options.
    pub(super) name: String,
    /// The function of `guest/mixed.sh` that plays it.
    script: String,
    pub(super) shows: Shows,
    is_long: bool,
    /// The ends, if not those of its group.
    only: Option<&'static [Ends]>,
    /// The ends with which the tests play it.
    quick: &'static [Ends],
}

/// The package of the programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// rping and the others of rdmacm-utils.
    Librdmacm,
    /// The programs of rdmacm-utils that use rsockets.
    Rsockets,
    /// The programs of ibverbs-utils.
    PingPongs,
    /// perftest: latency and bandwidth of every operation. Moving its data takes most of the time
    /// under emulation.
    Perftest,
}

/// What a successful play shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shows {
    /// The programs compared the received data with the sent data.
    Data,
    /// The programs ended successfully.
    End,
    /// The programs were refused something that no RoCE device has.
    Refusal,
}

/// The libraries at the two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ends {
    /// Debian's libraries at both, on rdma_rxe.
    Debians,
    /// Our librdmacm over Debian's libibverbs at both, on rdma_rxe.
    OursOverTheKernels,
    /// Our libraries at the server, on the software device.
    OursServes,
    /// Our libraries at the client.
    OursCalls,
}

impl Ends {
    pub(super) const ALL: [Self; 4] = [
        Self::Debians,
        Self::OursOverTheKernels,
        Self::OursServes,
        Self::OursCalls,
    ];

    /// The sides of server and client by their names in the guest's scripts.
    fn sides(self) -> &'static str {
        match self {
            Self::Debians => "kernel kernel",
            Self::OursOverTheKernels => "library library",
            Self::OursServes => "peer kernel",
            Self::OursCalls => "kernel peer",
        }
    }
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Debians => "Debian's alone",
            Self::OursOverTheKernels => "our librdmacm over rdma_rxe",
            Self::OursServes => "ours serves",
            Self::OursCalls => "ours calls",
        })
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Librdmacm => "librdmacm's programs",
            Self::Rsockets => "librdmacm's programs over rsockets",
            Self::PingPongs => "libibverbs's ping-pongs",
            Self::Perftest => "perftest",
        })
    }
}

impl Row {
    fn new(group: Group, name: impl Into<String>, script: impl Into<String>) -> Self {
        Self {
            group,
            name: name.into(),
            script: script.into(),
            shows: Shows::End,
            is_long: group == Group::Perftest,
            only: None,
            quick: &[],
        }
    }

    fn showing(self, shows: Shows) -> Self {
        Self { shows, ..self }
    }

    fn quick(self, quick: &'static [Ends]) -> Self {
        Self { quick, ..self }
    }

    fn only(self, ends: &'static [Ends]) -> Self {
        Self {
            only: Some(ends),
            ..self
        }
    }

    /// The ends with which it is played. Slow rows are played only with different ends.
    pub(super) fn ends(&self) -> impl Iterator<Item = Ends> {
        let (only, is_long) = (self.only, self.is_long);
        let uses_librdmacm = matches!(self.group, Group::Librdmacm | Group::Rsockets);
        Ends::ALL
            .into_iter()
            .filter(move |ends| match (only, ends) {
                (Some(only), ends) => only.contains(ends),
                (None, Ends::Debians) => !is_long,
                (None, Ends::OursOverTheKernels) => !is_long && uses_librdmacm,
                (None, Ends::OursServes | Ends::OursCalls) => true,
            })
    }

    /// With which ends the tests play it.
    pub(super) fn quick_ends(&self) -> impl Iterator<Item = Ends> {
        self.quick.iter().copied()
    }

    /// The step's name.
    pub(super) fn step(&self, ends: Ends) -> String {
        format!("{}: {ends}", self.name)
    }

    /// The step's script, after `guest/mixed.sh`.
    pub(super) fn script(&self, ends: Ends) -> String {
        format!("ends {}\n{}\n", ends.sides(), self.script)
    }
}

/// Every row.
pub(super) fn all() -> Vec<Row> {
    let mut rows = librdmacm();
    rows.extend(rsockets());
    rows.extend(ping_pongs());
    rows.extend(perftest());
    rows
}

fn librdmacm() -> Vec<Row> {
    let row = |name: &str, script: &str| Row::new(Group::Librdmacm, name, script);
    let many = format!("rping -s -P, {CLIENTS} clients");
    vec![
        row("rping", "rping_pair 64 100"),
        row("rping -V -S 10000", "rping_pair 10000 100 -V")
            .showing(Shows::Data)
            .quick(&[Ends::OursServes]),
        row("rping -d -V", "rping_pair 64 10 -d -V")
            .showing(Shows::Data)
            .quick(&[Ends::OursOverTheKernels]),
        Row {
            is_long: true,
            ..row(&many, &format!("rping_many {CLIENTS} 3")).showing(Shows::Data)
        },
        row("ucmatose", "ucmatose_pair").quick(&[Ends::OursCalls]),
        row("udaddy", "udaddy_pair"),
        row("mckey", "in_three_tries mckey_pair"),
        row("rdma_server, rdma_client", "in_three_tries endpoints_pair"),
        row(
            &format!("cmtime, {CLIENTS} connections"),
            &format!("cmtime_pair {CLIENTS}"),
        ),
    ]
}

/// Each option that has an effect here: not what is the default anyway (`-T n`) or belongs to the programs' series of sizes
/// (`-i`, and `-S all` of [`every_size`](super::super::every_size)). The ends of a stream compare the data.
fn rsockets() -> Vec<Row> {
    let row = |name: &str, script: String| Row::new(Group::Rsockets, name, script);
    let stream = |options: &str| {
        let row = row(options, format!("stream_pair {options} -T v")).showing(Shows::Data);
        match options.contains("-T a") {
            // Debian's rpoll reports POLLHUP while data is unread. An asynchronous client gives up then, if it is late.
            true => row.only(&[Ends::OursOverTheKernels, Ends::OursCalls]),
            false => row,
        }
    };
    // The client must print `arrive`: the number of datagrams that its server received; with `-T e`, twice that. Over rdma_rxe
    // Debian's datagram sockets cannot connect.
    let datagrams = |arrive: &str, options: &str| {
        let name = format!("udpong {options}");
        let script = format!("datagram_pair '{arrive}' {options}");
        row(&name, script).only(&[Ends::OursOverTheKernels])
    };
    let mut rows = vec![
        stream("rstream -S 1 -C 200"),
        stream("rstream -S 64 -C 200").quick(&[Ends::OursServes]),
        stream("rstream -S 200000 -C 10").quick(&[Ends::OursCalls]),
    ];
    // `-T s` and `-T f` (a process for each connection) use plain sockets.
    let options = [
        "", "-T a", "-T b", "-T r", "-T s", "-T f", "-k 1", "-B 20000", "-I 3", "-p 7500", "-f ip",
        "-f ipv6", "-b",
    ];
    let with = |program: &str, option: &str| format!("{program} -S 20000 -C 50 {option}");
    rows.extend(options.map(|option| stream(with("rstream", option).trim_end())));
    let options = ["", "-T a", "-T b", "-B 20000", "-I 3", "-p 7500", "-b"];
    rows.extend(options.map(|option| stream(with("riostream", option).trim_end())));
    let by_gid = row("rstream -f gid", "stream_by_gid".to_owned());
    rows.push(by_gid.showing(Shows::Refusal));
    rows.push(row("rcopy", "copy_pair".to_owned()).showing(Shows::Data));
    rows.push(row("rcopy -p 7500", "copy_pair -p 7500".to_owned()).showing(Shows::Data));
    rows.push(
        row("udpong -C 1", "datagrams_refused".to_owned())
            .showing(Shows::Refusal)
            .only(&[Ends::Debians]),
    );
    rows.push(datagrams("50", "-S 64 -C 50").quick(&[Ends::OursOverTheKernels]));
    // The queues have room for 19 datagrams with buffers of 20,000 bytes.
    for (arrive, option) in [
        ("50", "-T a"),
        ("50", "-T b"),
        ("100", "-T e"),
        ("[1-9][0-9]*", "-B 20000"),
        ("50", "-p 7500"),
    ] {
        rows.push(datagrams(arrive, &format!("-S 1000 -C 50 {option}")));
    }
    rows
}

fn ping_pongs() -> Vec<Row> {
    let row = |name: String, script: String| Row::new(Group::PingPongs, name, script);
    ["rc", "uc", "ud", "srq"]
        .iter()
        .flat_map(|kind| {
            let with_gid = |options: &str| {
                row(
                    format!("ibv_{kind}_pingpong -g {options}"),
                    format!("pingpong {kind} 200 {options}"),
                )
                .showing(Shows::Data)
            };
            let quick: &[Ends] = match *kind {
                "srq" => &[Ends::OursServes],
                "rc" => &[Ends::OursCalls],
                _ => &[],
            };
            [
                with_gid("-c"),
                with_gid("-c -e").quick(quick),
                row(
                    format!("ibv_{kind}_pingpong, no -g"),
                    format!("pingpong_by_lid {kind}"),
                )
                .showing(Shows::Refusal),
            ]
        })
        .collect()
}

fn perftest() -> Vec<Row> {
    let mut rows = Vec::new();
    for way in ["", " -R"] {
        for operation in ["send", "write", "read", "atomic"] {
            for measure in ["lat", "bw"] {
                // Atomics always have eight bytes.
                let (last, options) = match operation {
                    "atomic" => (8, "-n 100"),
                    _ => (8 << 20, "-a -n 5"),
                };
                let program = format!("ib_{operation}_{measure}");
                let row = Row::new(
                    Group::Perftest,
                    format!("{program} {options}{way}"),
                    format!("perftest {program} {last} {options}{way}"),
                );
                rows.push(row);
            }
        }
    }
    rows
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_play_has_its_own_name() {
        let mut names = HashSet::new();
        for row in all() {
            for ends in row.ends() {
                assert!(names.insert(row.step(ends)), "{}", row.step(ends));
            }
        }
    }

    #[test]
    fn every_row_is_played_with_either_end_ours_unless_it_says_which() {
        for row in all().iter().filter(|row| row.only.is_none()) {
            let played: Vec<_> = row.ends().collect();
            for ends in [Ends::OursServes, Ends::OursCalls] {
                assert!(played.contains(&ends), "{}: {ends}", row.name);
            }
        }
    }

    #[test]
    fn the_tests_selection_is_part_of_the_whole_and_has_our_program_at_either_end() {
        let mut quick = HashSet::new();
        for row in all() {
            let played: Vec<_> = row.ends().collect();
            for ends in row.quick_ends() {
                assert!(played.contains(&ends), "{}: {ends}", row.name);
                quick.insert(ends.to_string());
            }
        }
        for ends in [Ends::OursOverTheKernels, Ends::OursServes, Ends::OursCalls] {
            assert!(quick.contains(&ends.to_string()), "{ends}");
        }
    }
}
