#!/usr/bin/env bash
# adaptdl sim with everything that makes its world more like a real cluster: device types, restart costs per
# application, rounds by event, jobs that differ or declare nothing. On synthetic traces: a slow type and one
# four times as fast.
set -u
adaptdl=$ADAPTDL_BIN/adaptdl
source=examples/traces
work=$source/workload-small.csv
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

check() { # name, command...: the command succeeds
    if "${@:2}" >"$dir/out" 2>"$dir/err"; then echo "ok - $1"; else echo "not ok - $1: $(head -c 300 "$dir/err" "$dir/out")"; fi
}
refused() { # name, text, command...: exit 2 and exactly one line on stderr with the text
    "${@:3}" >"$dir/out" 2>"$dir/err"
    local rc=$?
    if [ $rc -eq 2 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qF -- "$2" "$dir/err"; then
        echo "ok - $1"
    else
        echo "not ok - $1: exit $rc, $(head -c 300 "$dir/err")"
    fi
}
traces() { # folder, restart seconds: the two types
    local type app divisor
    for type in slow fast; do
        divisor=1; [ $type = fast ] && divisor=4
        for app in vision-small vision-large language; do
            mkdir -p "$1/$type/$app"
            cp $source/$app/validation-*.csv "$1/$type/$app"
            awk -F, -v OFS=, -v by=$divisor '!/^#/ && /^[0-9]/ { $(NF-1) /= by; $NF /= by } 1' \
                $source/$app/placements.csv >"$1/$type/$app/placements.csv"
            awk -F, -v OFS=, -v by=$divisor '!/^#/ && /^[0-9]/ { $(NF-1) /= by; $NF /= by } 1' \
                $source/$app/scalability.csv >"$1/$type/$app/scalability.csv"
        done
        printf '%s\n' application,epochs,max_local_bsz,restart_s,speed_of_one "vision-small,30,512,$2,$((100 * divisor))" \
            "vision-large,20,256,$2,$((100 * divisor))" "language,8,64,$2,$((100 * divisor))" >"$1/$type/applications.csv"
    done
}
same() { # two results: the same completion times
    /usr/bin/python3 - "$1" "$2" <<'PY'
import json, sys
a, b = (json.load(open(f))["workloads"][0]["jcts"] for f in sys.argv[1:])
sys.exit(a != b)
PY
}
differ() { ! same "$1" "$2"; }
less() { # two results: the mean of the first is smaller
    /usr/bin/python3 -c 'import json, sys
a, b = (json.load(open(f))["mean_avg_jct"] for f in sys.argv[1:])
sys.exit(not a < b)' "$1" "$2"
}
undisturbed() { # log, seconds: how often a job that starts is given other nodes within that time; 0 of them
    /usr/bin/python3 - "$1" "$2" <<'PY'
import json, sys
nodes, since, early = {}, {}, 0
for line in open(sys.argv[1]):
    round = json.loads(line)
    for job in round["jobs"]:
        name, now = job["name"], round["time"]
        if job["nodes"] != nodes.get(name, []):
            early += bool(nodes.get(name)) and now - since[name] < float(sys.argv[2])
            nodes[name], since[name] = job["nodes"], now
print(early)
sys.exit(early > 0)
PY
}
disturbed() { ! undisturbed "$@"; }

traces "$dir/t60" 60
traces "$dir/t600" 600
printf '%s\n' device_type,nodes,gpus slow,2,4 fast,2,4 >"$dir/both.csv"
printf '%s\n' device_type,nodes,gpus slow,4,4 >"$dir/slow.csv"
run=("$adaptdl" sim --traces "$dir/t60" --cluster "$dir/both.csv")
long=("$adaptdl" sim --traces "$dir/t600" --cluster "$dir/both.csv")
check every_policy "${run[@]}" --policy rank,sia,fifo,tiresias,optimus $work
check types "${run[@]}" --json "$dir/types" $work
check one_type "$adaptdl" sim --traces "$dir/t60" --cluster "$dir/slow.csv" --json "$dir/slow" $work
check a_faster_type_is_used less "$dir/types" "$dir/slow"
check long_restarts "${long[@]}" --json "$dir/long" $work
check restarts_cost_what_the_application_says less "$dir/types" "$dir/long"
check overruled "${long[@]}" --rescale-delay 60 --json "$dir/overruled" $work
check the_command_line_overrules_it same "$dir/overruled" "$dir/types"
check not_held "${long[@]}" --event --json "$dir/not_held" --log "$dir/free.log" $work
check in_place "${long[@]}" --event --resize-delay 1 --json "$dir/in_place" $work
check what_stays_on_a_node_costs_less less "$dir/in_place" "$dir/not_held"
check jobs_are_moved_while_they_start disturbed "$dir/free.log" 590
check held "${long[@]}" --event --hold --log "$dir/held.log" $work
check but_not_when_they_are_left_alone undisturbed "$dir/held.log" 590
check by_event "${run[@]}" --event --json "$dir/event" --log "$dir/event.log" $work
check each_for_itself "${run[@]}" --event --pool off --json "$dir/alone" $work
check jobs_learn_from_each_other differ "$dir/event" "$dir/alone"
check learned "${run[@]}" --event --learned --json "$dir/learned" $work
check what_a_replay_before_taught_them_counts differ "$dir/learned" "$dir/event"
check nothing_without_a_pool "${run[@]}" --event --pool off --learned --json "$dir/not_learned" $work
check where_nobody_shares_it_does_not same "$dir/not_learned" "$dir/alone"
check one_may_grow "${run[@]}" --event --lone-grows --json "$dir/grows" $work
check what_one_replica_may_do_counts differ "$dir/grows" "$dir/event"
check why_this_type grep -q '"why":"[^"]* on fast' "$dir/event.log"
check noise "${run[@]}" --event --noise 0.5 --json "$dir/noise" $work
check jobs_differ differ "$dir/noise" "$dir/event"
check no_noise "${run[@]}" --event --noise 0 --json "$dir/none" $work
check or_do_not same "$dir/none" "$dir/event"
check undeclared "${run[@]}" --event --undeclared 1 --json "$dir/undeclared" $work
check work_that_is_not_declared_counts differ "$dir/undeclared" "$dir/event"

printf '%s\n' device_type,nodes,gpus slow,2,4 other,2,4 >"$dir/bad.csv"
refused no_traces_of_a_type other "$adaptdl" sim --traces "$dir/t60" --cluster "$dir/bad.csv" $work
printf '%s\n' device_type,nodes,gpus slow,2,4 slow,2,4 >"$dir/bad.csv"
refused a_type_twice '"slow" is there twice' "$adaptdl" sim --traces "$dir/t60" --cluster "$dir/bad.csv" $work
printf '%s\n' device_type,nodes,gpus slow,0,4 >"$dir/bad.csv"
refused no_nodes nodes "$adaptdl" sim --traces "$dir/t60" --cluster "$dir/bad.csv" $work
printf '%s\n' device_type,nodes slow,2 >"$dir/bad.csv"
refused a_missing_column gpus "$adaptdl" sim --traces "$dir/t60" --cluster "$dir/bad.csv" $work
