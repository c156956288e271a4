#!/usr/bin/env bash
# `adaptdl run` as the one who opens worlds: its members here train nothing, they say the lines of
# src/train/opener.h that this test tells them to, in orders that real ones reach only now and then.
set -u
bin=${ADAPTDL_BIN:-build/release/bin}
adaptdl=$bin/adaptdl
tmp=$(mktemp -d)
export XDG_RUNTIME_DIR=$tmp
run=
trap '[ -z "$run" ] || kill -KILL "$run" 2>/dev/null; rm -rf "$tmp"' EXIT
failed=0

ok() { echo "ok - $1"; }
bad() { echo "not ok - $1: $2"; sed 's/^/# /' "$dir/err" "$dir"/heard.* | tail -n 40; failed=1; }
want() { if [ "$2" = "$3" ]; then ok "$1"; else bad "$1" "got \"$3\", wanted \"$2\""; fi; }
# wait_for FILE PATTERN: until the file has such a line; at most 90 s
wait_for() {
    for _ in $(seq 1800); do
        grep -qE -- "$2" "$1" 2>/dev/null && return 0
        sleep 0.05
    done
    return 1
}
# gone PID: until it does not run; at most 90 s
gone() {
    for _ in $(seq 1800); do
        kill -0 "$1" 2>/dev/null || return 0
        sleep 0.05
    done
    return 1
}

cat >"$tmp/member" <<'PY'
#!/usr/bin/env python3
"""Says what comes through DIR/say.MEMBER; "exit N" and "hang up" are for itself. DIR/heard.MEMBER has what it hears."""
import os, socket, sys, threading
directory, member = sys.argv[1], os.environ["ADAPTDL_MEMBER"]
link = socket.socket(socket.AF_UNIX)
link.connect(os.environ["ADAPTDL_WORLD_SOCKET"])
link.sendall(b"member %s\n" % member.encode())
heard = open("%s/heard.%s" % (directory, member), "w", buffering=1)
os.mkfifo("%s/say.%s" % (directory, member))
words = os.fdopen(os.open("%s/say.%s" % (directory, member), os.O_RDWR))
heard.write("pid %d\n" % os.getpid())
threading.Thread(target=lambda: [heard.write(line) for line in link.makefile()], daemon=True).start()
for line in words:
    if line.startswith("exit "):
        os._exit(int(line[5:]))
    elif line == "hang up\n":
        link.shutdown(socket.SHUT_RDWR)
        heard.write("hung up\n")
    else:
        link.sendall(line.encode())
PY
chmod +x "$tmp/member"

# begin NAME ARGUMENTS...: a run of that name
begin() {
    name=$1 dir=$tmp/$1
    mkdir "$dir"
    shift
    "$adaptdl" run -v --name "$name" "$@" -- "$tmp/member" "$dir" >"$dir/out" 2>"$dir/err" &
    run=$!
}
pid_of() { wait_for "$dir/heard.$1" "^pid" && sed -n 's/^pid //p' "$dir/heard.$1"; }
say() { pid_of "$1" >"$tmp/pid" && timeout 60 sh -c 'echo "$1" >"$2"' - "${*:2}" "$dir/say.$1"; }
say_all() { for one in $1; do say "$one" "${@:2}"; done; }
# world NAME MEMBER GENERATION MEMBERS: it is offered that one
world() {
    if wait_for "$dir/heard.$2" "^world $3 1 127.0.0.1 [0-9]+ $4\$"; then ok "$1"; else bad "$1" "no world $3 of $4"; fi
}
state() { "$adaptdl" scale "$name" 2>&1; }
scale() { "$adaptdl" scale "$name" "$1" >"$tmp/scaled" 2>&1; }
# able MEMBERS: they can be resized, and the run knows it
able() {
    say_all "$1" able
    for _ in $(seq 1800); do
        scale "$2" && return
        sleep 0.05
    done
}
finish() { # NAME RESTARTS CODE
    wait "$run"
    want "$1" "$3 $2" "$? $(grep -c ': restart [0-9]' "$dir/err")"
    run=
}

# ---- a death while a smaller world is on offer: who takes the old offer for the new one is gone, like the dead ----
begin shrink -n 3
able "0 1 2" 2
world smaller_world_is_offered 2 1 "0 1"
kill -KILL "$(pid_of 1)"
wait_for "$dir/heard.0" "^drop 1"
say_all "2 0" lost 0 5 1
world survivors_are_offered_a_world 0 2 "0 2"
say 2 exit 143
world and_one_without_who_left_early 0 3 0
say 0 entered 3
say 0 exit 0
finish a_death_in_a_shrink_does_not_stop_the_job 0 0

# ---- a world without the dead that does not form ----
begin unformed -n 3
say_all "0 1 2" able
kill -KILL "$(pid_of 2)"
say_all "0 1" lost 0 5 2
world world_without_the_dead 0 1 "0 1"
say 1 unformed 1
world another_when_it_does_not_form 0 2 "0 1"
say_all "0 1" entered 2
say_all "0 1" exit 0
finish unformed_is_mended 0 0

# ---- a grown world that breaks before all have joined: who has not joined is still a new one ----
begin grow -n 1
able 0 3
say_all "1 2" ready
world grown_world_is_offered 0 1 "0 1 2"
say 0 entered 1
kill -KILL "$(pid_of 2)"
wait_for "$dir/err" "before it had joined"
say 0 lost 1 5 2
world not_joined_is_not_waited_for 0 2 0
say 0 entered 2
say 3 ready
world and_joins_the_next 1 3 "0 1 3"
say_all "0 1 3" entered 3
say_all "0 1 3" exit 0
finish a_grown_world_that_breaks 0 0

# ---- one that has left has nothing to say any more ----
begin out -n 3
able "0 1 2" 2
world leaving_is_offered 2 1 "0 1"
left=$(pid_of 2)
say_all "0 1" entered 1
wait_for "$dir/err" "world 1: 2 replicas"
say 2 lost 0 5 -1
gone "$left" && ok who_waits_for_nothing_is_ended || bad who_waits_for_nothing_is_ended "it runs"
scale 3
say 3 ready
world the_others_are_not_broken 0 2 "0 1 3"
say_all "0 1 3" entered 2
say_all "0 1 3" exit 0
finish lost_by_one_that_left 0 0

# ---- a connection that ends before the process does ----
begin hangup -n 2 --max-restarts 5
able "0 1" 3
killed=$(pid_of 1)
say 1 hang up
wait_for "$dir/heard.1" "hung up"
state >"$dir/state"
state >>"$dir/state"
want a_hang_up_is_no_reason_to_restart 2 "$(grep -c running "$dir/state")"
kill -KILL "$killed"
say 0 lost 0 5 1
world and_its_death_is_survived 0 1 0
say 0 entered 1

# ---- nothing of a generation lives on into the next ----
new=$(pid_of 2)
say 0 exit 3
pid_of 4 >"$tmp/pid"
kill -0 "$new" 2>/dev/null && bad old_generation_is_gone "$new runs" || ok old_generation_is_gone
kill -TERM "$run"
wait "$run" 2>/dev/null
run=
exit $failed
