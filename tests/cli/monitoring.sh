#!/usr/bin/env bash
# A real Prometheus scrapes a scheduler whose jobs train, end and fail; every query of grafana/dashboard.json then has
# data. Prometheus is Debian's (tools/setup monitoring); skipped where it is not.
command -v prometheus >/dev/null || { echo "skip - monitoring: no prometheus: tools/setup monitoring installs it"; exit 0; }
. "$(dirname "$0")/cluster.sh"
dashboard=$(dirname "$0")/../../grafana/dashboard.json
stop_prometheus() { [ -z "${prometheus:-}" ] || { kill "$prometheus"; wait "$prometheus"; } 2>/dev/null; }
trap 'stop_prometheus; cluster_clean' EXIT

echo "useSeconds: 0.2" >"$tmp/config.yaml"
cluster_start --nodes 2 --slots 2 --interval 1 --config "$tmp/config.yaml"
target=$(sed -n 's|^dashboard  http://\(.*\)/#token.*|\1|p' "$tmp/up")
# as docs/operations.md has it, but for the interval
cat >"$tmp/prometheus.yml" <<Y
scrape_configs:
- job_name: adaptdl
  honor_labels: true
  scrape_interval: 1s
  scrape_timeout: 1s
  authorization: {credentials_file: $tmp/s/token}
  static_configs: [{targets: ["$target"]}]
Y
prometheus --config.file "$tmp/prometheus.yml" --storage.tsdb.path "$tmp/data" --web.listen-address 127.0.0.1:0 >"$tmp/prometheus.log" 2>&1 &
prometheus=$!
door() { ss -ltnp | sed -n "s/.* \(127.0.0.1:[0-9]*\) .*pid=$prometheus,.*/\1/p" | grep .; }
listens() { door >"$tmp/door"; }
eventually listens && ok prometheus_starts || { not_ok prometheus_starts "$(tail -n 3 "$tmp/prometheus.log")"; finish; }

# How many series a query gives, those whose value is no number left out.
ask() {
    curl -sS -m 30 --data-urlencode "query=$1" "http://$(cat "$tmp/door")/api/v1/query" >"$tmp/out" 2>"$tmp/err"
    jq -e '[.data.result[].value[1] | select(. != "NaN")] | length' "$tmp/out" 2>>"$tmp/err"
}
has() { [ "$(ask "$1")" -gt 0 ] 2>/dev/null; }
expect_value() { # NAME QUERY VALUE
    value_is() { has "$1" && [ "$(jq -r '.data.result[0].value[1]' "$tmp/out")" = "$2" ]; }
    eventually value_is "$2" "$3" && ok "$1" || not_ok "$1" "$2 is never $3"
}
eventually has 'adaptdl_sched_job_submission_count == 0' && ok it_scrapes_the_scheduler ||
    not_ok it_scrapes_the_scheduler "no answer"

job_spec='{"minReplicas": 2, "maxReplicas": 2}' job_file trains env ADAPTDL_HINTS_INTERVAL=1 ADAPTDL_CHECKPOINT_INTERVAL=1 \
    "$bin/../examples/cifar10_resnet9" --examples 64 --threads 1 --epochs 1000 --logdir "$tmp/logs"
job_file quick true
job_spec='{"maxRetries": 0}' job_file fails false
for job in trains quick fails; do call submit -n $job "$tmp/$job.yaml"; check "submit_$job" 0; done
expect_value jobs_submitted adaptdl_sched_job_submission_count 3
expect_value one_succeeded 'adaptdl_sched_job_completion_time_count{status="Succeeded"}' 1
expect_value one_failed 'adaptdl_sched_job_completion_time_count{status="Failed"}' 1
expect_value the_older_names_count_the_same 'job_submission_count + on() sum without (status) (job_completion_time_count)' 5
expect_value a_job_is_told_by_its_name 'adaptdl_job_replicas{job="default/trains"}' 2

# Each query, with Grafana's variables as Grafana would put them.
mapfile -t queries < <(jq -r '.panels[].targets[].expr' "$dashboard")
[ ${#queries[@]} -ge 20 ] && ok the_dashboard_has_queries || not_ok the_dashboard_has_queries "${#queries[@]}"
for query in "${queries[@]}"; do
    put_in=${query//'$__rate_interval'/5m} put_in=${put_in//'$job'/.*}
    eventually has "$put_in" && ok "$query" || not_ok "$query" "no data: $(head -c 300 "$tmp/out")"
done
jq -r '.templating.list[].query | objects | .query' "$dashboard" | grep -qx 'label_values(adaptdl_job_replicas, job)' &&
    [ "$(curl -sS -m 30 "http://$(cat "$tmp/door")/api/v1/label/job/values?match%5B%5D=adaptdl_job_replicas" |
        jq '.data | index("default/trains") != null')" = true ] && ok the_choice_of_jobs || not_ok the_choice_of_jobs "not those that run"
has no_such_metric && not_ok what_is_not_there_has_no_data "it has" || ok what_is_not_there_has_no_data
finish
