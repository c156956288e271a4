#!/usr/bin/env bash
# What can be wrong around a training program: its environment, its checkpoints, its data and the other
# replicas. Each gets one clear line and the right exit code, and nothing crashes.
set -u
examples=${ADAPTDL_BIN:-build/release/bin}/../examples
tmp=$(mktemp -d)
export OMP_WAIT_POLICY=passive
unset ${!ADAPTDL_*}
failed=0
clean_up() {
    local job
    for job in $(jobs -p); do kill -KILL "$job" 2>/dev/null; done
    rm -rf "$tmp"
}
trap clean_up EXIT

ok() { echo "ok - $1"; }
not_ok() { echo "not ok - $1: $2"; failed=1; }
mnist=(timeout -k 5 120 "$examples/mnist" --examples 200 --epochs 1 --threads 1)
resnet=(timeout -k 5 120 "$examples/cifar10_resnet9" --examples 200 --epochs 1 --threads 1)
# refused NAME PART-OF-THE-LINE COMMAND...: exit 1, and nothing on standard error but that one line
refused() {
    local name=$1 part=$2 rc
    shift 2
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    rc=$?
    if [ "$rc" -ne 1 ]; then not_ok "$name" "exit $rc, wanted 1 ($(tail -n 3 "$tmp/err"))"
    elif [ "$(wc -l <"$tmp/err")" -ne 1 ]; then not_ok "$name" "not one line: $(cat "$tmp/err")"
    elif ! grep -qF -- "$part" "$tmp/err"; then not_ok "$name" "\"$(cat "$tmp/err")\" lacks \"$part\""
    else ok "$name"; fi
}
finishes() { # NAME COMMAND...
    local name=$1
    shift
    "$@" >"$tmp/out" 2>"$tmp/err" </dev/null && ok "$name" || not_ok "$name" "exit $?: $(tail -n 3 "$tmp/err")"
}

# ---- the environment ----
two=(env ADAPTDL_NUM_REPLICAS=2 ADAPTDL_MASTER_ADDR=127.0.0.1)
refused a_rank_beyond_the_replicas 'ADAPTDL_REPLICA_RANK=2: must be below ADAPTDL_NUM_REPLICAS=2' \
    "${two[@]}" ADAPTDL_REPLICA_RANK=2 ADAPTDL_MASTER_PORT=1 "${mnist[@]}"
refused a_negative_rank 'ADAPTDL_REPLICA_RANK=-1: must be from 0' env ADAPTDL_REPLICA_RANK=-1 "${mnist[@]}"
refused a_word_for_a_port 'ADAPTDL_MASTER_PORT=word: not a whole number' env ADAPTDL_MASTER_PORT=word "${mnist[@]}"
refused a_port_beyond_65535 'ADAPTDL_MASTER_PORT=70000: must be from' env ADAPTDL_MASTER_PORT=70000 "${mnist[@]}"
refused two_replicas_without_a_port 'ADAPTDL_MASTER_PORT is not set' "${two[@]}" "${mnist[@]}"
refused no_replicas 'ADAPTDL_NUM_REPLICAS=0: must be from 1' env ADAPTDL_NUM_REPLICAS=0 "${mnist[@]}"
refused a_scheduler_of_another_version 'ADAPTDL_SCHED_VERSION=99.0.0: the scheduler is of major version 99' \
    env ADAPTDL_SCHED_VERSION=99.0.0 "${mnist[@]}"
refused a_supervisor_that_is_no_url 'ADAPTDL_SUPERVISOR_URL=somewhere: must start with' \
    env ADAPTDL_SUPERVISOR_URL=somewhere ADAPTDL_JOB_ID=a/b "${mnist[@]}"
finishes empty_variables_count_as_not_set env ADAPTDL_NUM_REPLICAS= ADAPTDL_CHECKPOINT_PATH= "${mnist[@]}"

# ---- checkpoints ----
: >"$tmp/file"
refused a_checkpoint_path_that_is_a_file "$tmp/file: Not a directory" env ADAPTDL_CHECKPOINT_PATH="$tmp/file" "${mnist[@]}"
refused a_checkpoint_path_below_a_file "$tmp/file/x: Not a directory" env ADAPTDL_CHECKPOINT_PATH="$tmp/file/x" "${mnist[@]}"
refused a_checkpoint_path_that_takes_no_files '/proc: cannot be written' env ADAPTDL_CHECKPOINT_PATH=/proc "${mnist[@]}"
finishes a_checkpoint_is_saved env ADAPTDL_CHECKPOINT_PATH="$tmp/saved" "${mnist[@]}"
refused a_checkpoint_of_another_program 'saved by program "mnist", this is "cifar10_resnet9"' \
    env ADAPTDL_CHECKPOINT_PATH="$tmp/saved" "${resnet[@]}"
