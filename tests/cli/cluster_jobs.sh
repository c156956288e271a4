#!/usr/bin/env bash
# The cluster's commands on real jobs: submit in all forms, wait, logs, cp, explain, drain, outputs for
# scripts, and mistakes.
. "$(dirname "$0")/cluster.sh"
py() { /usr/bin/python3 "$@"; }
cluster_start --nodes 2 --slots 2 --interval 2
call up; check a_second_up_is_refused 6 'a cluster is running already .*; stop it with: adaptdl down'

# ---- submit ----
job_file quick sh -c 'echo "one line"; echo "$0 $1" >&2; echo x > "$ADAPTDL_SHARE_PATH/x"'
call submit "$tmp/quick.yaml"; expect submit_prints_the_name 0 <<<quick
call wait --timeout 50 quick; check wait_until_it_has_succeeded 0
call submit "$tmp/quick.yaml"; check a_name_is_used_once 6 'quick'
call submit --dry-run -n other "$tmp/quick.yaml"; expect dry_run 0 <<<other
call describe other; check dry_run_creates_nothing 4
adaptdl submit -f - -n piped >"$tmp/out" 2>"$tmp/err" <"$tmp/quick.yaml"; rc=$?
expect a_job_file_on_standard_input 0 <<<piped
adaptdl submit --dry-run -n piped2 - >"$tmp/out" 2>"$tmp/err" <"$tmp/quick.yaml"; rc=$?
expect standard_input_as_the_file 0 <<<piped2
call submit --dry-run -n alone -f "$tmp/quick.yaml"; expect a_job_file_without_a_directory 0 <<<alone
call submit -f "$tmp/none.yaml"; check a_job_file_that_is_not_there 2 "$tmp/none.yaml: No such file"
echo 'kind: [' | adaptdl submit -f - >"$tmp/out" 2>"$tmp/err"; rc=$?
check mistakes_on_standard_input 2 '^adaptdl submit: -:|standard input'
mkdir "$tmp/with" && echo x >"$tmp/with/data"
adaptdl submit --dry-run -n with -f - "$tmp/with" >"$tmp/out" 2>"$tmp/err" <"$tmp/quick.yaml"; rc=$?
check standard_input_and_a_directory 0 '^with$'
call submit --dry-run -n other --jobfile "$tmp/quick.yaml" --proxy-port 5000 "$tmp/with"
check options_of_the_original 0 '^other$' 'note: --proxy-port does nothing'
call submit --dry-run --proxy-port 0 "$tmp/quick.yaml"; check a_bad_proxy_port 2 'proxy-port 0: must be'

call submit --follow -n loud "$tmp/quick.yaml" -- first second
expect follow_shows_the_output 0 <<'EOF'
loud
one line
first second
EOF
job_spec='{"maxRetries": 0}'
job_file bad sh -c 'echo "this is why"; exit 3'
job_spec={}
call submit --wait "$tmp/bad.yaml"; check a_failure_is_exit_1 1 'job default/bad failed: '
call wait bad; check wait_for_a_failed_job 1 'job default/bad failed: '
call submit -N team -n there "$tmp/quick.yaml"; check another_namespace 0 there
call wait -N team there; check wait_in_a_namespace 0
call wait team/there; check a_name_with_its_namespace 0
call ls -A -o name; check all_namespaces 0 '^team/there$' '^default/quick$'
call delete team/there --wait; check delete_in_a_namespace 0 'team/there deleted'

# ---- directories and Dockerfiles ----
mkdir -p "$tmp/dir/data"
job_file dir- sh show.sh
mv "$tmp/dir.yaml" "$tmp/dir/adaptdljob.yaml"
printf 'cat data/in.txt\npwd | sed "s,.*/source,,"\necho "$GREETING"\n' >"$tmp/dir/show.sh"
echo "from the directory" >"$tmp/dir/data/in.txt"
echo secret >"$tmp/dir/secret"
echo secret >"$tmp/dir/.dockerignore"
call submit --follow "$tmp/dir"
expect without_a_dockerfile_it_is_the_workspace 0 <<'EOF'
dir-XXXXX
from the directory
/workspace

