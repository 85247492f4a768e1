//! The transport services of connections.

use std::fmt;

use portolan_provider::cm::Service;
use portolan_provider::verbs::QpType;
use portolan_provider::{Cause, Error, Result, Step};
use portolan_wire::addr::PortSpace;

/// The transport service of a connection (IBTA 9.1). Both ends use the same one: a request for the other finds no
/// listener.
///
/// | | reliable (RC) | unreliable (UC) |
/// |---|---|---|
/// | sends and writes, with immediate data | yes | yes |
/// | reads and atomics | yes | no |
/// | a lost packet | is sent again | the whole message is lost, without a report |
/// | a message without a posted receive | waits | is lost, without a report |
/// | a message longer than the receive | breaks the connection | is lost |
/// | a write that the peer refuses | breaks the connection | is lost, without a report |
/// | a transfer ends | when the peer has acknowledged it | when it is sent |
/// | order of messages | as sent | as sent, with gaps |
/// | longest write | any | 1 GiB |
/// | [`Keepalive`](crate::Keepalive) | yes | no |
///
/// Connecting and disconnecting are the same for both. The software device supports both. The kernel's InfiniBand and
/// RoCE devices do, too, if the device itself supports UC; iWARP has no UC.
///
/// ```
/// use portolan::{Connector, ListenOptions, Listener, Transport};
///
/// let options = ListenOptions::default().transport(Transport::Uc);
/// let listener = Listener::bind_with("127.0.0.1:0", &options)?;
/// let address = listener.local_addr()?;
/// let connector = Connector::new().transport(Transport::Uc);
/// let client = std::thread::spawn(move || connector.connect_to(address));
/// let server = listener.accept()?.accept()?;
/// let client = client.join().unwrap()?;
/// client.send(b"position".to_vec())?.wait()?; // sent, but not necessarily received
/// # assert_eq!(server.transport(), Transport::Uc);
/// # Ok::<(), portolan::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Transport {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
}

impl Transport {
    /// The service of ids. The kernel's port space for TCP has only RC (`ucma_get_qp_type`).
    pub(crate) fn service(self) -> Service {
        let (port_space, qp_type) = match self {
            Self::Rc => (PortSpace::Tcp, QpType::Rc),
            Self::Uc => (PortSpace::Ib, QpType::Uc),
        };
        Service {
            port_space,
            qp_type,
        }
    }

    pub(crate) fn of(service: Service) -> Self {
        match service.qp_type {
            QpType::Uc => Self::Uc,
            _ => Self::Rc,
        }
    }

    pub(crate) fn qp_type(self) -> QpType {
        self.service().qp_type
    }

    /// Checks that the service has a kind of request.
    pub(crate) fn check_has(self, what: &'static str) -> Result<()> {
        match self {
            Self::Rc => Ok(()),
            Self::Uc => Err(Error::new(Step::PostSend, Cause::Unsupported(what))),
        }
    }
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.qp_type().fmt(f)
    }
}
