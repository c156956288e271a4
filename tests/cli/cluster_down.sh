#!/usr/bin/env bash
# `down` that is interrupted while a job saves its checkpoint: the next `up` undoes it, or ends it when it was
# given options; nobody is told that a drained node could not hold a job.
. "$(dirname "$0")/cluster.sh"
echo 'graceSeconds: 600' >"$tmp/config.yaml"
cluster_start --nodes 2 --slots 1 --interval 1 --config "$tmp/config.yaml"
job_spec='{"minReplicas": 2, "maxReplicas": 2}'
job_file slow sh -c "trap stop=1 TERM; while [ -z \"\$stop\" ] || [ ! -e '$tmp/go' ]; do sleep 0.1; done; exit 143"
job_spec='{}'
job_file waits sleep 1000
call submit "$tmp/slow.yaml" && call submit "$tmp/waits.yaml"
call wait --for Running --timeout 50 slow; check the_slow_job_runs 0
# interrupt SIGNAL: a down that waits gets it
interrupt() {
    "$bin/adaptdl" down >"$tmp/out" 2>"$tmp/err" </dev/null & down=$!
    eventually grep -q 'saving a checkpoint' "$tmp/err" || not_ok down_waits "it does not"
    kill "-$1" $down
    wait $down; rc=$?
}
interrupt INT
check ctrl_c_says_what_is_to_be_done 130 'interrupted; nothing is started any more. To end it: adaptdl down; to go on: adaptdl up'
call nodes; check nodes_are_draining 0 '^node-0 +Draining ' '^node-1 +Draining '
waiting() { call describe waits; grep -q 'the cluster is being stopped; adaptdl up lets it go on' "$tmp/out"; }
eventually waiting && ok a_pending_job_is_told || not_ok a_pending_job_is_told "not so"
call explain waits; grep -q 'could ever' "$tmp/out" && not_ok no_false_reason "there is one" || ok no_false_reason
call undrain node-0; check one_node_cannot_be_undrained 6 'the cluster is being stopped'
call up; check up_undoes_it 0 'an interrupted "adaptdl down" is undone' 'cluster of 2 nodes with 2 slots'
call nodes; check nodes_are_in_use_again 0 '^node-0 +Ready ' '^node-1 +Ready '
call up; check a_second_up_is_refused 6 'a cluster is running already'
: >"$tmp/go"
call wait --for Running --timeout 50 slow; check the_job_runs_again 0
rm "$tmp/go"
interrupt KILL
check a_killed_down_says_nothing_more 137
call down --jobs leave; check another_down_ends_it 0 '^stopped$'
call up --nodes 2 --slots 1 --interval 1 --config "$tmp/config.yaml"; check up_starts_what_was_drained 0
call nodes; check nodes_are_in_use_after_the_restart 0 '^node-0 +Ready ' '^node-1 +Ready '
: >"$tmp/go"
call wait --for Running --timeout 50 slow; check the_job_runs_a_third_time 0
rm "$tmp/go"
interrupt TERM
(sleep 1; : >"$tmp/go") &
call up --nodes 3 --slots 1 --interval 1; check up_with_options_ends_it_first 0 'is ended first' '^stopped$' 'cluster of 3 nodes with 3 slots'
call wait --for Running --timeout 50 slow waits; check all_jobs_run 0
# After a down that came to its end nothing is drained for whoever starts the scheduler without `up`.
call down; check down_stops_all 0 '^stopped$'
"$bin/adaptdl-sched" --state "$ADAPTDL_STATE" --nodes 3 --slots 1 --interval 1 >"$tmp/sched.log" 2>&1 & sched=$!
answers() { call nodes; [ $rc -eq 0 ]; }
eventually answers || not_ok the_scheduler_answers "it does not"
call nodes; check nothing_stays_drained 0 '^node-0 +Ready ' '^node-2 +Ready '
call wait --for Running --timeout 50 waits; check jobs_run_without_up 0
call down; check down_ends_a_scheduler_that_up_did_not_start 0 '^stopped$'
wait $sched; rc=$?; check it_ended_in_order 0
# up -v: its log says more
call up --nodes 1 --slots 1 --interval 1; check up_is_not_verbose_by_itself 0
call down
grep -q 'round [0-9]*: ' "$ADAPTDL_STATE/daemon.log" && not_ok nothing_more_is_said "it is" || ok nothing_more_is_said
call up -v --nodes 1 --slots 1 --interval 1; check up_v 0
more() { grep -q 'round [0-9]*: [0-9]* of [0-9]* jobs changed, decided in' "$ADAPTDL_STATE/daemon.log"; }
eventually more && ok up_v_says_more || not_ok up_v_says_more "$(tail -n 3 "$ADAPTDL_STATE/daemon.log")"
finish
