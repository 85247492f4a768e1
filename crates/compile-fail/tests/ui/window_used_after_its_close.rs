use portolan::{Error, RemoteMemory, Window};

fn offer(window: Window<'_>) -> Result<RemoteMemory, Error> {
    window.close()?;
    Ok(window.remote())
}

fn main() {
    let _ = offer;
}
