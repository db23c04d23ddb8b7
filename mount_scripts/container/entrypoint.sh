#!/bin/sh
# What the container runs: `entrypoint.sh CONFIG MOUNTPOINT`. The mount ends with the container, in order, when that gets SIGTERM.
# A mount that a killed container has left is detached by the start.
set -eu

config=$1 mountpoint=$2
mkdir -p "$mountpoint" 2>/dev/null || true # a dead mount lies there
exec "${FOREMOUNT_COMMAND:-foremount}" mount --foreground "$config" "$mountpoint"
