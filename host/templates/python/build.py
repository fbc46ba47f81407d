"""Builds the component: `python build.py FILE.wasm`, with the Python that has componentize-py."""

import os
import pathlib
import subprocess
import sys
import tempfile

# Two interfaces are called `types`. These names keep the bindings stable when both are imported.
NAMES = {"tqhost:handler/types@0.1.0": "types", "wasi:http/types@0.2.4": "http_types"}


def main(output: pathlib.Path) -> None:
    here = pathlib.Path(__file__).resolve().parent
    with tempfile.TemporaryDirectory() as folder:
        built = pathlib.Path(folder, "built.wasm")
        compiler = pathlib.Path(sys.executable).with_name("componentize-py")
        command = [compiler, "--quiet", "--wit-path", "wit", "--world", "project"]
        command += [f"--import-interface-name={interface}={name}" for interface, name in NAMES.items()]
        command += ["componentize", "app", "--output", built]
        subprocess.run(command, cwd=here, check=True)
        component = built.read_bytes()
    # The file is renamed into its place, so that a watcher never sees half a file.
    unfinished = output.with_name(output.name + ".tmp")
    unfinished.write_bytes(component)
    os.replace(unfinished, output)


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]).absolute())
