#!/bin/sh
# Build the image on a Debian machine without Docker and without a container registry, and try it: make image
#
# Where there is a Docker engine, `docker build -t steno .` does the same from the official Python image. Here the base
# is made by debootstrap from the Debian mirror this machine uses, and buildah builds without a daemon:
#
#     apt-get install buildah debootstrap
#     make image                                # as root; IMAGE_WORK=folder, BASE_IMAGE=... to leave debootstrap out
#     docker load < dist/steno-image.tar        # on the machine that shall run it
#
# pip's configuration and the certificates of this machine are mounted for the build and do not get into the image.
set -eu
cd "$(dirname "$0")/.."

work=${IMAGE_WORK:-/tmp/steno-image}
base=${BASE_IMAGE:-localhost/steno-base}
image=localhost/steno
mkdir -p "$work" dist

buildah() { command buildah --storage-driver vfs --root "$work/storage" --runroot "$work/run" "$@"; }

make_base() {
    # shellcheck disable=SC1091
    release=$(. /etc/os-release && echo "$VERSION_CODENAME")
    # shellcheck disable=SC2016
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Codename: $release" 'Label: Debian' | head -n 1)
    rm -rf "$work/base"
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv "$release" "$work/base" "$mirror"
    rm -rf "$work/base/var/cache/apt" "$work/base/var/lib/apt/lists"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/base" /
    buildah commit --quiet "$container" "$base"
    buildah rm "$container"
    rm -rf "$work/base"
}

mounts() { # as options; the paths on this machine hold no blanks
    for file in "${PIP_CONFIG_FILE:-}" "$HOME/.config/pip/pip.conf" "$HOME/.pip/pip.conf" /etc/pip.conf; do
        if [ -f "$file" ]; then
            echo "--volume $file:/etc/pip.conf:ro"
            break
        fi
    done
    bundle=/etc/ssl/certs/ca-certificates.crt
    [ ! -f $bundle ] || echo "--volume $bundle:$bundle:ro"
}

try_image() { # what it holds and how it runs: tests/release/test_image.py
    container=$(buildah from "$image")
    buildah inspect --type image "$image" > "$work/image.json"
    IMAGE_ROOT=$(buildah mount "$container") IMAGE_CONFIG=$work/image.json \
        .venv/bin/python -m pytest tests/release/test_image.py -n 0 -q || { buildah rm "$container"; exit 1; }
    buildah rm "$container"
}

buildah inspect --type image "$base" >/dev/null 2>&1 || make_base
# shellcheck disable=SC2046
buildah bud --isolation chroot --format docker --build-arg BASE_IMAGE="$base" $(mounts) --tag "$image" .
try_image
rm -f dist/steno-image.tar
buildah push --quiet "$image" "docker-archive:dist/steno-image.tar:steno:latest"
echo "the image is in dist/steno-image.tar, $(du -m dist/steno-image.tar | cut -f 1) MB"
