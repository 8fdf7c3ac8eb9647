#!/bin/sh
# Plays one scene of mpi_world under mpirun: mpi_scenes.sh MPIRUN PROGRAM SCENE
# "sums" is played with the same five devices spread over ranks in several ways: the hash must not change.
# Exits 77 (skipped) when mpirun cannot start anything here.
set -u
mpirun=$1 program=$2 scene=$3
launch() { timeout 200 "$mpirun" --allow-run-as-root --oversubscribe --bind-to none "$@"; }
launch -n 1 true >/dev/null 2>&1 || { echo "skipped: $mpirun cannot start a program here"; exit 77; }
status=0
play() { # LIST
    ranks=$(echo "$1" | tr ',' '\n' | wc -l)
    echo "$scene on $1"
    launch -n "$ranks" "$program" "$scene" "$1" || { echo "FAILED: $scene on $1"; status=1; }
}
if [ "$scene" = sums ]; then
    want=
    for list in 1,4 2,3 4,1 2,1,2; do
        got=$(play "$list") || status=1
        echo "$got"
        hash=$(echo "$got" | grep '^hash ')
        want=${want:-$hash}
        [ -n "$hash" ] && [ "$hash" = "$want" ] || { echo "FAILED: $list gives '$hash', want '$want'"; status=1; }
    done
    play 1,1
    play 1,1,1
else
    play 1,1
    play 2,3
    play 1,3,1
fi
exit $status
