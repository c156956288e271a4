# Sourced after cluster.bash by the tests of `adaptdl` and the chart.
# shellcheck shell=bash
patience=180
adaptdl=$PWD/build/release/bin/adaptdl
command -v helm >/dev/null || skip "no helm"
export HOME=$work XDG_STATE_HOME=
unset ADAPTDL_SERVER ADAPTDL_STATE ADAPTDL_KUBERNETES ADAPTDL_SCHEDULER
values="--set image.repository=${image%:*} --set image.tag=${image##*:} --set intervalSeconds=5"
release() { helm "$1" adaptdl charts/adaptdl-sched -n adaptdl $values "${@:2}" --wait --timeout ${patience}s; }
said() { # TEXT COMMAND...: it succeeds and says so
    local text=$1
    shift
    "$@" >"$work/out" 2>&1 || { cat "$work/out"; return 1; }
    grep -q -- "$text" "$work/out" || { cat "$work/out"; return 1; }
}
fails() { # STATUS TEXT COMMAND...: it ends so, and says so
    local status=$1 text=$2 rc=0
    shift 2
    "$@" >"$work/out" 2>&1 || rc=$?
    [ $rc = "$status" ] && { [ -z "$text" ] || grep -q -- "$text" "$work/out"; } || { echo "exit status $rc:"; cat "$work/out"; return 1; }
}
