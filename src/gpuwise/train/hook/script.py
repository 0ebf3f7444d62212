"""Runs a script as ``__main__`` in this process, as ``python script.py`` would."""

from __future__ import annotations

import importlib.util
import io
import sys
import types
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import cast

from gpuwise.errors import InputError
from gpuwise.files import read_bytes
from gpuwise.text import message_line


class EnoughError(BaseException):
    """Raised inside the script when enough steps were seen. A BaseException, so that scripts do not catch it."""


class StandardInputError(EOFError):
    """The script reads standard input, which is not connected."""


@dataclass(frozen=True, slots=True)
class ScriptEnd:
    """How a script ended."""

    reason: str
    """``enough``, ``end`` (its own), ``exit`` (it called ``sys.exit``), ``error``."""
    code: int
    """Exit code of ``python script.py``; 0 for ``enough``."""
    error: str | None = None
    """The exception's type and message."""
    where: str | None = None
    """``file:line`` of the script's own last frame."""
    out_of_memory: bool = False
    reads_input: bool = False
    missing: str | None = None
    """The file that a FileNotFoundError ended it for."""


class NoInput(io.TextIOBase):
    """Replaces standard input; raises StandardInputError when read."""

    def readable(self) -> bool:
        """True: it is the read that is refused."""
        return True

    def read(self, size: int | None = -1, /) -> str:
        """Raises StandardInputError."""
        raise StandardInputError("the script reads standard input")

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]
        """Raises StandardInputError."""
        raise StandardInputError("the script reads standard input")

    def fileno(self) -> int:
        return 0


def run_script(
    script: str, arguments: Sequence[str], *, module: bool = False, passes: tuple[type[BaseException], ...] = ()
) -> ScriptEnd:
    """Run it to its end, and say how it ended. Its traceback goes to standard error as Python prints it, without our frames.
    Exceptions of the kinds in ``passes`` are the caller's.

    Raises InputError where the script does not exist.
    """
    path, code, package = _module_code(script) if module else file_code(script)
    main = types.ModuleType("__main__")
    main.__file__ = path
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    if package is not None:
        main.__package__ = package
    sys.modules["__main__"] = main
    sys.argv = [path, *arguments]
    sys.path[0:0] = [str(Path.cwd()) if module else str(Path(path).resolve().parent)]
    try:
        exec(code, main.__dict__)
    except passes:
        raise
    except EnoughError:
        return ScriptEnd("enough", 0)
    except SystemExit as leaving:
        return ScriptEnd("exit", _exit_code(leaving))
    except BaseException as error:  # noqa: BLE001 - whatever it raised is what happened
        return _failure(error)
    return ScriptEnd("end", 0)


def file_code(script: str) -> tuple[str, types.CodeType, None]:
    """The compiled code of a script file. Raises InputError where it is missing or is not Python."""
    path = Path(script)
    with suppress(OSError):  # a name too long, say: the reader names what is wrong
        if not path.exists():
            raise InputError(f"{script}: this script does not exist", hint=_AS_PYTHON)
    source = read_bytes(path, hint=_AS_PYTHON)
    try:
        return script, compile(source, script, "exec"), None
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None)
        what = getattr(error, "msg", None) or str(error)
        place = f"{script}{f':{line}' if line else ''}"
        raise InputError(f"{place}: this is not Python: {what}", hint="python has to be able to run it") from None


def _module_code(name: str) -> tuple[str, types.CodeType, str | None]:
    sys.path[0:0] = [str(Path.cwd())]
    spec = _spec(name)
    if spec is not None and spec.submodule_search_locations:
        # asked only of a package: to look below a module runs it
        name = f"{name}.__main__"
        spec = _spec(name)
    loader = spec.loader if spec is not None else None
    if spec is not None and loader is not None and hasattr(loader, "get_code"):
        code = cast("InspectLoader", loader).get_code(name)
        if code is not None:
            return spec.origin or name, code, spec.parent
    raise InputError(f"there is no module {name!r} to run", hint="give what `python -m` would get, from this folder")


def _spec(name: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None


def _exit_code(leaving: SystemExit) -> int:
    if leaving.code is None:
        return 0
    if isinstance(leaving.code, int):
        return leaving.code & 0xFF
    print(leaving.code, file=sys.stderr)  # noqa: T201 - as Python does
    return 1


def _failure(error: BaseException) -> ScriptEnd:
    trace, where = error.__traceback__, None
    script_trace = trace.tb_next if trace is not None else None
    frame = script_trace
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if "site-packages" not in file and f"{_LIBRARY}" not in file and not file.startswith("<"):
            where = f"{file}:{frame.tb_lineno}"
        frame = frame.tb_next
    if not isinstance(error, StandardInputError):
        # the caller reports that in words
        sys.excepthook(type(error), error.with_traceback(script_trace), script_trace)
    name = type(error).__name__
    try:
        whole = str(error)
    except Exception:  # noqa: BLE001 - a message that cannot be built is empty
        whole = ""
    memory = isinstance(error, MemoryError) or any(t in f"{name} {whole}" for t in _OUT_OF_MEMORY)
    text = message_line(whole)
    code = 130 if isinstance(error, KeyboardInterrupt) else 1
    missing = str(error.filename) if isinstance(error, FileNotFoundError) and error.filename is not None else None
    said = f"{name}: {text}" if text else name
    return ScriptEnd("error", code, said, where, memory, isinstance(error, StandardInputError), missing)


_AS_PYTHON = "give the training script as python would get it"
_OUT_OF_MEMORY = ("OutOfMemoryError", "out of memory", "not enough memory", "can't allocate memory")
_LIBRARY = Path(io.__file__).parent
