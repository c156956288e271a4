#!/usr/bin/env bash
# `adaptdl run` and `adaptdl scale` as launchers of any program: environment, output, exit codes, signals,
# restarts, no orphans. run.sh has the training programs.
set -u
bin=${ADAPTDL_BIN:-build/release/bin}
adaptdl=$bin/adaptdl
tmp=$(mktemp -d)
export XDG_RUNTIME_DIR=$tmp
trap 'rm -rf "$tmp"' EXIT
failed=0

ok() { echo "ok - $1"; }
bad() { echo "not ok - $1: $2"; failed=1; }
# want NAME WANTED GOT
want() { if [ "$2" = "$3" ]; then ok "$1"; else bad "$1" "got \"$3\", wanted \"$2\""; fi; }
# has NAME PART TEXT
has() { if [[ "$3" == *"$2"* ]]; then ok "$1"; else bad "$1" "\"$3\" lacks \"$2\""; fi; }
call() { "$adaptdl" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; rc=$?; out=$(cat "$tmp/out") err=$(cat "$tmp/err"); }
# wait_for FILE TEXT [COUNT]: until the file has so many lines with the text; at most 30 s
wait_for() {
    for _ in $(seq 1500); do
        [ "$(grep -c -- "$2" "$1" 2>/dev/null)" -ge "${3:-1}" ] && return 0
        sleep 0.02
    done
    return 1
}
# a program that leaves with 143 when asked
polite='trap "exit 143" TERM INT; echo "size $ADAPTDL_NUM_REPLICAS restart $ADAPTDL_NUM_RESTARTS"; while :; do sleep 0.05; done'

# ---- environment and output ----
call run -q -n 3 --checkpoint "$tmp/ckpt" -- sh -c 'echo "$ADAPTDL_REPLICA_RANK/$ADAPTDL_NUM_REPLICAS/$ADAPTDL_NUM_NODES/$ADAPTDL_NUM_RESTARTS $ADAPTDL_MASTER_ADDR $ADAPTDL_CHECKPOINT_PATH ${#ADAPTDL_JOB_SECRET}"; [ "$ADAPTDL_MASTER_PORT" -gt 0 ]'
want environment_exit 0 "$rc"
want environment "[0] 0/3/1/0 127.0.0.1 $tmp/ckpt 32
[1] 1/3/1/0 127.0.0.1 $tmp/ckpt 32
[2] 2/3/1/0 127.0.0.1 $tmp/ckpt 32" "$(sort "$tmp/out")"
want quiet "" "$err"
[ -d "$tmp/ckpt" ] && ok checkpoint_directory_is_made || bad checkpoint_directory_is_made "it is not there"
call run -n 2 -- sh -c 'echo out; echo err >&2; printf "no newline"'
want lines_have_ranks "[0] no newline
[0] out
[1] no newline
[1] out" "$(sort "$tmp/out")"
want errors_have_ranks "[0] err
[1] err" "$(grep '^\[' "$tmp/err" | sort)"
call run -q -- cat
want no_standard_input 0 "$rc"
call run -q -- sh -c 'head -c 200000 /dev/zero | tr "\0" x; echo'
want long_lines_arrive_whole 200000 "$(tr -cd x <"$tmp/out" | wc -c)"

# ---- ends ----
call run -n 3 -- sh -c '[ $ADAPTDL_REPLICA_RANK = 1 ] && exit 7; exec sleep 30'
want exit_code_of_the_failed 7 "$rc"
has which_failed "adaptdl run: replica 1 exited with 7" "$err"
call run -n 2 -- sh -c '[ $ADAPTDL_REPLICA_RANK = 0 ] && kill -9 $$; exec sleep 30'
want killed_replica 137 "$rc"
has how_it_died "replica 0 was killed by signal 9 (Killed)" "$err"
call run -n 2 --max-restarts 2 -- sh -c 'echo $ADAPTDL_NUM_RESTARTS; exit 3'
want gives_up_after_restarts 3 "$rc"
want restarts_are_counted "0 1 2" "$(sed 's/.* //' "$tmp/out" | sort -u | xargs)"
call run --max-restarts 5 -- sh -c '[ $ADAPTDL_NUM_RESTARTS = 2 ]'
want restarts_until_it_works 0 "$rc"
call run --grace 1 -n 2 -- sh -c '[ $ADAPTDL_REPLICA_RANK = 0 ] && { until [ -e '"$tmp"'/deaf ]; do sleep 0.02; done; exit 4; }
    trap "" TERM; : >'"$tmp"'/deaf; while :; do sleep 0.1; done'
