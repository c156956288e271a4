#!/usr/bin/env bash
# What every backend must do (tests/conformance) by pods of a real cluster: that programs run and end as they should, and
# that what runs outlives the scheduler. Only on a cluster of ours: jobs' directories are this machine's, which its nodes see.
#   ADLT_RACES, ADLT_KILLS   how often three start the same, how often the scheduler is killed (4, 6)
. "$(dirname "$0")/cluster.bash"
[ $ours = 1 ] || skip "the nodes of somebody else's cluster do not see this machine's directories"
programs=$PWD/build/release/k8s
[ -x "$programs/conformance_run" ] && [ -x "$programs/conformance_restart" ] || skip "build/release is not built"
export ADLT_NODES ADLT_BUSYBOX=$busybox ADLT_RACES=${ADLT_RACES:-4} ADLT_KILLS=${ADLT_KILLS:-6}
ADLT_NODES=$(kubectl get nodes -l type!=kwok -o 'jsonpath={.items[0].metadata.name} {.items[1].metadata.name}')
for part in run restart; do
    "$programs/conformance_$part" || failed=1
done
exit $failed
