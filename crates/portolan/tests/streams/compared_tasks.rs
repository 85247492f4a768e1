//! The async form of `compared`: tokio's `TcpStream` and `AsyncStream`.

use std::future::Future;
use std::io::{ErrorKind, Result};
use std::net::{Shutdown, TcpListener};
use std::time::Duration;

use portolan::stream::AsyncStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt, Interest};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::compared::{Socket, compare, look_at, poll_tcp, run};
use crate::harness::PATIENCE;
use crate::pair::streams;

/// A stream whose calls run as futures, one at a time.
struct Task<'a, S> {
    runtime: &'a Runtime,
    stream: Mutex<S>,
    /// A second handle of the socket, for calls that tokio does not have.
    tcp: Option<std::net::TcpStream>,
}

impl<S> Task<'_, S> {
    fn tcp(&self) -> &std::net::TcpStream {
        self.tcp.as_ref().expect("a TCP socket")
    }

    /// Runs a future to its end. Fails if it hangs.
    fn complete<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(async {
            let ended = timeout(PATIENCE, future).await;
            ended.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
        })
    }

    /// Polls a future once, and drops it if it is not ready.
    fn poll_once<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        self.runtime.block_on(async {
            let ended = timeout(Duration::ZERO, future).await;
            ended.unwrap_or_else(|_| Err(ErrorKind::WouldBlock.into()))
        })
    }
}

macro_rules! socket {
    ($type:ty, $ready:expr, $peek:expr, $shutdown_read:expr) => {
        impl Socket for Task<'_, $type> {
            fn write(&self, data: &[u8]) -> Result<usize> {
                self.complete(async {
                    let mut stream = self.stream.lock().await;
                    stream.write_all(data).await.map(|()| data.len())
                })
            }
            fn read(&self, into: &mut [u8]) -> Result<usize> {
                self.complete(async { self.stream.lock().await.read(into).await })
            }
            fn read_now(&self, into: &mut [u8]) -> Result<usize> {
                self.poll_once(async { self.stream.lock().await.read(into).await })
            }
            fn peek(&self, into: &mut [u8]) -> Result<usize> {
                let peek: fn(&Self, &$type, &mut [u8]) -> Result<usize> = $peek;
                self.complete(async {
                    let stream = self.stream.lock().await;
                    loop {
                        stream.readable().await?;
                        match peek(self, &stream, into) {
                            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                            done => return done,
                        }
                    }
                })
            }
            fn shutdown(&self, how: Shutdown) -> Result<()> {
                match how {
                    Shutdown::Write => {
                        self.complete(async { self.stream.lock().await.shutdown().await })
                    }
                    how => {
                        let shutdown: fn(&Self, Shutdown) -> Result<()> = $shutdown_read;
                        shutdown(self, how)
                    }
                }
            }
            fn ready(&self) -> [bool; 3] {
                $ready(&*self.stream.try_lock().unwrap())
            }
        }
    };
}

socket!(
    TcpStream,
    poll_tcp,
    |task, stream, into| stream.try_io(Interest::READABLE, || task.tcp().peek(into)),
    |task, how| task.tcp().shutdown(how)
);
socket!(
    AsyncStream,
    |stream: &AsyncStream| look_at(stream.get_ref()),
    |_, stream, into| stream.get_ref().try_peek(into),
    |task, how| task.stream.try_lock().unwrap().get_ref().shutdown(how)
);

fn tcp_streams(runtime: &Runtime) -> [Task<'_, TcpStream>; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let active = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (passive, _) = listener.accept().unwrap();
    [active, passive].map(|stream| {
        stream.set_nonblocking(true).unwrap();
        let _context = runtime.enter();
        Task {
            runtime,
            tcp: Some(stream.try_clone().unwrap()),
            stream: Mutex::new(TcpStream::from_std(stream).unwrap()),
        }
    })
}

#[test]
fn tokios_tcp_streams_and_streams_for_tasks_do_the_same() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    compare(8_000, |operations| {
        let (active, passive) = streams();
        let ours = [active, passive].map(|stream| {
            let _context = runtime.enter();
            Task {
                runtime: &runtime,
                tcp: None,
                stream: Mutex::new(AsyncStream::new(stream).unwrap()),
            }
        });
        [
            run(ours, operations),
            run(tcp_streams(&runtime), operations),
        ]
    });
}
