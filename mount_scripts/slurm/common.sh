# shellcheck shell=sh
# shellcheck disable=SC2034  # used by those that source this
# What prolog and epilog share. /etc/default/foremount may set other values. Sourced, not run.

# shellcheck source=/dev/null
[ ! -r "${FOREMOUNT_DEFAULTS:-/etc/default/foremount}" ] || . "${FOREMOUNT_DEFAULTS:-/etc/default/foremount}"
config=${FOREMOUNT_CONFIG:-/etc/foremount/mnt-lake.toml}
mountpoint=${FOREMOUNT_MOUNTPOINT:-/mnt/lake}
foremount=${FOREMOUNT_COMMAND:-/opt/foremount/current/bin/foremount}

# Slurm keeps neither output of these scripts; syslog does, where there is one.
say() {
  printf 'foremount: %s\n' "$*" >&2
  ! command -v logger >/dev/null 2>&1 || logger -t foremount-slurm -- "job ${SLURM_JOB_ID:-?}: $*" 2>/dev/null || true
}
