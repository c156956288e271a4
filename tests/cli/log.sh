#!/usr/bin/env bash
# Log levels: -v and ADAPTDL_LOG, in the launcher, the scheduler and a training program.
set -u
bin=${ADAPTDL_BIN:-build/release/bin}
tmp=$(mktemp -d)
pid=
trap '[ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null; rm -rf "$tmp"' EXIT
export XDG_RUNTIME_DIR=$tmp OMP_WAIT_POLICY=passive OMP_NUM_THREADS=1
unset ADAPTDL_LOG
failed=0
# said NAME WANTED PATTERN: is it among the lines of $tmp/log? WANTED: yes or no
said() {
    if grep -qE -- "$3" "$tmp/log"; then is=yes; else is=no; fi
    if [ $is = "$2" ]; then echo "ok - $1"; else echo "not ok - $1: $is, wanted $2"; sed 's/^/# /' "$tmp/log" | tail -n 15; failed=1; fi
}
run() { timeout -k 5 120 "$bin/adaptdl" run "$@" >"$tmp/log" 2>&1 </dev/null; rc=$?; }
exit_is() { if [ $rc -eq "$2" ]; then echo "ok - $1"; else echo "not ok - $1: exit $rc, wanted $2"; failed=1; fi; }

# ---- the launcher ----
run -- true
said run_says_what_it_does yes '^adaptdl run: .*started 1 replica'
said run_is_not_verbose_by_itself no 'is process'
run -v -- true
said run_v_says_more yes '^adaptdl run: replica 0 is process [0-9]+'
ADAPTDL_LOG=debug run -- true
said the_variable_does_too yes 'replica 0 is process'
ADAPTDL_LOG=warning run -- true
said a_higher_level_says_less no .
ADAPTDL_LOG=error run -- false
said failures_are_said yes 'replica 0 exited with 1|replica 0 .*1'
ADAPTDL_LOG=off run -- false
said off_is_off no .
ADAPTDL_LOG=loud run -- true
exit_is a_wrong_level_is_refused 2
said and_named yes 'ADAPTDL_LOG=loud: must be debug, info, warning, error or off'

# ---- a training program ----
program=("$bin/../examples/mnist" --examples 200 --epochs 1 --threads 1)
run -q --checkpoint "$tmp/ck" -- "${program[@]}"
ADAPTDL_LOG=info run -q --checkpoint "$tmp/ck" -- "${program[@]}" --epochs 2
said the_runtime_says_where_it_resumes yes 'adaptdl: resuming from'
ADAPTDL_LOG=error run -q --checkpoint "$tmp/ck" -- "${program[@]}" --epochs 3
said unless_it_is_not_asked_to no 'adaptdl: resuming from'

# ---- the scheduler ----
cat >"$tmp/job.yaml" <<'END'
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {name: quick}
spec: {template: {spec: {containers: [{name: main, command: [sleep, "3"], env: [{name: ADAPTDL_LOG, value: debug}]}]}}}
END
# serve OPTIONS...: until its API answers, then to its end
serve() {
    rm -rf "$tmp/state"
    "$bin/adaptdl-sched" --state "$tmp/state" --nodes 1 --interval 0.5 "$@" >"$tmp/log" 2>&1 &
    pid=$!
    for _ in $(seq 600); do
        "$bin/adaptdl" nodes --state "$tmp/state" >"$tmp/nodes" 2>/dev/null && break
        sleep 0.1
    done
    if [ "${until:-}" ]; then
        "$bin/adaptdl" submit --state "$tmp/state" "$tmp/job.yaml" >/dev/null
        for _ in $(seq 600); do grep -q -- "$until" "$tmp/log" && break; sleep 0.1; done
    fi
    kill -TERM $pid
    wait $pid
    pid=
}
until= serve
said the_scheduler_says_where_it_serves yes '^[0-9T:.-]+Z adaptdl-sched .* serves unix:'
said requests_are_not_logged no 'GET /'
until='-> Succeeded' serve -v
said v_logs_requests yes 'Z debug: GET /api/v1/nodes: 200'
said v_logs_rounds yes 'Z debug: round [0-9]+: [01] of 1 jobs changed'
said v_logs_phases yes 'Z debug: job default/quick: .*-> Succeeded'
cat "$tmp"/state/jobs/*/logs/*.log >"$tmp/log"
said the_keeper_logs_into_the_jobs_output yes '^adaptdl-keeper: debug: the replica is process [0-9]+'
said and_how_it_ended yes '^adaptdl-keeper: debug: the replica ended with 0'
until= ADAPTDL_LOG=error serve
said the_scheduler_can_be_quiet no .
ADAPTDL_LOG=x "$bin/adaptdl-sched" --state "$tmp/state" >"$tmp/log" 2>&1
rc=$?
exit_is the_scheduler_refuses_a_wrong_level 2
exit $failed
