//! Datagram sockets and services for tasks.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use ::tokio::io::unix::AsyncFd;
use portolan_addrinfo::names::pool::DEADLINE_MAX;
use portolan_provider::cm::JoinKind;
use portolan_provider::{Result, Step};
use portolan_wire::addr::Qpn;

use super::race::race;
use super::runtime::{Waited, Watched, off_runtime, runtime, runtime_error, watch, within};
use crate::datagram::{
    Arrival, Datagram, Destination, Joined, Joining, Options, Question, Reached, Service, Socket,
};
use crate::deadline;
use crate::resolve::resolve_async;

/// Time limit for sending posted datagrams. No peer can delay them.
const SEND_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// A datagram [`Socket`] for tokio tasks.
///
/// ```
/// use portolan::datagram::{Arrival, Options};
/// use portolan::tasks::{AsyncService, AsyncSocket};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let mut service = AsyncService::bind("127.0.0.1:0", &Options::default()).await?;
/// let address = service.get_ref().local_addr()?.to_string();
/// let client = tokio::spawn(async move {
///     let (mut socket, service) = AsyncSocket::connect(&address, &Options::default()).await?;
///     socket.send(&service.destination, b"ahoy", None).await?;
///     socket.flush().await?;
///     Ok::<_, portolan::Error>(socket)
/// });
/// let data = loop {
///     if let Arrival::Datagram { datagram, .. } = service.next().await? {
///         break datagram.data;
///     }
/// };
/// assert_eq!(data, b"ahoy");
/// # client.await.unwrap()?;
/// # Ok::<(), portolan::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct AsyncSocket {
    socket: AsyncFd<Watched<Socket>>,
}

impl Waited for Socket {
    fn number(&self) -> Result<RawFd> {
        Ok(self.as_fd().as_raw_fd())
    }
}

impl Waited for Service {
    fn number(&self) -> Result<RawFd> {
        Ok(self.as_fd().as_raw_fd())
    }
}

impl AsyncSocket {
    /// Registers a socket with the current runtime.
    ///
    /// # Errors
    /// There is no runtime (`InvalidState`), or it cannot watch the socket's descriptors.
    pub fn new(socket: Socket) -> Result<Self> {
        let socket = watch(socket, Step::Watch)?;
        Ok(Self { socket })
    }

    /// Requests the queue pair of the service at `host:port`; see [`Socket::connect`].
    ///
    /// # Errors
    /// As for [`Socket::connect`]; `InvalidState` outside of a runtime.
    pub async fn connect(destination: &str, options: &Options) -> Result<(Self, Reached)> {
        runtime(Step::Connect)?;
        let deadline = deadline::after(options.timeout);
        let resolved = resolve_async(destination, deadline::left(deadline).min(DEADLINE_MAX));
        let resolved = within(deadline, Step::ResolveName, resolved).await?;
        let addresses = resolved.into_iter().map(|each| each.addr).collect();
        let options = options.clone();
        let start = move |to, deadline| Question::start(to, options.clone(), deadline);
        let (socket, reached) = race(start, destination, addresses, deadline).await?;
        Ok((Self::new(socket)?, reached))
    }

    /// Joins a multicast group; see [`Socket::join`].
    ///
    /// # Errors
    /// As for [`Socket::join`]; `InvalidState` outside of a runtime.
    pub async fn join(
        group: SocketAddr,
        source: Option<SocketAddr>,
        kind: JoinKind,
        options: &Options,
    ) -> Result<(Self, Joined)> {
        let deadline = deadline::after(options.timeout);
        let options = options.clone();
        let start =
            move |group, deadline| Joining::start(group, source, kind, options.clone(), deadline);
        let (socket, joined) = race(start, "nobody", vec![group], deadline).await?;
        Ok((Self::new(socket)?, joined))
    }

    /// The underlying socket, for operations that do not wait.
    pub fn get_ref(&self) -> &Socket {
        &self.socket.get_ref().0
    }

    fn get_mut(&mut self) -> &mut Socket {
        &mut self.socket.get_mut().0
    }

    /// Sends a datagram; waits while no send buffer is free. If the future is dropped, the datagram is not sent.
    ///
    /// # Errors
    /// As for [`Socket::send`].
    pub async fn send(
        &mut self,
        to: &Destination,
        data: &[u8],
        imm_data: Option<u32>,
    ) -> Result<()> {
        let deadline = deadline::after(SEND_TIMEOUT);
        while !self.get_mut().try_send(to, data, imm_data)? {
            within(deadline, Step::PostSend, self.sent()).await?;
        }
        Ok(())
    }

    /// Waits until all posted datagrams are sent. Dropping the socket earlier may discard some.
    ///
    /// # Errors
    /// As for [`Socket::flush`].
    pub async fn flush(&mut self) -> Result<()> {
        let deadline = deadline::after(SEND_TIMEOUT);
        while !self.get_mut().is_flushed()? {
            within(deadline, Step::PostSend, self.sent()).await?;
        }
        Ok(())
    }

