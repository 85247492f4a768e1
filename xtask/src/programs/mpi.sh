#!/bin/sh
# Compiles crates/lab/c/mpi.c for one of Debian's MPIs and runs it: sh mpi.sh openmpi|mpich ARGUMENTS OF mpirun
set -e
kind=$1
shift
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
"mpicc.$kind" -Wall -Wextra -O2 crates/lab/c/mpi.c -o "$folder/mpi"
# Allows root, and more processes than processors.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
"mpirun.$kind" "$@" "$folder/mpi"
