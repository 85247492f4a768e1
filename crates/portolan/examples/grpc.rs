//! gRPC over RDMA: tonic serves 50 clients, and echoes a streaming call of each.
//!
//! `cargo run --release -p portolan --features tokio --example grpc`

use hyper::http::uri::PathAndQuery;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portolan::stream::{AsyncStream, AsyncStreamListener};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, transport::Endpoint};
use tower::service_fn;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Codec = tonic_prost::ProstCodec<u64, u64>;

async fn echo(call: Request<Streaming<u64>>) -> Result<Response<Streaming<u64>>, Status> {
    Ok(Response::new(call.into_inner()))
}

async fn serve(listener: AsyncStreamListener) {
    while let Ok((stream, _)) = listener.accept().await {
        let call = hyper::service::service_fn(|request| async {
            let mut grpc = tonic::server::Grpc::new(Codec::default());
            Ok::<_, Error>(grpc.streaming(service_fn(echo), request).await)
        });
        let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
        tokio::spawn(server.serve_connection(TokioIo::new(stream), call));
    }
}

async fn sail(address: String) -> Result<(), Error> {
    let mut stream = Some(TokioIo::new(AsyncStream::connect(&address).await?));
    let connect = service_fn(move |_| std::future::ready(stream.take().ok_or("used before")));
    let channel = Endpoint::new("http://chart")?.connect_with_connector_lazy(connect);
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await?;
    let (notes, outgoing) = tokio::sync::mpsc::channel(1);
    let call = Request::new(ReceiverStream::new(outgoing));
    let path = PathAndQuery::from_static("/Chart/Echo");
    let answers = client.streaming(call, path, Codec::default());
    let mut answers = answers.await?.into_inner();
    for fathoms in 0..20 {
        notes.send(fathoms).await?;
        assert_eq!(answers.message().await?, Some(fathoms));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let listener = AsyncStreamListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    tokio::spawn(serve(listener));
    let clients = tokio::task::JoinSet::from_iter((0..50).map(|_| sail(address.clone())));
    for ended in clients.join_all().await {
        ended?;
    }
    println!("50 clients got 20 answers each");
    Ok(())
}