EOF
printf 'FROM x\nWORKDIR /app\nENV GREETING="good day"\nCOPY show.sh ./\nCOPY data data\n' >"$tmp/dir/Dockerfile"
call submit --follow "$tmp/dir"
expect with_a_dockerfile 0 <<'EOF'
dir-XXXXX
from the directory
/app
good day
adaptdl submit: note: TMP/dir/Dockerfile: FROM ignored: a local cluster uses what is installed on this machine
EOF
printf 'FROM x\nCOPY none /x\n' >"$tmp/dir/Dockerfile"
call submit "$tmp/dir"; check a_bad_dockerfile 2 'dir/Dockerfile:2: "none": no such file in the directory'
printf 'FROM x\nCOPY secret /x\n' >"$tmp/dir/Dockerfile"
call submit "$tmp/dir"; check an_ignored_file 2 'Dockerfile:2: .*dockerignore'
call submit "$tmp/dir" -d "$tmp/none"; check a_missing_dockerfile 2 '-d .*none: No such file'
call submit "$tmp/dir" -f none.yaml; check a_missing_job_file 2 '-f none.yaml: No such file'
mkdir "$tmp/empty"
call submit "$tmp/empty"; check a_directory_without_a_job 2 'adaptdljob.yaml: no such file; adaptdl init writes one, -f names another'
call submit "$tmp/none"; check a_missing_directory 2 'none: No such file'
call submit; check submit_nothing 2 'which directory or job file'
call submit -n Not_A_Name "$tmp/quick.yaml"; check a_bad_name 2 'a name consists of a-z'
call submit --checkpoint-storage-size lots "$tmp/quick.yaml"; check a_bad_size 2 'expected a size such as 1Gi'
call submit --dry-run -n s --checkpoint-storage-size 1Gi "$tmp/quick.yaml"; check a_size_is_noted 0 'do nothing on a local cluster'

# ---- bad job files: file, line, field ----
bad_file() { # NAME PATTERN, the file on standard input
    cat >"$tmp/broken.yaml"
    call submit "$tmp/broken.yaml"
    check "$1" 2 "$2"
    [ "$(wc -l <"$tmp/err")" -eq 1 ] || not_ok "$1" "not one line"
}
bad_file not_yaml 'broken.yaml:2: ' <<'EOF'
a: [1,
  b: }
EOF
bad_file an_unknown_field 'broken.yaml:4: .*minReplica' <<'EOF'
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {name: x}
spec: {minReplica: 1, template: {spec: {containers: [{name: main, command: [x]}]}}}
EOF
bad_file a_number_for_a_command 'broken.yaml:10: spec.template.spec.containers\[0\].command' <<'EOF'
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata:
  name: x
spec:
  template:
    spec:
      containers:
      - name: main
        command: 5
EOF
bad_file no_command_at_all 'broken.yaml: the container has no command' <<'EOF'
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {name: x}
spec: {template: {spec: {containers: [{name: main}]}}}
EOF
bad_file a_bad_name_in_the_file 'broken.yaml:3: metadata.name' <<'EOF'
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {name: "../../etc"}
spec: {template: {spec: {containers: [{name: main, command: [x]}]}}}
EOF
head -c 3000000 /dev/zero | tr '\0' '#' >"$tmp/broken.yaml"
call submit "$tmp/broken.yaml"; check a_huge_file 2 'larger than the limit'

