#!/usr/bin/env bash
# Makes the packages of the helpers for handlers: a crate, an npm package and a wheel. Nothing is published.
#
#   scripts/packages.sh FOLDER             makes them there, with cargo, npm and Python in the path
#   scripts/packages.sh FOLDER --dry-run   asks crates.io, too, whether it would take the crate
#
# The sources are those that `tqhost new` copies into projects. The crate is compiled as users would get it.
set -euo pipefail
mkdir -p "$1"
to=$(cd "$1" && pwd)
publish=${2:-}
cd "$(dirname "${BASH_SOURCE[0]}")/.."

templates=host/templates
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
rm -rf "$to"/{crate,npm,python} "$to"/*.{crate,tgz,whl}

# The crate has the interface in itself. Here it is beside the crate, for all languages.
mkdir -p "$to/crate/wit/deps"
cp -r plugins/sdk/src "$to/crate"
cp -r plugins/sdk/wit/. wit/deps "$to/crate/wit"
mkdir "$to/crate/wit/deps/handler"
cp wit/handler.wit "$to/crate/wit/deps/handler"
grep -rl '"../../wit", "wit"' "$to/crate/src" | xargs sed -i 's|\["../../wit", "wit"\]|"wit"|'
sed "s/{{VERSION}}/$version/; /^publish = false/d; /^#/d" "$templates/rust/sdk/Cargo.toml.in" \
    >"$to/crate/Cargo.toml"
printf 'readme = "README.md"\n\n[workspace]\n' >"$to/tail"
sed -i "/^license = /r $to/tail" "$to/crate/Cargo.toml"
rm "$to/tail"
cp plugins/Cargo.lock LICENSE "$to/crate"
cat >"$to/crate/README.md" <<END
# tqhost-handler

Write task handlers for tqhost in Rust. \`tqhost new NAME\` makes a project.
END
if [ "$publish" = --dry-run ]; then
    (cd "$to/crate" && cargo publish --quiet --dry-run --allow-dirty --target-dir "$to/target")
else
    (cd "$to/crate" && cargo package --quiet --allow-dirty --target-dir "$to/target")
fi
cp "$to/target/package/tqhost-handler-$version.crate" "$to"

mkdir "$to/npm"
cp "$templates"/javascript/tqhost*.js LICENSE "$to/npm"
cat >"$to/npm/package.json" <<END
{
  "name": "tqhost-handler",
  "version": "$version",
  "description": "Write task handlers for tqhost in JavaScript and TypeScript",
  "license": "Apache-2.0",
  "type": "module",
  "exports": {
    ".": "./tqhost.js",
    "./blobs": "./tqhost-blobs.js",
    "./effects": "./tqhost-effects.js",
    "./http": "./tqhost-http.js",
    "./memory": "./tqhost-memory.js"
  }
}
END
cat >"$to/npm/README.md" <<END
# tqhost-handler

Write task handlers for tqhost in JavaScript and TypeScript. \`tqhost new NAME --lang javascript\` makes a
project.
END
(cd "$to/npm" && npm pack --silent --pack-destination "$to" >/dev/null)

mkdir "$to/python"
cp "$templates"/python/tqhost*.py LICENSE "$to/python"
rm "$to/python/tqhost_build.py"
modules=$(cd "$to/python" && printf '"%s", ' *.py | sed 's/\.py"/"/g; s/, $//')
cat >"$to/python/pyproject.toml" <<END
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "tqhost-handler"
version = "$version"
description = "Write task handlers for tqhost in Python"
license = "Apache-2.0"
readme = "README.md"
requires-python = ">=3.10"

[tool.setuptools]
py-modules = [$modules]
END
cat >"$to/python/README.md" <<END
# tqhost-handler

Write task handlers for tqhost in Python. \`tqhost new NAME --lang python\` makes a project.
END
"${PYTHON:-python3}" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$to" "$to/python"
