#!/usr/bin/env bash
# `adaptdl run --hosts`: replicas on other machines over ssh, each an sshd of this test's own with keys of its own.
# The machines are network namespaces with addresses of their own where that is permitted, else addresses of the
# loopback interface.
set -u
bin=$(cd "${ADAPTDL_BIN:-build/release/bin}" && pwd)
adaptdl=$bin/adaptdl
sshd=$(PATH=$PATH:/usr/sbin command -v sshd) ssh=$(command -v ssh)
skip() { echo "skip - run_hosts: $1"; exit 0; }
[ -n "$sshd" ] && [ -n "$ssh" ] || skip "no sshd or ssh (openssh-server, openssh-client)"
tmp=$(mktemp -d)
tag=adlh$$ namespaces=() pid=
export XDG_RUNTIME_DIR=$tmp
unset ADAPTDL_CHECKPOINT_PATH ADAPTDL_MASTER_ADDR OMP_NUM_THREADS
failed=0
clean_up() {
    [ -n "$pid" ] && kill -KILL "$pid" 2>/dev/null
    for file in "$tmp"/sshd-*.pid; do [ -e "$file" ] && kill "$(cat "$file")" 2>/dev/null; done
    for ns in "${namespaces[@]}"; do ip netns del "$ns" 2>/dev/null; done
    rm -rf "$tmp"
}
trap clean_up EXIT

ok() { echo "ok - $1"; }
bad() { echo "not ok - $1: $2"; sed 's/^/# /' "$tmp/err" | tail -n 10; failed=1; }
want() { if [ "$2" = "$3" ]; then ok "$1"; else bad "$1" "got \"$3\", wanted \"$2\""; fi; }
has() { if [[ "$3" == *"$2"* ]]; then ok "$1"; else bad "$1" "\"$3\" lacks \"$2\""; fi; }
wait_for() { # FILE TEXT [COUNT]
    for _ in $(seq 1200); do
        [ "$(grep -c -- "$2" "$1" 2>/dev/null)" -ge "${3:-1}" ] && return 0
        sleep 0.1
    done
    return 1
}
gone() { # PID...: until none of them runs
    for _ in $(seq 1200); do kill -0 "$@" 2>/dev/null || return 0; sleep 0.1; done
    return 1
}

# ---- two machines ----
network() { # the launcher's namespace is the third
    [ "$(id -u)" -eq 0 ] && command -v ip >/dev/null || return 1
    for i in hub 0 1 2; do ip netns add "$tag-$i" || return 1; namespaces+=("$tag-$i"); done
    ip -n "$tag-hub" link add bridge type bridge && ip -n "$tag-hub" link set bridge up || return 1
    for i in 0 1 2; do
        ip -n "$tag-hub" link add "port$i" type veth peer name eth0 netns "$tag-$i" || return 1
        ip -n "$tag-hub" link set "port$i" master bridge up && ip -n "$tag-$i" link set eth0 up || return 1
        ip -n "$tag-$i" addr add "10.98.0.$((i + 1))/24" dev eth0 && ip -n "$tag-$i" link set lo up || return 1
    done
}
if network 2>"$tmp/why"; then
    a=10.98.0.1 b=10.98.0.2 here=(ip netns exec "$tag-2")
    echo "info - machines: network namespaces"
else
    for ns in "${namespaces[@]}"; do ip netns del "$ns" 2>/dev/null; done
    namespaces=() a=127.0.0.1 b=127.0.0.2 here=()
    echo "info - machines: addresses of the loopback interface ($(head -n 1 "$tmp/why"))"
fi
ssh-keygen -q -t ed25519 -N '' -f "$tmp/host" && ssh-keygen -q -t ed25519 -N '' -f "$tmp/user" || skip "ssh-keygen fails"
[ "$(id -u)" -ne 0 ] || mkdir -p /run/sshd # Debian's sshd wants it
for i in 0 1; do
    port=
    [ $i = 0 ] && address=$a || address=$b
    for try in $(seq 20); do # a free port: the same on both
        [ $i = 1 ] && port=$(cat "$tmp/port") || port=$((20000 + (RANDOM * 7 + $$ + try) % 12000))
        cat >"$tmp/sshd-$i" <<END
