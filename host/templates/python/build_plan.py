"""Finds out, before the build, which modules the handler needs, and which packages cannot work in it.

In: app.py, imported by this machine's Python, with the native code of packages hidden, as in a component.
Out: a list of modules in JSON, which tasks may import late; or, if a package needs its native code, its name,
what needs it, and what works instead. build.py calls it.

Not here: other errors of app.py, which the build itself tells.
"""

import ast
import contextlib
import importlib
import importlib.metadata as metadata
import json
import os
import pathlib
import pkgutil
import re
import sys
import sysconfig
import warnings
from importlib.machinery import EXTENSION_SUFFIXES, FileFinder, SourceFileLoader

HERE = pathlib.Path(__file__).resolve().parent
PACKAGES = pathlib.Path(sysconfig.get_path("purelib"))

# Packages with native code, and what a handler can use. docs/languages/packages.md of tqhost tells more.
INSTEAD = {
    "pydantic-core": "`pydantic<2`, which is plain Python; `openai` and `anthropic` work with it",
    "numpy": "`statistics`, `math` and `array`, or a handler in Rust or Go",
    "pandas": "`csv` and `sqlite3` (`:memory:`), or a handler in Rust or Go",
    "orjson": "`json`",
    "ujson": "`json`",
    "tiktoken": "`len(text) // 4` as an estimate; the response of the model has the exact number",
    "lxml": "`xml.etree.ElementTree`, or `beautifulsoup4` with `html.parser`",
    "cryptography": "`hashlib` and `hmac`",
    "pillow": "a handler in Rust or Go; `image-info` of tqhost reads sizes",
    "aiohttp": "`httpx`",
    "grpcio": "the service's HTTP interface, by `httpx`",
    "psycopg2-binary": "records and state of tqhost, or the team's service, by `httpx`",
    "asyncpg": "records and state of tqhost, or the team's service, by `httpx`",
    "pymupdf": "`pypdf`",
    "regex": "`re`",
    "zstandard": "`zlib` or `gzip`",
}

# Of packages with more submodules, tasks get only what names in the project's files lead to.
MOST_SUBMODULES = 100
# They are for the command line, for tests, or for other systems; or a copy of the package itself.
NOT_FOR_HANDLERS = re.compile(
    r"(^|\.)(__main__|__mp_main__|_?tests?|testing|conftest|setup\w*|idlelib|tkinter|turtledemo|lib2to3"
    r"|ensurepip|distutils|pkg_resources|unittest|multiprocessing|pydoc\w*|doctest|pdb|windows_\w+"
    r"|\w*win32\w*|pytest\w*|mypy|pydantic\.v1|hypothesis\w*)(\.|$)"
)
INNER_IMPORT = re.compile(r"^[ \t]+(from|import)[ \t]", re.MULTILINE)


def natives() -> dict[str, str]:
    """The modules of native code that have no twin in Python, each with its package."""
    found = {}
    for package in metadata.distributions(path=[str(PACKAGES)]):
        for file in package.files or []:
            suffix = next((each for each in EXTENSION_SUFFIXES if file.name.endswith(each)), None)
            if suffix is not None:
                stem = str(file).removesuffix(suffix)
                if not PACKAGES.joinpath(f"{stem}.py").exists():
                    found[stem.replace("/", ".")] = spelled(package.name)
    return found


