use std::time::Duration;

use portolan::{Connection, Error, Message};

fn receive(connection: Connection) -> Result<Message, Error> {
    connection.close(Duration::from_secs(1))?;
    connection.receive()
}

fn main() {
    let _ = receive;
}
