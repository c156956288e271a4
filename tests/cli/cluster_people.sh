#!/usr/bin/env bash
# What people tripped over: jobs that cannot run, narrow terminals, messages of several lines, logs of many starts.
. "$(dirname "$0")/cluster.sh"
py() { /usr/bin/python3 "$@"; }
echo "historySeconds: 0.1" >"$tmp/config.yaml"
cluster_start --nodes 2 --slots 4 --interval 2 --config "$tmp/config.yaml"

# ---- where things are ----
token=$(cat "$tmp/s/token")
grep -qE "^dashboard  http://127.0.0.1:[0-9]+/#token=$token\$" "$tmp/up" && ok up_prints_the_dashboard || not_ok up_prints_the_dashboard "$(cat "$tmp/up")"
call up --nodes 7; check a_second_up_explains 6 "^cluster of 2 nodes with 8 slots, policy rank" "^dashboard  http://.*#token=$token\$" \
    'a cluster is running already \(socket .*\); stop it with: adaptdl down; the options that were given change nothing'
call status; check status_of_a_cluster 0 '^cluster of 2 nodes with 8 slots' "^socket +$tmp/s/adaptdl.sock" "^dashboard +http://.*#token=$token\$" \
    '^nodes +2 ready; 0 slots in use' '^jobs +none' '^rounds +0, the next in ' '^version +[0-9.]+, up for 0:'
call status -o json; [ $rc -eq 0 ] && py -m json.tool <"$tmp/out" >/dev/null && ok status_as_json || not_ok status_as_json "exit $rc"
call dashboard; check dashboard_prints_its_address 0 "^http://127.0.0.1:[0-9]+/#token=$token\$"
page=$(sed 's/#.*//' "$tmp/out")
curl -sf -m 60 -H "Authorization: Bearer $token" "$page" | grep -qi '<html' && ok it_is_the_page || not_ok it_is_the_page "$page"
printf '#!/bin/sh\necho "$1" >"%s"\n' "$tmp/opened" >"$tmp/browser" && chmod +x "$tmp/browser"
BROWSER=$tmp/browser call dashboard --open
[ $rc -eq 0 ] && cmp -s "$tmp/out" "$tmp/opened" && ok dashboard_opens_it || not_ok dashboard_opens_it "exit $rc"
BROWSER=$tmp/none call dashboard --open; check no_browser 1 'none: .*; open the address in a browser yourself'
ADAPTDL_TOKEN=$token call dashboard --server "${page%/}"; check dashboard_of_a_server 0 "^http://127.0.0.1:[0-9]+/?#token=$token\$"

# ---- what was meant ----
call sumbit; check a_mistyped_command 2 'unknown command "sumbit"; did you mean adaptdl submit\?'
call subm; check the_beginning_of_a_command 2 'unknown command "subm"; did you mean adaptdl submit\?'
call ls --all-namespace-s; check a_mistyped_option 2 'option --all-namespace-s is unknown; did you mean --all-namespaces\?'
call ls --phase; check an_option_without_its_value 2 'option --phase lacks its value'
call ls --all-namespaces=5; check an_option_with_a_value 2 'option --all-namespaces takes no value'
call qwertyuiop; check nothing_like_it 2 'unknown command "qwertyuiop" \(see'
call; check bare_adaptdl_prints_its_help 0 '^Usage: adaptdl COMMAND' '^  submit '

