//! The programs in the package's folder `examples`, with their sources. Each runs with `cargo run -p portolan --example NAME`; those
//! for tokio need `--features tokio`.

/// Declares a page for each program.
macro_rules! pages {
    ($($name:ident: $title:literal;)*) => {$(
        #[doc = $title]
        ///
        /// ```rust,ignore
        #[doc = include_str!(concat!("../examples/", stringify!($name), ".rs"))]
        /// ```
        pub mod $name {}
    )*};
}

pages! {
    bulk: "Writes: a large block to another process of the host, beside TCP and memcpy.";
    chat: "Datagrams and tokio: a chat in a multicast group.";
    connect_many: "The low layer and tokio: a thousand connects, whose events are dispatched by the number of their id.";
    device_by_name: "Connections on a device that is selected by name.";
    echo: "Messages: a blocking echo.";
    echo_tokio: "Messages and tokio: an echo with a task for each connection.";
    file_copy: "Writes: copies a file into shared memory of the receiver.";
    grpc: "Streams and tokio: gRPC with tonic.";
    http: "Streams and tokio: HTTP with hyper.";
    key_value: "Reads: a key-value store whose clients read without the server's help.";
    other_runtimes: "Connections and listeners in a runtime other than tokio.";
    rdma_read: "Reads: the smallest program that reads a peer's memory.";
    remote_log: "Atomics and writes: a log that several peers append to.";
    rpc: "Messages with immediate data and tokio: remote procedure calls.";
    with_c: "A peer of the C program rping.";
    without_hardware: "Tests of an RDMA program, each with a network of its own.";
    work_queue: "Atomics: a queue of jobs that peers take.";
}
