#!/usr/bin/env bash
# A private cluster for shell tests. Sourced, it gives:
#   adaptdl             the program under test, on the private cluster; $tmp: a directory of the test's own
#   cluster_start [OPTIONS of up], cluster_stop
#   call ARGS...        runs adaptdl with a time limit: rc, $tmp/out, $tmp/err
#   at COLUMNS ARGS...  the same on a terminal so wide; fits NAME COLUMNS: what it printed is no wider
#   check NAME RC [PATTERN...]   of the last call; patterns are of lines of either output
#   expect NAME RC      the last call's output, masked, is what stands on standard input
#   ok NAME, not_ok NAME WHY, eventually CONDITION..., job_file NAME COMMAND..., finish
# Run by itself it checks that a cluster starts and stops.
set -u
bin=${ADAPTDL_BIN:-$PWD/build/release/bin}
tmp=$(mktemp -d /tmp/adlcli.XXXXXX)
failed=0 job_spec={}
unset ADAPTDL_SERVER ADAPTDL_TOKEN ADAPTDL_CA XDG_STATE_HOME NO_COLOR COLUMNS
export ADAPTDL_STATE=$tmp/s PATH=$bin:/usr/local/bin:/usr/bin:/bin TZ=UTC LC_ALL=C.UTF-8 OMP_WAIT_POLICY=passive

adaptdl() { timeout -k 5 "${limit_s:-60}" "$bin/adaptdl" "$@"; }
# The scheduler, and the keepers and replicas of this cluster.
cluster_processes() {
    local p
    for p in $(grep -lsz -e "^ADAPTDL_LOCAL_REPLICA=$tmp/s/" -e "^ADAPTDL_STATE=$tmp/s\$" /proc/[0-9]*/environ); do
        p=${p%/environ}
        case $(readlink "$p/exe") in */adaptdl-sched) echo "${p#/proc/}" && continue ;; esac
        grep -qsz '^ADAPTDL_LOCAL_REPLICA=' "$p/environ" && echo "${p#/proc/}"
    done
}
cluster_start() { adaptdl up "$@" >"$tmp/up" 2>&1 </dev/null || { echo "not ok - $(basename "$0"): $(cat "$tmp/up")"; exit 1; }; }
cluster_stop() { adaptdl down >"$tmp/down" 2>&1 </dev/null; }
cluster_clean() {
    local p
    adaptdl delete --all --wait >/dev/null 2>&1 </dev/null
    adaptdl down --jobs leave >/dev/null 2>&1 </dev/null
    for p in $(cluster_processes); do kill -KILL "$p" 2>/dev/null; done
    rm -rf "$tmp"
}
trap cluster_clean EXIT

ok() { echo "ok - $1"; }
not_ok() { echo "not ok - $1: $2"; tail -n 12 "$tmp/out" "$tmp/err" 2>/dev/null | sed 's/^/# /'; failed=1; }
call() { adaptdl "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; rc=$?; }
at() { COLUMNS=$1 call "${@:2}"; }
check() {
    local name=$1 wanted=$2 pattern
    shift 2
    [ "$rc" -eq "$wanted" ] || { not_ok "$name" "exit $rc, wanted $wanted"; return 1; }
    for pattern in "$@"; do
        cat "$tmp/out" "$tmp/err" | grep -qE -- "$pattern" || { not_ok "$name" "no line matches \"$pattern\""; return 1; }
    done
    ok "$name"
}
# What the last call printed is at most so many columns wide.
fits() { # NAME COLUMNS
    local wide; wide=$(wc -L <"$tmp/out")
    [ "$rc" -eq 0 ] && [ "$wide" -le "$2" ] && ok "$1" || not_ok "$1" "exit $rc, $wide columns"
}
# Names, times and places that differ from run to run.
mask() {
    sed -E -e "s|$tmp|TMP|g" -e 's/-[bcdfghjklmnpqrstvwxz2456789]{5}([^a-z0-9]|$)/-XXXXX\1/g' \
        -e 's/[A-Z][a-z]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}/Mon-00 00:00/g' -e 's/[0-9]{2}:[0-9]{2}:[0-9]{2}/00:00:00/g' \
        -e 's/[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}/UID/g'
}
expect() {
    local name=$1 wanted=$2
    cat >"$tmp/wanted"
    cat "$tmp/out" "$tmp/err" | mask >"$tmp/got"
    if [ "$rc" -ne "$wanted" ]; then not_ok "$name" "exit $rc, wanted $wanted"
    elif ! diff "$tmp/wanted" "$tmp/got" >"$tmp/diff"; then
        not_ok "$name" "the output differs"; sed 's/^/# /' "$tmp/diff"
    else ok "$name"; fi
}
finish() { exit $failed; }
# Until the condition holds, at most a minute.
eventually() { for _ in $(seq 600); do "$@" && return 0; sleep 0.1; done; return 1; }
# $tmp/NAME.yaml, a job of that name (generateName when it ends in "-"); $job_spec: more of its spec, as JSON.
job_file() {
    local name=$1
    shift
    /usr/bin/python3 - "$job_spec" "$name" "$@" >"$tmp/${name%-}.yaml" <<'EOF'
import json, sys
more, name, command = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3:]
meta = {"generateName" if name.endswith("-") else "name": name}
print(json.dumps({"apiVersion": "adaptdl.petuum.com/v1", "kind": "AdaptDLJob", "metadata": meta, "spec": {
    **more, "template": {"spec": {"containers": [{"name": "main", "command": command}]}}}}, indent=2))
EOF
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
    cluster_start --nodes 2 --slots 2
    call nodes
    expect a_cluster_starts 0 <<'EOF'
Name    Status  Slots  Used
node-0  Ready   2      0
node-1  Ready   2      0
EOF
    call down
    expect a_cluster_stops 0 <<<stopped
    [ -z "$(cluster_processes)" ] && ok nothing_is_left_running || not_ok nothing_is_left_running "$(cluster_processes)"
    finish
fi
