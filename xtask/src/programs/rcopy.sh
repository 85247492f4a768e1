#!/bin/sh
# Copies a file to an rcopy server on this machine and compares: sh rcopy.sh ADDRESS
set -e
folder=$(mktemp -d)
trap 'rm -r "$folder"' EXIT
head -c 5000000 /dev/urandom > "$folder/file"
rcopy "$folder/file" "$1:$folder/copy"
# The server may still be writing.
for _ in $(seq 100); do
	cmp -s "$folder/file" "$folder/copy" && break
	sleep 0.1
done
cmp "$folder/file" "$folder/copy"
echo 'the copy is right'
