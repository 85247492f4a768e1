//! What a row is: programs, and what must come of them.

use std::fmt::Write;
use std::net::Ipv4Addr;

/// One end of a row, as words of a command line.
#[derive(Clone, Debug)]
pub(super) enum End {
    /// A program of Debian's, run by `portolan exec`.
    C(Vec<String>),
    /// The command itself.
    Ours(Vec<String>),
}

/// C program, by its command line.
pub(super) fn c(text: &str) -> End {
    End::C(words(text))
}

/// The command, by its arguments.
pub(super) fn ours(text: &str) -> End {
    End::Ours(words(text))
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl End {
    /// The command line, for people.
    pub(super) fn text(&self) -> String {
        match self {
            Self::C(words) => words.join(" "),
            Self::Ours(words) => format!("portolan {}", words.join(" ")),
        }
    }
}

/// By what a server is known to be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ready {
    /// It listens at a port of the rdma_cm.
    Listener(u16),
    /// It listens at a TCP port: both ends tell each other of their queue pairs by TCP.
    Tcp(u16),
    /// It is a member of the group.
    Member(Ipv4Addr),
}

/// The end that is there first.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) end: End,
    pub(super) ready: Ready,
    pub(super) expected: Expected,
}

/// What a row's network namespace has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Network {
    /// The loopback interface alone.
    Loopback,
    /// An Ethernet link, too: stacks on verbs leave loopback interfaces out.
    Ethernet,
}

/// Text, and how many lines at least must have it.
pub(super) type Saying = (&'static str, usize);

/// How an end ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// With status 0.
    Well,
    /// Of itself with another one.
    Refused,
    /// It is there still when the other end has ended.
    Stays,
}

/// What must come of an end.
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

/// Who looks at the data that has come.
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
            Self::Unseen => "not looked at",
            Self::ComparedByBoth => "compared by both",
            Self::ComparedByClient => "compared by the client",
        }
    }
}

/// A row.
#[derive(Clone, Debug)]
pub(super) struct Case {
    /// Under which heading it stands.
    pub(super) group: &'static str,
    /// None for programs that have no other end.
    pub(super) server: Option<Server>,
    pub(super) client: End,
    /// As many clients at once.
    pub(super) clients: usize,
    /// Of each client.
    pub(super) expected: Expected,
    pub(super) data: Data,
    pub(super) network: Network,
    /// What the client says before it fails if it was faster than its server: then the row is played again.
    pub(super) haste: Option<&'static str>,
    /// Whether it is a part of the tests.
    pub(super) is_quick: bool,
}

impl Case {
    /// Two ends that are to end well.
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

    /// A program that has no other end, and is to end well.
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

    /// Both end well, and say this.
    pub(super) fn both_say(self, says: &'static [Saying]) -> Self {
        let expected = Expected::well(says);
        self.server(expected).client(expected)
    }

    /// The client ends well, and says this.
    pub(super) fn client_says(self, says: &'static [Saying]) -> Self {
        self.client(Expected::well(says))
    }

    pub(super) fn quick(self) -> Self {
        Self {
            is_quick: true,
            ..self
        }
    }

    /// The client's command line, and how many there are.
    pub(super) fn client_text(&self) -> String {
        let mut text = self.client.text();
        if self.clients > 1 {
            write!(text, ", {} at once", self.clients).expect("text takes text");
        }
        text
    }
}
