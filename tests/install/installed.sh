#!/bin/sh
# What docs/first-program.md says, word for word: install, compile the example through pkg-config, run it. The tour's
# programs compile the same way. And each installed header compiles alone, as C and, where a compiler for it is there, as C++.
#
#   installed.sh BUILD SOURCE CC
set -eu
build=$1 source=$2 cc=$3
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cmake --install "$build" --prefix "$dir/first" >"$dir/log" 2>&1 || { cat "$dir/log"; exit 1; }
mv "$dir/first" "$dir/moved" # an installed tree may be moved: nothing in it names where it was
pc=$(find "$dir/moved" -name libsheaf.pc)
lib=$(dirname "$(dirname "$pc")")
PKG_CONFIG_PATH=$(dirname "$pc")
export PKG_CONFIG_PATH LD_LIBRARY_PATH="$lib"
flags=$(pkg-config --cflags --libs libsheaf)
# shellcheck disable=SC2086
$cc -std=c17 -Wall -Wextra -Werror "$source/docs/examples/first.c" $flags -o "$dir/first-program"
text=$("$dir/first-program" "$source/models/tiny/sheaf-tiny-q8_0.gguf" "Once upon a time")
[ "$(printf %s "$text" | wc -w)" -ge 20 ] || { echo "the example printed only: $text"; exit 1; }
# shellcheck disable=SC2086
$cc -std=c17 -Wall -Wextra -Werror "$source/docs/examples/split_table.c" $flags -o "$dir/split-table"
"$dir/split-table" || { echo "the split table of the example is not what it says"; exit 1; }
for program in "$source"/docs/tour/[1-5]_*.c; do # what the tour says: installed headers are enough
    # shellcheck disable=SC2086
    $cc -std=c17 -Wall -Wextra -Werror "$program" "$source/docs/tour/gpt2.c" $flags -lm -o "$dir/tour"
    "$dir/tour" 2>/dev/null && { echo "$program ran on nothing"; exit 1; }
done
include=$(pkg-config --variable=includedir libsheaf)
find "$include" -name '*.h' | while read -r header; do
    printf '#include "%s"\nint main(void) { return 0; }\n' "${header#"$include"/}" >"$dir/one.c"
    $cc -std=c17 -Wall -Wextra -Werror -I "$include" -fsyntax-only "$dir/one.c"
    if command -v c++ >/dev/null; then
        cp "$dir/one.c" "$dir/one.cc"
        c++ -std=c++17 -Wall -Wextra -Werror -I "$include" -fsyntax-only "$dir/one.cc"
    fi
done
command -v c++ >/dev/null || echo "skipped: no c++ compiler: the headers were tried as C only"
"$dir/moved/bin/sheaf" --version | grep -q '^sheaf ' || { echo "the installed program does not run"; exit 1; }
echo "installed: $(find "$include" -name '*.h' | wc -l) headers, an example of $(printf %s "$text" | wc -w) words"
