#!/bin/sh
# Epilog= of slurm.conf: says what the job waited for, and waits up to FOREMOUNT_UPLOAD_S seconds (60) until the origins have what was
# written on this node. Never fails: a node is not drained for a report, and what is left is uploaded while other jobs run.
set -u
# shellcheck source=mount_scripts/slurm/common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"

why=$(timeout 5 "$foremount" why --job "slurm:${SLURM_JOB_ID:-0}" --mountpoint "$mountpoint" 2>/dev/null) && say "$why"

behind() {
  timeout 5 "$foremount" status "$mountpoint" --json 2>/dev/null | grep -A 12 '"behind"' | sed -n 's/.*"files": \([0-9]*\).*/\1/p' | head -n 1
}
waited=0
while files=$(behind) && [ "${files:-0}" -gt 0 ]; do
  if [ "$waited" -ge "${FOREMOUNT_UPLOAD_S:-60}" ]; then
    say "$files files are not at their origin yet; their upload goes on"
    break
  fi
  sleep 1
  waited=$((waited + 1))
done
exit 0
