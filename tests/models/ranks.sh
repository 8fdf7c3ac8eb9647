#!/bin/sh
# ranks.sh MPIEXEC RANKS_PROGRAM FIXTURE_PROGRAM CASES CASE
#
# A random model over 2 and 3 ranks, of one and of two devices each, must give the bits of one process.
set -eu
mpiexec=$1 ranks=$2 fixture=$3 cases=$4 case=$5

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
model=$folder/$case.gguf
"$fixture" "$cases" "$case" "$model"
hash=$("$ranks" "$model" cpu)
echo "one process: $hash"
for n in 2 3; do
    for devices in cpu cpu/2; do
        "$mpiexec" --allow-run-as-root --oversubscribe --bind-to none -n "$n" "$ranks" "$model" "$devices" "$hash"
        echo "$n ranks of $devices: the same"
    done
done
