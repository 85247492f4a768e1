//! Unary calls of tonic.

use std::time::Instant;

use hyper::http::uri::PathAndQuery;
use hyper_util::rt::{TokioExecutor, TokioIo};
use portolan::stream::{AsyncStream, AsyncStreamListener};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tonic::{Request, Response, Status, transport::Endpoint};
use tower::service_fn;

use crate::{Error, Plan, Transport, compare, p50};

const CALLS: usize = 1000;
type Codec = tonic_prost::ProstCodec<u64, u64>;

async fn echo(call: Request<u64>) -> Result<Response<u64>, Status> {
    Ok(Response::new(call.into_inner()))
}

fn answer(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let call = hyper::service::service_fn(|request| async {
        let mut grpc = tonic::server::Grpc::new(Codec::default());
        Ok::<_, Error>(grpc.unary(service_fn(echo), request).await)
    });
    let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    tokio::spawn(server.serve_connection(TokioIo::new(stream), call));
}

/// Starts the servers. Returns their addresses.
pub(crate) fn serve() -> Result<Vec<String>, Error> {
    let runtime = Box::leak(Box::new(Runtime::new()?));
    runtime.block_on(async {
        let tcp = TcpListener::bind("127.0.0.1:0").await?;
        let streams = AsyncStreamListener::bind("127.0.0.1:0").await?;
        let addresses = vec![
            tcp.local_addr()?.to_string(),
            streams.local_addr()?.to_string(),
        ];
        tokio::spawn(async move {
            while let Ok((stream, _)) = tcp.accept().await {
                let _ = stream.set_nodelay(true);
                answer(stream);
            }
        });
        tokio::spawn(async move {
            while let Ok((stream, _)) = streams.accept().await {
                answer(stream);
            }
        });
        Ok(addresses)
    })
}

pub(crate) fn measure(addresses: &[String], plan: &Plan) -> Result<(), Error> {
    let runtime = Runtime::new()?;
    compare("tonic unary", plan, |transport| {
        runtime.block_on(async {
            match transport {
                Transport::Tcp => {
                    let stream = TcpStream::connect(&addresses[0]).await?;
                    stream.set_nodelay(true)?;
                    call(stream).await
                }
                Transport::Stream => call(AsyncStream::connect(&addresses[1]).await?).await,
            }
        })
    })
}

async fn call(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> Result<std::time::Duration, Error> {
    let mut stream = Some(TokioIo::new(stream));
    let connect = service_fn(move |_| std::future::ready(stream.take().ok_or("used before")));
    let channel = Endpoint::new("http://chart")?.connect_with_connector_lazy(connect);
    let mut client = tonic::client::Grpc::new(channel);
    let path = PathAndQuery::from_static("/Chart/Echo");
    let mut times = Vec::with_capacity(CALLS);
    for turn in 0..CALLS + CALLS / 10 {
        let started = Instant::now();
        client.ready().await?;
        let answer = client.unary(Request::new(turn as u64), path.clone(), Codec::default());
        if answer.await?.into_inner() != turn as u64 {
            return Err("another answer".into());
        }
        if turn >= CALLS / 10 {
            times.push(started.elapsed());
        }
    }
    Ok(p50(times))
}
