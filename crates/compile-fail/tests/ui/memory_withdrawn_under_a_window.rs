use portolan::{Access, Connection, Error, SharedMemory};

fn withdraw(connection: &Connection, memory: SharedMemory) -> Result<(), Error> {
    let window = connection.open_window(&memory, 0..64, Access::REMOTE_READ)?;
    connection.revoke(memory)?;
    window.close()
}

fn main() {
    let _ = withdraw;
}
