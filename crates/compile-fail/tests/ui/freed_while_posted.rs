use portolan::{Buffer, Connection, Failed};

fn free(connection: &Connection, buffer: Buffer) -> Result<(), Failed> {
    let transfer = connection.send(buffer)?;
    drop(buffer);
    transfer.wait().map(|_| ())
}

fn main() {
    let _ = free;
}
