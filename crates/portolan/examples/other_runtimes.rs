//! An echo without tokio: connections and listeners in the runtime of smol, `async-io`.
//!
//! `cargo run -p portolan --example other_runtimes`
//!
//! Any runtime and event loop that waits for a descriptor will do. A connection's is armed before each look.

use std::time::Duration;

use async_io::{Async, block_on};
use portolan::{Connection, Connector, Done, Error, Listener, Message, Readiness, Transfer};

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// A connection for tasks.
struct Endpoint {
    connection: Connection,
    readiness: Async<Readiness>,
}

impl Endpoint {
    fn new(connection: Connection) -> Outcome<Self> {
        let readiness = connection.readiness()?;
        // It does not read or write, so it need not be told not to block.
        let readiness = Async::new_nonblocking(readiness)?;
        Ok(Self {
            connection,
            readiness,
        })
    }

    async fn receive(&self) -> Outcome<Message> {
        loop {
            self.readiness.get_ref().arm()?;
            if let Some(message) = self.connection.try_receive()? {
                return Ok(message);
            }
            self.readiness.readable().await?;
        }
    }

    async fn finish(&self, mut transfer: Transfer) -> Outcome<Done> {
        loop {
            self.readiness.get_ref().arm()?;
            match transfer.try_finish() {
                Ok(done) => return Ok(done?),
                Err(posted) => transfer = posted,
            }
            self.readiness.readable().await?;
        }
    }
}

async fn serve(listener: Listener) -> Outcome<()> {
    let listener = Async::new_nonblocking(listener)?;
    let incoming = loop {
        if let Some(incoming) = listener.get_ref().try_accept()? {
            break incoming;
        }
        listener.readable().await?;
    };
    let endpoint = Endpoint::new(incoming.accept()?)?;
    for _ in 0..3 {
        let message = endpoint.receive().await?;
        let echo = endpoint.connection.send(message.into_buffer()?)?;
        endpoint.finish(echo).await?;
    }
    Ok(())
}

async fn talk(connection: Connection) -> Outcome<()> {
    let endpoint = Endpoint::new(connection)?;
    for text in ["ahoy", "fathoms: seven", "land in sight"] {
        let sending = endpoint.connection.send(text.as_bytes().to_vec())?;
        endpoint.finish(sending).await?;
        let echo = endpoint.receive().await?;
        println!("{text} -> {}", String::from_utf8_lossy(&echo));
    }
    Ok(())
}

fn main() -> Outcome<()> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server =
        std::thread::spawn(|| block_on(serve(listener)).map_err(|error| error.to_string()));
    let connector = Connector::new().timeout(Duration::from_secs(10));
    let connected: Result<Connection, Error> = connector.connect_to(address);
    block_on(talk(connected?))?;
    Ok(server.join().expect("the server does not panic")?)
}
