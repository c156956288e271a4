#!/usr/bin/env bash
# `adaptdl scale` of a cluster's job: pinned to a number until --auto, and what explain and others say of it.
. "$(dirname "$0")/cluster.sh"
cluster_start --nodes 2 --slots 2 --interval 1
job_spec='{"maxReplicas": 3}'
job_file ledger "$(cd "$bin/../helpers" && pwd)/helper_elastic" epochs=1 examples=200000 step_us=20000
call submit "$tmp/ledger.yaml"
call wait --for Running --timeout 50 ledger; check it_runs 0
call scale ledger; check nobody_has_pinned_it 0 '^default/ledger: Running, [0-9] replicas, not pinned$'
call explain ledger; grep -q '^pinned' "$tmp/out" && not_ok nor_does_explain_say_so "it says" || ok nor_does_explain_say_so

# Before the scheduler has heard that the job can change its size meanwhile, a change is a restart.
explained() { call explain ledger; grep -qE "^last change of size: $1" "$tmp/out"; }
sized() { [ "$(adaptdl describe ledger -o json | now 2>/dev/null)" = "Running $1 $1" ]; }
now() { /usr/bin/python3 -c 'import json, sys; job = json.load(sys.stdin); print(job["phase"], job["replicas"], job["readyReplicas"])'; }
for size in 2 3 2 3; do
    call scale ledger $size; check "scaled_to_$size" 0 "^default/ledger: [A-Z][a-z]+, [0-9] replicas, pinned to $size\$"
    eventually sized $size || { not_ok "it_has_$size" "$(adaptdl ls 2>&1)"; break; }
    eventually explained '[a-z]' || break
    ! explained 'resized in place' || break
done
call explain ledger
check explain_says_both 0 '^last change of size: resized in place, paused [0-9.]+ s$' "^pinned to $size replicas by its user, until adaptdl scale --auto\$"
call scale ledger; check scale_without_a_number 0 "^default/ledger: Running, $size replicas, pinned to $size\$"
call ls; check ls_marks_it 0 "^ledger +Running .* =$size +[0-9]+\$"
call describe ledger; check describe_says_so 0 "to $size, until adaptdl scale --auto"
call events --job ledger; check an_event_says_how 0 'default/ledger .*resized in place, paused [0-9.]+ s'

call scale ledger 4; check no_more_than_its_file_allows 2 '^adaptdl scale: job default/ledger: maxReplicas of its file is 3$'
call scale ledger 0; check nor_none 2 'replicas: must be from 1 to'
call scale ledger 2 --auto; check not_both 2 'expected the name of a run or job, and a number or --auto'
call scale nobody 2; check of_a_job_that_is_not_there 4 'nobody'
call scale nobody --auto; check nor_is_its_pin 4 'nobody'
call scale ledger; check nothing_of_that_has_changed_it 0 "pinned to $size\$"

call scale ledger --auto; check until_auto 0 '^default/ledger: [A-Z][a-z]+, [0-9] replicas, not pinned$'
call explain ledger; check explain_tells_the_change_alone 0 '^last change of size: '
grep -q '^pinned' "$tmp/out" && not_ok and_no_pin "it says" || ok and_no_pin
finish