want those_that_do_not_leave_are_killed 4 "$rc"
has and_that_is_said "did not leave within 1 s: killed" "$err"
call run -- "$tmp/no-such-program"
want missing_program 2 "$rc"
want missing_program_text "adaptdl run: $tmp/no-such-program: No such file or directory" "$err"
for wrong in "-n 0 true" "-n x true" "--max-restarts -1 true" "--grace x true" "--nonsense true" "" "--name a/b true"; do
    # shellcheck disable=SC2086
    call run $wrong
    if [ $rc -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ]; then ok "usage: $wrong"; else bad "usage: $wrong" "exit $rc, $err"; fi
done

# ---- signals ----
for signal in INT TERM HUP; do
    "$adaptdl" run -n 2 -- sh -c "$polite" >"$tmp/out" 2>"$tmp/err" &
    pid=$!
    wait_for "$tmp/out" size 2
    kill -$signal $pid
    wait $pid
    want "passes on SIG$signal" 143 "$?"
done
# a stop request is for the program alone: what loads its data must live until it has saved
for signal in INT TERM; do
    "$adaptdl" run -q -n 2 -- sh -c 'trap "echo saved; exit 143" TERM INT
        sh -c "trap \"echo worker asked\" TERM INT; echo up; while kill -0 $$ 2>/dev/null; do sleep 0.05; done" &
        while :; do sleep 0.05; done' >"$tmp/out" 2>/dev/null &
    pid=$!
    wait_for "$tmp/out" up 2
    kill -$signal $pid
    wait $pid
    want "saved after SIG$signal" "143 2 0" "$? $(grep -c saved "$tmp/out") $(grep -c asked "$tmp/out")"
done
# a shell dies of the request; what it had started is asked as well, and waited for
for signal in INT TERM; do
    for shell in sh bash; do
        "$adaptdl" run -q -n 2 -- $shell -c 'sh -c "trap \"sleep 0.2; echo saved; exit 143\" TERM; echo up; while :; do sleep 0.05; done"; echo never' \
            >"$tmp/out" 2>/dev/null &
        pid=$!
        wait_for "$tmp/out" up 2
        kill -$signal $pid
        wait $pid
        want "$shell: what it started saved after SIG$signal" "143 2 0" "$? $(grep -c saved "$tmp/out") $(grep -c never "$tmp/out")"
    done
done
"$adaptdl" run -n 2 -- sh -c 'trap "" TERM; echo up; while :; do sleep 0.05; done' >"$tmp/out" 2>"$tmp/err" &
pid=$!
wait_for "$tmp/out" up 2
kill -INT $pid
wait_for "$tmp/err" 'got SIGINT: '
kill -INT $pid
wait $pid
want ctrl_c_twice_kills 143 "$?"
has and_says_so "got SIGINT again: killing 2 replicas" "$(cat "$tmp/err")"

# ---- consequences ----
# one was stopped by somebody else, its peer dies of that as Gloo does: no failure
"$adaptdl" run -n 2 -- sh -c '[ $ADAPTDL_REPLICA_RANK = 0 ] && { echo "pid $$"; exec sleep 1000; }
    until [ -e '"$tmp"'/gone ]; do sleep 0.02; done; kill -ABRT $$' >"$tmp/out" 2>"$tmp/err" &
pid=$!
wait_for "$tmp/out" pid
peer=$(sed -n 's/.*pid //p' "$tmp/out")
kill -TERM "$peer"
while grep -qs '^State:.[^Z]' "/proc/$peer/status"; do sleep 0.02; done # it may take its time
touch "$tmp/gone"
wait $pid
want a_peer_that_left_is_no_failure "143 0" "$? $(grep -c 'was killed by' "$tmp/err")"
rm "$tmp/gone"
# one that fell silent is killed as soon as its peers have noticed, which is no failure either: all start again
"$adaptdl" run -n 2 --grace 600 -- sh -c '[ $ADAPTDL_NUM_RESTARTS = 1 ] && exit 0
    [ $ADAPTDL_REPLICA_RANK = 0 ] && { trap "exit 143" TERM; echo "silent $$"; kill -STOP $$; sleep 1000; }
    until [ -e '"$tmp"'/noticed ]; do sleep 0.02; done; exit 1' >"$tmp/out" 2>"$tmp/err" &
