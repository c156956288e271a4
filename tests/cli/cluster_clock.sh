#!/usr/bin/env bash
# The wall clock is set ten years ahead under a running scheduler and back again: what takes seconds takes seconds, and
# nothing waits until the clock is where it was.
. "$(dirname "$0")/cluster.sh"
export FAKE_CLOCK=$tmp/clock
years=$((10 * 365 * 86400))
set_clock() { echo "$1" >"$tmp/clock.new" && mv "$tmp/clock.new" "$tmp/clock"; }
cat >"$tmp/sched.yaml" <<END
useSeconds: 0.2
retryPauseSeconds: 1
graceSeconds: 60
END
LD_PRELOAD=$bin/../helpers/fake_clock.so cluster_start --nodes 1 --slots 3 --interval 1 --config "$tmp/sched.yaml"
value() { adaptdl describe "$1" -o json 2>/dev/null | /usr/bin/python3 -c 'import json, sys; job = json.load(sys.stdin); print('"$2"')'; }
phase_is() { [ "$(value "$1" 'job["phase"]')" = "$2" ]; }
said() { adaptdl logs "$1" --no-follow 2>/dev/null | grep -q "$2"; }

# One that takes a while to save when it is asked to stop.
job_file saves sh -c 'trap "i=0; while [ \$i -lt 30 ]; do sleep 0.1; i=\$((i+1)); done; echo saved; exit 143" TERM; echo begins; while :; do sleep 0.05; done'
job_file burns sh -c 'while :; do :; done'
call submit "$tmp/saves.yaml"; check submitted 0
call submit "$tmp/burns.yaml"; check another 0
eventually said saves begins && eventually phase_is saves Running && eventually phase_is burns Running && ok they_run || not_ok they_run "they do not"
call suspend saves; check asked_to_stop 0
set_clock $years
eventually said saves saved && ok it_has_the_time_to_save || not_ok it_has_the_time_to_save "it was killed"
eventually phase_is saves Pending && ok and_waits || not_ok and_waits "$(value saves 'job["phase"]')"
call describe saves
grep -qi 'killed' "$tmp/out" && not_ok nobody_killed_it "$(grep -i killed "$tmp/out")" || ok nobody_killed_it

# Ahead and back: retries, samples, rounds go on; times in between stay close to each other.
job_file fails sh -c '[ -e "$ADAPTDL_SHARE_PATH/tried" ] && exit 0; : >"$ADAPTDL_SHARE_PATH/tried"; sleep 0.2; exit 3'
call submit "$tmp/fails.yaml"; check ahead_a_job_is_taken 0
eventually phase_is fails Succeeded && ok ahead_it_is_tried_again || not_ok ahead_it_is_tried_again "$(value fails 'job["phase"]')"
set_clock 0
call resume saves; check back_it_goes_on 0
eventually phase_is saves Running && ok and_runs || not_ok and_runs "$(value saves 'job["phase"]')"
sed 's/"fails"/"fails-back"/' "$tmp/fails.yaml" >"$tmp/back.yaml"
call submit "$tmp/back.yaml"; check back_a_job_is_taken 0
eventually phase_is fails-back Succeeded && ok back_it_is_tried_again || not_ok back_it_is_tried_again "$(value fails-back 'job["phase"]')"
set_clock -$years
rounds() { adaptdl status 2>/dev/null | sed -n 's/^rounds *\([0-9]*\).*/\1/p'; }
before=$(rounds)
more_rounds() { [ "$(rounds)" -ge $((before + 2)) ]; }
eventually more_rounds && ok rounds_go_on_with_the_clock_behind || not_ok rounds_go_on_with_the_clock_behind "$before, $(rounds)"
use() { value burns '(job["use"] or [{}])[0].get("cpuSeconds", (job["use"] or [{}])[0])'; }
before=$(use)
use_changes() { [ "$(use)" != "$before" ]; }
eventually use_changes && ok so_do_looks_at_what_is_used || not_ok so_do_looks_at_what_is_used "$before"
spread=$(value fails 'int(max(job["completed"], job["started"]) - job["created"])')
[ "$spread" -ge 0 ] && [ "$spread" -lt 3600 ] && ok a_job_of_seconds_took_seconds || not_ok a_job_of_seconds_took_seconds "$spread"

# Started again with the clock far behind what is written down, and ahead of it.
call down --jobs leave; check leave 0
LD_PRELOAD=$bin/../helpers/fake_clock.so cluster_start --nodes 1 --slots 3 --interval 1 --config "$tmp/sched.yaml"
eventually phase_is burns Running && ok taken_over_by_one_whose_clock_is_behind || not_ok taken_over_by_one_whose_clock_is_behind "$(value burns 'job["phase"]')"
sed 's/"fails"/"fails-late"/' "$tmp/fails.yaml" >"$tmp/late.yaml"
call submit "$tmp/late.yaml"; check it_takes_jobs 0
eventually phase_is fails-late Succeeded && ok and_tries_them_again || not_ok and_tries_them_again "$(value fails-late 'job["phase"]')"
call delete burns saves --wait; check deleting_waits_for_no_clock 0
finish
