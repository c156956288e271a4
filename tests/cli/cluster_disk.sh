#!/usr/bin/env bash
# The state directory on a real, small file system that a job fills: it is told before, new jobs are refused, and
# deleting and stopping still work. And output that would fill it: the oldest of it goes.
. "$(dirname "$0")/cluster.sh"

if ! mkdir -p "$tmp/s" || ! mount -t tmpfs -o size=32m,mode=700 tmpfs "$tmp/s" 2>/dev/null; then
    echo "skip - cluster_disk: a small file system needs root and mount"
    exit 0
fi
unmount() { cluster_clean_most; umount "$tmp/s" 2>/dev/null || umount -l "$tmp/s"; rm -rf "$tmp"; }
cluster_clean_most() { # as cluster_clean, but the directory stays until it is unmounted
    local p
    adaptdl down --jobs leave >/dev/null 2>&1 </dev/null
    for p in $(cluster_processes); do kill -KILL "$p" 2>/dev/null; done
}
trap unmount EXIT
printf 'limits: {maxLogBytes: 262144, reserveBytes: 4194304}\n' >"$tmp/sched.yaml"
state=$tmp/s
disk_state() { adaptdl status -o json 2>/dev/null | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["disk"]["state"])'; }
disk_is() { [ "$(disk_state)" = "$1" ]; }

cluster_start --nodes 1 --slots 2 --config "$tmp/sched.yaml"
held=$(stat -c %b "$state/reserve")
[ "$held" -ge 8192 ] && ok some_of_the_disk_is_held || not_ok some_of_the_disk_is_held "$held blocks"
call status; check room_is_not_worth_a_line 0 '^nodes '
grep -q '^disk' "$tmp/out" && not_ok no_line_while_there_is_room "it says disk" || ok no_line_while_there_is_room

# The scheduler's own log is limited as well: past half of maxLogBytes it goes on in a new one, and one before stays.
long_log() { head -c 140000 /dev/zero | tr '\0' "$1" >>"$state/daemon.log"; echo >>"$state/daemon.log"; }
goes_on() { grep -qa 'goes on from daemon.log.1' "$state/daemon.log"; }
long_log a
eventually goes_on && ok its_own_log_is_made_anew || not_ok its_own_log_is_made_anew "$(ls -l "$state")"
grep -qa ' serves unix:' "$state/daemon.log.1" && grep -qa 'aaaa$' "$state/daemon.log.1" && ok the_log_before_is_whole || not_ok the_log_before_is_whole "$(ls -l "$state")"
[ "$(stat -c %a "$state/daemon.log")" = 600 ] && ok the_new_log_is_its_own || not_ok the_new_log_is_its_own "$(stat -c %A "$state/daemon.log")"
long_log b
second_is_kept() { grep -qa 'bbbb$' "$state/daemon.log.1" 2>/dev/null && goes_on; }
eventually second_is_kept && ok and_once_more || not_ok and_once_more "$(ls -l "$state")"
grep -qa 'goes on from daemon.log.1' "$state/daemon.log.1" && ! grep -qa aaaa "$state"/daemon.log* && ok the_oldest_is_gone || not_ok the_oldest_is_gone "$(ls -l "$state")"
[ "$(cat "$state"/daemon.log* | wc -c)" -le 262144 ] && ok together_they_keep_the_limit || not_ok together_they_keep_the_limit "$(ls -l "$state")"

