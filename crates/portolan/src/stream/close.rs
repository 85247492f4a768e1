//! Closes a stream and waits until the peer has its data.

use std::io;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_rsocket::Close;

use super::core::{Core, Wait};
use super::stream::Stream;
use crate::deadline;

impl Stream {
    /// Ends both directions and waits until the peer has confirmed all written data, at most for `timeout`. Dropping a
    /// stream delivers the data, too, but does not tell whether it has arrived.
    ///
    /// The peer's device confirms; the peer's program may not have read the data yet. Data of the peer that was not read
    /// here is lost. Clones of the stream are closed, too.
    ///
    /// ```
    /// # use std::io::{Read, Write};
    /// # use std::time::Duration;
    /// # use portolan::{Stream, StreamListener};
    /// # let listener = StreamListener::bind("127.0.0.1:0")?;
    /// # let address = listener.local_addr()?.to_string();
    /// # let server = std::thread::spawn(move || listener.accept());
    /// let mut stream = Stream::connect(&address)?;
    /// # let (mut peer, _) = server.join().unwrap()?;
    /// stream.write_all(b"the last words")?;
    /// stream.close(Duration::from_secs(5))?;
    /// # let mut words = String::new();
    /// # peer.read_to_string(&mut words)?;
    /// # assert_eq!(words, "the last words");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// `TimedOut`: the data is delivered in the background, as for a dropped stream. The error that broke the stream, also
    /// if the peer had ended its direction in order but does not have all data.
    pub fn close(self, timeout: Duration) -> io::Result<()> {
        let core = self.core();
        core.close(Close::Both);
        let until = Some(deadline::after(timeout));
        match core.flush(Wait::Until(until)) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                // Dropping it does not wait again.
                core.nonblocking.store(true, Ordering::Relaxed);
                Err(io::ErrorKind::TimedOut.into())
            }
            Err(error) => Err(error),
            Ok(()) => core.finish_close(),
        }
    }
}

impl Core {
    /// Disconnects a stream whose data has reached the peer, or reports why it never will.
    pub(super) fn finish_close(&self) -> io::Result<()> {
        let has_lost = self.has_lost();
        self.disconnect();
        match has_lost {
            true => Err(self
                .take_error()
                .unwrap_or_else(|| io::ErrorKind::BrokenPipe.into())),
            false => Ok(()),
        }
    }
}
