#!/usr/bin/env bash
# A scheduler whose account may open 64 files and have 25 threads and processes, most of which it needs itself: what it
# cannot start waits, is told why, and is nobody's failure.
. "$(dirname "$0")/cluster.sh"
user=$((50000 + $$ % 10000)) # nobody's; not that of another run of this test
if [ "$(id -u)" != 0 ] || ! command -v setpriv >/dev/null; then
    echo "skip - cluster_limits: root is not limited, and only root may be another user"
    exit 0
fi
chmod 755 "$tmp"
mkdir "$tmp/bin" && cp "$bin/adaptdl" "$bin/adaptdl-sched" "$bin/adaptdl-keeper" "$tmp/bin" && chmod 755 "$tmp/bin" "$tmp"/bin/*
mkdir -m 700 "$tmp/s" && chown $user:$user "$tmp/s"
bin=$tmp/bin
as_user() { setpriv --reuid=$user --regid=$user --clear-groups "$@"; }

# What it may have and was not given: a soft limit below the hard one is raised, for its jobs as well.
as_user bash -c "ulimit -Sn 40 && ulimit -Hn 300 && ulimit -Su 30 && ulimit -Hu 70 && exec '$bin/adaptdl' up --nodes 1 --slots 1" >"$tmp/up" 2>&1 </dev/null
[ $? -eq 0 ] && ok it_starts_with_low_soft_limits || { not_ok it_starts_with_low_soft_limits "$(cat "$tmp/up" "$tmp/s/daemon.log")"; finish; }
soft() { awk -v what="$1" 'index($0, what) == 1 { print $(NF - 2), $(NF - 1) }' "/proc/$(cat "$tmp/s/adaptdl-sched.pid")/limits"; }
[ "$(soft 'Max open files')" = "300 300" ] && ok soft_limit_of_files_is_raised || not_ok soft_limit_of_files_is_raised "$(soft 'Max open files')"
[ "$(soft 'Max processes')" = "70 70" ] && ok soft_limit_of_processes_is_raised || not_ok soft_limit_of_processes_is_raised "$(soft 'Max processes')"
grep -q 'may open 300 files at a time' "$tmp/s/daemon.log" && grep -q 'may have 70 processes and threads' "$tmp/s/daemon.log" && ok and_it_says_what_it_has_then || not_ok and_it_says_what_it_has_then "$(cat "$tmp/s/daemon.log")"
job_file limits bash -c 'ulimit -Sn; ulimit -Su'
call submit "$tmp/limits.yaml"; check limits_submitted 0
call wait limits; check limits_ran 0
call logs limits --no-follow; check jobs_inherit_them 0 '^300$' '^70$'
call down; check and_it_stops 0
rm -rf "$tmp/s" && mkdir -m 700 "$tmp/s" && chown $user:$user "$tmp/s"

as_user bash -c "ulimit -n 64 && ulimit -u 25 && exec '$bin/adaptdl' up --nodes 1 --slots 8 --interval 1" >"$tmp/up" 2>&1 </dev/null
[ $? -eq 0 ] && ok it_starts_with_64_files || { not_ok it_starts_with_64_files "$(cat "$tmp/up" "$tmp/s/daemon.log")"; finish; }
grep -q 'may open 64 files at a time; raise the hard limit' "$tmp/s/daemon.log" && ok and_says_what_it_has || not_ok and_says_what_it_has "$(cat "$tmp/s/daemon.log")"
grep -qE 'may have 25 processes and threads' "$tmp/s/daemon.log" && ok and_of_processes || not_ok and_of_processes "$(cat "$tmp/s/daemon.log")"
sched=$(cat "$tmp/s/adaptdl-sched.pid")

# More clients than it may have files: it answers, and jobs are not touched by it.
socket=$tmp/s/adaptdl.sock
/usr/bin/python3 - "$socket" <<'END' &
import socket, sys, time
held = []
for _ in range(200):
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(5)
    try:
        s.connect(sys.argv[1])
        held.append(s)
    except OSError:
        pass
time.sleep(600)
END
crowd=$!
answers() { curl -s -m 5 --unix-socket "$socket" http://localhost/healthz 2>/dev/null | grep -q '"ok"'; }
eventually answers && ok it_answers_beside_200_idle_clients || not_ok it_answers_beside_200_idle_clients "no answer"
files=$(ls "/proc/$sched/fd" | wc -l)
[ "$files" -le 64 ] && ok within_its_files || not_ok within_its_files "$files"

sleep 3600 & # until this ends, whatever runs goes on: there is no room for all six
held=$!
for i in 1 2 3 4 5 6; do
    job_file "job$i" tail --pid=$held -f /dev/null
    call submit "$tmp/job$i.yaml"; check "submit_$i" 0
done
value() { adaptdl describe "$1" -o json 2>/dev/null | /usr/bin/python3 -c 'import json, sys; job = json.load(sys.stdin); print('"$2"')'; }
# Of the last one, which has to wait in any case: that it waits, and the real cause.
out_of_resources() { grep -qE 'job default/job6: group 1 is not all started yet, tried again .*out of resources: .*(Resource temporarily unavailable|Too many open files)' "$tmp/s/daemon.log"; }
eventually out_of_resources && ok the_cause_is_named || not_ok the_cause_is_named "$(tail -n 5 "$tmp/s/daemon.log")"
kill $held && wait $held 2>/dev/null
kill $crowd && wait $crowd 2>/dev/null
succeeded() { for i in 1 2 3 4 5 6; do [ "$(value "job$i" 'job["phase"]')" = Succeeded ] || return 1; done; }
# The last of them is tried again after 1, 2, 4, 8, 16 and 30 seconds, and may meet another one even then.
all_succeeded() { for _ in 1 2 3 4 5; do eventually succeeded && return 0; done; return 1; }
all_succeeded && ok they_run_one_after_the_other || not_ok they_run_one_after_the_other "$(adaptdl ls; tail -n 3 "$tmp/s/daemon.log")"
failures=$(for i in 1 2 3 4 5 6; do value "job$i" 'job["failures"]'; done | sort -u)
[ "$failures" = 0 ] && ok nothing_counts_as_a_failure || not_ok nothing_counts_as_a_failure "$failures"
finish