# Almost full is told before it is full, and nothing is refused yet: 3 MiB are left, the limits are 4 and 1.
metric() { curl -s --unix-socket "$state/adaptdl.sock" http://localhost/metrics | sed -n "s/^$1 //p"; }
fallocate -l $(($(stat -f -c '%a * %S' "$state") - (3 << 20))) "$state/ballast"
eventually disk_is low && ok it_is_seen_to_be_low || not_ok it_is_seen_to_be_low "$(disk_state)"
call status; check status_says_almost_full 0 '^disk +almost full: [1-3] of 32 MiB free$'
[ "$(metric adaptdl_disk_full)" = 0 ] && ok low_is_not_full || not_ok low_is_not_full "$(metric adaptdl_disk_full)"
grep -q ': low, [1-3] MiB free' "$state/daemon.log" && ok and_the_log_has_it || not_ok and_the_log_has_it "$(tail -n 3 "$state/daemon.log")"
job_file early sh -c true
call submit "$tmp/early.yaml"; check jobs_are_taken_when_it_is_low 0
call wait early; check and_they_run_then 0
rm "$state/ballast"
eventually disk_is ok && ok no_longer_low || not_ok no_longer_low "$(disk_state)"
call status; check no_line_again 0 '^nodes '
grep -q '^disk' "$tmp/out" && not_ok status_says_no_more_of_it "it says disk" || ok status_says_no_more_of_it

# Output: 20 MiB of it on a log of 256 KiB, the end of which is all there.
job_file chatty sh -c 'i=0; while [ $i -lt 2000 ]; do printf "%010000d\n" $i; i=$((i+1)); done; echo the-last-line; sleep 600'
call submit "$tmp/chatty.yaml"; check chatty_submitted 0
eventually sh -c "'$bin/adaptdl' logs chatty --no-follow --tail 1 2>/dev/null | grep -q the-last-line" && ok its_last_line_is_there || not_ok its_last_line_is_there "it is not"
log=$(grep -l 'the-last-line' "$state"/jobs/*/logs/1-0.log)
log_is_small() { [ "$(stat -c %b "$log")" -le 1024 ]; }
eventually log_is_small && ok its_log_is_kept_small || not_ok its_log_is_kept_small "$(stat -c '%b blocks' "$log")"
call logs chatty --no-follow; check what_is_left_is_told 0 'was removed: limits.maxLogBytes' '^0+1999$' 'the-last-line'
[ "$(tr -d '\000' <"$tmp/out" | wc -c)" -eq "$(wc -c <"$tmp/out")" ] && ok and_nothing_of_the_hole || not_ok and_nothing_of_the_hole "zeros"
[ "$(wc -c <"$tmp/out")" -le 400000 ] && ok a_log_of_its_size || not_ok a_log_of_its_size "$(wc -c <"$tmp/out")"

# A job that fills the disk and does not let go.
job_file glutton sh -c 'while :; do head -c 100000 /dev/zero >>"$ADAPTDL_SHARE_PATH/fill" 2>/dev/null || sleep 0.2; done'
call submit "$tmp/glutton.yaml"; check glutton_submitted 0
eventually disk_is full && ok it_is_seen_to_be_full || not_ok it_is_seen_to_be_full "$(disk_state)"
call status; check status_says_disk_full 0 '^disk +full: [0-9]+ of 32 MiB free; new jobs are refused'
curl -s --unix-socket "$state/adaptdl.sock" http://localhost/metrics >"$tmp/out"
grep -qx 'adaptdl_disk_full 1' "$tmp/out" && ok metrics_say_so || not_ok metrics_say_so "no adaptdl_disk_full 1"
job_file late sh -c true
call submit "$tmp/late.yaml"
[ "$rc" -ne 0 ] && check new_jobs_are_refused "$rc" 'disk full: .*adaptdl delete'
call delete glutton chatty --wait; check deleting_works_on_a_full_disk 0
eventually disk_is ok && ok there_is_room_again || not_ok there_is_room_again "$(disk_state)"
held=$(stat -c %b "$state/reserve")
[ "$held" -ge 8192 ] && ok the_reserve_is_whole_again || not_ok the_reserve_is_whole_again "$held blocks"
call submit "$tmp/late.yaml"; check new_jobs_are_taken_again 0
call wait late; check and_they_run 0

# Stopping the cluster works as well, with not a byte left.
job_file glutton sh -c 'while :; do head -c 100000 /dev/zero >>"$ADAPTDL_SHARE_PATH/fill" 2>/dev/null || sleep 0.2; done'
call submit "$tmp/glutton.yaml"; check glutton_again 0
eventually disk_is full && ok full_again || not_ok full_again "$(disk_state)"
call down; check down_works_on_a_full_disk 0
[ -z "$(cluster_processes)" ] && ok nothing_is_left || not_ok nothing_is_left "$(cluster_processes)"
finish
