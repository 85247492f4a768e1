//! Connected pairs.

use std::net::SocketAddr;
use std::thread;

use portolan::{Stream, StreamListener, StreamOptions};

use crate::harness::*;

pub(crate) fn stream_options() -> StreamOptions {
    StreamOptions::default()
        .timeout(PATIENCE)
        .provider(provider())
}

pub(crate) fn stream_listener() -> (StreamListener, SocketAddr) {
    let listener = StreamListener::new(listener("127.0.0.1:0"), stream_options());
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Both ends of a stream: the active one, the passive one.
pub(crate) fn streams() -> (Stream, Stream) {
    streams_with(&stream_options(), stream_options())
}

pub(crate) fn streams_with(active: &StreamOptions, passive: StreamOptions) -> (Stream, Stream) {
    let listener = StreamListener::new(listener("127.0.0.1:0"), passive);
    let address = listener.local_addr().unwrap();
    thread::scope(|scope| {
        let active = scope.spawn(move || Stream::connect_to(address, active).unwrap());
        let (passive, _) = listener.accept_within(PATIENCE).unwrap();
        let active = active.join().unwrap();
        for stream in [&active, &passive] {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            stream.set_write_timeout(Some(PATIENCE)).unwrap();
        }
        (active, passive)
    })
}
