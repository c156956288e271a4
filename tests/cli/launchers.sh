#!/usr/bin/env bash
# A training program in C started by other launchers: with the variables of torchrun and of Slurm's srun two
# processes are two replicas, with the result that they have under `adaptdl run`.
set -u
bin=${ADAPTDL_BIN:-build/release/bin}
tmp=$(mktemp -d)
export XDG_RUNTIME_DIR=$tmp OMP_WAIT_POLICY=passive
unset ADAPTDL_CHECKPOINT_PATH
pids=()
clean_up() { for each in "${pids[@]}"; do kill -KILL "$each" 2>/dev/null; done; rm -rf "$tmp"; }
trap clean_up EXIT
failed=0
program=("$bin/../examples/mnist" --examples 300 --threads 1 --epochs 1)
result() { sed -n 's/^\(\[0\] \)\{0,1\}\(Test set.*\)/\2/p' "$1"; }
# two NAME VARIABLES-OF-0 VARIABLES-OF-1
two() {
    local name=$1 rank
    pids=()
    for rank in 0 1; do
        # shellcheck disable=SC2086
        env $([ $rank = 0 ] && echo "$2" || echo "$3") timeout -k 5 600 "${program[@]}" >"$tmp/$rank" 2>&1 </dev/null &
        pids+=($!)
    done
    wait "${pids[0]}" && wait "${pids[1]}"
    if [ $? -eq 0 ] && [ "$(result "$tmp/0")" = "$wanted" ] && [ -z "$(result "$tmp/1")" ]; then
        echo "ok - $name"
    else
        echo "not ok - $name: \"$(result "$tmp/0")\" and \"$(result "$tmp/1")\", wanted \"$wanted\" and nothing"
        tail -n 5 "$tmp/0" "$tmp/1" | sed 's/^/# /'
        failed=1
    fi
}
"$bin/adaptdl" run -n 2 -- "${program[@]}" >"$tmp/ours" 2>&1 </dev/null
wanted=$(result "$tmp/ours")
[ -n "$wanted" ] && echo "ok - there_is_a_result" || { echo "not ok - there_is_a_result: none"; tail -n 5 "$tmp/ours"; exit 1; }
port=$((20000 + (RANDOM * 7 + $$) % 12000))
master="MASTER_ADDR=127.0.0.1 MASTER_PORT=$port WORLD_SIZE=2 LOCAL_WORLD_SIZE=2"
two torchrun "$master RANK=0 LOCAL_RANK=0" "$master RANK=1 LOCAL_RANK=1"
step="SLURM_JOB_ID=$$ SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_NUM_NODES=1 SLURM_STEP_NODELIST=localhost SLURM_NTASKS=2"
two slurm "$step SLURM_PROCID=0 SLURM_LOCALID=0" "$step SLURM_PROCID=1 SLURM_LOCALID=1"
exit $failed
