#!/usr/bin/env bash
# `adaptdl-sched` itself: flags, mistakes, one daemon to a directory, stopping and taking over, new nodes
# by SIGHUP. Asked with curl over its socket.
set -u
bin=${ADAPTDL_BIN:-build/release/bin}
sched=$bin/adaptdl-sched
tmp=$(mktemp -d /tmp/adl-sched-XXXXXX)
state=$tmp/state
failed=0 rc=0

stop() { # a daemon in the background, by its pid file
    local pid
    pid=$(cat "$1/adaptdl-sched.pid" 2>/dev/null) || return 0
    kill "$pid" 2>/dev/null
    for _ in $(seq 1200); do kill -0 "$pid" 2>/dev/null || return 0; sleep 0.05; done
    kill -KILL "$pid" 2>/dev/null
}
clean_up() { stop "$state"; rm -rf "$tmp"; }
trap clean_up EXIT

ok() { echo "ok - $1"; }
not_ok() { echo "not ok - $1: $2"; sed 's/^/# /' "$tmp/log" | tail -n 10; failed=1; }
run() { timeout -k 5 60 "$sched" "$@" >"$tmp/log" 2>&1 </dev/null; rc=$?; }
check() { # NAME WANTED-EXIT PATTERN
    if [ "$rc" -ne "$2" ]; then not_ok "$1" "exit $rc, wanted $2"
    elif ! grep -qE -- "$3" "$tmp/log"; then not_ok "$1" "no line matches \"$3\""
    else ok "$1"; fi
}
get() { curl -s --max-time 10 --unix-socket "$state/adaptdl.sock" "http://localhost/api/v1/$1"; }
submit() { # name, command as a YAML list
    curl -s --max-time 10 --unix-socket "$state/adaptdl.sock" -H 'Content-Type: application/yaml' \
        --data-binary "{apiVersion: adaptdl.petuum.com/v1, kind: AdaptDLJob, metadata: {name: $1},
          spec: {template: {spec: {containers: [{name: main, command: $2}]}}}}" \
        http://localhost/api/v1/jobs >"$tmp/log"
}
until_has() { # path, pattern: asks until the answer has it
    for _ in $(seq 1200); do
        get "$1" >"$tmp/log"
        grep -qE -- "$2" "$tmp/log" && return 0
        sleep 0.05
    done
    return 1
}
replica_of_ours() { # its process: other clusters of this machine may have jobs like it
    local p
    for p in $(pgrep -f "^sh -c trap .exit 143. TERM"); do
        grep -qsz "^ADAPTDL_LOCAL_REPLICA=$state/" "/proc/$p/environ" && echo "$p" && return
    done
}
expect() { if until_has "$2" "$3"; then ok "$1"; else not_ok "$1" "$2 never had \"$3\""; fi; }

