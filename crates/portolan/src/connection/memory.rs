//! Memory for a connection: buffers, and memory that the peer may access.

use portolan_provider::verbs::Access;
use portolan_provider::{Error, Result, Step};

use super::established::Connection;
use crate::sys::{Buffer, Memory, NotRevoked, RemoteMemory, SharedMemory};

impl Connection {
    /// Allocates a registered buffer.
    ///
    /// # Errors
    /// See [`Buffer::new`].
    pub fn buffer(&self, length: usize) -> Result<Buffer> {
        Buffer::new(&self.inner.work.pd, length).map_err(|error| self.inner.explain(error))
    }

    /// Allocates a registered buffer and copies `bytes` into it. [`Buffer::from`] takes a vector without copying.
    ///
    /// # Errors
    /// See [`Buffer::new`].
    pub fn buffer_from(&self, bytes: &[u8]) -> Result<Buffer> {
        let mut buffer = self.buffer(bytes.len())?;
        buffer.copy_from_slice(bytes);
        Ok(buffer)
    }

    /// Registers a buffer with the connection's device, which otherwise happens at its first use.
    ///
    /// # Errors
    /// The buffer is empty, or the device's limit of regions is reached.
    pub fn register(&self, buffer: &Buffer) -> Result<()> {
        let registered = buffer.register(&self.inner.work.pd);
        registered.map_err(|error| self.inner.explain(error))
    }

    /// Allocates memory that the peer may access. All peers of the connection's [`Domain`](crate::Domain) may access
    /// it.
    ///
    /// ```
    /// use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    ///
    /// let memory = server.share(4096, Access::REMOTE_READ | Access::REMOTE_WRITE)?;
    /// client.write(b"seven".to_vec(), memory.remote())?.wait()?;
    /// let mut depth = [0; 5];
    /// memory.load(0, &mut depth);
    /// assert_eq!(&depth, b"seven");
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`SharedMemory::new`].
    pub fn share(&self, length: usize, access: Access) -> Result<SharedMemory> {
        let shared = SharedMemory::new(&self.inner.work.pd, length, access);
        shared.map_err(|error| self.inner.explain(error))
    }

    /// Lets the peer access the program's memory without copying. All peers of the connection's
    /// [`Domain`](crate::Domain) may access it. [`SharedMemory::revoke`] and [`Buffer::into_memory`] return it:
    ///
    /// ```
    /// use portolan::Access;
    /// # let (server, client) = portolan::doc_pair()?;
    ///
    /// let shared = server.share_memory(vec![0; 16], Access::REMOTE_WRITE);
    /// let shared = shared.map_err(|(error, _vector)| error)?;
    /// client.write(b"ahoy".to_vec(), shared.remote())?.wait()?;
    /// let vector: Vec<u8> = shared.revoke()?.into_memory().expect("the vector");
    /// assert_eq!(&vector[..4], b"ahoy");
    /// # Ok::<(), portolan::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`SharedMemory::of`].
    pub fn share_memory<M: Memory>(
        &self,
        memory: M,
        access: Access,
    ) -> std::result::Result<SharedMemory, (Error, M)> {
        let shared = SharedMemory::of(&self.inner.work.pd, memory, access);
        shared.map_err(|(error, memory)| (self.inner.explain(error), memory))
    }

    /// The description of shared memory for this connection's peer.
    ///
    /// Memory of a [`Domain`](crate::Domain) has a different key on each device. It is registered at the first use
    /// with a device.
    ///
    /// # Errors
    /// `InvalidArgument` if the memory belongs to another domain than the connection, so that the peer could not
    /// access it. Errors of registering.
    pub fn offer(&self, memory: &SharedMemory) -> Result<RemoteMemory> {
        let pd = &self.inner.work.pd;
        if std::ptr::addr_eq(
            std::sync::Arc::as_ptr(pd),
            std::sync::Arc::as_ptr(memory.pd()),
        ) {
            return Ok(memory.remote());
        }
        let domain = self.inner.domain.as_ref();
        let offered = match domain.is_some_and(|domain| domain.has(memory.pd())) {
            true => memory.remote_in(pd),
            false => {
                let (what, expected) = ("domain of shared memory", "the connection's");
                let step = Step::RegisterMemory;
                Err(Error::invalid(step, what, expected, "another"))
            }
        };
        offered.map_err(|error| self.inner.explain(error))
    }

    /// Revokes all peers' access to shared memory, which becomes a buffer; see [`SharedMemory::revoke`].
    ///
    /// # Errors
    /// See [`SharedMemory::revoke`].
    pub fn revoke(&self, memory: SharedMemory) -> std::result::Result<Buffer, NotRevoked> {
        // A binding of a window may have ended. If collecting fails, so does the connection's next call.
        let _ = self.inner.work.collect();
        memory.revoke().map_err(|mut failed| {
            failed.error = self.inner.explain(failed.error);
            failed
        })
    }
}
