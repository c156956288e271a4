#!/usr/bin/env bash
# A user for each namespace: a job of one can read neither the scheduler's token nor the files of another's, though it
# knows where they are, and cannot signal the scheduler. Needs root, who alone may start processes of other users.
. "$(dirname "$0")/cluster.sh"
if [ "$(id -u)" != 0 ] || ! id daemon >/dev/null 2>&1 || ! id games >/dev/null 2>&1; then
    echo "skip - cluster_users: needs root, and the users daemon and games"
    exit 0
fi
chmod 711 "$tmp"
wrong() { # NAME LIST PATTERN
    printf 'namespaceUsers: "%s"\n' "$2" >"$tmp/wrong.yaml"
    timeout 60 "$bin/adaptdl-sched" --state "$tmp/w" --config "$tmp/wrong.yaml" >"$tmp/out" 2>"$tmp/err" </dev/null
    rc=$?; check "$1" 2 "$3"
}
wrong no_such_user a=nobody-of-that-name 'namespaceUsers: no user nobody-of-that-name'
wrong root_separates_nothing a=root 'namespaceUsers: root is root'
wrong a_list_of_pairs a 'namespaceUsers: "a": expected NAMESPACE=USER'

printf 'namespaceUsers: "team-a=daemon, team-b=games"\n' >"$tmp/sched.yaml"
cluster_start --nodes 1 --slots 2 --interval 1 --config "$tmp/sched.yaml" --listen 127.0.0.1:0
[ -s "$tmp/s/token" ] && ok there_is_a_token || not_ok there_is_a_token "$(ls -l "$tmp/s")"
job_file first sh -c true
call submit "$tmp/first.yaml"; check a_namespace_without_a_user_is_refused 2 'namespace default: no user .*namespaceUsers'

# The victim: a file of its own, and a source directory with a file in it.
mkdir "$tmp/secret" && echo source-of-a >"$tmp/secret/words" && chmod 600 "$tmp/secret/words"
cat >"$tmp/secret/adaptdljob.yaml" <<'END'
apiVersion: adaptdl.petuum.com/v1
kind: AdaptDLJob
metadata: {name: victim, namespace: team-a}
spec: {template: {spec: {containers: [{name: main, command: [sh, -c, 'id -un; cat words; echo mine >"$ADAPTDL_SHARE_PATH/own"; echo "$HOME"; echo ready; exec sleep 600']}]}}}
END
call submit "$tmp/secret"; check a_job_with_files 0
said() { adaptdl logs -N team-a victim --no-follow >"$tmp/out" 2>"$tmp/err"; grep -qx ready "$tmp/out"; }
eventually said; rc=$?; check it_runs_as_its_user_with_its_files 0 '^daemon$' '^source-of-a$'
uid=$(basename "$tmp"/s/jobs/*)
[ "$(stat -c %U "$tmp/s/jobs/$uid/share/own")" = daemon ] && ok what_it_writes_is_its_users || not_ok what_it_writes_is_its_users "$(ls -lR "$tmp/s/jobs")"

# The attacker tries everything by name.
cat >"$tmp/attack.sh" <<END
id -un
try() { "\$@" >/dev/null 2>&1 && echo "GOT \$*" || echo "no \$1"; }
for file in token jobs.sqlite jobs.sqlite-wal daemon.log adaptdl-sched.pid jobs/$uid/share/own jobs/$uid/source/words jobs/$uid/logs/1-0.log; do
    try cat "$tmp/s/\$file"
done
for dir in . jobs jobs/$uid jobs/$uid/share jobs/$uid/checkpoint jobs/$uid/source jobs/$uid/groups jobs/$uid/logs uploads; do
    try ls "$tmp/s/\$dir"
    try touch "$tmp/s/\$dir/planted"
done
try ln -s /etc/passwd "$tmp/s/jobs/$uid/share/link"
try kill -0 $(cat "$tmp/s/adaptdl-sched.pid")
try cat /proc/$(cat "$tmp/s/adaptdl-sched.pid")/environ
for p in $(cluster_processes | tr '\n' ' '); do try kill -0 \$p; try cat /proc/\$p/environ; done
try curl -s --max-time 5 --unix-socket "$tmp/s/adaptdl.sock" http://localhost/healthz
touch "\$ADAPTDL_SHARE_PATH/own" "\$ADAPTDL_CHECKPOINT_PATH/own" && echo own-files
echo over
END
/usr/bin/python3 - "$tmp/attack.sh" >"$tmp/attack.yaml" <<'END'
import json, sys
command = ["sh", "-c", open(sys.argv[1]).read().replace("$", "$$")]
print(json.dumps({"apiVersion": "adaptdl.petuum.com/v1", "kind": "AdaptDLJob", "metadata": {"name": "attack", "namespace": "team-b"},
                  "spec": {"template": {"spec": {"containers": [{"name": "main", "command": command}]}}}}))
END
call submit "$tmp/attack.yaml"; check attack_submitted 0
attacked() { adaptdl logs -N team-b attack --no-follow >"$tmp/out" 2>"$tmp/err"; grep -qx over "$tmp/out"; }
eventually attacked; rc=$?; check it_tried_as_its_own_user 0 '^games$' '^no cat$' '^no kill$' '^own-files$'
grep -q '^GOT' "$tmp/out" && not_ok it_got_nothing "$(grep '^GOT' "$tmp/out" | head -n 5)" || ok it_got_nothing
[ "$(grep -c '^no ' "$tmp/out")" -ge 25 ] && ok though_it_tried_everything || not_ok though_it_tried_everything "$(cat "$tmp/out")"
call cp -N team-a victim:/adaptdl/share/own -; expect the_scheduler_reads_it_for_those_who_may 0 <<<mine
call delete -N team-a victim --wait; check its_files_go_with_it 0
[ ! -e "$tmp/s/jobs/$uid" ] && ok all_of_them || not_ok all_of_them "$(ls -R "$tmp/s/jobs/$uid")"
finish
