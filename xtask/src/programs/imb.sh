#!/bin/sh
# Intel's MPI benchmarks on Debian's MPICH: sh imb.sh PROGRAM BENCHMARKS PROCESSES ARGUMENTS OF mpirun. BENCHMARKS is separated by
# commas.
set -e
folder=$(pwd)/target/programs/imb
program=$1
benchmarks=$(echo "$2" | tr , ' ')
processes=$3
shift 3
export LD_LIBRARY_PATH="$folder/lib:$LD_LIBRARY_PATH"
# shellcheck disable=SC2086 # words
exec mpirun.mpich -np "$processes" "$@" "$folder/$program" -npmin "$processes" -iter 10 -msglog 16 $benchmarks
