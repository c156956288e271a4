#!/usr/bin/env bash
# Replicas on different "machines": network namespaces joined by a bridge, each with an address of its
# own, and where it matters a boot id or a /dev/shm of its own. Checks the ring across them, shared memory
# within machines and rings between them, the choice of transport, a replica that is killed, and a cable
# that is pulled. Needs root and iproute2.
set -u
bin=${ADAPTDL_BIN:-build/release/bin}
helper=$(dirname "$bin")/helpers/helper_allreduce
tag=adl$$
names=(ring_across_machines shared_memory_on_one_machine both_when_a_boot_id_differs
    no_shared_memory_between_machines tcp_when_dev_shm_is_not_shared
    killed_on_another_machine pulled_cable several_replicas_on_each_machine uneven_machines
    other_machines_without_shared_memory killed_among_several pulled_cable_of_several)
skip() { for name in "${names[@]}"; do echo "skip - $name: $1"; done; exit 0; }
command -v ip >/dev/null || skip "no ip command (iproute2)"
[ "$(id -u)" -eq 0 ] || skip "network namespaces need root"
[ -x "$helper" ] || skip "no $helper"
ip netns add "$tag-hub" 2>/dev/null || skip "ip netns add is not permitted here"
tmp=$(mktemp -d)
failed=0

clean() {
    for pid in $(jobs -p); do kill -9 "$pid" 2>/dev/null; done
    for ns in hub 0 1 2; do ip netns del "$tag-$ns" 2>/dev/null; done
    rm -rf "$tmp"
}
trap clean EXIT

# The bridge has a namespace of its own, so that nothing outside is touched.
build() {
    ip -n "$tag-hub" link add bridge type bridge || return 1
    ip -n "$tag-hub" link set bridge up
    for i in 0 1 2; do
        ip netns add "$tag-$i" || return 1
        ip -n "$tag-hub" link add "port$i" type veth peer name eth0 netns "$tag-$i" || return 1
        ip -n "$tag-hub" link set "port$i" master bridge up
        ip -n "$tag-$i" addr add "10.99.0.$((i + 1))/24" dev eth0
        ip -n "$tag-$i" link set eth0 up
        ip -n "$tag-$i" link set lo up
    done
}
build 2>"$tmp/why" || skip "cannot build the network: $(head -n 1 "$tmp/why")"

# start PORT ROUNDS TRANSPORT [COMMAND]: three replicas; their process ids in pids, their output in
# $tmp/0 ...; the command runs first in replica 2's namespaces (ip netns exec makes mounts private).
start() {
    pids=()
    for i in 0 1 2; do
        : >"$tmp/$i"
        local first=:
        [ "$i" -eq 2 ] && first=${4:-:}
        ip netns exec "$tag-$i" sh -c "$first; exec timeout -s KILL 120 $helper $i 3 10.99.0.1 $1 $2 $3" \
            >"$tmp/$i" 2>&1 &
        pids+=($!)
    done
}
running() { # until all three have done a round
    for _ in $(seq 600); do
        [ "$(cat "$tmp"/[012] | grep -c '^running ')" -eq 3 ] && return 0
        sleep 0.1
    done
    return 1
}
result() { # NAME CONDITION-STATUS
    if [ "$2" -eq 0 ]; then
        echo "ok - $1"
    else
        echo "not ok - $1: $(tail -q -n 1 "$tmp"/[012] | tr '\n' '|')"; failed=1
    fi
}

all() { wait "${pids[@]}"; [ "$(cat "$tmp"/[012] | grep -c "$1")" -eq 3 ]; } # all printed this

start 47001 40 tcp
all '^done tcp 40$'
result ring_across_machines $?

echo 01234567-89ab-cdef-0123-456789abcdef >"$tmp/boot_id"
other_boot="mount --bind $tmp/boot_id /proc/sys/kernel/random/boot_id"
start 47004 8 auto
all '^done shm 8$'
result shared_memory_on_one_machine $?
start 47005 8 auto "$other_boot"
all '^done tiers 8$'
result both_when_a_boot_id_differs $?
start 47006 8 shm "$other_boot"
all '^failed reducer: reducer: no shared memory: rank 0 is on .*, rank 2 on '
result no_shared_memory_between_machines $?
start 47007 8 auto "mount -t tmpfs tmpfs /dev/shm"
all '^done tcp 8$'
result tcp_when_dev_shm_is_not_shared $?

start 47002 0 tcp
running
kill -KILL "$(sed -n 's/^running //p' "$tmp/1")"
wait "${pids[@]}" 2>/dev/null
grep -q 'rank 1 died' "$tmp/0" && grep -q 'rank 1 died' "$tmp/2"
result killed_on_another_machine $?

start 47003 0 tcp
running
ip -n "$tag-hub" link set port2 down
wait "${pids[@]}"
grep -q 'rank 2 died: .*silent' "$tmp/0" && grep -q 'rank 2 died: .*silent' "$tmp/1" &&
    grep -q 'rank 0 died: .*silent' "$tmp/2"
result pulled_cable $?

# begin PORT ROUNDS PLACES [COMMAND]: a replica for each digit of PLACES, on the machine of that number;
# every machine has a boot id of its own. The command runs first on machine 1.
begin() {
    pids=()
    rm -f "$tmp"/[0-6]
    places=$3
    for ((r = 0; r < ${#places}; r++)); do
        : >"$tmp/$r"
        local at=${places:r:1} first=:
        [ "$at" -eq 1 ] && first=${4:-:}
        echo "0000000$at-89ab-cdef-0123-456789abcdef" >"$tmp/boot_id$at"
        ip netns exec "$tag-$at" sh -c "mount --bind $tmp/boot_id$at /proc/sys/kernel/random/boot_id; $first
            exec timeout -s KILL 120 $helper $r ${#places} 10.99.0.1 $1 $2 auto" >"$tmp/$r" 2>&1 &
        pids+=($!)
    done
}
count() { cat "$tmp"/[0-6] 2>/dev/null | grep -c "$1"; }
everyone() { wait "${pids[@]}"; [ "$(count "$1")" -eq ${#places} ]; }
all_run() {
    for _ in $(seq 600); do
        [ "$(count '^running ')" -eq ${#places} ] && return 0
        sleep 0.1
    done
    return 1
}
report() { # as result, for all of them
    if [ "$2" -eq 0 ]; then
        echo "ok - $1"
    else
        echo "not ok - $1: $(tail -q -n 1 "$tmp"/[0-6] | tr '\n' '|')"; failed=1
    fi
}

ip -n "$tag-hub" link set port2 up
begin 47011 12 001122
everyone '^done tiers 12$'
report several_replicas_on_each_machine $?
begin 47012 12 0211012
everyone '^done tiers 12$'
report uneven_machines $?
begin 47013 8 00011 "mount -t tmpfs tmpfs /dev/shm"
everyone '^done tcp 8$'
report other_machines_without_shared_memory $?

begin 47014 0 00111
all_run
kill -KILL "$(sed -n 's/^running //p' "$tmp/4")" # one that carries nothing
wait "${pids[@]}" 2>/dev/null
[ "$(count 'rank 4 died')" -eq 4 ]
report killed_among_several $?

begin 47015 0 0011
all_run
ip -n "$tag-hub" link set port1 down
wait "${pids[@]}" 2>/dev/null
grep -q 'died: .*silent' "$tmp/0" && grep -q 'died: .*silent' "$tmp/1" &&
    grep -q 'rank 0 died: .*silent' "$tmp/2" && grep -q 'rank 0 died: .*silent' "$tmp/3"
report pulled_cable_of_several $?
exit $failed
