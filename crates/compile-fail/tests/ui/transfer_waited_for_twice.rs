use portolan::{Failed, Transfer};

fn finish(transfer: Transfer) -> Result<(), Failed> {
    transfer.wait()?;
    transfer.wait().map(|_| ())
}

fn main() {
    let _ = finish;
}
