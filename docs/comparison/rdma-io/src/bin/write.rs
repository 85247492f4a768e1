//! 1 MiB into the peer's memory, and a note that it is there.

use comparison_rdma_io::{End, offer, offered};
use rdma_io::Result;
use rdma_io::async_cm::AsyncCmListener;
use rdma_io::mr::AccessFlags;

const LENGTH: usize = 1 << 20;

#[tokio::main]
async fn main() -> Result<()> {
    let listener = AsyncCmListener::bind(&"127.0.0.1:0".parse().unwrap())?;
    let address = listener.local_addr().unwrap();
    let server = async {
        let mut end = End::accept(&listener).await?;
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
        let memory = end.pd.reg_mr_owned(vec![0; LENGTH], access)?;
        end.send(&offer(&memory)).await?;
        end.receive().await?;
        assert_eq!(memory.as_slice(), [7; LENGTH]);
        Ok(end)
    };
    let client = async {
        let mut end = End::connect(&address).await?;
        let remote = offered(&end.receive().await?);
        let local = end.pd.reg_mr_owned(vec![7; LENGTH], AccessFlags::LOCAL_WRITE)?;
        end.qp.write_remote_with_imm(&local, 0, LENGTH, &remote, 0, 1, 2).await?;
        Ok(end)
    };
    tokio::try_join!(server, client).map(drop)
}
