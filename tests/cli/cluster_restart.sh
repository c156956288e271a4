#!/usr/bin/env bash
# Followers while the scheduler is killed without warning and started again: no line of a log is lost or
# shown twice, and those who wait go on waiting.
. "$(dirname "$0")/cluster.sh"
cluster_start --nodes 1 --slots 2
job_spec='{"minReplicas": 2}'
job_file count sh -c 'for i in $(seq 80); do echo "line $i of $ADAPTDL_REPLICA_RANK"; sleep 0.1; done'
call submit "$tmp/count.yaml"; check submitted 0
limit_s=100
adaptdl logs count >"$tmp/one" 2>&1 </dev/null & one=$!
adaptdl logs --all-ranks count >"$tmp/all" 2>&1 </dev/null & all=$!
adaptdl wait count >"$tmp/waited" 2>&1 </dev/null & waiter=$!
adaptdl events -f --job count >"$tmp/events" 2>&1 </dev/null & events=$!
kills=0
for lines in 10 30 50; do
    eventually grep -q "^line $lines of 0" "$tmp/one"
    for p in $(cluster_processes); do
        case $(readlink "/proc/$p/exe") in */adaptdl-sched) kill -KILL "$p" && kills=$((kills + 1)) ;; esac
    done
    sleep 0.5
    cluster_start --nodes 1 --slots 2
done
wait $one; rc=$?
seq -f 'line %g of 0' 80 | cmp -s - "$tmp/one" && [ $rc -eq 0 ] && ok every_line_once ||
    { cp "$tmp/one" "$tmp/out"; not_ok every_line_once "exit $rc, $(wc -l <"$tmp/one") lines"; }
wait $all; rc=$?
for rank in 0 1; do
    seq -f "[$rank] line %g of $rank" 80 >"$tmp/wanted"
    grep "^\[$rank\]" "$tmp/all" | cmp -s - "$tmp/wanted" && [ $rc -eq 0 ] && ok "every_line_of_rank_${rank}_once" ||
        { cp "$tmp/all" "$tmp/out"; not_ok "every_line_of_rank_${rank}_once" "exit $rc"; }
done
wait $waiter; rc=$?
[ $rc -eq 0 ] && ok the_wait_ends_well || { cp "$tmp/waited" "$tmp/out"; not_ok the_wait_ends_well "exit $rc"; }
eventually grep -q 'Running -> Succeeded' "$tmp/events" && ok events_go_on || { cp "$tmp/events" "$tmp/out"; not_ok events_go_on "no end"; }
[ "$(sort "$tmp/events" | uniq -d | wc -l)" -eq 0 ] && ok no_event_twice || { cp "$tmp/events" "$tmp/out"; not_ok no_event_twice "some are"; }
kill $events
call ls; check one_start_only 0 '^count +Succeeded .* 0$'
[ $kills -eq 3 ] && ok the_scheduler_was_killed || not_ok the_scheduler_was_killed "$kills times"
echo "info - $kills kills of the scheduler"
finish
