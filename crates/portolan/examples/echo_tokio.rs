//! An echo for tokio: one task per connection, a hundred messages from each of ten clients.
//!
//! `cargo run -p portolan --example echo_tokio --features tokio`

use portolan::tasks::{AsyncConnection, AsyncListener};
use portolan::{Connector, Error, Options};
use tokio::task::JoinSet;

const CLIENTS: usize = 10;
const MESSAGES: usize = 100;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let listener = AsyncListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let mut tasks = JoinSet::new();
    for number in 0..CLIENTS {
        tasks.spawn(client(number, address.clone()));
    }
    for _ in 0..CLIENTS {
        let incoming = listener.accept().await?;
        tasks.spawn(async move { serve(incoming.accept_async(&Options::default()).await?).await });
    }
    for ended in tasks.join_all().await {
        ended?;
    }
    println!("{} messages came back", CLIENTS * MESSAGES);
    Ok(())
}

/// Returns each message until the peer disconnects.
async fn serve(connection: AsyncConnection) -> Result<(), Error> {
    while let Ok(message) = connection.receive().await {
        let answer = connection.get_ref().buffer_from(&message)?;
        connection.send(answer)?.await?;
    }
    connection.disconnected().await
}

async fn client(number: usize, address: String) -> Result<(), Error> {
    let connection = Connector::new().connect_async(&address).await?;
    for count in 0..MESSAGES {
        let text = format!("message {count} of client {number}");
        connection
            .send(connection.get_ref().buffer_from(text.as_bytes())?)?
            .await?;
        assert_eq!(&connection.receive().await?[..], text.as_bytes());
    }
    connection.get_ref().disconnect()
}