# ---- hopeless failures ----
hopeless() { # NAME JOB PATTERN: fails at its first start, and its message says why
    limit_s=120 call submit --wait "$tmp/$2.yaml"; check "$1" 1 "job default/$2 failed: .*; not tried again: $3"
    [ "$(adaptdl describe "$2" | sed -n 's/^History *//p')" = "0 restarts, 1 failures" ] || not_ok "$1" "was tried again"
}
job_file typo trian --epochs 3
hopeless a_program_that_is_not_there_is_not_tried_again typo 'the program cannot be run'
job_file shell sh -c 'trian --epochs 3'
hopeless nor_one_that_a_shell_does_not_find shell 'the program was not found'
job_file import python3 -c 'import no_such_module'
hopeless nor_a_module_that_is_not_there import 'an import failed'
job_file syntax python3 -c 'print('
hopeless nor_a_program_that_is_not_valid syntax 'the program is not valid Python'
job_file script python3 /no/such/train.py
hopeless nor_a_script_that_is_not_there script 'the program was not found'
job_file same python3 -c 'print("begin"); raise ValueError("always")'
limit_s=120 call submit --follow -n same "$tmp/same.yaml"
check the_same_traceback_twice_is_the_end 1 'failed: .*not tried again: it failed with the same traceback before'
[ "$(grep -c '^begin' "$tmp/out")" -eq 2 ] && ok it_was_tried_twice || not_ok it_was_tried_twice "not so"
grep -q Traceback "$tmp/err" && not_ok what_was_followed_is_not_shown_again "it is" || ok what_was_followed_is_not_shown_again
call wait same; check messages_have_their_lines 1 '^adaptdl wait: job default/same failed' '^    Traceback' '^    ValueError: always'
[ "$(cat "$tmp/out" "$tmp/err" | grep -c Traceback)" -eq 1 ] && ok a_traceback_is_shown_once || not_ok a_traceback_is_shown_once "not so"
[ "$(adaptdl describe same | grep -c Traceback)" -eq 1 ] && ok also_when_described || not_ok also_when_described "not so"
call describe smae; check a_mistyped_job 4 'no job default/smae; did you mean same\?'
call describe scr; check the_beginning_of_a_job 4 'no job default/scr; did you mean script\?'
call wait typpo; check a_mistyped_job_to_wait_for 4 'did you mean typo\?'
call ls -o wide; check a_message_in_a_table_is_one_line 0 '^same +Failed .*same traceback before$'

# ---- logs of many starts ----
job_file often sh -c 'echo "start $ADAPTDL_NUM_RESTARTS"; [ "$ADAPTDL_NUM_RESTARTS" -ge 2 ] || exit 3'
call submit --wait "$tmp/often.yaml"; check a_job_that_is_tried_again 0
call logs --no-follow often; expect logs_of_every_start 0 <<'END'
---- start 1 of 3 ----
start 0
---- start 2 of 3 ----
start 1
---- start 3 of 3 ----
start 2
END
call logs often; expect followed_without_lines_between 0 <<'END'
start 0
start 1
start 2
END
call logs --no-follow --all-ranks --group 2 often; expect logs_of_one_start 0 <<<'[0] start 1'
call logs --rank 9 often; check a_rank_that_never_was 4 'had no rank 9 in any of its 3 starts'
call logs --rank 9 --no-follow often; check also_without_following 4 'had no rank 9'

# ---- narrow terminals ----
job_file a-job-with-quite-a-long-name-of-its-own sh -c 'trap "exit 143" TERM; echo up; while :; do sleep 0.2; done'
call submit "$tmp/a-job-with-quite-a-long-name-of-its-own.yaml"
call wait --for Running --timeout 60 a-job-with-quite-a-long-name-of-its-own; check a_long_name 0
call logs --rank 9 a-job-with-quite-a-long-name-of-its-own; check a_rank_it_does_not_have 4 'has 1 replica, and so no rank 9'
for width in 40 60 80; do
    at $width ls; fits "ls_fits_$width" $width
    grep -qE '^a-[a-z-]*\.\.\.[a-z-]*n +Running' "$tmp/out" || [ $width -eq 80 ] || not_ok "ls_names_$width" "not shortened in the middle"
    at $width top --once; fits "top_fits_$width" $width
    grep -qE '^A a-.* Running +1 ' "$tmp/out" || not_ok "top_shows_$width" "not the job's status"
done
at 80 ls; check ls_of_80_has_all_columns 0 '^Name +Status +Start\(UTC\) +Runtime +Rplc +Rtrt$' ' Running .* 1 +0$'
at 40 ls -o wide; check wide_is_not_shortened 0 '^a-job-with-quite-a-long-name-of-its-own +Running '
at 40 top --once; check top_of_40 0 'Status +Rplc +Done' 'slots in use$' 'Failed [0-9]+$'

