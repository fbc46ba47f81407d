#!/usr/bin/env bash
# Installs each package of `make dist` by the command of docs/installing.md, each in a fresh Debian that
# debootstrap made, and runs the first task of that page there. Prints for each how large it is, how long it
# takes to install, and how long the first task takes after that, with the start of the host.
#
#   scripts/try-dist.sh [FOLDER]      FOLDER has the packages, `dist` unless told
#
# It needs root, debootstrap, and a mirror of Debian. Nothing outside a temporary folder is changed; the bare
# systems are kept in ~/.cache/tqhost/roots. A step that fails ends it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
packages=$(realpath "${1:-dist}")
kept=${XDG_CACHE_HOME:-$HOME/.cache}/tqhost/roots
scratch=$(mktemp -d)
trap 'rm -rf --one-file-system "$scratch"' EXIT
mkdir -p "$kept"

fail() {
    echo "try-dist: $*" >&2
    exit 1
}
[ "$(id -u)" = 0 ] || fail "needs root, for chroot"
command -v debootstrap >/dev/null || fail "needs debootstrap: apt install debootstrap"
deb=$(find "$packages" -maxdepth 1 -name 'tqhost_*_amd64.deb')
[ -n "$deb" ] || fail "$packages has no package for amd64: run make dist"

# Runs a command with its output in a log, and shows the end of it if the command fails.
quietly() {
    "$@" >"$scratch/log" 2>&1 || { tail -n 30 "$scratch/log" >&2; fail "failed: $1"; }
}

# Runs the script of standard input in the root $1, with its own /proc and the packages in /dist. Its
# processes end with it.
inside() {
    quietly unshare --mount --pid --fork --kill-child bash -euc '
        mount -t proc proc "$1/proc"
        mount --bind /dev "$1/dev"
        mkdir -p "$1/dist"
        mount --bind -o ro "$2" "$1/dist"
        exec chroot "$1" bash -eu' bash "$1" "$packages"
}

# Makes the folder $1 a Debian $2 with the packages $3, which users of a package have already.
make_root() {
    local archive
    archive=$kept/$2-$(sha256sum <<<"$3" | cut -c 1-8).tar
    mkdir "$1"
    if [ ! -e "$archive" ]; then
        quietly debootstrap --variant=minbase --include=ca-certificates "$2" "$1"
        [ -z "$3" ] || inside "$1" <<<"apt-get install --yes --no-install-recommends $3"
        tar -C "$1" -cf "$archive.new" .
        mv "$archive.new" "$archive"
    else
        tar -C "$1" -xf "$archive"
    fi
}

