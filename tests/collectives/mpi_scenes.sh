#!/bin/sh
# Plays one scene of mpi_world under mpirun: mpi_scenes.sh MPIRUN PROGRAM SCENE
# "sums" is played with the same five devices spread over ranks in several ways: every rank's hash must be the same.
# Exits 77 (skipped) when mpirun cannot start anything here.
set -u
mpirun=$1 program=$2 scene=$3
launch() { timeout 200 "$mpirun" --allow-run-as-root --oversubscribe --bind-to none "$@"; }
launch -n 1 true >/dev/null 2>&1 || { echo "skipped: $mpirun cannot start a program here"; exit 77; }
status=0
output=$(mktemp)
trap 'rm -f "$output"' EXIT
ranks_of() { echo "$1" | tr ',' '\n' | wc -l; }
play() { # LIST; not in a subshell, where a failure would be lost
    echo "$scene on $1"
    launch -n "$(ranks_of "$1")" "$program" "$scene" "$1" >"$output" 2>&1 || { echo "FAILED: $scene on $1"; status=1; }
    cat "$output"
}
if [ "$scene" = sums ]; then
    want=
    for list in 1,4 2,3 4,1 2,1,2; do
        play "$list"
        want=${want:-$(grep -m 1 '^hash ' "$output")}
        same=$(grep -cx "$want" "$output")
        [ -n "$want" ] && [ "$same" -eq "$(ranks_of "$list")" ] ||
            { echo "FAILED: $same ranks of $list give '$want'"; status=1; }
    done
    play 1,1
    play 1,1,1
else
    play 1,1
    play 2,3
    play 1,3,1
fi
exit $status
