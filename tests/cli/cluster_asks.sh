#!/usr/bin/env bash
# Jobs without a job file, and what is asked of jobs that are there: cancel, suspend, resume, rerun, exec.
. "$(dirname "$0")/cluster.sh"
printf 'historySeconds: 1\nlimits: {maxUploadBytes: 64Ki}\n' >"$tmp/config.yaml"
cluster_start --nodes 1 --slots 4 --interval 2 --config "$tmp/config.yaml"
phase() { adaptdl describe "$1" | sed -n 's/^Status *//p'; }
reason() { adaptdl describe "$1" | sed -n 's/^Reason *//p'; }

# ---- without a job file ----
mkdir -p "$tmp/work/data"
cat >"$tmp/work/train.py" <<'END'
import os, sys
print("trained", sys.argv[1:], open("data/in").read().strip(), os.environ["ADAPTDL_NUM_REPLICAS"])
END
echo 7 >"$tmp/work/data/in"
call submit --follow "$tmp/work/train.py" -- --epochs 2
expect submit_a_script 0 <<'END'
train-XXXXX
trained ['--epochs', '2'] 7 1
END
cd "$tmp/work" || exit 1
call submit --follow --min-replicas 2 --max-replicas 2 --cpus 100m --memory 64Mi --priority 3 -n direct -- python3 train.py
expect submit_a_command 0 <<'END'
direct
trained [] 7 2
END
call describe direct; check its_options_count 0 '^Allowed +2 to 2' '^Priority +3, suspended: when-better'
call describe -o json direct; check its_requests_too 0 '"cpu": 100' '"memory": 67108864'
call submit --gpus 1 -n greedy -- python3 train.py
check an_impossible_job_is_told_at_once 0 '^greedy$' 'note: greedy waits: a replica asks for nvidia.com/gpu 1'
call delete greedy; check away_with_it 0
call submit --priority 0 -- x; check a_bad_priority 2 '--priority 0: must be from 0.01 to 100'
call submit --cpus many -- x; check bad_cpus 2 '--cpus many: '
call submit --max-replicas 0 -- x; check bad_replicas 2 '--max-replicas 0: must be from 1'
call submit; check nothing_to_submit 2 'Or: adaptdl submit FILE.py, adaptdl submit -- COMMAND'

# ---- init ----
call init; expect init_finds_the_script 0 <<<./adaptdljob.yaml
call init; check init_replaces_nothing 1 'is there already; --force replaces it'
call submit --follow .; check what_it_wrote_works 0 '^train-' "^trained \[\] 7 1"
call init --force --max-replicas 3 --gpus 2 "$tmp/work" -- python3 train.py --epochs '"quoted"'; check init_with_options 0
call submit --dry-run -o json .; check they_are_in_the_file 0 '"maxReplicas": 3' '"nvidia.com/gpu": 2' 'quoted'
mkdir "$tmp/none"; call init "$tmp/none"; check init_of_nothing 2 'say what to run, as in: adaptdl init -- python3 FILE.py'
call init "$tmp/none/none" -- x; check init_of_no_directory 2
call submit "$tmp/none"; check a_directory_without_a_job_file 2 'adaptdl init writes one'

# ---- too much ----
head -c 90000 /dev/urandom >data/huge.bin; head -c 40000 /dev/urandom >data/large.bin
call submit train.py
check the_largest_files_are_named 2 'note: [0-9]+ files of .* together, the largest workspace/data/huge.bin \([0-9kKi]+\), workspace/data/large.bin \([0-9kKi]+\), .*\.dockerignore'
rm data/*.bin; cd "$tmp" || exit 1

# ---- CTRL-C ----
job_file stays sh -c 'trap "exit 143" TERM; echo up; echo mine >mine; while :; do sleep 0.2; done'
"$bin/adaptdl" submit --follow "$tmp/stays.yaml" >"$tmp/out" 2>"$tmp/err" </dev/null & follower=$!
eventually grep -q '^up' "$tmp/out"
kill -INT $follower; wait $follower; rc=$?
check ctrl_c_says_that_the_job_goes_on 130 'job default/stays goes on; adaptdl logs stays shows more, adaptdl cancel stays ends it'
[ "$(phase stays)" = Running ] && ok it_does || not_ok it_does "$(phase stays)"

# ---- exec ----
SHELL=/bin/sh call exec stays -- sh -c 'echo "rank $ADAPTDL_REPLICA_RANK of $ADAPTDL_JOB_ID"; cat mine'
expect exec_beside_a_replica 0 <<'END'
rank 0 of default/stays
mine
END
echo 'pwd; exit 5' | SHELL=/bin/sh adaptdl exec stays >"$tmp/out" 2>"$tmp/err"; rc=$?
check exec_a_shell 5 "^$tmp/s/jobs/"
call exec --rank 3 stays -- true; check exec_beside_nobody 4 'rank 3 of stays does not run'
call exec direct -- true; check exec_beside_one_that_is_over 1 'is Succeeded: it has no replica now'
call exec stays -- no-such-program; check exec_nothing 127 'no-such-program'

# ---- suspend and resume, over a restart of the scheduler ----
call suspend stays; check suspend 0 '^default/stays suspended'
suspended() { [ "$(reason stays)" = Suspended ]; }
eventually suspended && [ "$(phase stays)" = Pending ] && ok it_waits || not_ok it_waits "$(phase stays) $(reason stays)"
call explain stays; [ "$(tail -n 1 "$tmp/out")" = 'now Pending: Suspended: adaptdl resume lets it go on' ] && ok explain_says_why ||
    not_ok explain_says_why "$(tail -n 1 "$tmp/out")"
call down; check down 0
call up --nodes 1 --slots 4 --interval 1 --config "$tmp/config.yaml"; check up_again 0
call submit --wait -n other "$tmp/work/train.py"; check others_run 0
suspended && ok it_still_waits || not_ok it_still_waits "$(phase stays) $(reason stays)"
call resume stays; check resume 0 '^default/stays resumed'
call wait --for Running --timeout 60 stays; check it_goes_on 0
call resume stays; check resume_what_runs 6 'is not suspended'
call suspend direct; check suspend_what_is_over 6 'is over: Succeeded'

# ---- cancel ----
call cancel stays; check cancel 0 '^default/stays cancelled'
call wait --timeout 60 stays; check it_ends 1 'stays failed: Cancelled'
call logs --no-follow stays; check its_output_is_there 0 '^up$'
call cancel stays; check cancel_again 6 'is over: Failed'
call suspend nobody; check suspend_nobody 4 'no job default/nobody'
call down; call up --nodes 1 --slots 4 --interval 1 --config "$tmp/config.yaml"
[ "$(reason stays)" = Cancelled ] && ok it_stays_cancelled || not_ok it_stays_cancelled "$(reason stays)"

# ---- rerun ----
call rerun direct; check rerun 0 '^direct-[a-z0-9]{5}$'
again=$(cat "$tmp/out")
call wait --timeout 60 "$again"; check it_runs_again 0
call logs --no-follow "$again"; expect with_its_files_and_options 0 <<<'trained [] 7 2'
call rerun nobody; check rerun_nobody 4
finish
