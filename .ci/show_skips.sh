#!/bin/sh
# show_skips.sh BUILD: how many tests the last ctest run there skipped, and why. A skip is no failure, but it must be seen.
log=$1/Testing/Temporary/LastTest.log
printf '%s tests were skipped\n' "$(grep -c '^skipped: ' "$log")"
grep '^skipped: ' "$log" | sort | uniq -c
exit 0