run --help; check help 0 '^  --nodes-file FILE'
run --version; check version 0 '^adaptdl-sched [0-9]+\.[0-9]+\.[0-9]+$'
run --print-config --interval 7 --policy fifo; check print_config 0 'intervalSeconds: 7'
run --frobnicate; check unknown_flag 2 'adaptdl-sched: option --frobnicate is unknown'
run --interval soon; check bad_interval 2 '^adaptdl-sched: --interval: .*"soon"'
run --nodes 0; check bad_nodes 2 '^adaptdl-sched: --nodes: .*"0"'
run extra; check extra_argument 2 '"extra" is no option'
run --nodes 2 --nodes-file x; check nodes_twice 2 'cannot be used together'
run --tls-cert x; check half_of_tls 2 'needed together'
run --config "$tmp/none.yaml"; check missing_config 2 'none.yaml'
run --state "$state" --policy best; check unknown_policy 2 'unknown policy "best"'
long=$tmp/$(printf 'x%.0s' $(seq 120))
run --state "$long"; check state_too_long 2 'longer than the 107 bytes'
run --state "$state" --listen 0.0.0.0:0; check public_without_tls 2 'listen: 0.0.0.0:0 .*--insecure'
run --state "$state" --listen '[::]:0'; check public_v6_without_tls 2 'listen: .*--insecure'
timeout 120 "$sched" --state "$tmp/public" --listen 0.0.0.0:0 --insecure >"$tmp/log" 2>&1 &
for _ in $(seq 1200); do grep -q ' serves ' "$tmp/log" && break; sleep 0.05; done
rc=0; check public_when_told_twice 0 'serves .*http://0.0.0.0:'
stop "$tmp/public"
# A state directory that others could have filled, and files of it that are not what they seem.
unsafe() { mkdir -p "$tmp/unsafe"; chmod 700 "$tmp/unsafe"; rm -rf "$tmp/unsafe"/*; }
unsafe; chmod 777 "$tmp/unsafe"
run --state "$tmp/unsafe"; check state_open_to_all 2 "chmod 700 $tmp/unsafe"
for file in adaptdl-sched.pid token jobs.sqlite; do
    unsafe; ln -s "$tmp/elsewhere" "$tmp/unsafe/$file"
    run --state "$tmp/unsafe" --listen 127.0.0.1:0; check "link_for_$file" 2 "$file: "
    if [ -e "$tmp/elsewhere" ]; then not_ok "link_for_${file}_not_followed" "it was"; rm "$tmp/elsewhere"; fi
done
unsafe; ln -s "$tmp/elsewhere" "$tmp/unsafe/daemon.log"
run --state "$tmp/unsafe" --daemonize; check link_for_daemon.log 1 'daemon.log: is a link'
"$bin/adaptdl" up --state "$tmp/unsafe" --nodes 1 >"$tmp/log" 2>&1 </dev/null; rc=$?
check link_for_the_log_of_up 2 'daemon.log: is a link'
unsafe; ln -s "$tmp/elsewhere" "$tmp/unsafe/reserve"
run --state "$tmp/unsafe"; check link_for_reserve 2 'reserve: is a link'
if [ -e "$tmp/elsewhere" ]; then not_ok links_for_files_not_followed "one was"; rm "$tmp/elsewhere"
else ok links_for_files_not_followed; fi
mkdir -m 755 "$tmp/elsewhere"; mkdir "$tmp/elsewhere/theirs"; touch "$tmp/elsewhere/upload-aBcDeF"
for directory in uploads jobs incoming; do # what is left over in some of them is removed
    unsafe; ln -s "$tmp/elsewhere" "$tmp/unsafe/$directory"
    run --state "$tmp/unsafe"; check "link_for_$directory" 2 "$directory: is a link"
    if [ "$(stat -c %a "$tmp/elsewhere") $(ls "$tmp/elsewhere" | tr '\n' ' ')" = "755 theirs upload-aBcDeF " ]; then ok "link_for_${directory}_not_followed"
    else not_ok "link_for_${directory}_not_followed" "$(ls -la "$tmp/elsewhere")"; fi
done
mkdir "$tmp/group"; ln -s "$tmp/group" "$tmp/link"
rc=0; "$bin/adaptdl-keeper" "$tmp/link" 0 "$tmp/replica.log" / 0 0 - - 0 - -- true 3>"$tmp/log" || rc=$?
for _ in $(seq 1200); do [ -s "$tmp/log" ] && break; sleep 0.05; done
check link_for_a_group 0 'link: is a link'
if [ -z "$(ls "$tmp/group")" ]; then ok link_for_a_group_not_followed
else not_ok link_for_a_group_not_followed "$(ls "$tmp/group")"; fi
unsafe; echo 0123456789abcdef0123 >"$tmp/unsafe/token"; chmod 666 "$tmp/unsafe/token"
run --state "$tmp/unsafe" --listen 127.0.0.1:0; check planted_token 2 'token: .*others may write'
if [ "$(id -u)" = 0 ]; then
    unsafe; chown 65534 "$tmp/unsafe"
    run --state "$tmp/unsafe"; check state_of_another_user 2 'belongs to user 65534, .*chown'
    unsafe; chown 0 "$tmp/unsafe"; echo 0123456789abcdef0123 >"$tmp/unsafe/token"; chown 65534 "$tmp/unsafe/token"
    run --state "$tmp/unsafe" --listen 127.0.0.1:0; check token_of_another_user 2 'token: was made by another user'
fi
mkdir -p "$tmp/damaged"; head -c 8192 /dev/urandom >"$tmp/damaged/jobs.sqlite"
cp "$tmp/damaged/jobs.sqlite" "$tmp/copy"
run --state "$tmp/damaged"; check damaged_store 1 'damaged/jobs.sqlite'
if cmp -s "$tmp/copy" "$tmp/damaged/jobs.sqlite"; then ok damaged_store_is_left_alone
else not_ok damaged_store_is_left_alone "it was changed"; fi
run --state "$tmp/damaged" --daemonize; check daemonize_tells_why 1 'damaged/jobs.sqlite'

printf 'nodes:\n- {name: a, resources: {pods: 1}}\n' >"$tmp/nodes.yaml"
run --state "$state" --nodes-file "$tmp/nodes.yaml" --daemonize
check daemonize 0 "^ready unix:$state/adaptdl.sock$"
run --state "$state"; check one_daemon_to_a_directory 1 'in use by another daemon \(process [0-9]+\)'
# A child that a killed daemon was just starting has the lock as well, for a moment: nobody must try again for that.
mkdir -m 700 "$tmp/forked"; sleep 0 & wait $!
(umask 077; echo $! >"$tmp/forked/adaptdl-sched.pid")
(flock 9; touch "$tmp/held"; sleep 1) 9<"$tmp/forked/adaptdl-sched.pid" &
until [ -e "$tmp/held" ]; do sleep 0.01; done
run --state "$tmp/forked" --daemonize; check the_lock_of_a_killed_daemon 0 "^ready unix:$tmp/forked/adaptdl.sock$"
stop "$tmp/forked"
submit one '[sh, -c, "trap \"exit 143\" TERM; while :; do sleep 0.1; done"]'
expect job_runs jobs/default/one '"phase":"Running"'
replica=$(replica_of_ours)
stop "$state"
if [ -n "$replica" ] && kill -0 "$replica" 2>/dev/null; then ok replicas_outlive_the_daemon
else not_ok replicas_outlive_the_daemon "the replica is gone"; fi
touch "$state/uploads/upload-aBcDeF"
run --state "$state" --nodes-file "$tmp/nodes.yaml" --daemonize
if [ -z "$(ls "$state/uploads")" ]; then ok uploads_of_killed_daemons_are_removed
else not_ok uploads_of_killed_daemons_are_removed "$(ls "$state/uploads")"; fi
expect it_is_taken_over jobs/default/one '"phase":"Running".*"readyReplicas":1,"group":1'
submit two '[sleep, "0.2"]'
expect no_room_for_a_second jobs/default/two '"phase":"Pending"'
printf 'nodes:\n- {name: a, resources: {pods: 1}}\n- {name: b, resources: {pods: 1}}\n' >"$tmp/nodes.yaml"
kill -HUP "$(cat "$state/adaptdl-sched.pid")"
expect sighup_reads_nodes nodes '"name":"b","ready":true'
expect a_new_node_is_used jobs/default/two '"phase":"Succeeded"'
printf 'nodes:\n- {name: b, resources: {pods: 1}}\n' >"$tmp/nodes.yaml"
kill -HUP "$(cat "$state/adaptdl-sched.pid")"
expect a_node_that_goes_is_lost nodes '"name":"a","ready":false'
expect its_job_moves jobs/default/one '"phase":"Running".*"allocation":\["b"\]'
printf 'nodes: 7\n' >"$tmp/nodes.yaml"
kill -HUP "$(cat "$state/adaptdl-sched.pid")"
for _ in $(seq 1200); do grep -q 'nodes stay as they are' "$state/daemon.log" && break; sleep 0.05; done
if grep -q 'nodes stay as they are: .*nodes.yaml' "$state/daemon.log"; then ok bad_nodes_are_refused
else not_ok bad_nodes_are_refused "the log does not say so"; fi
curl -s --max-time 10 --unix-socket "$state/adaptdl.sock" -X DELETE http://localhost/api/v1/jobs/default/one >"$tmp/log"
for _ in $(seq 1200); do get jobs >"$tmp/log"; grep -q '"name":"one"' "$tmp/log" || break; sleep 0.05; done
if grep -q '"name":"one"' "$tmp/log"; then not_ok deleted_job_is_gone "it is still there"
else ok deleted_job_is_gone; fi
stop "$state"
if pgrep -f "$state" >"$tmp/log"; then not_ok nothing_is_left "processes are"; else ok nothing_is_left; fi
exit $failed
