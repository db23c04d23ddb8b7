#!/usr/bin/env bash
# Sets up what is missing and runs the test suite; ends in pytest's closing line.
#
#   ./mount_scripts/test.sh                    everything
#   ./mount_scripts/test.sh -m "not slow"      arguments go to pytest
#   ./mount_scripts/test.sh --setup-only       makes .venv and stops
#
# --dev, first: with the linters of the "dev" extra. On Debian and Ubuntu, as root or with sudo, missing packages are
# installed. What can't be had costs only the tests that need it: they are skipped with the reason.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=mount_scripts/common.sh
. mount_scripts/common.sh

extra=test setup_only=''
while [ $# -gt 0 ]; do
  case $1 in
    --dev) extra=dev ;;
    --setup-only) setup_only=yes ;;
    *) break ;;
  esac
  shift
done

make_venv "$extra"
need "the tests of HTTP sites against nginx" nginx-light
need "the controller's store against etcd" etcd-server
need "the benchmarks' peer over S3" s3fs
need "checking the shell scripts" shellcheck
need "clicking through the page" chromium chromium-driver
command -v java >/dev/null 2>&1 || need "the tests of HDFS sites" openjdk-17-jre-headless
what_is_missing
if [ -n "$setup_only" ]; then
  say "ready: $venv_dir"
  exit 0
fi
drop_apt_log
# Most tests wait for a mount, a server or a kill: two processes need little more than half the time of one. A file's tests
# stay together, for they share a mount.
exec "$venv_python" -m pytest -n 2 --dist loadfile --no-loadscope-reorder "$@"
