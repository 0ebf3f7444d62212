"""Compile the library with the machine's C compiler, once for each version of its sources."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from gpuwise.errors import GpuwiseError

SOURCES = Path(__file__).parent / "library"
LIBRARY = "libnvidia-ml.so.1"
COMPILERS = ("cc", "gcc", "clang")
FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-Wl,-soname,{LIBRARY}")
_EXPORTED = re.compile(r"^[A-Z][A-Z_]*\((nvml\w+)", re.MULTILINE)
_LISTED = re.compile(r"\b(?:NUMBER|TEXT)\((\w+)\)")


class NoCompilerError(GpuwiseError):
    """There is no C compiler, or it does not compile the library."""


@cache
def function_names() -> tuple[str, ...]:
    """The functions the library exports and counts, in the order of its board."""
    found = (name for path in sorted(SOURCES.glob("*.c")) for name in _EXPORTED.findall(path.read_text(encoding="utf-8")))
    return tuple(sorted(found))


@cache
def number_names() -> tuple[str, ...]:
    """Readings of a card that are numbers."""
    return tuple(_LISTED.findall((SOURCES / "numbers.h").read_text(encoding="utf-8")))


@cache
def text_names() -> tuple[str, ...]:
    """Readings of a card that are texts."""
    return tuple(_LISTED.findall((SOURCES / "texts.h").read_text(encoding="utf-8")))


def build_library(folder: Path | None = None) -> Path:
    """The compiled library, in ``folder`` or in this user's cache; compiled only if it is not there.

    Raises NoCompilerError.
    """
    if not sys.platform.startswith("linux"):
        raise NoCompilerError(
            f"the fake NVML library is for Linux, not {sys.platform}", hint="use scripted devices (gpuwise.machine.devices.null)"
        )
    if folder is None:
        from platformdirs import user_cache_path

        folder = user_cache_path("gpuwise") / "fake-nvml"
    compiler = find_compiler()
    library = folder / _digest(compiler) / LIBRARY
    if not library.exists():
        _compile(compiler, library)
    return library


def find_compiler() -> str:
    """``$CC``, else the first of cc, gcc and clang on the path. Raises NoCompilerError."""
    wanted = os.environ.get("CC", "").split()
    for name in (*wanted[:1], *COMPILERS):
        path = shutil.which(name)
        if path:
            return path
    raise NoCompilerError(
        "no C compiler: " + ", ".join(COMPILERS) + " are not on the PATH",
        hint="install one (apt install gcc libc6-dev, dnf install gcc, apk add gcc musl-dev) or set CC",
    )


def _digest(compiler: str) -> str:
    made = hashlib.sha256(" ".join((compiler, *FLAGS)).encode())
    for path in sorted(SOURCES.iterdir()):
        if path.suffix in (".c", ".h"):
            made.update(path.name.encode() + b"\0" + path.read_bytes())
    return made.hexdigest()[:16]


def _compile(compiler: str, library: Path) -> None:
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        # several test processes may do this at the same time: each in a separate folder, then renamed
        with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
            made = Path(scratch) / LIBRARY
            listed = "".join(f"FUNCTION({name})\n" for name in function_names())
            (Path(scratch) / "functions.h").write_text(listed, encoding="utf-8")
            sources = [str(path) for path in sorted(SOURCES.glob("*.c"))]
            done = subprocess.run(
                [compiler, *FLAGS, f"-I{SOURCES}", f"-I{scratch}", *sources, "-o", str(made), "-lm", "-lpthread", "-ldl"],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            if done.returncode:
                first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:300])
                raise NoCompilerError(f"{compiler} does not compile the fake NVML library: {first}", hint="try CC=clang")
            made.replace(library)
    except OSError as error:
        raise NoCompilerError(
            f"the fake NVML library cannot be built in {library.parent}: {error.strerror}",
            hint="give a folder that can be written",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise NoCompilerError(f"{compiler} took over {error.timeout:.0f} s", hint="try another with CC=clang") from error
