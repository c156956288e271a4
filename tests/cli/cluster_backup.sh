#!/usr/bin/env bash
# The scheduler's database: copied while in use, brought back, refused when it is gone beside the jobs' files, and
# saved when it is removed under the running scheduler.
set -u
bin=${ADAPTDL_BIN:-build/release/bin}
tmp=$(mktemp -d /tmp/adl-backup-XXXXXX)
export ADAPTDL_STATE=$tmp/state
failed=0

clean_up() { "$bin/adaptdl" down >/dev/null 2>&1; rm -rf "$tmp"; }
trap clean_up EXIT
ok() { echo "ok - $1"; }
not_ok() { echo "not ok - $1: $2"; sed 's/^/# /' "$tmp/log" | tail -n 10; failed=1; }
check() { # NAME WANTED-EXIT PATTERN COMMAND...
    local name=$1 wanted=$2 pattern=$3 rc
    shift 3
    timeout -k 5 60 "$@" >"$tmp/log" 2>&1 </dev/null
    rc=$?
    if [ $rc -ne "$wanted" ]; then not_ok "$name" "exit $rc, wanted $wanted"
    elif ! grep -qE -- "$pattern" "$tmp/log"; then not_ok "$name" "no line matches \"$pattern\""
    else ok "$name"; fi
}
submit() { # name
    cat >"$tmp/$1.yaml" <<EOF
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {name: $1}
spec: {template: {spec: {containers: [{name: main, command: [sh, -c, "echo done"]}]}}}
EOF
    "$bin/adaptdl" submit "$tmp/$1.yaml" >"$tmp/log" 2>&1 && "$bin/adaptdl" wait "$1" >"$tmp/log" 2>&1
}
adl=$bin/adaptdl

check nothing_to_save 4 'jobs.sqlite: No such file' "$adl" backup "$tmp/none.sqlite"
check up 0 '' "$adl" up --nodes 1 --slots 1
if submit first; then ok submit; else not_ok submit "the job did not succeed"; fi
check backup_in_use 0 'a.sqlite: the jobs of' "$adl" backup "$tmp/a.sqlite"
check backup_exists 1 'exists already' "$adl" backup "$tmp/a.sqlite"
mkdir "$tmp/real"; ln -s real "$tmp/linked"
check backup_through_a_link 0 'b.sqlite: the jobs of' "$adl" backup "$tmp/linked/b.sqlite"
check backup_forced 0 '' "$adl" backup -f "$tmp/a.sqlite"
check restore_in_use 6 'stop it first' "$adl" restore "$tmp/a.sqlite"
if submit second; then ok submit_second; else not_ok submit_second "the job did not succeed"; fi
check down 0 '' "$adl" down
head -c 5000 /dev/urandom >"$tmp/noise.sqlite"
check restore_noise 1 'noise.sqlite: ' "$adl" restore "$tmp/noise.sqlite"
sqlite3 "$tmp/foreign.sqlite" 'CREATE TABLE t(x)'
check restore_foreign 1 "not a scheduler's" "$adl" restore "$tmp/foreign.sqlite"
check restore_missing 4 'No such file' "$adl" restore "$tmp/none.sqlite"
check restore 0 'restored from' "$adl" restore "$tmp/a.sqlite"
check up_again 0 '' "$adl" up
check first_is_back 0 '"first"' "$adl" ls -o json
check second_is_not 4 '' "$adl" describe second
check down_again 0 '' "$adl" down

# Gone beside the jobs' files.
mv "$ADAPTDL_STATE/jobs.sqlite" "$tmp/kept.sqlite"
check gone 1 'jobs.sqlite: missing or empty, but .* restore' "$bin/adaptdl-sched"
: >"$ADAPTDL_STATE/jobs.sqlite"
check empty 1 'jobs.sqlite: missing or empty, but .* restore' "$bin/adaptdl-sched"
check bring_back 0 '' "$adl" restore "$tmp/kept.sqlite"

# Removed under the scheduler.
"$bin/adaptdl-sched" >"$tmp/sched.log" 2>&1 </dev/null &
sched=$!
for _ in $(seq 1200); do "$adl" ls >/dev/null 2>&1 && break; sleep 0.05; done
rm "$ADAPTDL_STATE/jobs.sqlite"
wait $sched
rc=$?
cp "$tmp/sched.log" "$tmp/log"
if [ $rc -ne 0 ] && grep -q 'removed under the scheduler' "$tmp/sched.log"; then ok removal_is_noticed
else not_ok removal_is_noticed "exit $rc"; fi
check rescued 0 'restored' "$adl" restore "$ADAPTDL_STATE/jobs.sqlite.rescued"
check up_after_rescue 0 '' "$adl" up
check nothing_is_lost 0 '"first"' "$adl" ls -o json
exit $failed
