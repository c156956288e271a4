#!/usr/bin/env bash
# The program in docs/training.md with an optimizer of its own: it compiles with the public headers and the
# library without layers, learns on one replica and on two, and goes on after an interruption.
set -u
bin=${ADAPTDL_BIN:-build/release/bin}
library=$(cd "$(dirname "$bin")" && pwd)
work=$(mktemp -d)
export XDG_RUNTIME_DIR=$work
unset ADAPTDL_CHECKPOINT_PATH
trap 'rm -rf "$work"' EXIT
failed=0
ok() { echo "ok - $1"; }
not_ok() { echo "not ok - $1: $2"; failed=1; }

awk '/^```$/ { on = 0 } on { print } /^```c$/ { on = 1; getline; if ($0 !~ /foreign\.c/) on = 0; else print }' \
    docs/training.md >"$work/foreign.c"
sanitizers=()
nm -D "$library/libadaptdl.so" | grep -q __asan_ && sanitizers=(-fsanitize=address,undefined)
if ! "${CC:-cc}" -std=gnu11 -O2 -Wall -Wextra -Werror "${sanitizers[@]}" -Iinclude "$work/foreign.c" -o "$work/foreign" \
    -L"$library" -ladaptdl "-Wl,-rpath,$library" >"$work/log" 2>&1; then
    not_ok docs_training_example_compiles "$(head -n 3 "$work/log")"
    exit 1
fi
ok docs_training_example_compiles
"$work/foreign" >"$work/log" 2>&1 && grep -qx 'y = 3.00 x -1.00' "$work/log" && ok it_learns ||
    not_ok it_learns "$(tail -n 2 "$work/log")"
[ "$(grep -c '^step [0-9]*: ' "$work/log")" -eq 4 ] && ok it_counts_steps || not_ok it_counts_steps "$(cat "$work/log")"
timeout -k 5 120 "$bin/adaptdl" run -n 2 --checkpoint "$work/ck" -- "$work/foreign" >"$work/log" 2>&1 </dev/null &&
    grep -qx '\[0\] y = 3.00 x -1.00' "$work/log" && ok it_learns_on_two_replicas ||
    not_ok it_learns_on_two_replicas "$(tail -n 2 "$work/log")"
timeout -k 5 120 "$bin/adaptdl" run --checkpoint "$work/ck" -- "$work/foreign" >"$work/log" 2>&1 </dev/null &&
    grep -q '^\[0\] y = 3.00' "$work/log" && ! grep -q 'step 500' "$work/log" && ok a_finished_run_is_not_repeated ||
    not_ok a_finished_run_is_not_repeated "$(tail -n 2 "$work/log")"

# ---- the variables ----
for case in ADAPTDL_CHECKPOINT_INTERVAL=-1 ADAPTDL_CHECKPOINT_INTERVAL=soon ADAPTDL_PEER_TIMEOUT=0; do
    env "$case" "$work/foreign" >"$work/log" 2>&1
    [ $? -eq 1 ] && grep -q "^foreign: $case: " "$work/log" && ok "${case%=*}_is_checked" || not_ok "$case" "$(cat "$work/log")"
done
ADAPTDL_CHECKPOINT_INTERVAL=0 ADAPTDL_PEER_TIMEOUT=30 "$work/foreign" >"$work/log" 2>&1 && ok the_variables_are_taken ||
    not_ok the_variables_are_taken "$(cat "$work/log")"
exit $failed
