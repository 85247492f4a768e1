use portolan::{Buffer, Connection, Failed};

fn post(connection: &Connection) -> Result<(), Failed> {
    let buffer = Buffer::from(vec![7; 64]);
    let sending = connection.send(buffer)?;
    let _early: Result<Vec<u8>, Buffer> = buffer.into_memory();
    sending.wait().map(|_| ())
}

fn main() {
    let _ = post;
}
