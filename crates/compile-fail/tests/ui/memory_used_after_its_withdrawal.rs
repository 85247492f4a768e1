use portolan::{Error, RemoteMemory, SharedMemory};

fn offer(memory: SharedMemory) -> Result<RemoteMemory, Error> {
    let _buffer = memory.revoke()?;
    Ok(memory.remote())
}

fn main() {
    let _ = offer;
}
