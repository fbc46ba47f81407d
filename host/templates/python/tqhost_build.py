"""What componentize-py runs when it builds the component: it imports the handler, app.py.

In: app.py. Out: its classes, and all modules that a task may import later, because there are no files then;
or, between two marks on stderr, Python's traceback for build.py to show. Not in a component at work: this
file does nothing after the build.
"""

import gc
import importlib
import sys

import componentize_py_runtime as _runtime

_MARK = "-----tqhost-----"
_WHY = (
    "the top of a file runs when the component is built, and no host is there then: "
    "print(), log lines, configuration, requests and effects work in the handler only"
)


_NoHost = type("RuntimeError", (RuntimeError,), {"__module__": "builtins"})


def _refuse(*_):
    raise _NoHost(_WHY)


def _report(error: BaseException) -> str:
    """The traceback, without what is not the author's: this file, the bindings, and for print() tqhost.py."""
    import traceback  # only here, because it would make the component larger

    told = traceback.TracebackException.from_exception(error)
    parts = [told]
    while parts:
        part = parts.pop()
        parts += [more for more in (part.__cause__, part.__context__) if more is not None]
        others = (__file__, "/world/", "<frozen")
        own = [place for place in part.stack if not place.filename.startswith(others)]
        while isinstance(error, _NoHost) and len(own) > 1 and "/tqhost" in own[-1].filename:
            own.pop()
        part.stack[:] = own
    return "".join(told.format())


def _import_what_comes_late() -> None:
    """Imports what tasks may import later: there are no files then, nor codecs that were never used."""
    try:
        from tqhost_late import NAMES  # build.py makes it for this build
    except ImportError:
        return
    for name in NAMES:
        try:
            importlib.import_module(name)
        except BaseException:  # what it needs is not there, and so no task can use it
            pass


def _clear_free_memory() -> None:
    """Overwrites what the imports used and freed, because the component contains all memory that is not 0."""
    gc.collect()
    end, blocks = id(bytes(1 << 21)), []
    # The small ones would only fill the list.
    for power in range(20, 7, -1):
        while id(block := bytes(1 << power)) < end:
            blocks.append(block)


_call, _runtime.call_import = _runtime.call_import, _refuse
try:
    import tqhost_packages as _packages

    _packages.install()
    import app as _app
    import wit_world.exports as _exports

    # The handler's class has `run`, too.
    _app.ConcurrentHandler = getattr(_app, "ConcurrentHandler", None) or getattr(_app, "Handler", None)
    for _name, _kind in vars(_exports).items():
        # A protocol for each class that componentize-py looks for.
        if getattr(_kind, "_is_protocol", False) and _kind.__module__ == _exports.__name__:
            if not hasattr(_app, _name):
                raise AttributeError(f"app.py has no `{_name}`, which wit/world.wit exports")
    _import_what_comes_late()
    sys.meta_path.append(_packages.Late())
    _clear_free_memory()
except BaseException as error:
    print(_MARK, _report(error), _MARK, sep="\n", file=sys.__stderr__)
    # The helpers have changed how an exception is told.
    sys.excepthook = sys.__excepthook__
    raise RuntimeError("app.py cannot be imported") from None
finally:
    _runtime.call_import = _call

globals().update((name, value) for name, value in vars(_app).items() if not name.startswith("_"))
