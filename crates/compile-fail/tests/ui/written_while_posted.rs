use portolan::{Buffer, Connection, Failed};

fn write(connection: &Connection, mut buffer: Buffer) -> Result<(), Failed> {
    let transfer = connection.send(buffer)?;
    buffer[0] = 1;
    transfer.wait().map(|_| ())
}

fn main() {
    let _ = write;
}