# The first task of the page: what a user types in one terminal, and in a second one.
block() {
    awk -v fence="$(($1 * 2 - 1))" '/^## / { here = $0 == "## The first task" }
        here && /^```/ { fences++; next } here && fences == fence' docs/installing.md
}
first=$(block 1)
second=$(block 2)
[ -n "$first" ] && [ -n "$second" ] || fail "docs/installing.md has no first task with two blocks"

# The steps of a user with the handlers of the folder $1. The last line of the first block is the host, and
# the second block is for a second terminal.
task() {
    cat <<END
mkdir /try && cd /try
$(sed -e "s|HANDLERS|$1|" -e '$s/$/ >host.log 2>\&1 \&/' <<<"$first")
until grep -q 'tqhost is running' host.log; do sleep 0.1; kill -0 \$! || { cat host.log; exit 1; }; done
$second | tee result
grep -q jane@example.com result || { cat host.log; exit 1; }
END
}

seconds() {
    local begun
    begun=$(date +%s%N)
    "$@"
    printf '%d.%d s' $((($(date +%s%N) - begun) / 1000000000)) $((($(date +%s%N) - begun) / 100000000 % 10))
}

# Tries the package $1, of the file $2: installed by the command $4 in a root with the packages $3, with the
# handlers in $5. $6 goes before the commands of the first task.
try() {
    local root=$scratch/${1// /-}
    make_root "$root" trixie "$3"
    installed=$(seconds inside "$root" <<<"export HOME=/root; cd /root; $4")
    ran=$(seconds inside "$root" <<<"export HOME=/root; ${6:-}
$(task "$5")")
    size=$(du --apparent-size -m "$2" | cut -f 1)
    printf '| %s | %s MB | %s | %s |\n' "$1" "$size" "$installed" "$ran"
}

echo '| package | size | install | first task |'
echo '|---|---|---|---|'
try archive "$packages"/tqhost-*-x86_64-unknown-linux-gnu.tar.gz redis-server \
    'tar -xzf /dist/tqhost-*-x86_64-unknown-linux-gnu.tar.gz' \
    '/root/tqhost-*/handlers' 'export PATH=$(echo /root/tqhost-*/):$PATH'
try 'Debian package' "$deb" redis-server \
    'apt-get update; apt-get install --yes /dist/tqhost_*_amd64.deb' /usr/share/tqhost/handlers
try wheel "$packages"/tqhost-*-manylinux*.whl 'redis-server python3-venv' \
    'python3 -m venv e; e/bin/pip install /dist/tqhost-*.whl' \
    /root/e/share/tqhost/handlers 'PATH=/root/e/bin:$PATH'
try 'npm package' "$packages"/tqhost-*.tgz 'redis-server nodejs npm' \
    'npm install /dist/tqhost-*.tgz' \
    /root/node_modules/tqhost/handlers 'tqhost() { npx --prefix /root tqhost "$@"; }'

# A purge keeps what the host wrote.
inside "$scratch/Debian-package" <<'END'
[ -e /etc/tqhost/tqhost.toml ] && [ -e /usr/share/man/man1/tqhost.1.gz ]
mkdir -p /var/lib/tqhost
touch /var/lib/tqhost/kept
apt-get purge --yes tqhost
[ ! -e /usr/bin/tqhost ] && [ ! -e /etc/tqhost/tqhost.toml ] && [ -e /var/lib/tqhost/kept ]
END
echo 'The purge kept what the host wrote.'

# The image: the steps of its Dockerfile. Then a host runs as its user, below a root that nobody can write to,
# with the Redis of another root, and answers the health check.
root=$scratch/image
make_root "$root" trixie ''
steps=$(sed -n '/^RUN/,/^[^ ]/{/^ /p}' deploy/Dockerfile)
health=$(
    python3 - <<'END'
import json, re, shlex
text = open("deploy/Dockerfile").read().replace("\\\n", "")
print(shlex.join(json.loads(re.search(r"HEALTHCHECK.*?CMD (\[.*\])", text).group(1))))
END
)
inside "$root" <<END
$steps
cp /usr/share/tqhost/handlers/resume-analyze.wasm /plugins/
cat >/etc/tqhost/tqhost.toml <<TOML
plugins_dir = "/plugins"
data_dir = "/data"
[redis]
url = "redis://127.0.0.1:6399"
[admin]
listen = "127.0.0.1:7700"
[queues.resume-analyze]
stream = "resume:analyze:stream"
TOML
END
chroot "$scratch/archive" redis-server --port 6399 --save '' >/dev/null &
redis=$!
trap 'kill $redis; rm -rf --one-file-system "$scratch"' EXIT
quietly unshare --mount --pid --fork --kill-child bash -euc '
    mount --bind "$1" "$1"
    mount -t proc proc "$1/proc"
    mount --bind /dev "$1/dev"
    mount -t tmpfs -o uid=10001 tmpfs "$1/data"
    mount -o remount,bind,ro "$1"
    exec chroot "$1" setpriv --reuid 10001 --regid 10001 --clear-groups bash -euc "$2"' bash "$root" "
cd /data
export TQHOST_CONFIG=/etc/tqhost/tqhost.toml
! touch /etc/x 2>/dev/null
tqhost run --log-format json >host.log 2>&1 &
until grep -q 'tqhost is running' host.log; do sleep 0.1; kill -0 \$! || { cat host.log; exit 1; }; done
$second | grep jane@example.com || { cat host.log; exit 1; }
until $health; do sleep 0.1; done"
echo 'A host of the image runs as its user below a root that cannot be written to.'

# The oldest Debian that the page promises. Its Redis is too old for a host.
make_root "$scratch/bullseye" bullseye ''
inside "$scratch/bullseye" <<'END'
cd /root
tar -xzf /dist/tqhost-*-x86_64-unknown-linux-gnu.tar.gz --strip-components 1
./tqhost try handlers/resume-analyze.wasm --field resumeId=7 \
    --field content='Jane Doe, jane@example.com. Engineer since 2015: Rust, Redis, Kubernetes.'
./tqhost --version
END
echo "On Debian 11 it runs the handler, too: $(tail -n 1 "$scratch/log")."
