#!/bin/sh
# A `cmake` that configures and builds nothing, for the crate `ibverbs-sys`: it needs rdma-core's headers, which are in
# place once rdma-core is configured. Building all of rdma-core takes minutes.
[ "$1" = --build ] || exec cmake "$@"
