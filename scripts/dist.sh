#!/usr/bin/env bash
# Packs tqhost as users install it: an archive, a Debian package, a wheel and an npm package, with what each
# needs to know about them. Nothing is published.
#
#   scripts/dist.sh                            builds the program for the glibc of docs/installing.md, and
#                                              packs it into dist/
#   ARCH=arm64 scripts/dist.sh                 does so for arm64, into dist/arm64/; it needs rustup, and from
#                                              Debian binutils-aarch64-linux-gnu, qemu-user-static,
#                                              libc6-arm64-cross and libgcc-s1-arm64-cross
#   TQHOST_BIN=FILE scripts/dist.sh [FOLDER]   packs this program for the glibc that it needs
#
# The same program makes the same bytes: names are sorted, and times are that of the last commit
# (SOURCE_DATE_EPOCH). PROFILE names another profile of cargo than `dist`; LEVEL says how hard to compress,
# from 1 to 9. It needs dpkg-deb, binutils, Python 3.9, and the handlers of `make plugins`.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
umask 022
export LC_ALL=C TZ=UTC
export LEVEL=${LEVEL:-9}
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}

fail() {
    echo "dist: $*" >&2
    exit 1
}

case ${ARCH:-amd64} in
    amd64) machine=x86_64 cpu=x64 folder=dist ;;
    arm64) machine=aarch64 cpu=arm64 folder=dist/arm64 ;;
    *) fail "ARCH is ${ARCH-}: write amd64 or arm64" ;;
esac
target=$machine-unknown-linux-gnu
# The program that runs the code of another machine here, and the beginning of the names of binutils for it.
emulator=() binutils=
if [ "$machine" != "$(uname -m)" ]; then
    emulator=("qemu-$machine-static" -L "/usr/$machine-linux-gnu") binutils=$machine-linux-gnu-
    for tool in "${emulator[0]}" "${binutils}objcopy"; do
        command -v "$tool" >/dev/null || fail "there is no $tool: see the beginning of scripts/dist.sh"
    done
