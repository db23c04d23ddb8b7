#!/bin/sh
# Prolog= of slurm.conf: the mount serves before the job's first process starts. What is not mounted is mounted; a mount that has
# been given up or is dead is mounted again. If it does not serve then, Slurm drains the node and starts the job elsewhere.
# Paths in FOREMOUNT_FETCH (/etc/default/foremount; spaces between them) are made local in the background.
set -eu
# shellcheck source=mount_scripts/slurm/common.sh
. "$(dirname "$(readlink -f "$0")")/common.sh"

serves() { timeout 5 "$foremount" status "$mountpoint" >/dev/null 2>&1; }

if ! serves; then
  say "$mountpoint does not serve: mounting"
  mkdir -p "$mountpoint" 2>/dev/null || true # a dead mount lies there: the command detaches it
  "$foremount" mount "$config" "$mountpoint" >/dev/null || serves || { say "it can't be mounted"; exit 1; }
fi
for path in ${FOREMOUNT_FETCH:-}; do
  setsid "$foremount" fetch "$mountpoint/$path" >/dev/null 2>&1 </dev/null &
done
