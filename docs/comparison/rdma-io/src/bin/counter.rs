//! A counter of the peer's, which is added to.

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
        let access = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_ATOMIC;
        let counter = end.pd.reg_mr_owned(vec![0; 8], access)?;
        end.send(&offer(&counter)).await?;
        end.receive().await?;
        let word = counter.as_slice().try_into().unwrap();
        assert_eq!(u64::from_ne_bytes(word), 50);
        Ok(end)
    };
    let client = async {
        let mut end = End::connect(&address).await?;
        let counter = offered(&end.receive().await?);
        let before = end.pd.reg_mr_owned(vec![0; 8], AccessFlags::LOCAL_WRITE)?;
        for round in 0..10u64 {
            end.qp.fetch_and_add(&before, 0, &counter, 0, 5, 2).await?;
            assert_eq!(before.as_slice(), (round * 5).to_ne_bytes());
        }
        end.send(b"done").await?;
        Ok(end)
    };
    tokio::try_join!(server, client).map(drop)
}
