//! 1 MiB into the peer's memory, and a note that it is there.

use std::alloc::Layout;
use std::io;

use async_rdma::{LocalMrReadAccess, LocalMrWriteAccess, RdmaBuilder};

const ADDRESS: &str = "127.0.0.1:7471";
const LENGTH: usize = 1 << 20;

/// Its agent allocates the memory.
async fn serve() -> io::Result<()> {
    let rdma = RdmaBuilder::default().listen(ADDRESS).await?;
    let memory = rdma.receive_local_mr().await?;
    assert_eq!(*memory.as_slice(), [7; LENGTH]);
    Ok(())
}

#[tokio::main]
async fn main() -> io::Result<()> {
    let server = tokio::spawn(serve());
    let rdma = RdmaBuilder::default().connect(ADDRESS).await?;
    let layout = Layout::new::<[u8; LENGTH]>();
    let mut remote = rdma.request_remote_mr(layout).await?;
    let mut local = rdma.alloc_local_mr(layout)?;
    local.as_mut_slice().fill(7);
    rdma.write(&local, &mut remote).await?;
    rdma.send_remote_mr(remote).await?;
    server.await.unwrap()
}