fi
handlers=(http-call resume-analyze)
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
promised=$(sed -n 's/.*glibc \([0-9.]*\) or newer.*/\1/p' docs/installing.md | head -n 1)
mkdir -p "${1:-$folder}"
out=$(cd "${1:-$folder}" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# 1. The program. zig links it with the glibc that is asked for, whichever this machine has.
program=${TQHOST_BIN:-}
if [ -z "$program" ]; then
    tools=$(scripts/from-pypi.sh zig)
    built=$(realpath -m "${CARGO_TARGET_DIR:-target}")
    registry=${CARGO_HOME:-$HOME/.cargo}
    RUSTFLAGS="--remap-path-prefix=$PWD=/tqhost --remap-path-prefix=$built=/target"
    RUSTFLAGS+=" --remap-path-prefix=$registry=/cargo"
    CFLAGS="-ffile-prefix-map=$built=/target -ffile-prefix-map=$registry=/cargo"
    export RUSTFLAGS CFLAGS TQHOST_VERSION="$version ($(git rev-parse --short=8 HEAD))"
    [ "${#emulator[@]}" = 0 ] || rustup --quiet target add "$target"
    PATH=$tools:$PATH cargo zigbuild --locked --profile "${PROFILE:-dist}" --package tqhost --bin tqhost \
        --target "$target.$promised"
    program=$built/$target/${PROFILE:-dist}/tqhost
fi
symbols=$("${binutils}objdump" -T "$program")
glibc=$(grep -o 'GLIBC_[0-9.]*' <<<"$symbols" | sort -uV | tail -n 1)
glibc=${glibc#GLIBC_}
[ -n "${TQHOST_BIN:-}" ] || [ "$(printf '%s\n' "$glibc" "$promised" | sort -V | tail -n 1)" = "$promised" ] ||
    fail "$program needs glibc $glibc, but docs/installing.md promises $promised"

# 2. What all packages have.
name=tqhost-$version-$target
tree=$scratch/$name
rm -f "$out"/tqhost[-_]* "$out/SHA256SUMS"
mkdir -p "$tree"/{completions,handlers}
"${binutils}objcopy" --only-keep-debug --compress-debug-sections "$program" "$out/$name.debug"
"${binutils}objcopy" --strip-all --add-gnu-debuglink="$out/$name.debug" "$program" "$tree/tqhost"
chmod 755 "$tree/tqhost"
[ -n "${TQHOST_BIN:-}" ] || ! grep -aqF -e "$built/" -e "$registry/" "$tree/tqhost" ||
    fail "$program has paths of this machine in it, so it is not the same elsewhere"
chmod 644 "$out/$name.debug"
for handler in "${handlers[@]}"; do
    [ -f "plugins/$handler.wasm" ] || fail "plugins/$handler.wasm is not built: run make plugins"
    install -m 644 "plugins/$handler.wasm" "$tree/handlers"
done
install -m 644 LICENSE deploy/tqhost.service "$tree"
python3 scripts/bill.py "$target" "$tree/LICENSES.txt" "$out/$name.cdx.json" "${handlers[@]}"
"${emulator[@]}" "$tree/tqhost" completions bash >"$tree/completions/tqhost.bash"
"${emulator[@]}" "$tree/tqhost" completions fish >"$tree/completions/tqhost.fish"
"${emulator[@]}" "$tree/tqhost" completions zsh >"$tree/completions/_tqhost"
"${emulator[@]}" "$tree/tqhost" man --out "$tree/man" >/dev/null

# 3. The archive.
archive() {
    tar --create --sort=name --format=gnu --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --directory="$1" "$2" | gzip "-n$LEVEL"
}
archive "$scratch" "$name" >"$out/$name.tar.gz"

# 4. The Debian package.
root=$scratch/deb
share=$root/usr/share
mkdir -p "$root"/{DEBIAN,etc/tqhost,usr/bin,usr/lib/systemd/system} "$share"/man/man1 \
    "$share"/{bash-completion/completions,doc/tqhost,fish/vendor_completions.d,tqhost,zsh/vendor-completions}
cp "$tree/tqhost" "$root/usr/bin"
sed 's|/usr/local/|/usr/|g' "$tree/tqhost.service" >"$root/usr/lib/systemd/system/tqhost.service"
cp deploy/debian/tqhost.toml "$root/etc/tqhost"
cp "$tree/completions/tqhost.bash" "$share/bash-completion/completions/tqhost"
cp "$tree/completions/tqhost.fish" "$share/fish/vendor_completions.d"
cp "$tree/completions/_tqhost" "$share/zsh/vendor-completions"
cp "$tree"/man/*.1 "$share/man/man1"
cp docs/*.md CHANGELOG.md "$share/doc/tqhost"
cp "$tree/LICENSES.txt" "$share/doc/tqhost/copyright"
cp -r "$tree/handlers" "$share/tqhost"
gzip -n9 "$share"/man/man1/* "$share/doc/tqhost/CHANGELOG.md"
needs="libc6 (>= $glibc)"
! grep -q 'libgcc_s' <<<"$("${binutils}objdump" -p "$program")" || needs+=", libgcc-s1"
size=$(du -sk --apparent-size "$root" | cut -f 1)
sed "s/{{VERSION}}/$version/; s/{{ARCH}}/${ARCH:-amd64}/; s/{{SIZE}}/$size/; s/{{NEEDS}}/$needs/" \
    deploy/debian/control >"$root/DEBIAN/control"
install -m 755 deploy/debian/{postinst,prerm,postrm} "$root/DEBIAN"
echo /etc/tqhost/tqhost.toml >"$root/DEBIAN/conffiles"
(cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum >DEBIAN/md5sums)
find "$root" -exec touch --date="@$SOURCE_DATE_EPOCH" {} +
dpkg-deb --root-owner-group -Zgzip "-z$LEVEL" --build "$root" "$out" >/dev/null

# 5. The wheel, and the npm package: the program, its licences and the handlers.
python3 scripts/wheel.py "$tree" "$version" "manylinux_${glibc/./_}_$machine" "$out"
package=$scratch/package
mkdir -p "$package/bin"
cp "$tree/tqhost" "$package/bin"
cp -r "$tree"/{LICENSE,LICENSES.txt,handlers} "$package"
cat >"$package/package.json" <<JSON
{
  "name": "tqhost",
  "version": "$version",
  "description": "Task queues on Redis Streams, with the business work in sandboxed WebAssembly components",
  "license": "Apache-2.0",
  "bin": "bin/tqhost",
  "os": ["linux"],
  "cpu": ["$cpu"],
  "libc": ["glibc"]
}
JSON
archive "$scratch" package >"$out/tqhost-$version.tgz"

(cd "$out" && sha256sum -- tqhost[-_]* >SHA256SUMS)
echo "dist: $out, for glibc $glibc or newer:"
(cd "$out" && stat --format='%s %n' -- * | awk '{ printf "%7.1f MB  %s\n", $1 / 1e6, $2 }')
