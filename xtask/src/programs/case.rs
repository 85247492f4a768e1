//! A row: programs and their expected results.

use std::fmt::Write;
use std::net::Ipv4Addr;

/// One end of a row, as words of a command line.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// A Debian program, run with `portolan exec`.
    C(Vec<String>),
    /// A socket program, run with `portolan exec --sockets`.
    Sockets(Vec<String>),
    /// The `portolan` command.
    Ours(Vec<String>),
}

/// A C program with its command line.
pub(super) fn c(text: &str) -> End {
    End::C(words(text))
}

/// A socket program with its command line.
pub(super) fn sockets(text: &str) -> End {
    End::Sockets(words(text))
}

/// The `portolan` command with its arguments.
pub(super) fn ours(text: &str) -> End {
    End::Ours(words(text))
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl End {
    /// The command line for display.
    pub(super) fn text(&self) -> String {
        match self {
            Self::C(words) => words.join(" "),
            Self::Sockets(words) => format!("portolan exec --sockets -- {}", words.join(" ")),
            Self::Ours(words) => format!("portolan {}", words.join(" ")),
        }
    }
}

/// How to tell that a server is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// It listens on an rdma_cm port.
    Listener(u16),
    /// It listens on a TCP port, over which both ends exchange their queue pairs.
    Tcp(u16),
    /// It has a UDP socket with this port.
    Udp(u16),
    /// It has joined the group.
    Member(Ipv4Addr),
}

/// The end that is started first.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) end: End,
    pub(super) ready: Ready,
    pub(super) expected: Expected,
}

/// The contents of a row's network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    /// Only the loopback interface.
    Loopback,
    /// Also an Ethernet link: libraries above verbs ignore loopback interfaces.
    Ethernet,
}

/// A text and the minimum number of output lines that contain it.
pub(super) type Saying = (&'static str, usize);

/// How an end must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// With status 0.
    Well,
    /// By itself with another status.
    Refused,
    /// It is still running when the other end has ended.
    Stays,
}

/// The expected result of an end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) ending: Ending,
    pub(super) says: &'static [Saying],
}

impl Expected {
    pub(super) fn well(says: &'static [Saying]) -> Self {
        let ending = Ending::Well;
        Self { ending, says }
    }

    pub(super) fn refused(says: &'static [Saying]) -> Self {
        let ending = Ending::Refused;
        Self { ending, says }
    }

    pub(super) fn stays() -> Self {
        let (ending, says) = (Ending::Stays, &[][..]);
        Self { ending, says }
    }
}

/// Which end checks the received data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Data {
    None,
    Unseen,
    ComparedByBoth,
    ComparedByClient,
}

impl Data {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Unseen => "not checked",
            Self::ComparedByBoth => "compared by both",
            Self::ComparedByClient => "compared by the client",
        }
    }
}

/// A row.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// The heading of its table.
    pub(super) group: &'static str,
    /// `None` for a program without a peer.
    pub(super) server: Option<Server>,
    pub(super) client: End,
    /// Number of simultaneous clients.
    pub(super) clients: usize,
    /// Expected result of each client.
    pub(super) expected: Expected,
    pub(super) data: Data,
    pub(super) network: Network,
    /// The client's output if it fails by a race of programs: it started before the server was ready, or ended before it
    /// passed on what it was to say. The row is then repeated.
    pub(super) haste: Option<&'static str>,
    /// Whether the tests play this row.
    pub(super) is_quick: bool,
}

impl Case {
    /// Two ends that must succeed.
    pub(super) fn pair(group: &'static str, server: End, ready: Ready, client: End) -> Self {
        Self {
            server: Some(Server {
                end: server,
                ready,
                expected: Expected::well(&[]),
            }),
            ..Self::alone(group, client)
        }
    }

    /// A program without a peer. It must succeed.
    pub(super) fn alone(group: &'static str, program: End) -> Self {
        Self {
            group,
            server: None,
            client: program,
            clients: 1,
            expected: Expected::well(&[]),
            data: Data::None,
            network: Network::Loopback,
            haste: None,
            is_quick: false,
        }
    }

    /// Whether the row has a socket program.
    pub(super) fn is_of_sockets(&self) -> bool {
        let server = self.server.iter().map(|server| &server.end);
        let mut ends = server.chain([&self.client]);
        ends.any(|end| matches!(end, End::Sockets(_)))
    }

    pub(super) fn data(self, data: Data) -> Self {
        Self { data, ..self }
    }

    pub(super) fn on_ethernet(self) -> Self {
        let network = Network::Ethernet;
        Self { network, ..self }
    }

    pub(super) fn server(mut self, expected: Expected) -> Self {
        if let Some(server) = &mut self.server {
            server.expected = expected;
        }
        self
    }

    pub(super) fn client(self, expected: Expected) -> Self {
        Self { expected, ..self }
    }

    /// Both must succeed and print this.
    pub(super) fn both_say(self, says: &'static [Saying]) -> Self {
        let expected = Expected::well(says);
        self.server(expected).client(expected)
    }

    /// The client must succeed and print this.
    pub(super) fn client_says(self, says: &'static [Saying]) -> Self {
        self.client(Expected::well(says))
    }

    pub(super) fn quick(self) -> Self {
        Self {
            is_quick: true,
            ..self
        }
    }

    /// The client's command line, and the number of clients.
    pub(super) fn client_text(&self) -> String {
        let mut text = self.client.text();
        if self.clients > 1 {
            write!(text, ", {} at once", self.clients).expect("writing to a string cannot fail");
        }
        text
    }
}