def spelled(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


class Hidden:
    """Refuses the modules of native code, and notes which are asked for."""

    def __init__(self, names: dict[str, str]):
        self.names, self.missed = names, []

    def find_spec(self, name, path=None, target=None):
        if name in self.names:
            self.missed.append(name)
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return None


def hide_natives() -> Hidden:
    of_sources = FileFinder.path_hook((SourceFileLoader, [".py"]))

    def hook(path: str):
        if pathlib.Path(path).is_relative_to(PACKAGES):
            return of_sources(path)
        raise ImportError(path)

    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()
    hidden = Hidden(natives())
    sys.meta_path.insert(0, hidden)
    return hidden


def culprit(error: BaseException | None, hidden: Hidden) -> str | None:
    """The module of native code for which an import has failed."""
    while error is not None:
        files, place = [], error.__traceback__
        while place is not None:
            files.append(place.tb_frame.f_code.co_filename)
            place = place.tb_next
        for name in reversed(hidden.missed):
            folder = PACKAGES.joinpath(name.partition(".")[0])
            is_inside = any(pathlib.Path(file).is_relative_to(folder) for file in files)
            if isinstance(error, ImportError) and (is_inside or error.name == name):
                return name
        error = error.__cause__ or error.__context__
    return None


def explained(module: str, package: str) -> str:
    wanted, chain = {}, [package]
    for each in metadata.distributions(path=[str(PACKAGES)]):
        for requirement in each.requires or []:
            if "extra ==" not in requirement:
                wanted.setdefault(spelled(re.match(r"[\w.-]+", requirement)[0]), spelled(each.name))
    while chain[-1] in wanted and wanted[chain[-1]] not in chain:
        chain.append(wanted[chain[-1]])
    needs = "".join(f", which {each} needs" for each in chain[1:])
    text = f"`{module}` is native code, which a handler cannot run. It belongs to {package}{needs}."
    return f"{text}\nInstead: {INSTEAD.get(package, 'a package in plain Python, or a handler in Rust or Go')}"


def files_of_project():
    for folder, inner, files in os.walk(HERE):
        inner[:] = [each for each in inner if not each.startswith(".") and each not in ("test", "bindings")]
        for file in files:
            if file.endswith(".py") and not file.startswith(("tqhost", "build")):
                yield pathlib.Path(folder, file)


def submodules(name: str, paths):
    """The names of all modules below a package."""
    for _, short, is_package in pkgutil.iter_modules(paths):
        yield f"{name}.{short}"
        if is_package:
            yield from submodules(f"{name}.{short}", [os.path.join(path, short) for path in paths])


def imports(source: str, package: str):
    """The names of the modules that statements import, each with the name of the function around it."""
    todo = [(ast.parse(source), None)]
    while todo:
        node, function = todo.pop()
        if isinstance(node, ast.Import):
            yield from ((each.name, function) for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*base, *filter(None, [node.module])])
            yield base, function
            yield from ((f"{base}.{each.name}", function) for each in node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            function = node.name
        if not isinstance(node, ast.expr):
            todo += [(inner, function) for inner in ast.iter_child_nodes(node)]


def import_all(names) -> None:
    for name in sorted(set(names) - sys.modules.keys()):
        if NOT_FOR_HANDLERS.search(name):
            continue
        # What it needs is not there, and so no task can use it.
        with contextlib.suppress(BaseException):
            importlib.import_module(name)


def late(before: set[str]) -> list[str]:
    """What tasks may import late, in an order in which it can be imported."""
    at_the_top = set(sys.modules)
    words, wanted, size_of = set(), set(), {}
    for file in files_of_project():
        text = file.read_text("utf-8")
        words.update(re.findall(r"[A-Za-z]\w*", text))
        wanted.update(name for name, _ in imports(text, ""))
    for top in {name.partition(".")[0] for name in wanted} & sys.modules.keys():
        inner = list(submodules(top, getattr(sys.modules[top], "__path__", ())))
        wanted.update(inner if len(inner) <= MOST_SUBMODULES else ())
    import_all(wanted)
    seen = before
    while new := sys.modules.keys() - seen:
        wanted = set()
        for name in list(new):
            module, top = sys.modules[name], name.partition(".")[0]
            if top not in size_of:
                size_of[top] = sum(1 for _ in submodules(top, getattr(sys.modules.get(top), "__path__", ())))
            file = getattr(module, "__file__", None) or ""
            # Of Python's own modules only those of packages: others would import half of the library.
            is_own = top in sys.stdlib_module_names and size_of[top] == 0
            if is_own or not file.endswith(".py") or NOT_FOR_HANDLERS.search(name):
                continue
            if "__getattr__" in vars(module):
                for word in words:
                    with contextlib.suppress(BaseException):
                        getattr(module, word)
            text = pathlib.Path(file).read_text("utf-8")
            if INNER_IMPORT.search(text):
                package = name if hasattr(module, "__path__") else name.rpartition(".")[0]
                for inner, function in imports(text, package):
                    # Others are optional for what has been imported.
                    is_near = inner.partition(".")[0] in (top, *sys.stdlib_module_names)
                    if function and is_near and (size_of[top] <= MOST_SUBMODULES or function in words):
                        wanted.add(inner)
        seen |= new
        import_all(wanted)
    names = [name for name in sys.modules if name not in at_the_top and not NOT_FOR_HANDLERS.search(name)]
    codecs = submodules("encodings", sys.modules["encodings"].__path__)
    return [*names, "_strptime", *(name for name in codecs if name not in names)]


def main() -> None:
    warnings.simplefilter("ignore")
    hidden = hide_natives()
    import tqhost_memory  # noqa: F401: it provides what app.py imports
    import tqhost_packages

    sys.modules["jiter"] = tqhost_packages._jiter()
    before = set(sys.modules)
    # What is printed is for the build to tell.
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        try:
            with contextlib.redirect_stderr(nowhere):
                importlib.import_module("app")
                names = late(before)
        except BaseException as error:
            module = culprit(error, hidden)
            if module is not None:
                sys.exit(explained(module, hidden.names[module]))
            names = []
    print(json.dumps(names))


if __name__ == "__main__":
    main()