ListenAddress $address:$port
HostKey $tmp/host
AuthorizedKeysFile $tmp/user.pub
PidFile $tmp/sshd-$i.pid
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin yes
LogLevel ERROR
END
        in=()
        [ ${#namespaces[@]} -gt 0 ] && in=(ip netns exec "$tag-$i")
        "${in[@]}" "$sshd" -f "$tmp/sshd-$i" -E "$tmp/sshd-$i.log" && break
    done
    echo "$port" >"$tmp/port"
    wait_for "$tmp/sshd-$i.pid" '' || skip "sshd does not start: $(tail -n 1 "$tmp/sshd-$i.log")"
done
reach="ssh -F /dev/null -p $port -i $tmp/user -o IdentitiesOnly=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=$tmp/known -o LogLevel=ERROR"
${here[@]+"${here[@]}"} $reach -o BatchMode=yes "$a" true 2>"$tmp/err" </dev/null || skip "ssh to an sshd of our own: $(tail -n 1 "$tmp/err")"

run=(${here[@]+"${here[@]}"} "$adaptdl" run --ssh "$reach")
call() { timeout -k 5 300 "${run[@]}" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null; rc=$?; out=$(cat "$tmp/out") err=$(cat "$tmp/err"); }

# ---- environment, output, ends ----
cd "$tmp" || exit 1
show='echo "$ADAPTDL_REPLICA_RANK/$ADAPTDL_NUM_REPLICAS/$ADAPTDL_NUM_NODES/$ADAPTDL_LOCAL_RANK $ADAPTDL_MASTER_ADDR $(echo $SSH_CONNECTION | cut -d" " -f3) $PWD ${#ADAPTDL_JOB_SECRET} $ADAPTDL_CHECKPOINT_PATH"; echo "aside" >&2; [ "$OMP_NUM_THREADS" -ge 1 ]'
ADAPTDL_TOKEN=hidden call -q --hosts "$a,$b" -n 3 --checkpoint ck -- sh -c "$show; [ -z \"\$ADAPTDL_TOKEN\" ]"
want environment_exit 0 "$rc"
want environment "[0] 0/3/2/0 $a $a $tmp 32 ck
[1] 1/3/2/1 $a $a $tmp 32 ck
[2] 2/3/2/0 $a $b $tmp 32 ck" "$(sort "$tmp/out")"
want standard_error_stays_apart "3" "$(grep -c '^\[[012]\] aside$' "$tmp/err")"
call --hosts "$a,$b" -- sh -c 'exit $((ADAPTDL_REPLICA_RANK * 7))'
want exit_code_of_the_failed 7 "$rc"
has which_failed_and_where "replica 1 on $b exited with 7" "$err"
call --hosts "$a,$b" -- sh -c '[ $ADAPTDL_REPLICA_RANK = 0 ] && kill -9 $$; exec sleep 600'
want killed_replica 137 "$rc"
has how_it_died "replica 0 on $a was killed by signal 9 (Killed)" "$err"
call --hosts "$a,$b" -- sh -c 'exit 147' # 128 and a signal that stops: nobody would ever continue it
want exit_code_that_looks_like_a_stop 147 "$rc"
call --hosts "$a,$b" -- "$tmp/no-such-program"
want missing_program 127 "$rc"
has missing_program_text "$tmp/no-such-program: No such file or directory" "$err"
call --hosts "$a,$b" --max-restarts 1 -- sh -c 'echo "restart $ADAPTDL_NUM_RESTARTS"; [ $ADAPTDL_NUM_RESTARTS = 1 ]'
want restarted_after_a_failure 0 "$rc"

# ---- mistakes ----
for wrong in "--hosts , true" "--hosts a,,b true" "--hosts -oProxyCommand=x true" "--hosts $a,$a true" "--hosts a;b true" "--hosts localhost,elsewhere true"; do
    # shellcheck disable=SC2086
    call $wrong
    if [ $rc -eq 2 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ]; then ok "usage: $wrong"; else bad "usage: $wrong" "exit $rc, $err"; fi
done
"$adaptdl" run --ssh ssh -- true 2>"$tmp/err"
want ssh_needs_hosts 2 $?
"$adaptdl" run --ssh "$tmp/no-ssh" --hosts "$a,$b" -- true 2>"$tmp/err"
want no_ssh 2 $?
has no_ssh_text "there is no program \"$tmp/no-ssh\"" "$(cat "$tmp/err")"
mkdir here-only && cd here-only && rm -rf ../here-only
call --hosts "$a,$b" -- true
want a_directory_that_is_gone_is_an_error 1 "$((rc != 0))"
cd "$tmp" || exit 1

# ---- stopping: nothing stays behind ----
polite='trap "echo asked; exit 143" TERM; echo "pid $$ of $ADAPTDL_NUM_REPLICAS"; while :; do sleep 0.1; done'
begin() { "${run[@]}" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null & pid=$!; }
begin --hosts "$a,$b" --name elsewhere --checkpoint ck -- sh -c "$polite"
wait_for "$tmp/out" 'of 2' 2
"$adaptdl" scale elsewhere 3 >"$tmp/scaled" 2>&1
has scale "from 2 to 3 replicas" "$(cat "$tmp/scaled")"
wait_for "$tmp/out" 'of 3' 3 && ok scaled_over_ssh || bad scaled_over_ssh "$(cat "$tmp/out")"
want asked_before_the_new_size 2 "$(grep -c asked "$tmp/out")"
kill -TERM $pid
wait $pid
want stopped_as_asked 143 $?
want all_were_asked 5 "$(grep -c asked "$tmp/out")"
begin --hosts "$a,$b" -- sh -c 'trap "" TERM; echo "pid $$"; while :; do sleep 0.1; done'
wait_for "$tmp/out" pid 2
kill -KILL $pid
wait $pid 2>/dev/null
# shellcheck disable=SC2046
gone $(sed 's/.*pid //' "$tmp/out") && ok no_orphans_when_the_launcher_is_killed || bad no_orphans_when_the_launcher_is_killed "they run"
begin --hosts "$a,$b" --grace 1 -- sh -c 'trap "" TERM; echo "pid $$"; while :; do sleep 0.1; done'
wait_for "$tmp/out" pid 2
kill -TERM $pid
wait $pid
# shellcheck disable=SC2046
gone $(sed 's/.*pid //' "$tmp/out") && ok those_that_do_not_leave_are_killed || bad those_that_do_not_leave_are_killed "they run"
begin --hosts "$a,$b" -- sh -c 'echo "pid $$"; exec sleep 600'
wait_for "$tmp/out" pid 2
# shellcheck disable=SC2046
kill -KILL $(pgrep -P "$(cat "$tmp/sshd-1.pid")") # the server's end of the connection to the second machine
wait $pid
want lost_connection 255 $?
has lost_connection_text "replica 1 on $b: the connection failed or was lost" "$(cat "$tmp/err")"
# shellcheck disable=SC2046
gone $(sed 's/.*pid //' "$tmp/out") && ok no_orphans_when_the_connection_is_lost || bad no_orphans_when_the_connection_is_lost "they run"
pid=

# ---- training ----
train=("$bin/../examples/mnist" --examples 300 --threads 1 --epochs 1)
call --hosts "$a,$b" -- "${train[@]}"
want training_across_machines 0 "$rc"
across=$(sed -n 's/^\[0\] \(Test set.*\)/\1/p' "$tmp/out")
"$adaptdl" run -n 2 -- "${train[@]}" >"$tmp/out" 2>"$tmp/err" </dev/null
want the_same_result_as_on_one "$(sed -n 's/^\[0\] \(Test set.*\)/\1/p' "$tmp/out")" "$across"
[ -n "$across" ] && ok there_is_a_result || bad there_is_a_result "none"
exit $failed
