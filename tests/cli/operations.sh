#!/usr/bin/env bash
# The backup of docs/operations.md: a state directory that was archived between down and up, lost and restored, has
# its jobs, their files and their history.
. "$(dirname "$0")/cluster.sh"
cat >"$tmp/job.yaml" <<'END'
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {name: kept}
spec: {template: {spec: {containers: [{name: main, command: [sh, -c, 'echo $$ >>"$ADAPTDL_SHARE_PATH/starts"; exec sleep 600']}]}}}
END
call up --nodes 1 --slots 1 --interval 1
check a_cluster_is_up 0 .
call submit "$tmp/job.yaml"
started() { adaptdl cp kept:/adaptdl/share/starts "$tmp/starts" >/dev/null 2>&1 && [ "$(wc -l <"$tmp/starts")" -eq "$1" ]; }
wait_started() { eventually started "$1"; }
if wait_started 1; then ok the_job_runs; else not_ok the_job_runs "it did not start"; fi
call down
check down 0
tar -C "$(dirname "$ADAPTDL_STATE")" -czf "$tmp/backup.tar.gz" --exclude=adaptdl.sock "$(basename "$ADAPTDL_STATE")"
rm -rf "$ADAPTDL_STATE"
tar -C "$(dirname "$ADAPTDL_STATE")" -xzf "$tmp/backup.tar.gz"
call up --nodes 1 --slots 1 --interval 1
check up_again 0 .
if wait_started 2; then ok the_job_goes_on_from_its_own_files; else not_ok the_job_goes_on_from_its_own_files "$(cat "$tmp/starts")"; fi
call events
check what_happened_before_is_known 0 'Pending -> Starting'
call delete kept
call down
check down_again 0
finish
