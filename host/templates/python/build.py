"""Builds the component: `python build.py FILE.wasm`, with the Python that has componentize-py.

A Python component imports files and sockets, which handlers do not have, unless all names that begin with
`wasi:` are taken out of it. But the interfaces of log lines and configuration begin so, too. So the component
is built with another name of the same length, and the finished file gets the right name.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

STAND_IN = "wazi:"
# Two interfaces are called `types`. These names keep the bindings stable when both are imported.
NAMES = {"tqhost:handler/types@0.1.0": "types", f"{STAND_IN}http/types@0.2.4": "http_types"}


def main(output: pathlib.Path) -> None:
    here = pathlib.Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        wit = pathlib.Path(folder, "wit")
        shutil.copytree(here / "wit", wit)
        for file in wit.rglob("*.wit"):
            file.write_text(file.read_text().replace("wasi:", STAND_IN))
        built = pathlib.Path(folder, "built.wasm")
        compiler = pathlib.Path(sys.executable).with_name("componentize-py")
        command = [compiler, "--quiet", "--wit-path", wit, "--world", "project"]
        command += [f"--import-interface-name={interface}={name}" for interface, name in NAMES.items()]
        command += ["componentize", "app", "--stub-wasi", "--output", built]
        subprocess.run(command, cwd=here, check=True)
        component = built.read_bytes().replace(STAND_IN.encode(), b"wasi:")
    # The file is renamed into its place, so that a watcher never sees half a file.
    unfinished = output.with_name(output.name + ".tmp")
    unfinished.write_bytes(component)
    os.replace(unfinished, output)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).absolute())
