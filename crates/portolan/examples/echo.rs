//! A blocking echo: a server thread returns each message, a client checks what comes back.
//!
//! `cargo run -p portolan --example echo`

use std::thread;
use std::time::Duration;

use portolan::{Connector, Error, Listener};

const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result<(), Error> {
    let listener = Listener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let server = thread::spawn(move || serve(&listener));

    let connection = Connector::new().connect(&address.to_string())?;
    for text in ["ahoy", "fathoms: seven", "land in sight"] {
        connection
            .send(connection.buffer_from(text.as_bytes())?)?
            .wait()?;
        let echo = connection.receive_within(PATIENCE)?;
        println!("{} -> {}", text, String::from_utf8_lossy(&echo));
        assert_eq!(&echo[..], text.as_bytes());
    }
    connection.close(PATIENCE)?;
    server.join().expect("the server does not panic")
}

/// Serves one connection until its peer disconnects.
fn serve(listener: &Listener) -> Result<(), Error> {
    let connection = listener.accept_within(PATIENCE)?.accept()?;
    while let Ok(message) = connection.receive_within(PATIENCE) {
        connection.send(connection.buffer_from(&message)?)?.wait()?;
    }
    connection.wait_disconnected(PATIENCE)
}
