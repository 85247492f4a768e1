use portolan::{Buffer, Connection, Failed};

fn post(connection: &Connection, buffer: Buffer) -> Result<(), Failed> {
    let first = connection.post_receive(buffer)?;
    let second = connection.send(buffer)?;
    first.wait()?;
    second.wait().map(|_| ())
}

fn main() {
    let _ = post;
}
