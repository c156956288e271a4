#!/usr/bin/env bash
# `adaptdl run` and `adaptdl scale` with real training programs: output, growing, interrupting and
# resuming, replicas that are killed, and mistakes on the command line.
. "$(dirname "$0")/../launched.sh"
# A copy whose path nobody else's process has, so that what is left behind can be found.
cp "$bin/../examples/mnist" "$bin/../examples/cifar10_resnet9" "$tmp" || exit 1
# check NAME WANTED-EXIT PATTERN...: the last run's rc, and patterns that its lines must have
check() {
    local name=$1 wanted=$2 pattern
    shift 2
    [ "$rc" -eq "$wanted" ] || { not_ok "$name" "exit $rc, wanted $wanted"; return; }
    for pattern in "$@"; do
        grep -qE -- "$pattern" "$tmp/log" || { not_ok "$name" "no line matches \"$pattern\""; return; }
    done
    ok "$name"
}
run() { timeout -k 5 180 "$adaptdl" run "$@" >"$tmp/log" 2>&1 </dev/null; rc=$?; }
# Without timeout(1) in between, which would pass a signal on twice.
begin() { "$adaptdl" run "$@" >"$tmp/log" 2>&1 </dev/null & pid=$!; }
digits=("$tmp/mnist" --examples 600 --threads 1)
# The same without a launcher that it knows of: it cannot go on when the world changes, and is restarted.
alone=(env -u ADAPTDL_WORLD_SOCKET "${digits[@]}")

# ---- to the end ----
run -- "${digits[@]}" --epochs 2
check one_replica_finishes 0 'started 1 replica$' '^\[0\] Train Epoch: 1 ' '^\[0\] Test set: Average loss'
[ "$(grep -c 'Test set' "$tmp/log")" -eq 2 ] && ok two_epochs_two_results || not_ok two_epochs_two_results "not 2"
run -n 2 --checkpoint "$tmp/two" -- "${digits[@]}" --epochs 2
check two_replicas_finish 0 'started 2 replicas$' '^\[0\] Train Epoch: 2 ' '^\[0\] Test set: .*/101 '
run -n 2 --checkpoint "$tmp/two" -- "${digits[@]}" --epochs 2
check a_finished_run_has_nothing_left_to_do 0 'resuming from'
grep -q 'Train Epoch' "$tmp/log" && not_ok a_finished_run_is_not_trained_again "it was"
run -- "$tmp/cifar10_resnet9" --examples 200 --epochs 1 --threads 1
check resnet9_finishes 0 '^\[0\] train \(1/1\) accuracy01: [0-9.]+ ' '^\[0\] valid \(1/1\) 100% 41/41 ' '^\[0\] \* Epoch \(1/1\) lr: '
run -q -n 3 -- sh -c 'echo "hello of $ADAPTDL_REPLICA_RANK of $ADAPTDL_NUM_REPLICAS"; echo aside >&2'
check lines_have_their_ranks 0 '^\[0\] hello of 0 of 3$' '^\[1\] hello of 1 of 3$' '^\[2\] hello of 2 of 3$' '^\[2\] aside$'
[ "$(wc -l <"$tmp/log")" -eq 6 ] && ok quiet_shows_nothing_else || not_ok quiet_shows_nothing_else "more lines"

# ---- growing ----
begin --name grow --checkpoint "$tmp/grow" -- "${digits[@]}" --epochs 20
if wait_for 'Train Epoch: 1 '; then
    timeout 30 "$adaptdl" scale grow >"$tmp/state" 2>&1 && grep -q '^grow: running, 1 replicas, 0 restarts$' "$tmp/state" &&
        ok scale_without_a_number_says_how_it_is || not_ok scale_without_a_number_says_how_it_is "$(cat "$tmp/state")"
    timeout 30 "$adaptdl" scale grow 2 >"$tmp/state" 2>&1 && grep -q '^grow: from 1 to 2 replicas$' "$tmp/state" &&
        ok scale_is_answered || not_ok scale_is_answered "$(cat "$tmp/state")"
    timeout 30 "$adaptdl" run --name grow -- true >"$tmp/state" 2>&1
    [ $? -eq 2 ] && grep -q 'there is one of that name already' "$tmp/state" && ok a_name_is_used_once ||
        not_ok a_name_is_used_once "$(cat "$tmp/state")"
fi
end
check the_run_grows_in_place_and_finishes 0 'grow: resized in place, paused [0-9.]+ s; 2 replicas now' 'Train Epoch: 20 '
grep -qE 'restart 1|resuming from' "$tmp/log" && not_ok nobody_is_restarted_to_grow "somebody was"
begin --name restarted --checkpoint "$tmp/restarted" -- "${alone[@]}" --epochs 20
wait_for 'Train Epoch: 1 ' && timeout 30 "$adaptdl" scale restarted 2 >/dev/null 2>&1
end
check a_program_that_cannot_is_restarted_to_grow 0 'restart 1 on 2 replicas' 'resuming from checkpoint-' 'Train Epoch: 20 '
[ "$(grep -c 'Test set' "$tmp/log")" -eq 20 ] && ok every_epoch_is_tested_once ||
    not_ok every_epoch_is_tested_once "$(grep -c 'Test set' "$tmp/log") results"

# ---- CTRL-C, and the same command again ----
job=(-n 2 --checkpoint "$tmp/again" -- "${digits[@]}" --epochs 12)
begin "${job[@]}"
wait_for 'Train Epoch: 2 ' && kill -INT $pid
end
check interrupted_gives_143 143 'got SIGINT'
first=$(grep -c 'Test set' "$tmp/log")
run "${job[@]}"
check the_same_command_resumes 0 'resuming from checkpoint-' 'Train Epoch: 12 '
grep -q 'Train Epoch: 1 ' "$tmp/log" && not_ok resuming_repeats_nothing "epoch 1 was trained again"
[ $((first + $(grep -c 'Test set' "$tmp/log"))) -eq 12 ] && ok interrupted_and_resumed_make_twelve_epochs ||
    not_ok interrupted_and_resumed_make_twelve_epochs "$first epochs before"

