#!/bin/sh
# Build the image with no registry, and mount in it: sudo mount_scripts/container/try.sh DIRECTORY
#
# Needs buildah and debootstrap, no daemon, 3 GB in DIRECTORY and some five minutes. The base image is made of Debian's packages, of
# the release that python:3.13-slim is of, under that image's name. A base that an earlier run has left in DIRECTORY is used again.
set -eu
source=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mkdir -p "$1" && cd "$1" && pwd)
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
tag=localhost/foremount:try

built() {
  buildah --root "$work/storage" --runroot "$work/run" "$@"
}

if [ ! -e "$work/base/usr/include/python3.13/Python.h" ]; then
  debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv,python3-dev,python-is-python3 trixie "$work/base"
fi
cp /etc/ssl/certs/ca-certificates.crt "$work/base/etc/ssl/certs/" # a host behind a proxy has an authority of its own
base=$(built from scratch)
cp -a "$work/base/." "$(built mount "$base")/"
built commit --rm -q "$base" docker.io/library/python:3.13-slim
built bud --pull-never --network host -f "$source/mount_scripts/container/Containerfile" -t "$tag" "$source"

container=$(built from --pull-never "$tag")
root=$(built mount "$container")
mkdir -p "$root/mnt/lake" "$root/etc/foremount" "$root/data"
echo "read through the mount" > "$root/data/file"
printf '[sites.here]\nkind = "local"\npath = "/data"\n[[mounts]]\nprefix = "/"\nsite = "here"\n' \
  > "$root/etc/foremount/foremount.toml"
# shellcheck disable=SC2016  # the words are of the shell inside
unshare --mount --propagation private sh -euc '
  mount --bind /dev "$1/dev"
  mount --bind /proc "$1/proc"
  mount -t tmpfs none "$1/run"
  export PATH=/opt/foremount/current/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  chroot "$1" foremount-container /etc/foremount/foremount.toml /mnt/lake &
  waited=0
  until mountpoint -q "$1/mnt/lake"; do
    [ "$waited" -lt 300 ] || exit 1
    waited=$((waited + 1))
    sleep 0.1
  done
  cat "$1/mnt/lake/file"
  chroot "$1" foremount status /mnt/lake
  kill -TERM $!
  wait $!
  ! mountpoint -q "$1/mnt/lake"
' sh "$root"
built rm "$container" > /dev/null
echo "the image mounts, and ends its mount: $tag"
