#!/bin/sh
# NetPIPE between two processes of one of Debian's MPIs: sh netpipe.sh openmpi|mpich compare|measure ARGUMENTS OF mpirun
set -e
kind=$1
what=$2
shift 2
case $kind in
openmpi) program=NPopenmpi ;;
mpich) program=NPmpich2 ;;
esac
case $what in
compare) option=-i ;;
measure) option= ;;
esac
# Allows root, and more processes than processors.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# shellcheck disable=SC2086 # without an option there is no word
"mpirun.$kind" -np 2 "$@" "$program" $option -u 1048576 -n 10 -o /dev/null
