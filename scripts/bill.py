"""Writes what is in a package: the licences of all crates as text, and a list of them (CycloneDX).

    bill.py TARGET LICENCES LIST HANDLER…

In: `cargo metadata` of the host and of the handlers, the sources of their crates, the checksums of the lock
files. Crates that only build or test are left out. Fails if a crate has no text of its licence.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

LICENCE = re.compile(r"(un)?licen[cs]e|copying|copyright|notice", re.IGNORECASE)
LLVM = "Apache-2.0 WITH LLVM-exception"


def crates(manifest, roots, target):
    """The crates that are linked into these packages, by their id. Each has the ids of those that it uses."""
    command = ["cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={target}"]
    said = subprocess.run([*command, f"--manifest-path={manifest}"], check=True, stdout=subprocess.PIPE)
    said = json.loads(said.stdout)
    packages = {package["id"]: package for package in said["packages"]}
    nodes = {node["id"]: node for node in said["resolve"]["nodes"]}
    entry = r'name = "(.*)"\nversion = "(.*)"\nsource = .*\nchecksum = "(.*)"'
    locked = re.findall(entry, Path(manifest).with_name("Cargo.lock").read_text())
    checksums = {(name, version): checksum for name, version, checksum in locked}
    todo, linked = [id for id, package in packages.items() if package["name"] in roots], {}
    while todo:
        package = packages[todo.pop()]
        if package["id"] not in linked:
            linked[package["id"]] = package
            deps = nodes[package["id"]]["deps"]
            package["uses"] = [dep["pkg"] for dep in deps if any(k["kind"] is None for k in dep["dep_kinds"])]
            package["checksum"] = checksums.get((package["name"], package["version"]))
            package["purl"] = f"pkg:cargo/{package['name']}@{package['version']}"
            package["license"] = re.sub(" ?/ ?", " OR ", package["license"] or "")
            todo += package["uses"]
    return linked


def texts(package):
    """The files in the crate that say its licence, and those of the C code in it."""
    folder = Path(package["manifest_path"]).parent
    files = sorted(path for path in folder.rglob("*") if LICENCE.match(path.name) and path.suffix != ".rs")
    return [path.read_text(errors="replace").strip() for path in files if path.is_file()]


def licences(packages):
    """Each text once, with the crates that have it."""
    ours = Path("LICENSE").read_text().strip()
    own = {package["purl"]: texts(package) if package["source"] else [ours] for package in packages}
    named = {ours: {"the standard library of Rust"}}
    for package in packages:
        # Some crates leave it out: then it is in another of the same project, or is known by its name.
        project, licence = package["repository"] or package["name"], package["license"]
        near = [own[other["purl"]] for other in packages if other["repository"] == project]
        same = [own[other["purl"]] for other in packages if other["license"] == licence == LLVM]
        apache = [[ours]] if "Apache-2.0" in licence and licence != LLVM else []
        found = next(filter(None, [own[package["purl"]], *near, *same, *apache]), None)
        if not found:
            sys.exit(f"bill: {package['name']} has no text of its licence, {licence}")
        for text in found:
            named.setdefault(text, set()).add(f"{package['name']} {package['version']}")
    parts = sorted((", ".join(sorted(names)), text) for text, names in named.items())
    return "\n".join(f"{'=' * 80}\n{names}\n\n{text}\n" for names, text in parts)


def component(package):
    """A crate in the words of CycloneDX."""
    told = {"type": "library", "bom-ref": package["purl"], "purl": package["purl"]}
    told |= {key: package[key] for key in ("name", "version")}
    told["licenses"] = [{"expression": package["license"]}]
    if package["checksum"]:
        told["hashes"] = [{"alg": "SHA-256", "content": package["checksum"]}]
    return told


target, licences_file, list_file, *handlers = sys.argv[1:]
linked = crates("Cargo.toml", ["tqhost"], target) | crates("plugins/Cargo.toml", handlers, "wasm32-wasip2")
by_purl = {package["purl"]: package for package in linked.values()}
packages = [by_purl[purl] for purl in sorted(by_purl)]
Path(licences_file).write_text(licences(packages))
host = next(package for package in packages if package["name"] == "tqhost")
told = {
    "bomFormat": "CycloneDX",
    "specVersion": "1.5",
    "version": 1,
    "metadata": {"component": component(host) | {"type": "application"}},
    "components": [component(package) for package in packages if package is not host],
    "dependencies": [
        {"ref": package["purl"], "dependsOn": sorted({linked[id]["purl"] for id in package["uses"]})}
        for package in packages
    ],
}
Path(list_file).write_text(json.dumps(told, indent=1) + "\n")
