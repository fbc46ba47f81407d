"""What `make` calls, with the Python of the project's virtual environment.

    python build.py FILE.wasm   builds the component
    python build.py lock        writes requirements.lock: every package with its version and hash
"""

import hashlib
import json
import os
import pathlib
import subprocess
import sys
import sysconfig
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
# Two interfaces are called `types`. These names keep the bindings stable when both are imported.
NAMES = {"tqhost:handler/types@0.1.0": "types", "wasi:http/types@0.2.4": "http_types"}
MARK = "-----tqhost-----"


def build(output: pathlib.Path) -> None:
    locked = HERE / "requirements.lock"
    if locked.exists() and digest_of("requirements.txt") not in locked.read_text():
        sys.exit("requirements.txt has changed since requirements.lock was made: run `make lock`")
    late = planned()
    compiler = pathlib.Path(sys.executable).with_name("componentize-py")
    # Packages come from the virtual environment, and not from those of the machine.
    environment = {**os.environ, "VIRTUAL_ENV": sys.prefix, "RUST_BACKTRACE": "0"}
    with tempfile.TemporaryDirectory() as folder:
        built = pathlib.Path(folder, "built.wasm")
        pathlib.Path(folder, "tqhost_late.py").write_text(f"NAMES = {late!r}\n")
        command = [compiler, "--quiet", "--wit-path", "wit", "--world", "project"]
        command += [f"--import-interface-name={interface}={name}" for interface, name in NAMES.items()]
        command += ["componentize", "tqhost_build", "--output", built]
        command += ["--python-path", ".", "--python-path", folder]
        ran = subprocess.run(command, cwd=HERE, env=environment, stderr=subprocess.PIPE, text=True)
        if ran.returncode != 0:
            sys.exit(reason(ran.stderr))
        sys.stderr.write(ran.stderr)
        component = built.read_bytes()
    # The file is renamed into its place, so that a watcher never sees half a file.
    unfinished = output.with_name(output.name + ".tmp")
    unfinished.write_bytes(component)
    os.replace(unfinished, output)


def planned() -> list[str]:
    """What the component imports beside app.py. Packages that cannot work end the build before it begins."""
    ran = subprocess.run([sys.executable, "build_plan.py"], cwd=HERE, stdout=subprocess.PIPE, text=True)
    if ran.returncode != 0:
        sys.exit(1)
    return json.loads(ran.stdout)


def reason(said: str) -> str:
    """Why the build has failed: the handler's own traceback, if its import failed."""
    told = said.split(f"{MARK}\n")
    if len(told) < 3:
        return said
    text = told[1]
    # componentize-py shows these folders to the handler under numbers.
    for number, folder in enumerate([".", os.path.relpath(sysconfig.get_path("purelib"), HERE)]):
        text = text.replace(f'File "/{number}/', f'File "{os.path.normpath(folder)}/'.replace('"./', '"'))
    return text.strip("\n")


def digest_of(file: str | pathlib.Path) -> str:
    return hashlib.sha256(HERE.joinpath(file).read_bytes()).hexdigest()


def lock() -> None:
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
        pip += ["--requirement", "requirements.txt", "--constraint", "constraints.txt", "--dest", folder]
        subprocess.run(pip, cwd=HERE, check=True)
        digest = digest_of("requirements.txt")
        lines = [f"# Made by `make lock` of the requirements.txt with the SHA-256 {digest}"]
        for file in sorted(pathlib.Path(folder).iterdir()):
            is_wheel = file.suffix == ".whl"
            parts = file.name.split("-") if is_wheel else file.name.removesuffix(".tar.gz").rsplit("-", 1)
            lines.append(f"{parts[0].replace('_', '-')}=={parts[1]} \\\n    --hash=sha256:{digest_of(file)}")
    HERE.joinpath("requirements.lock").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    lock() if sys.argv[1] == "lock" else build(pathlib.Path(sys.argv[1]).absolute())
