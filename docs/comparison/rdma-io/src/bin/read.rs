//! A record out of the peer's memory, whose program does nothing.

use comparison_rdma_io::{End, offer, offered};
use rdma_io::Result;
use rdma_io::async_cm::AsyncCmListener;
use rdma_io::mr::AccessFlags;

#[tokio::main]
async fn main() -> Result<()> {
    let listener = AsyncCmListener::bind(&"127.0.0.1:0".parse().unwrap())?;
    let address = listener.local_addr().unwrap();
    let server = async {
        let mut end = End::accept(&listener).await?;
        let memory = end.pd.reg_mr_owned(vec![7; 4096], AccessFlags::REMOTE_READ)?;
        end.send(&offer(&memory)).await?;
        end.receive().await?;
        Ok((end, memory))
    };
    let client = async {
        let mut end = End::connect(&address).await?;
        let table = offered(&end.receive().await?);
        let local = end.pd.reg_mr_owned(vec![0; 64], AccessFlags::LOCAL_WRITE)?;
        end.qp.read_remote(&local, 0, 64, &table, 1024, 2).await?;
        assert_eq!(local.as_slice(), [7; 64]);
        end.send(b"done").await?;
        Ok(end)
    };
    tokio::try_join!(server, client).map(drop)
}
