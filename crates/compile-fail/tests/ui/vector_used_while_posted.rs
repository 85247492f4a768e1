use portolan::{Connection, Failed};

fn post(connection: &Connection) -> Result<(), Failed> {
    let mut bytes = vec![7; 64];
    let sending = connection.send(bytes)?;
    bytes[0] = 8;
    sending.wait().map(|_| ())
}

fn main() {
    let _ = post;
}
