#!/bin/sh
# The command itself over two ranks: ranks.sh MPIRUN SHEAF MODEL TEXT
# Rank 0 alone answers, and what it says is what one process says: text, hash, plan, perplexity.
# Exits 77 (skipped) when mpirun cannot start anything here.
set -u
mpirun=$1 sheaf=$2 model=$3 text=$4
launch() { timeout 120 "$mpirun" --allow-run-as-root --oversubscribe --bind-to none -n 2 "$@"; }
launch true >/dev/null 2>&1 || { echo "skipped: $mpirun cannot start a program here"; exit 77; }
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
status=0
fail() { echo "FAILED: $*"; status=1; }

ranks() { # COMMAND OPTIONS...: its standard output in $folder/two
    echo "two ranks: sheaf $*"
    launch "$sheaf" "$@" >"$folder/two" 2>"$folder/errors" || { fail "exit $?: sheaf $*"; cat "$folder/errors"; }
}
document() { # FILE: holds one JSON document and nothing else
    python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$1" || fail "not one document"
}
value() { sed -n "s/^[[:space:]]*\"$1\":[[:space:]]*\([^,]*\),\{0,1\}\$/\1/p" "$2" | head -n 1; } # KEY FILE

words="--raw -p Once -n 12 --temp 0"
for devices in cpu cpu/2; do
    "$sheaf" run -m "$model" $words -q --devices "$devices" >"$folder/one" || fail "one process: exit $?"
    ranks run -m "$model" $words -q --devices "$devices"
    cmp "$folder/one" "$folder/two" || fail "the text differs"
done

same() { # KEYS COMMAND OPTIONS...: one document, and the values of KEYS are those of one process with as many devices
    keys=$1
    shift
    "$sheaf" "$@" --json --devices cpu/2 >"$folder/one" || fail "one process: exit $?"
    ranks "$@" --json --devices cpu
    document "$folder/two"
    for key in $keys; do
        one=$(value "$key" "$folder/one") two=$(value "$key" "$folder/two")
        [ -n "$one" ] && [ "$one" = "$two" ] || fail "$key is $two, in one process $one"
    done
}
same logits_hash run -m "$model" $words
same "collectives_per_layer reshards share_error_max" split -m "$model"
same nodes graph -m "$model"
same "ppl tokens" perplexity -m "$model" -f "$text" -c 64 --chunks 2
ranks bench -m "$model" -p 16 -n 4 -r 1 --json
document "$folder/two"
exit $status