    /// Waits for a datagram.
    ///
    /// # Errors
    /// As for [`Socket::try_receive`].
    pub async fn receive(&mut self) -> Result<Datagram> {
        loop {
            if let Some(datagram) = self.get_mut().try_receive()? {
                return Ok(datagram);
            }
            self.changed().await?;
        }
    }

    /// The sender of a datagram, as a destination for the answer; see [`Socket::sender`].
    ///
    /// # Errors
    /// As for [`Socket::sender`].
    pub fn sender(&self, datagram: &Datagram) -> Result<Destination> {
        self.get_ref().sender(datagram)
    }

    /// Waits until a check may find something new.
    async fn changed(&mut self) -> Result<()> {
        if self.get_mut().arm()? {
            return Ok(());
        }
        self.readable().await
    }

    /// Waits until a send may have ended.
    async fn sent(&mut self) -> Result<()> {
        if self.get_mut().arm_for_sends()? {
            return Ok(());
        }
        self.readable().await
    }

    async fn readable(&self) -> Result<()> {
        let readable = self.socket.readable().await;
        readable.map_err(runtime_error)?.clear_ready();
        Ok(())
    }
}

/// A datagram [`Service`] for tokio tasks.
///
/// ```
/// use portolan::datagram::{Arrival, Options};
/// use portolan::tasks::{AsyncService, AsyncSocket};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let mut service = AsyncService::bind("127.0.0.1:0", &Options::default()).await?;
/// let address = service.get_ref().local_addr()?.to_string();
/// tokio::spawn(async move {
///     // Answers each datagram in capitals.
///     loop {
///         match service.next().await? {
///             Arrival::Datagram { datagram, qpn } => {
///                 let client = service.sender(&datagram, qpn)?;
///                 let answer = datagram.data.to_ascii_uppercase();
///                 service.send(qpn, &client, &answer, None).await?;
///             }
///             Arrival::Asked { peer, .. } => println!("{peer:?} knows the service"),
///             Arrival::Failed(error) => return Err::<(), _>(error),
///             _ => {}
///         }
///     }
/// });
/// let (mut socket, found) = AsyncSocket::connect(&address, &Options::default()).await?;
/// socket.send(&found.destination, b"ahoy", None).await?;
/// assert_eq!(socket.receive().await?.data, b"AHOY");
/// # Ok::<(), portolan::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct AsyncService {
    service: AsyncFd<Watched<Service>>,
}

impl AsyncService {
    /// Offers a service; see [`Service::bind`].
    ///
    /// # Errors
    /// As for [`Service::bind`]; `InvalidState` outside of a runtime.
    pub async fn bind(address: &str, options: &Options) -> Result<Self> {
        let (address, options) = (address.to_owned(), options.clone());
        let bind = move || Service::bind(&address, &options);
        Self::new(off_runtime(Step::Listen, bind).await?)
    }

    /// Registers a service with the current runtime.
    ///
    /// # Errors
    /// There is no runtime (`InvalidState`), or it cannot watch the service's descriptor.
    pub fn new(service: Service) -> Result<Self> {
        let service = watch(service, Step::Listen)?;
        Ok(Self { service })
    }

    /// The underlying service, for operations that do not wait.
    pub fn get_ref(&self) -> &Service {
        &self.service.get_ref().0
    }

    fn get_mut(&mut self) -> &mut Service {
        &mut self.service.get_mut().0
    }

    /// Waits for a request, which it answers, or a datagram.
    ///
    /// # Errors
    /// As for [`Service::try_next`].
    pub async fn next(&mut self) -> Result<Arrival> {
        loop {
            if let Some(arrival) = self.get_mut().try_next()? {
                return Ok(arrival);
            }
            self.changed().await?;
        }
    }

    /// The sender of a datagram, as a destination for the answer; see [`Service::sender`].
    ///
    /// # Errors
    /// As for [`Service::sender`].
    pub fn sender(&self, datagram: &Datagram, qpn: Qpn) -> Result<Destination> {
        self.get_ref().sender(datagram, qpn)
    }

    /// Sends a datagram from the queue pair `qpn`; see [`Service::send`]. Waits while no send buffer is free.
    ///
    /// # Errors
    /// As for [`Service::send`].
    pub async fn send(
        &mut self,
        qpn: Qpn,
        to: &Destination,
        data: &[u8],
        imm_data: Option<u32>,
    ) -> Result<()> {
        let deadline = deadline::after(SEND_TIMEOUT);
        while !self.get_mut().try_send(qpn, to, data, imm_data)? {
            within(deadline, Step::PostSend, self.sent(qpn)).await?;
        }
        Ok(())
    }

    /// Waits until a check may find something new.
    async fn changed(&mut self) -> Result<()> {
        if self.get_mut().arm() {
            return Ok(());
        }
        self.readable().await
    }

    /// Waits until a send of the queue pair `qpn` may have ended.
    async fn sent(&mut self, qpn: Qpn) -> Result<()> {
        if self.get_mut().arm_for_sends(qpn)? {
            return Ok(());
        }
        self.readable().await
    }

    async fn readable(&self) -> Result<()> {
        let readable = self.service.readable().await;
        readable.map_err(runtime_error)?.clear_ready();
        Ok(())
    }
}
