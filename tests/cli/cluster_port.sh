#!/usr/bin/env bash
# A port that the scheduler chose for a job and another program takes before the job listens there: that costs one more
# start, elsewhere: one retry of the job.
. "$(dirname "$0")/cluster.sh"
helper=$(dirname "$bin")/helpers/helper_job
[ -x "$helper" ] || { echo "not ok - cluster_port: $helper is not built"; exit 1; }
squatter=
trap '[ -n "$squatter" ] && kill "$squatter" 2>/dev/null; cluster_clean' EXIT
cluster_start --nodes 1 --slots 2 --interval 1
# In the first start it waits until somebody else has the port.
cat >"$tmp/train" <<'END'
#!/bin/sh
echo "$ADAPTDL_MASTER_PORT" >>"$1/ports.$ADAPTDL_NUM_RESTARTS"
if [ "$ADAPTDL_NUM_RESTARTS" = 0 ]; then until [ -e "$1/taken" ]; do sleep 0.1; done; fi
exec "$2" "$1/ledger" 2 20
END
chmod +x "$tmp/train"
job_spec='{"minReplicas": 2, "maxReplicas": 2}' job_file train "$tmp/train" "$tmp" "$helper"
call submit "$tmp/train.yaml"; check submitted 0
both_wait() { [ -e "$tmp/ports.0" ] && [ "$(wc -l <"$tmp/ports.0")" = 2 ]; }
eventually both_wait && ok its_port_is_chosen || not_ok its_port_is_chosen "$(adaptdl ls)"
port=$(head -n 1 "$tmp/ports.0")
/usr/bin/python3 - "$port" "$tmp/taken" <<'END' &
import socket, sys, time
s = socket.socket()
s.bind(("127.0.0.1", int(sys.argv[1])))
s.listen()
open(sys.argv[2], "w").close()
time.sleep(3600)
END
squatter=$!
eventually [ -e "$tmp/taken" ] && ok somebody_takes_it || not_ok somebody_takes_it "$port"
limit_s=300 call wait train; check it_succeeds 0
grep -q '^done default/train 1$' "$tmp/ledger" && ok after_one_more_start || not_ok after_one_more_start "$(cat "$tmp/ledger")"
[ -e "$tmp/ports.1" ] && [ ! -e "$tmp/ports.2" ] && ! grep -qx "$port" "$tmp/ports.1" && ok at_another_port || not_ok at_another_port "$(cat "$tmp"/ports.*)"
call logs train --group 1 --rank 0 --no-follow; check it_gave_the_port_up_soon 0 'Address already in use \(still after 5000 ms\)'
failures=$(adaptdl describe train -o json | /usr/bin/python3 -c 'import json, sys; print(json.load(sys.stdin)["failures"])')
[ "$failures" = 1 ] && ok it_costs_one_retry || not_ok it_costs_one_retry "$failures"
kill -0 "$squatter" && ok the_other_still_has_it || not_ok the_other_still_has_it "it ended"
finish