flip() { # file: another value for the byte in its middle
    local at byte
    at=$(($(stat -c %s "$1") / 2))
    byte=$(od -An -tu1 -j $at -N 1 "$1")
    printf "\\x$(printf %02x $((byte ^ 255)))" | dd of="$1" bs=1 seek=$at conv=notrunc status=none
}
# A second, newer checkpoint, by training one epoch more; then one file of it at a time is damaged.
finishes a_second_one_is_saved env ADAPTDL_CHECKPOINT_PATH="$tmp/saved" "${mnist[@]}" --epochs 2
checkpoints=("$tmp"/saved/checkpoint-*)
if [ ${#checkpoints[@]} -ne 2 ]; then
    not_ok two_checkpoints_are_kept "there are ${#checkpoints[@]}"
else
    newest=$(ls -dv "${checkpoints[@]}" | tail -n 1)
    for path in "$newest"/*; do
        file=$(basename "$path")
        rm -rf "$tmp/damaged"
        cp -r "$tmp/saved" "$tmp/damaged"
        flip "$tmp/damaged/$(basename "$newest")/$file"
        env ADAPTDL_CHECKPOINT_PATH="$tmp/damaged" "${mnist[@]}" --epochs 2 >"$tmp/out" 2>"$tmp/err" </dev/null
        rc=$?
        [ $rc -eq 0 ] && grep -q "damaged and passed over: .*$(basename "$newest").*$file" "$tmp/err" &&
            grep -q 'resuming from checkpoint-' "$tmp/err" && grep -q 'Train Epoch: 2 ' "$tmp/out" &&
            ok "damage_to_${file}_and_the_one_before_is_used" ||
            not_ok "damage_to_${file}_and_the_one_before_is_used" "exit $rc: $(cat "$tmp/err")"
    done
    for path in "${checkpoints[@]}"; do flip "$path/adaptdl.dp.model.state"; done
    env ADAPTDL_CHECKPOINT_PATH="$tmp/saved" "${mnist[@]}" >"$tmp/out" 2>"$tmp/err" </dev/null
    rc=$?
    [ $rc -eq 1 ] && [ ! -s "$tmp/out" ] && [ "$(grep -c 'passed over: .*adaptdl.dp.model' "$tmp/err")" -eq 2 ] &&
        grep -q 'all 2 checkpoints are damaged' "$tmp/err" && ok all_damaged_is_refused ||
        not_ok all_damaged_is_refused "exit $rc: $(cat "$tmp/err")"
fi

# ---- data ----
be32() { for n in "$@"; do printf "\\x$(printf %02x $((n >> 24)))\\x$(printf %02x $((n >> 16 & 255)))\\x$(printf %02x $((n >> 8 & 255)))\\x$(printf %02x $((n & 255)))"; done; }
mkdir "$tmp/idx" "$tmp/cifar" "$tmp/empty"
for part in train t10k; do
    { be32 2051 20 28 28; head -c $((20 * 784)) /dev/zero; } >"$tmp/idx/$part-images-idx3-ubyte"
    { be32 2049 20; head -c 20 /dev/zero; } >"$tmp/idx/$part-labels-idx1-ubyte"
done
finishes a_small_idx_set_is_read "${mnist[@]}" --data "$tmp/idx"
truncate -s -1 "$tmp/idx/train-images-idx3-ubyte"
refused a_truncated_idx_file "$tmp/idx/train-images-idx3-ubyte" "${mnist[@]}" --data "$tmp/idx"
echo 'this is no IDX file' >"$tmp/idx/train-images-idx3-ubyte"
refused a_text_for_an_idx_file "$tmp/idx/train-images-idx3-ubyte" "${mnist[@]}" --data "$tmp/idx"
refused a_directory_without_data "$tmp/empty/train-images-idx3-ubyte" "${mnist[@]}" --data "$tmp/empty"
for n in data_batch_1 data_batch_2 data_batch_3 data_batch_4 data_batch_5 test_batch; do
    head -c $((3073 * 8)) /dev/zero >"$tmp/cifar/$n.bin"
done
finishes a_small_cifar_set_is_read "${resnet[@]}" --data "$tmp/cifar"
printf '\x0a' | dd of="$tmp/cifar/data_batch_3.bin" bs=1 seek=3073 conv=notrunc status=none
refused a_label_beyond_nine 'data_batch_3.bin: label of record 1 is 10' "${resnet[@]}" --data "$tmp/cifar"
truncate -s 100 "$tmp/cifar/data_batch_3.bin"
refused a_truncated_cifar_file 'data_batch_3.bin: size is 100 bytes' "${resnet[@]}" --data "$tmp/cifar"

# ---- the other replicas ----
free_port() { # one that nobody listens on now; below the range that the kernel hands out
    local port
    for _ in $(seq 100); do
        port=$((10000 + RANDOM % 20000))
        (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null || { echo $port; return; }
    done
}
listening() { # port: waits until somebody listens there; looks without connecting
    local hex
    hex=$(printf ':%04X ' "$1")
    for _ in $(seq 600); do
        grep -q "$hex[0-9A-F]*:0000 0A" /proc/net/tcp /proc/net/tcp6 2>/dev/null && return 0
        sleep 0.1
    done
    return 1
}
member() { # rank, replicas, port, log: in the background
    ADAPTDL_REPLICA_RANK=$1 ADAPTDL_NUM_REPLICAS=$2 ADAPTDL_MASTER_PORT=$3 ADAPTDL_MASTER_ADDR=127.0.0.1 \
        "${mnist[@]}" >"$tmp/$4.out" 2>"$tmp/$4.err" </dev/null &
}

# lonely NAME RANK PATTERN: waits for the other one in vain and says so when it is stopped. On a busy
# machine it may be stopped before it has begun to wait: then it gets more time.
lonely() {
    local seconds
    for seconds in 3 10 40; do
        "${two[@]}" ADAPTDL_REPLICA_RANK="$2" ADAPTDL_MASTER_PORT="$port" timeout --foreground -k 60 $seconds \
            "$examples/mnist" >"$tmp/out" 2>"$tmp/err" </dev/null
        grep -q "$3" "$tmp/err" && { ok "$1"; return; }
    done
    not_ok "$1" "$(cat "$tmp/err")"
}
port=$(free_port)
lonely an_unreachable_master_is_named 1 "^mnist: .*rank 0 at 127.0.0.1:$port: not reached .*Connection refused"
lonely a_missing_replica_is_named 0 '^mnist: .*1 of 2 replicas did not arrive .*: 1$'

port=$(free_port)
member 0 3 "$port" zero; zero=$!
member 1 3 "$port" one; one=$!
member 1 3 "$port" other; other=$!
# One of the two is refused at once; which one is a matter of speed.
wait -n -p loser "$one" "$other"
rc=$?
[ "$loser" = "$one" ] && { refusal=one winner=$other; } || { refusal=other winner=$one; }
[ $rc -eq 1 ] && grep -q "^mnist: rank 0 at 127.0.0.1:$port: refused: rank 1 is taken" "$tmp/$refusal.err" &&
    ok a_second_replica_of_one_rank_is_refused ||
    not_ok a_second_replica_of_one_rank_is_refused "exit $rc: $(cat "$tmp/$refusal.err")"
member 2 3 "$port" two
wait "$zero" && wait "$winner" && wait $! && grep -q 'Test set' "$tmp/zero.out" && ok the_others_are_not_disturbed ||
    not_ok the_others_are_not_disturbed "$(cat "$tmp"/{zero,one,other,two}.err)"

port=$(free_port)
member 0 2 "$port" zero; zero=$!
listening "$port" || not_ok garbage "rank 0 does not listen"
(
    for _ in $(seq 20); do
        exec 3<>"/dev/tcp/127.0.0.1/$port" || break
        head -c $((RANDOM % 3000 + 1)) /dev/urandom >&3
        exec 3>&-
    done
    exec 4<>"/dev/tcp/127.0.0.1/$port" # silent, and open all the time
    printf 'GET / HTTP/1.0\r\n\r\n' >"/dev/tcp/127.0.0.1/$port"
    : >"$tmp/sent"
    exec sleep 60
) 2>/dev/null &
noise=$!
for _ in $(seq 600); do [ -e "$tmp/sent" ] && break; sleep 0.1; done
[ -e "$tmp/sent" ] || not_ok garbage "could not be sent"
member 1 2 "$port" one; one=$!
wait $zero && wait $one && grep -q 'Test set' "$tmp/zero.out" && ok garbage_does_not_keep_a_group_from_forming ||
    not_ok garbage_does_not_keep_a_group_from_forming "$(cat "$tmp/zero.err" "$tmp/one.err")"
kill $noise 2>/dev/null
wait $noise 2>/dev/null
exit $failed