# ---- logs over restarts ----
job_file twice sh -c 'echo "start $ADAPTDL_NUM_RESTARTS"; if [ ! -e "$ADAPTDL_SHARE_PATH/go" ]; then exec sleep 1000; fi; echo end'
call submit "$tmp/twice.yaml"
adaptdl logs twice >"$tmp/followed" 2>&1 </dev/null &
follower=$!
eventually grep -q 'start 0' "$tmp/followed"
node=$(adaptdl describe twice | sed -n 's/^Nodes *//p')
for share in "$tmp"/s/jobs/*/share; do touch "$share/go"; done
call drain --wait "$node"; check drain 0 "$node drained"
wait $follower; rc=$?
printf 'start 0\nstart 1\nend\n' | cmp -s - "$tmp/followed" && [ $rc -eq 0 ] && ok logs_follow_over_a_restart ||
    { cp "$tmp/followed" "$tmp/out"; not_ok logs_follow_over_a_restart "exit $rc"; }
call nodes; check a_drained_node_is_shown 0 "^$node  Draining  2 "
call undrain "$node"; check undrain 0 "$node undrained"
call drain node-9; check drain_of_no_node 4 'node-9'
call drain '../x'; check drain_of_a_bad_name 2 'a name consists of'
call logs --group 1 twice; expect logs_of_the_first_group 0 <<<'start 0'
call logs --group 2 --tail 1 twice; expect logs_of_the_second_group_tail 0 <<<end
call logs --no-follow --tail 9 twice; expect logs_of_the_newest_group 0 <<<'start 1
end'
call logs --rank 7 --no-follow twice; check logs_of_no_rank 4
call ls; check restarts_are_counted 0 '^twice +Succeeded +.* 1$'

# ---- all ranks ----
job_spec='{"minReplicas": 2}'
job_file wide sh -c 'echo "rank $ADAPTDL_REPLICA_RANK of $ADAPTDL_NUM_REPLICAS"'
job_spec={}
call submit --wait "$tmp/wide.yaml"; check two_replicas 0
call logs --all-ranks wide
sort -o "$tmp/out" "$tmp/out"
expect logs_of_all_ranks 0 <<'EOF'
[0] rank 0 of 2
[1] rank 1 of 2
EOF

# ---- cp ----
job_file files sh -c 'cd "$ADAPTDL_SHARE_PATH" && mkdir -p d/e "sp ace" && echo 1 >d/one && echo 2 >d/e/two && echo "ä" >"sp ace/ü&?#%" && ln -s /etc/passwd link && ln -s / d/root && head -c 3000000 /dev/zero >big'
call submit --wait "$tmp/files.yaml"; check a_job_with_files 0
mkdir "$tmp/to"
call cp files:/adaptdl/share/d "$tmp/to"; check cp_a_directory_but_not_its_links 1 "/adaptdl/share/d/root: leads out"
[ "$(cat "$tmp/to/d/one" "$tmp/to/d/e/two")" = "1
2" ] && [ ! -e "$tmp/to/d/root/etc" ] && ok cp_copies_the_tree || not_ok cp_copies_the_tree "$(find "$tmp/to")"
call cp files:/adaptdl/share/d "$tmp/to/other"; [ $rc -eq 1 ] && [ "$(cat "$tmp/to/other/one")" = 1 ] && ok cp_under_another_name || not_ok cp_under_another_name "exit $rc"
job_file odd sh -c 'mkdir "$ADAPTDL_SHARE_PATH/odd" && cd "$ADAPTDL_SHARE_PATH/odd" && printf 1 >"a b" && printf 2 >z && printf 3 >"$(printf "bad\\377")" && printf 4 >"$(printf "li\\nne")" && mkdir "$(printf "d\\001")"'
call submit --wait "$tmp/odd.yaml"; call cp odd:/adaptdl/share/odd "$tmp/to"
check cp_tells_which_names_it_cannot_write 1 'odd/bad. is left out: its name is not UTF-8' 'odd/li' 'ne is left out' 'odd/d. is left out'
[ "$(cat "$tmp/to/odd/a b")$(cat "$tmp/to/odd/z")$(ls "$tmp/to/odd" | wc -l)" = 122 ] && ok and_copies_the_others || not_ok and_copies_the_others "$(ls "$tmp/to/odd")"
call cp files:/adaptdl/share/big "$tmp/to/big"; [ "$(stat -c %s "$tmp/to/big")" = 3000000 ] && ok cp_a_large_file || not_ok cp_a_large_file "exit $rc"
call cp 'files:/adaptdl/share/sp ace/ü&?#%' -; expect cp_to_standard_output_with_an_odd_name 0 <<<ä
call cp files:/adaptdl/share/d -; check cp_a_directory_to_standard_output 2 'is a directory'
call cp files:/adaptdl/share/none "$tmp/to/none"; check cp_of_no_file 4
[ -z "$(find "$tmp/to" -name '.adaptdl*' -o -name none)" ] && ok cp_leaves_nothing_behind || not_ok cp_leaves_nothing_behind "$(ls -A "$tmp/to")"
call cp files:/adaptdl/share/../../../etc/passwd "$tmp/to/p"; check cp_traversal 2 '".." is not allowed'
call cp files:/etc/passwd "$tmp/to/p"; check cp_from_elsewhere 2 'must be below /adaptdl/share or'
call cp files:/adaptdl/shared "$tmp/to/p"; check cp_from_beside 2 'must be below'
call cp files:/adaptdl/share/link "$tmp/to/p"
[ $rc -ne 0 ] && [ ! -e "$tmp/to/p" ] && ok cp_follows_no_link || not_ok cp_follows_no_link "exit $rc"
ln -s "$tmp/victim" "$tmp/to/trap"
mkdir "$tmp/victim" "$tmp/to/d2"
ln -s "$tmp/victim" "$tmp/to/d2/e"
cp -P "$tmp/to/d2/e" "$tmp/to/d/e2" && rm -rf "$tmp/to/d/e" && mv "$tmp/to/d/e2" "$tmp/to/d/e"
call cp files:/adaptdl/share/d "$tmp/to"
[ $rc -eq 2 ] && [ -z "$(ls "$tmp/victim")" ] && ok cp_writes_through_no_link || not_ok cp_writes_through_no_link "exit $rc"
call cp files "$tmp/to"; check cp_without_a_path 2 'expected JOB:'
call cp "$tmp/to/big" files:/adaptdl/share/x; check cp_the_other_way 2

# ---- explain, events, outputs for scripts ----
job_file long sh -c 'exec sleep 1000'
call submit "$tmp/long.yaml"
call wait --for Running --timeout 50 long; check wait_for_running 0
limit_s=300 adaptdl events -f --job long >"$tmp/events" 2>&1 </dev/null & # both until the end of this script
events=$!
limit_s=300 adaptdl wait --for Deleted long >"$tmp/waited" 2>&1 </dev/null &
waiter=$!
call wait --timeout 0.3 long; check wait_gives_up 3 'the time is up'
call wait nobody; check wait_for_nobody 4 'no job default/nobody'
explained() { call explain long; grep -q '^round ' "$tmp/out"; }
eventually explained; check explain 0 '^round [0-9]+  [0-9:]+  .*node-' '^    [a-z0-9]'
[ "$(adaptdl explain -n 1 long | grep -c '^round')" -eq 1 ] && ok explain_the_last || not_ok explain_the_last "not one"
call events --job long; check events_of_a_job 0 '^[0-9:]+  JobCreated .*default/long .*submitted'
grep -q default/quick "$tmp/out" && not_ok events_of_others "shown"
for command in ls "describe long" nodes events "explain long"; do
    name=${command%% *}
    call $command -o json; [ $rc -eq 0 ] && py -m json.tool <"$tmp/out" >/dev/null && ok "${name}_json" || not_ok "${name}_json" "exit $rc"
    cp "$tmp/out" "$tmp/json"
    call $command -o yaml
    [ $rc -eq 0 ] && py -c 'import sys,json,yaml
a = json.load(open(sys.argv[1])); b = yaml.safe_load(open(sys.argv[2]))
strip = lambda v: {k: strip(x) for k, x in v.items() if k not in ("now", "deviceSeconds")} if isinstance(v, dict) else [strip(x) for x in v] if isinstance(v, list) else v
keys = lambda v: sorted(v) if isinstance(v, dict) else v
assert type(a) is type(b) and keys(a) == keys(b), (keys(a), keys(b))' "$tmp/json" "$tmp/out" 2>"$tmp/err" && ok "${name}_yaml" || not_ok "${name}_yaml" "exit $rc"
done
call ls -o name --phase Running; expect names_of_running_jobs 0 <<<long
call ls -o wide; check ls_wide 0 '^Name +Status .* Batch .*Message$' '^bad +Failed .*'
call nodes -o wide; check nodes_wide 0 'default/long x1'
call top --once; check top_once 0 '^adaptdl [0-9.]+ +policy rank' '1 of 4 slots in use' '^node-[01] \[A \.\]$' '^A long +Running +1 '
COLUMNS=30 adaptdl top --once >"$tmp/out" 2>&1 </dev/null
[ "$(wc -L <"$tmp/out")" -le 30 ] && ok top_fits_the_width || not_ok top_fits_the_width "$(wc -L <"$tmp/out") columns"
grep -q $'\e' "$tmp/out" && not_ok no_colours_in_files "escape sequences" || ok no_colours_in_files

# ---- a terminal ----
pty() { # KEYS COMMAND...: runs it on a terminal of 100 x 30, types the keys after a while
    py - "$@" <<'EOF' >"$tmp/out" 2>"$tmp/err"
import fcntl, os, pty, select, struct, sys, termios, time
keys, command = sys.argv[1], sys.argv[2:]
pid, fd = pty.fork()
if pid == 0:
    os.environ["TERM"] = "xterm"
    os.execvp(command[0], command)
fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
data, typed, end = b"", False, time.time() + 40
while time.time() < end:
    if select.select([fd], [], [], 0.2)[0]:
        try:
            piece = os.read(fd, 65536)
        except OSError:
            break
        if not piece:
            break
        data += piece
    if not typed and keys and b"long" in data and b"\x1b[30;1H" in data:
        fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 12, 40, 0, 0))
        if b"\x1b[12;1H" in data:  # drawn again in the new size
            os.write(fd, keys.encode())
            typed = True
else:
    os.kill(pid, 9)
sys.stdout.buffer.write(data)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
EOF
    rc=$?
}
for key in q $'\x03'; do
    pty "$key" "$bin/adaptdl" top --interval 0.3
    name=top_quits_on_q; [ "$key" = q ] || name=top_quits_on_ctrl_c
    py - "$tmp/out" <<'EOF' && [ $rc -eq 0 ] && ok $name || not_ok $name "exit $rc"
import sys
data = open(sys.argv[1], "rb").read()
assert data.startswith(b"\x1b[?1049h\x1b[?25l") and b"long" in data and b"\x1b[32m" in data
small = data[data.index(b"\x1b[30;1H"):]
assert b"\x1b[12;1H" in small
assert data.rstrip().endswith(b"\x1b[0m\x1b[?25h\x1b[?1049l"), data[-60:]
EOF
done
job_file nasty sh -c 'printf "\033]0;title\007 \033[31mred\033[0m \302\233 ok\n"'
call submit --wait "$tmp/nasty.yaml"
pty '' "$bin/adaptdl" logs nasty
tr -d '\r' <"$tmp/out" >"$tmp/clean"
[ "$(cat -v "$tmp/clean")" = '?]0;title? ^[[31mred^[[0m ? ok' ] && ok logs_are_harmless_on_a_terminal || not_ok logs_are_harmless_on_a_terminal "$(cat -v "$tmp/clean")"
call logs nasty; [ "$(cat -v "$tmp/out")" = '^[]0;title^G ^[[31mred^[[0m M-BM-^[ ok' ] && ok logs_in_a_file_are_as_they_are || not_ok logs_in_a_file_are_as_they_are "$(cat -v "$tmp/out")"
pty '' "$bin/adaptdl" ls; grep -q $'\e\[32mRunning' "$tmp/out" && ok colours_on_a_terminal || not_ok colours_on_a_terminal "none"
NO_COLOR=1 pty '' "$bin/adaptdl" ls; grep -q $'\e' "$tmp/out" && not_ok no_color_is_honoured "colours" || ok no_color_is_honoured

# ---- tensorboard ----
call tensorboard list; expect no_tensorboards 0 </dev/null
call submit --tensorboard board -n tb "$tmp/quick.yaml"; check a_tensorboard_that_is_not_there 4 'create it with: adaptdl tensorboard create board'
call tensorboard create board; check tensorboard_create 0 'board created'
call tensorboard create board; check tensorboard_create_twice 6 'of that name already'
call tensorboard create ../x; check tensorboard_bad_name 2 'a name consists of'
call tensorboard list; expect tensorboard_list 0 <<<board
job_file tb sh -c 'mkdir -p "$ADAPTDL_TENSORBOARD_LOGDIR/$ADAPTDL_JOB_ID" && echo "$ADAPTDL_TENSORBOARD_LOGDIR"'
call submit --follow --tensorboard board "$tmp/tb.yaml"; check submit_with_a_tensorboard 0 "^$tmp/s/tensorboard/board\$"
[ -d "$tmp/s/tensorboard/board/default/tb" ] && ok the_job_writes_there || not_ok the_job_writes_there "no directory"
if PATH=$bin:/usr/bin:/bin command -v tensorboard >/dev/null; then
    echo "skip - tensorboard_is_not_installed: it is"
else
    call tensorboard proxy board -p 8080; check tensorboard_is_not_installed 1 'Proxying to TensorBoard instance board at http://localhost:8080' 'install it with'
fi
call tensorboard delete board; check tensorboard_delete 0 'board deleted'
[ ! -e "$tmp/s/tensorboard/board" ] && ok its_files_are_gone || not_ok its_files_are_gone "still there"
call tensorboard delete board; check tensorboard_delete_again 4

# ---- completion of names ----
source <(adaptdl completion bash)
COMP_WORDS=(adaptdl logs lo) COMP_CWORD=2; _adaptdl "$bin/adaptdl"
[ "${COMPREPLY[*]}" = "loud long" ] || [ "${COMPREPLY[*]}" = "long loud" ] && ok names_of_jobs_are_completed || not_ok names_of_jobs_are_completed "${COMPREPLY[*]}"
COMP_WORDS=(adaptdl drain "") COMP_CWORD=2; _adaptdl "$bin/adaptdl"
[ "${COMPREPLY[*]}" = "node-0 node-1" ] && ok names_of_nodes_are_completed || not_ok names_of_nodes_are_completed "${COMPREPLY[*]}"

# ---- a decision on a desk ----
call explain --save "$tmp/round.json" long; check a_round_is_saved 0 'sim --snapshot'
call sim --snapshot "$tmp/round.json"; check it_is_decided_again 0 '^default/long ' 'the same decision as then'
call sim --snapshot "$tmp/round.json" --json -; check as_json_too 0 '"name":"default/long"'
call sim --snapshot "$tmp/round.json" --policy fifo; check by_another_policy 0 '^default/long '
call sim --snapshot "$tmp/round.json" --set hep=2; check with_another_constant 0 '^default/long '
sed 's/"version":1/"version":9/' "$tmp/round.json" >"$tmp/later.json"
call sim --snapshot "$tmp/later.json"; check a_later_version_is_refused 2 'of version 9'
sed 's/"reason":"[a-z]*"/"reason":"moved"/' "$tmp/round.json" >"$tmp/other.json"
call sim --snapshot "$tmp/other.json"; check another_decision_is_told 1 'not what was decided then'
call sim --snapshot "$tmp/none.json"; check no_such_snapshot 2 'none.json'
call sim --snapshot "$tmp/round.json" x.csv; check a_snapshot_goes_alone 2 'goes without'

# ---- down and up again ----
call down; check down_stops_the_jobs 0 '^stopped$'
[ -z "$(cluster_processes)" ] && ok no_process_is_left || not_ok no_process_is_left "$(cluster_processes)"
call up --nodes 2 --slots 2 --interval 2; check up_again 0 'cluster of 2 nodes with 4 slots'
call nodes; check nodes_are_in_use_again 0 '^node-0  Ready ' '^node-1  Ready '
call wait --for Running --timeout 50 long; check the_job_goes_on 0
call ls; check the_jobs_are_all_there 0 '^long +Running .* [1-9]$' '^quick +Succeeded ' '^bad +Failed '
restarts=$(sed -n 's/^long .* //p' "$tmp/out")
call down --jobs leave; check down_leaves_the_jobs 0
[ -n "$(cluster_processes)" ] && ok the_replica_goes_on || not_ok the_replica_goes_on "it is gone"
call up --nodes 2 --slots 2 --interval 2; check up_a_third_time 0
call ls; check the_job_was_not_disturbed 0 "^long +Running .* $restarts\$"
call delete --wait long nobody quick; check delete_some 4 'default/long deleted' 'default/quick deleted' 'nobody'
wait $waiter; [ $? -eq 0 ] && ok wait_survived_the_restarts || not_ok wait_survived_the_restarts "$(cat "$tmp/waited")"
eventually grep -q JobDeleted "$tmp/events" && ok events_survived_the_restarts || not_ok events_survived_the_restarts "$(tail -n 3 "$tmp/events")"
kill $events 2>/dev/null
call delete --all --wait; check delete_all 0
call ls; expect nothing_is_left 0 <<'EOF'
Name                                                             Status     Start(UTC)    Runtime  Rplc  Rtrt
EOF
[ -z "$(ls "$tmp/s/jobs" 2>/dev/null)" ] && ok no_job_directory_is_left || not_ok no_job_directory_is_left "$(ls "$tmp/s/jobs")"
finish
