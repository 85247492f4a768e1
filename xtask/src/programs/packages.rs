//! Debian's packages of the programs and of the namespace setup.

use portolan_lab::machine::Package;

/// Of the rows that the tests play.
pub(crate) const OF_TESTS: [Package; 20] = [
    Package {
        name: "rdmacm-utils",
        purpose: "rping and the other programs of librdmacm",
    },
    Package {
        name: "ibverbs-utils",
        purpose: "the ping-pongs of libibverbs",
    },
    Package {
        name: "perftest",
        purpose: "latency and bandwidth by every operation",
    },
    Package {
        name: "qperf",
        purpose: "another measurement of operations",
    },
    Package {
        name: "python3-pyverbs",
        purpose: "rdma-core's own tests",
    },
    Package {
        name: "libfabric-bin",
        purpose: "messages by libfabric",
    },
    Package {
        name: "ucx-utils",
        purpose: "messages, memory operations and streams by UCX",
    },
    Package {
        name: "openmpi-bin",
        purpose: "MPI on UCX and on libfabric",
    },
    Package {
        name: "libopenmpi-dev",
        purpose: "the compiler of Open MPI",
    },
    Package {
        name: "fio",
        purpose: "its engine of RDMA",
    },
    Package {
        name: "tgt",
        purpose: "a target of iSER",
    },
    Package {
        name: "libiscsi-bin",
        purpose: "an initiator of iSER",
    },
    Package {
        name: "curl",
        purpose: "files from it",
    },
    Package {
        name: "rsync",
        purpose: "copies of trees by its daemon",
    },
    Package {
        name: "socat",
        purpose: "a server that executes a program",
    },
    Package {
        name: "netcat-openbsd",
        purpose: "a file by a bare socket",
    },
    Package {
        name: "g++",
        purpose: "its compiler",
    },
    Package {
        name: "python3",
        purpose: "its http.server and asyncio",
    },
    Package {
        name: "nodejs",
        purpose: "its net and http",
    },
    Package {
        name: "iproute2",
        purpose: "the interfaces of a network namespace",
    },
];

/// Of `cargo xtask figures sockets`, and of rows that only `cargo xtask programs` plays.
pub(crate) const MEASURED: [Package; 3] = [
    Package {
        name: "iperf3",
        purpose: "a throughput of sockets",
    },
    Package {
        name: "redis-server",
        purpose: "a server of sockets",
    },
    Package {
        name: "redis-tools",
        purpose: "its client and its benchmark",
    },
];

/// Of the other rows that only `cargo xtask programs` plays.
pub(crate) const OTHERS: [Package; 12] = [
    Package {
        name: "mpich",
        purpose: "another MPI on UCX",
    },
    Package {
        name: "libmpich-dev",
        purpose: "the compiler of MPICH",
    },
    Package {
        name: "netpipe-openmpi",
        purpose: "messages of every size by Open MPI",
    },
    Package {
        name: "netpipe-mpich2",
        purpose: "messages of every size by MPICH",
    },
    Package {
        name: "memcached",
        purpose: "another server of sockets",
    },
    Package {
        name: "libmemcached-tools",
        purpose: "its tests",
    },
    Package {
        name: "nginx-light",
        purpose: "a web server",
    },
    Package {
        name: "apache2-utils",
        purpose: "many requests to it",
    },
    Package {
        name: "postgresql",
        purpose: "a server that forks for each connection",
    },
    Package {
        name: "openssh-server",
        purpose: "a server that forks and executes itself",
    },
    Package {
        name: "openssh-client",
        purpose: "its client",
    },
    Package {
        name: "libboost-dev",
        purpose: "Boost.Asio",
    },
];

/// Of all rows.
pub(super) fn all() -> Vec<Package> {
    [&OF_TESTS[..], &MEASURED, &OTHERS].concat()
}
