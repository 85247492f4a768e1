#!/bin/sh
# rdma-core's Python tests of libibverbs and librdmacm from Debian's python3-pyverbs, with the arguments of
# their run_tests.py.
set -e
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
cp -r /usr/share/doc/rdma-core/tests "$folder"
gunzip "$folder"/tests/*.gz
cd "$folder"
# Only Debian's Python has pyverbs.
/usr/bin/python3 tests/run_tests.py -v "$@"
