#!/usr/bin/env bash
# The program in docs/nn.md compiles with nothing but the public headers and the shared library, and
# learns.
set -u
name=docs_nn_example
library=$(dirname "$ADAPTDL_BIN")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' docs/nn.md >"$work/example.c"
if ! "${CC:-cc}" -std=c11 -Wall -Wextra -Werror -Iinclude "$work/example.c" -o "$work/example" \
    -L"$library" -ladaptdl-nn -ladaptdl "-Wl,-rpath,$library" >"$work/log" 2>&1; then
    echo "not ok - $name: $(head -n 1 "$work/log")"
    exit 1
fi
said=$("$work/example" 2>&1)
percent=$(sed -n 's/^last 50 batches: \([0-9]*\)\..*/\1/p' <<<"$said")
if [ "${percent:-0}" -ge 75 ]; then
    echo "ok - $name"
    echo "info - docs/nn.md: $said"
else
    echo "not ok - $name: it said: $said"
    exit 1
fi
