use portolan::{Connection, Error, Incoming};

fn answer(incoming: Incoming) -> Result<Connection, Error> {
    incoming.reject(b"busy")?;
    incoming.accept()
}

fn main() {
    let _ = answer;
}