pid=$!
wait_for "$tmp/out" silent
silent=$(sed -n 's/.*silent //p' "$tmp/out")
until grep -qs '^State:.[TZ]' "/proc/$silent/status"; do sleep 0.02; done # it has said so before it is
touch "$tmp/noticed"
wait $pid
want a_silent_replica_is_killed_at_once 0 "$?"
has and_that_is_said_too "replica 0 was stopped and cannot answer: killed" "$(cat "$tmp/err")"
"$adaptdl" run -q -n 2 -- sh -c 'trap "" TERM INT; echo $$; sleep 1000 & wait; wait' >"$tmp/out" 2>/dev/null &
pid=$!
wait_for "$tmp/out" '\[' 2
kill -9 $pid
wait $pid 2>/dev/null
gone=no
for _ in $(seq 1500); do
    alive=0
    for child in $(sed 's/.* //' "$tmp/out"); do kill -0 "$child" 2>/dev/null && alive=1; done
    [ $alive = 0 ] && gone=yes && break
    sleep 0.02
done
want no_orphans yes $gone
for child in $(sed 's/.* //' "$tmp/out"); do kill -9 -- "-$child" 2>/dev/null; done # what those left behind

# ---- scale ----
"$adaptdl" run -n 2 --name forgetful -- sh -c "$polite" >"$tmp/out" 2>"$tmp/err.forgetful" &
pid=$!
wait_for "$tmp/out" 'size 2 restart 0' 2
call scale forgetful 3
want a_run_without_checkpoints_is_not_scaled 1 "$rc"
has a_run_without_checkpoints_is_not_scaled_text "saves no checkpoints (run --checkpoint DIR)" "$err"
want and_it_goes_on "forgetful: running, 2 replicas, 0 restarts" "$("$adaptdl" scale forgetful)"
want unless_forced "forgetful: from 2 to 3 replicas" "$("$adaptdl" scale --force forgetful 3)"
wait_for "$tmp/out" 'size 3 restart 1' 3 && ok scaled_by_force || bad scaled_by_force "$(cat "$tmp/out")"
has scaled_by_force_says_what_it_costs "from 2 to 3 replicas, from the first step again" "$(cat "$tmp/err.forgetful")"
kill -TERM $pid
wait $pid
ADAPTDL_CHECKPOINT_PATH=$tmp/ckpt "$adaptdl" run --name variable -- sh -c "$polite" >"$tmp/out" 2>"$tmp/err" &
pid=$!
wait_for "$tmp/out" 'size 1 restart 0'
want the_variable_is_as_good "variable: from 1 to 2 replicas" "$("$adaptdl" scale variable 2)"
kill -TERM $pid
wait $pid
"$adaptdl" run -n 2 --name sizes --checkpoint "$tmp/ckpt" -- sh -c "$polite" >"$tmp/out" 2>"$tmp/err" &
pid=$!
wait_for "$tmp/out" 'size 2 restart 0' 2
want scale "sizes: from 2 to 4 replicas" "$("$adaptdl" scale sizes 4)"
wait_for "$tmp/out" 'size 4 restart 1' 4 && ok scaled_up || bad scaled_up "$(cat "$tmp/out")"
want scale_status "sizes: running, 4 replicas, 1 restarts" "$("$adaptdl" scale sizes)"
want scale_same "sizes: 4 replicas already" "$("$adaptdl" scale sizes 4)"
"$adaptdl" scale sizes 1 >/dev/null
wait_for "$tmp/out" 'size 1 restart 2' && ok scaled_down || bad scaled_down "$(cat "$tmp/out")"
call run --name sizes -- true
want one_run_of_a_name 2 "$rc"
has one_run_of_a_name_text "one of that name already" "$err"
call scale sizes 0
want scale_to_nothing 2 "$rc"
kill -TERM $pid
wait $pid
want stopped_after_scaling 143 "$?"
call scale sizes 3
want scale_of_a_run_that_is_over 2 "$rc"
want scale_of_a_run_that_is_over_text 'adaptdl scale: run "sizes": there is none of that name' "$err"
"$adaptdl" run -q --name stale -- sh -c "$polite" >"$tmp/out" 2>/dev/null &
pid=$!
wait_for "$tmp/out" size
kill -9 $pid
wait $pid 2>/dev/null
call run -q --name stale -- true
want a_socket_that_was_left_behind_is_replaced 0 "$rc"
exit $failed
