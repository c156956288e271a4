#!/usr/bin/env bash
# What the tests of `adaptdl run` with real programs share. Sourced, it gives:
#   $bin, $adaptdl, $tmp (a directory of the test's own), failed
#   ok NAME, not_ok NAME WHY
#   wait_for PATTERN    until a line of $tmp/log matches, or $pid has ended
#   end                 the end of $pid, into rc
#   replica RANK        its process
set -u
bin=${ADAPTDL_BIN:-build/release/bin}
adaptdl=$bin/adaptdl
tmp=$(mktemp -d)
export XDG_RUNTIME_DIR=$tmp OMP_WAIT_POLICY=passive
unset ADAPTDL_CHECKPOINT_PATH OMP_NUM_THREADS
failed=0 pid=
clean_up() {
    [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null
    rm -rf "$tmp"
}
trap clean_up EXIT

ok() { echo "ok - $1"; }
not_ok() { echo "not ok - $1: $2"; sed 's/^/# /' "$tmp/log" | tail -n 15; failed=1; }
wait_for() {
    for _ in $(seq 1800); do
        grep -qE -- "$1" "$tmp/log" && return 0
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    grep -qE -- "$1" "$tmp/log"
}
end() {
    for _ in $(seq 3000); do kill -0 $pid 2>/dev/null || break; sleep 0.1; done
    kill -KILL $pid 2>/dev/null && echo "adaptdl run: hung, killed by the test" >>"$tmp/log"
    wait $pid 2>/dev/null
    rc=$?
    pid=
}
replica() {
    local child
    for child in $(pgrep -P $pid); do
        tr '\0' '\n' <"/proc/$child/environ" 2>/dev/null | grep -qx "ADAPTDL_REPLICA_RANK=$1" && echo "$child"
    done
}
