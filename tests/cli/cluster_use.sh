#!/usr/bin/env bash
# What replicas use: real processes that burn time and hold memory, a library that stands in for NVIDIA's.
. "$(dirname "$0")/cluster.sh"
echo "useSeconds: 0.1" >"$tmp/config.yaml"
export ADAPTDL_NVML=$bin/../helpers/fake_nvml.so FAKE_NVML=$tmp/gpus
: >"$tmp/gpus"
cluster_start --nodes 2 --slots 2 --interval 1 --config "$tmp/config.yaml"
job_spec='{"minReplicas": 2, "maxReplicas": 2}' job_file burns sh -c 'echo $$$$ >"'"$tmp"'/pid.$ADAPTDL_REPLICA_RANK"; [ $ADAPTDL_REPLICA_RANK = 0 ] || exec sleep 1000
    (head -c 64M /dev/zero; sleep 1000) | tail & while :; do :; done'
job_file quiet sleep 1000
call submit -n burns "$tmp/burns.yaml"; check a_job_that_burns 0
call submit -n quiet "$tmp/quiet.yaml"; check a_job_that_does_not 0

# "replica 0 on node-0: 0.98 CPUs, 65.1M memory": until rank 0 was seen to work, and to hold 64 MiB
seen() { call describe burns; grep -qE '^Use +replica 0 on node-[01]: (0\.[0-9]*[1-9][0-9]*|[1-9][0-9.]*) CPUs, (6[4-9]|[7-9][0-9]|1[0-9][0-9])[0-9.]*M memory$' "$tmp/out"; }
eventually seen && ok describe_shows_what_a_replica_uses || not_ok describe_shows_what_a_replica_uses "$(grep -A1 ^Use "$tmp/out")"
grep -qE '^ +replica 1 on node-[01]: [0-9.]+ CPUs, [0-9.]+[BKM] memory$' "$tmp/out" && ok and_another || not_ok and_another "$(cat "$tmp/out")"
at 80 top --once; check top_shows_each_replica 0 '^  Replica +Rank +Node +CPUs +Mem *$' '^A burns +0 +node-[01] +[0-9.]+ +[0-9.]+M *$' \
    '^A burns +1 +node-[01] +[0-9.]+ +[0-9.]+[BKM] *$' '^B quiet +0 +node-[01] '
fits top_at_80 80
at 40 top --once; check top_at_40_columns_too 0 '^A burns +0 +node-[01] +[0-9.]+ +[0-9.]+M *$'; fits top_at_40 40

echo "0 $(cat "$tmp/pid.0") 50 3221225472
1 $(cat "$tmp/pid.0") 25 1073741824
1 1 99 5" >"$tmp/gpus"
gpus() { call describe burns; grep -qE '^Use +replica 0 .*, 0.75 GPUs, 4.00G GPU memory$' "$tmp/out"; }
eventually gpus && ok gpus_of_a_replica || not_ok gpus_of_a_replica "$(grep -A1 ^Use "$tmp/out")"
grep -qE '^ +replica 1 .* memory$' "$tmp/out" && ! grep -q 'replica 1 .*GPU' "$tmp/out" && ok none_of_another || not_ok none_of_another "$(cat "$tmp/out")"
at 80 top --once; check gpus_in_top 0 'Mem +GPUs +GPUmem *$' '^A burns +0 .* 0\.75 +4\.00G *$' '^A burns +1 .* - +- *$'; fits gpus_at_80 80
at 40 top --once; fits gpus_at_40 40
call ls -o json; /usr/bin/python3 - "$tmp/out" <<'EOF' && ok the_api_has_it || not_ok the_api_has_it "$(cat "$tmp/out")"
import json, sys
jobs = {job["name"]: job for job in json.load(open(sys.argv[1]))["items"]}
first, second = jobs["burns"]["use"]
assert (first["rank"], first["gpus"], first["gpuMemoryBytes"]) == (0, 0.75, 4 << 30), first
assert first["cpus"] > 0 and first["memoryBytes"] >= 64 << 20, first
assert sorted(second) == ["cpus", "memoryBytes", "rank"] and second["memoryBytes"] < 64 << 20, second
EOF
curl -sf -m 60 --unix-socket "$tmp/s/adaptdl.sock" http://localhost/metrics >"$tmp/out"; rc=$?
check prometheus_has_it 0 '^adaptdl_replica_cpu_seconds_total\{job="default/burns",rank="0"\} [0-9]' \
    '^adaptdl_replica_memory_bytes\{job="default/quiet",rank="0"\} [0-9]+$' \
    '^adaptdl_replica_gpus_busy\{job="default/burns",rank="0"\} 0.75$' \
    '^adaptdl_replica_gpu_memory_bytes\{job="default/burns",rank="0"\} 4294967296$'
call cancel burns quiet; check both_are_cancelled 0
over() { call describe quiet; ! grep -q '^Use' "$tmp/out"; }
eventually over && ok nothing_is_used_at_the_end || not_ok nothing_is_used_at_the_end "$(cat "$tmp/out")"
finish
