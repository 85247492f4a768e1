//! The right way: the work's end gives the buffer back.
use portolan::{Buffer, Connection, Failed};

fn twice(connection: &Connection, mut buffer: Buffer) -> Result<Buffer, Failed> {
    buffer[0] = 1;
    let mut buffer = connection.send(buffer)?.wait()?.buffer;
    buffer[0] = 2;
    Ok(connection.send(buffer)?.wait()?.buffer)
}

fn main() {
    let _ = twice;
}