# ---- killed replicas ----
begin -n 2 -- "${alone[@]}" --epochs 1000
wait_for 'Train Epoch: 1 ' && kill -KILL "$(replica 1)"
end
check a_killed_replica_ends_the_run 137 'replica 1 was killed by signal 9'
begin -n 2 --max-restarts 1 --checkpoint "$tmp/killed" -- "${alone[@]}" --epochs 8
wait_for 'Train Epoch: 1 ' && kill -KILL "$(replica 0)"
end
check with_restarts_it_goes_on 0 'replica 0 was killed by signal 9' 'restart 1 on 2 replicas' 'Train Epoch: 8 '
begin -n 2 --checkpoint "$tmp/survivor" -- "${alone[@]}" --epochs 1000
wait_for 'Train Epoch: 1 ' && kill -KILL "$(replica 1)"
end
check a_survivor_says_that_it_saves_nothing 137 '^\[0\] adaptdl: error: .*rank 1'
if grep -qE '^\[0\].*(and saving a checkpoint|saved checkpoint)' "$tmp/log"; then
    not_ok a_survivor_promises_no_checkpoint "it does"
else ok a_survivor_promises_no_checkpoint; fi
run -n 2 --max-restarts 2 -- sh -c '[ "$ADAPTDL_REPLICA_RANK" = 1 ] && exit 7; exec sleep 1000'
check restarts_are_counted 7 'replica 1 exited with 7' 'restart 2 on' 'failed 3 times, giving up'
begin --grace 1 -- sh -c 'trap "" TERM INT; echo ready; while :; do sleep 1; done'
wait_for '^\[0\] ready' && kill -TERM $pid
end
grep -q 'did not leave within 1 s: killed' "$tmp/log" && [ "$rc" -ne 0 ] && ok who_does_not_leave_is_killed ||
    not_ok who_does_not_leave_is_killed "exit $rc"
begin -n 2 -- "${digits[@]}" --epochs 1000
wait_for 'Train Epoch: 1 ' && kill -KILL $pid
wait $pid 2>/dev/null
pid=
for _ in $(seq 300); do pgrep -f "$tmp/" >/dev/null || break; sleep 0.1; done
left=$(pgrep -af "$tmp/")
[ -z "$left" ] && ok no_process_is_left_behind || not_ok no_process_is_left_behind "$left"

# Rank 0's port is free for a program that listens without SO_REUSEADDR, on all addresses, as the original does.
cat >"$tmp/listen.py" <<'PY'
import os, socket, time
port, rank = int(os.environ["ADAPTDL_MASTER_PORT"]), int(os.environ["ADAPTDL_REPLICA_RANK"])
if rank == 0:
    listener = socket.socket()
    listener.bind(("0.0.0.0", port))
    listener.listen()
    print("met", listener.accept()[0].recv(5).decode())
else:
    while True:
        try:
            socket.create_connection((os.environ["ADAPTDL_MASTER_ADDR"], port)).sendall(b"rank1")
            break
        except ConnectionRefusedError:
            time.sleep(0.05)
PY
run -n 2 -- /usr/bin/python3 "$tmp/listen.py"
check a_program_binds_the_port_itself 0 'met rank1'

# ---- mistakes: one line, exit 2, nothing started ----
mistake() { # NAME PART-OF-THE-LINE COMMAND...
    local name=$1 part=$2
    shift 2
    timeout -k 5 60 "$adaptdl" "$@" >"$tmp/log" 2>&1 </dev/null
    rc=$?
    if [ "$rc" -ne 2 ]; then not_ok "$name" "exit $rc, wanted 2"
    elif [ "$(wc -l <"$tmp/log")" -ne 1 ]; then not_ok "$name" "not one line"
    elif ! grep -qF -- "$part" "$tmp/log"; then not_ok "$name" "lacks \"$part\""
    else ok "$name"; fi
}
: >"$tmp/file"
mistake unknown_option '--nonsense is unknown' run --nonsense -- true
mistake no_program 'which program?' run -n 2
mistake a_path_that_is_not_there "$tmp/none: No such file" run -- "$tmp/none"
mistake a_program_that_is_not_on_the_path 'no-such-program-here: No such file' run -n 2 -- no-such-program-here
mistake a_file_that_is_no_program "$tmp/file: may not be executed; if it is a program: chmod +x" run -- "$tmp/file"
mistake zero_replicas '-n 0: must be from 1' run -n 0 -- true
mistake a_word_for_replicas '-n two: must be from 1' run -n two -- true
mistake negative_restarts '--max-restarts -1: must be from 0' run --max-restarts -1 -- true
mistake a_name_with_a_slash 'run "a/b": names consist of' run --name a/b -- true
mistake a_checkpoint_that_is_a_file "$tmp/file: is not a directory" run --checkpoint "$tmp/file" -- true
mistake a_checkpoint_in_a_missing_folder "$tmp/none/here: No such file" run --checkpoint "$tmp/none/here" -- true
mistake scale_of_an_unknown_run 'run "nobody": there is none' scale nobody 2
mistake state_of_an_unknown_run 'run "nobody": there is none' scale nobody
mistake scale_of_nothing 'expected the name of a run' scale
mistake scale_to_zero '0 replicas: must be from 1' scale nobody 0
mistake scale_of_a_name_with_a_slash 'run "a/b": names consist of' scale a/b 2
exit $failed
