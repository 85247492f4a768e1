#!/bin/sh
# The benchmarks of Ohio State University in mpi4py's Python, on Debian's Open MPI: sh osu.sh BENCHMARKS ARGUMENTS OF mpirun. BENCHMARKS
# is separated by commas.
set -e
benchmarks=$(echo "$1" | tr , ' ')
shift
# Allows root, and more processes than processors.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export PYTHONPATH=target/programs/osu PYTHONDONTWRITEBYTECODE=1
for benchmark in $benchmarks; do
    # Fewer rounds and sizes than by default.
    rounds="skip=5, loop=50"
    [ "$benchmark" = barrier ] || rounds="$rounds, skip_large=2, loop_large=10, MAX_MSG_SIZE=1 << 16"
    # Only Debian's Python has mpi4py.
    mpirun.openmpi "$@" /usr/bin/python3 -c "import osu_$benchmark; osu_$benchmark.osu_$benchmark($rounds)"
done
