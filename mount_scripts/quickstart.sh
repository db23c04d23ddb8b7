#!/usr/bin/env bash
# Sets up what is missing, then shows the main job on this machine: a checkpoint and photographs behind a slow link, read
# through the mount by unmodified safetensors and Pillow, then made local and read again; every byte is compared.
# Leaves nothing behind but .venv and the packages. Exit status 0 only if all of it held.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=mount_scripts/common.sh
. mount_scripts/common.sh

make_venv test
what_is_missing
drop_apt_log
exec "$venv_python" -m tests.quickstart "$@"
