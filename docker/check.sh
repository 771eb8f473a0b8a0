#!/bin/sh
# Builds the images where no image registry can be reached: docker/check.sh cpu|gpu...
#
# With buildah, on a base that mmdebstrap makes of Debian's packages, as the real one was made. Run as root, on Debian with
# buildah and mmdebstrap. BUILD_FLAGS holds more flags for buildah, such as the mounts that pip needs to reach its index.
set -eu
cd "$(dirname "$0")/.."
base=localhost/hvd-compress-base:bookworm
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' hvd_compress/__init__.py)

if ! buildah inspect --type image "$base" >/dev/null 2>&1; then
    archive=$(mktemp --suffix=.tar)
    mirror="deb http://deb.debian.org"
    mmdebstrap --variant=minbase bookworm "$archive" "$mirror/debian bookworm main" \
        "$mirror/debian bookworm-updates main" "$mirror/debian-security bookworm-security main"
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$archive" / >/dev/null
    buildah commit --quiet --rm "$container" "$base" >/dev/null
    rm "$archive"
fi
for image in "$@"; do
    # shellcheck disable=SC2086  # flags are words
    buildah build --format docker --layers --isolation chroot --network host ${BUILD_FLAGS:-} \
        --build-arg BASE="$base" --file "docker/$image.Dockerfile" --tag "hvd-compress:$version-$image" .
done
