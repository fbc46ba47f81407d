"""Writes a wheel that carries the program: pip puts it into the folder of programs of an environment.

    wheel.py TREE VERSION PLATFORM FOLDER

In: a folder with the program, licences and handlers, as `dist.sh` makes it. The wheel has no code in Python.
"""

import base64
import hashlib
import os
import sys
import time
import zipfile
from pathlib import Path

tree, version, platform, folder = sys.argv[1:]
tree, info, data = Path(tree), f"tqhost-{version}.dist-info", f"tqhost-{version}.data"
at = time.gmtime(int(os.environ["SOURCE_DATE_EPOCH"]))[:6]
metadata = f"""Metadata-Version: 2.1
Name: tqhost
Version: {version}
Summary: Task queues on Redis Streams, with the business work in sandboxed WebAssembly components
License: Apache-2.0
"""
wheel = f"Wheel-Version: 1.0\nGenerator: tqhost\nRoot-Is-Purelib: false\nTag: py3-none-{platform}\n"
files = {f"{data}/scripts/tqhost": (tree / "tqhost").read_bytes()}
for handler in sorted((tree / "handlers").iterdir()):
    files[f"{data}/data/share/tqhost/handlers/{handler.name}"] = handler.read_bytes()
for name in ["LICENSE", "LICENSES.txt"]:
    files[f"{info}/licenses/{name}"] = (tree / name).read_bytes()
files |= {f"{info}/METADATA": metadata.encode(), f"{info}/WHEEL": wheel.encode()}


def record(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


rows = [record(name, content) for name, content in files.items()]
files[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
with zipfile.ZipFile(Path(folder) / f"tqhost-{version}-py3-none-{platform}.whl", "w") as archive:
    for name, content in files.items():
        entry = zipfile.ZipInfo(name, at)
        entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
        archive.writestr(entry, content, zipfile.ZIP_DEFLATED, int(os.environ["LEVEL"]))