# ---- letters ----
# Two live pictures: the job that is first in one is over in the next; the other keeps its letter.
job_file second sh -c 'trap "exit 143" TERM; while :; do sleep 0.2; done'
call submit "$tmp/second.yaml"; call wait --for Running --timeout 60 second; check a_second_job 0
py - "$bin/adaptdl" <<'END' >"$tmp/out" 2>"$tmp/err"
import fcntl, os, pty, re, select, struct, subprocess, sys, termios, time
program = sys.argv[1]
pid, fd = pty.fork()
if pid == 0:
    os.environ["TERM"] = "dumb"
    os.execvp(program, [program, "top", "--interval", "0.3"])
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
data = ""
def until(pattern):
    global data
    end = time.time() + 60
    while not re.search(pattern, data):
        assert time.time() < end, "no " + pattern
        if select.select([fd], [], [], 0.2)[0]:
            data += os.read(fd, 65536).decode()
until(r"B second +Running")
subprocess.run([program, "delete", "--wait", "a-job-with-quite-a-long-name-of-its-own"], check=True, stdout=2)
data = ""
until(r"1 of 8 slots in use")
until(r"[A-Z] second +Running")
print(re.search(r"([A-Z]) second +Running", data).group(1))
os.write(fd, b"q")
os.waitpid(pid, 0)
END
[ "$(cat "$tmp/out")" = B ] && ok a_job_keeps_its_letter || not_ok a_job_keeps_its_letter "$(cat "$tmp/out")"

# ---- repeated reports ----
cat >"$tmp/report.py" <<'END'
import os, signal, sys, time, urllib.parse, urllib.request
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
url = urllib.parse.urlsplit(os.environ["ADAPTDL_SUPERVISOR_URL"])
place = f"http://{url.hostname}:{url.port}/hints/{os.environ['ADAPTDL_JOB_ID']}"
for report in sys.argv[1:] or ['{"initBatchSize": %d}' % size for size in range(1, 6)]:
    request = urllib.request.Request(place, report.encode(), method="PUT")
    request.add_header("Authorization", "Bearer " + url.password)
    urllib.request.urlopen(request).read()
    time.sleep(0.2)
print("reported", flush=True)
while True:
    time.sleep(0.2)
END
job_file reports python3 "$tmp/report.py"
call submit "$tmp/reports.yaml"
reported() { adaptdl logs --no-follow reports 2>/dev/null | grep -q reported; }
eventually reported || not_ok reports_come "$(adaptdl logs --no-follow reports 2>&1)"
[ "$(adaptdl events --job reports | grep -c JobTrain)" -ge 2 ] || not_ok several_reports "not so"
call describe reports; check reports_are_folded 0 '  batch size .* \(the last of [2-5] reports\)$'
[ "$(grep -c 'batch size' "$tmp/out")" -eq 1 ] && ok into_one_line || not_ok into_one_line "not so"
grep -q '^Speed' "$tmp/out" && not_ok no_speed_without_a_measurement "$(grep '^Speed' "$tmp/out")" || ok no_speed_without_a_measurement

# ---- what a job gains by its replicas ----
job_file measured python3 "$tmp/report.py" '{"initBatchSize":64,"maxBatchSize":1024,"localBszBounds":[16,64],"maxProfiledReplicas":1,
"gradientAccumulation":true,"gradParams":{"norm":1.0,"var":100.0},"perfParams":{"alpha_c":0.1,"beta_c":0.01,"alpha_n":0.01,
"beta_n":0.001,"alpha_r":0.01,"beta_r":0.001,"gamma":1.5}}'
call submit "$tmp/measured.yaml"
gains() { call explain measured; grep -qE '  speedup ([2-9]|1\.0?[1-9])' "$tmp/out"; }
eventually gains; check explain_says_over_what 0 '^round .*  speedup [1-9][0-9]*\.[0-9][0-9] over one replica with the initial batch( |$)'

# ---- no dashboard, and nodes of an earlier cluster ----
call delete --all --wait; check delete_everything 0
call down; check down_to_start_another 0
call status; check no_status_without_a_cluster 5 'no cluster is running'
call up --nodes 1 --listen none; check up_says_that_there_is_no_dashboard 0 '^dashboard  none: the scheduler listens on no TCP port'
call dashboard; check no_dashboard 1 'listens on no TCP port; adaptdl up --listen'
only_node_0() { [ "$(adaptdl nodes -o name 2>/dev/null)" = node-0 ]; }
eventually only_node_0 && ok nodes_of_an_earlier_cluster_go_away || not_ok nodes_of_an_earlier_cluster_go_away "$(adaptdl nodes)"
finish
