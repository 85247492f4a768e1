use portolan::{Buffer, Connection, Failed};

fn peek(connection: &Connection, buffer: Buffer) -> Result<u8, Failed> {
    let first = &buffer[0];
    let transfer = connection.post_receive(buffer)?;
    let seen = *first;
    transfer.wait().map(|_| seen)
}

fn main() {
    let _ = peek;
}
