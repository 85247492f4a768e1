use portolan::{Batch, Unposted};

fn twice(batch: Batch<'_>) -> Result<(), Unposted> {
    batch.post()?;
    batch.post()?;
    Ok(())
}

fn main() {
    let _ = twice;
}
