#!/usr/bin/env bash
# No room includes a header of a room above it, and no file another room's private header.
# Order: docs/architecture.md. Prints each offence as file:line: what, and exits 1.
set -u
cd "$(dirname "$0")/.."
rooms=(tensor backends collectives splitstate meta sched models launch)
# splitstate links tensor only, so backends and collectives are closed to it although they stand beside it.
allowed() { # room, included room
    case "$1" in
        tensor) [[ $2 == tensor ]] ;;
        backends) [[ $2 =~ ^(tensor|backends)$ ]] ;;
        collectives) [[ $2 =~ ^(tensor|backends|collectives)$ ]] ;;
        splitstate) [[ $2 =~ ^(tensor|splitstate)$ ]] ;;
        meta) [[ $2 =~ ^(tensor|backends|collectives|splitstate|meta)$ ]] ;;
        sched) [[ $2 =~ ^(tensor|backends|sched)$ ]] ;;
        models) [[ $2 =~ ^(tensor|backends|collectives|splitstate|meta|sched|models)$ ]] ;;
        launch) true ;;
    esac
}
bad=0
for room in "${rooms[@]}"; do
    while IFS=: read -r file line text; do
        path=${text#*\"} path=${path%%\"*}
        target=${path%%/*}
        [[ $path == */* ]] || continue # same folder
        if ! allowed "$room" "$target"; then
            echo "$file:$line: $room/ may not include $path"
            bad=1
        elif [[ $path == *_internal.h && $target != "$room" ]]; then
            echo "$file:$line: $path is private to $target/"
            bad=1
        fi
    done < <(grep -RnE '^#include "' --include='*.[ch]' --include='*.cu' "$room" 2>/dev/null)
done
while IFS=: read -r file line _; do
    case $file in tensor/settings.c) ;; *) echo "$file:$line: getenv outside the settings table"; bad=1 ;; esac
done < <(grep -RnE '\bgetenv\(' --include='*.[ch]' "${rooms[@]}" 2>/dev/null)
while IFS=: read -r file line _; do
    echo "$file:$line: the library ends the process"; bad=1
done < <(grep -RnE '(^|[^_[:alnum:]])(abort|exit|_exit|assert)\(' --include='*.[ch]' tensor backends collectives splitstate meta sched models 2>/dev/null | grep -vE '^\S+:[0-9]+:\s*(\*|/\*|//)')
[ $bad = 0 ] && echo "rooms: no include points upward, no stray getenv or exit"
exit $bad
