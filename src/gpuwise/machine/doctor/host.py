"""The doctor's access to a machine: files, links, commands with a time limit, the environment. Nothing is changed.

Everything a probe reads goes through a :class:`Host`, so that a machine with a fault is a few lines of data
(:class:`ScriptedHost`). No method raises because of a machine's state: an unreadable file is None, a missing command has no
exit status.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol

from gpuwise.machine.devices.cpu import affinity_cores

MOST_BYTES = 4 << 20
"""No relevant file is larger; the rest of a larger one is ignored."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command."""

    status: int | None
    """Exit status, minus the signal that ended it; None when it was not there or did not end in time."""
    out: str = ""
    err: str = ""
    timed_out: bool = False
    seconds: float = 0.0


NOT_THERE = CommandResult(None)


class Host(Protocol):
    """Read access to a machine."""

    @property
    def environment(self) -> Mapping[str, str]: ...

    @property
    def platform(self) -> str:
        """``linux``, ``darwin`` or ``win32`` (``sys.platform``)."""
        ...

    def read(self, path: str) -> str | None:
        """The text of a file, undecodable bytes replaced; None when it cannot be read."""
        ...

    def read_bytes(self, path: str) -> bytes | None:
        """A file as it is; None when it cannot be read."""
        ...

    def link(self, path: str) -> str | None:
        """Target of a symbolic link."""
        ...

    def names(self, path: str) -> tuple[str, ...]:
        """The names in a folder, sorted; may be empty."""
        ...

    def exists(self, path: str) -> bool: ...

    def usable(self, path: str) -> str | None:
        """None when a device node opens for reading and writing, else why not: ``permission``, ``missing``, ``refused``."""
        ...

    def free(self, path: str) -> tuple[int, int] | None:
        """Bytes free and in all of the file system ``path`` is on."""
        ...

    def limit(self, name: str) -> int | None:
        """A soft limit of this process (``nofile``, ``memlock``, ``address_space``), -1 for unlimited; None if unknown."""
        ...

    def fact(self, name: str) -> str | None:
        """``user`` (number), ``kernel``, ``machine``, ``cpus`` (usable by this process), ``release`` (of Windows or macOS)."""
        ...

    def which(self, command: str) -> str | None:
        """Path of a command, or None."""
        ...

    def run(self, command: Sequence[str], *, limit_s: float, environment: Mapping[str, str] | None = None) -> CommandResult: ...


class LocalHost:
    """The machine this process runs on."""

    @property
    def environment(self) -> Mapping[str, str]:
        return os.environ

    @property
    def platform(self) -> str:
        return sys.platform

    def read(self, path: str) -> str | None:
        raw = self.read_bytes(path)
        return None if raw is None else raw.decode("utf-8", "replace")

    def read_bytes(self, path: str) -> bytes | None:
        try:
            with Path(path).open("rb") as file:
                return file.read(MOST_BYTES)
        except (OSError, ValueError):
            return None

    def link(self, path: str) -> str | None:
        try:
            return str(Path(path).readlink())
        except (OSError, ValueError):
            return None

    def names(self, path: str) -> tuple[str, ...]:
        try:
            return tuple(sorted(p.name for p in Path(path).iterdir()))
        except (OSError, ValueError):
            return ()

    def exists(self, path: str) -> bool:
        try:
            return Path(path).exists()
        except (OSError, ValueError):
            return False

    def usable(self, path: str) -> str | None:
        try:
            os.close(os.open(path, os.O_RDWR | getattr(os, "O_CLOEXEC", 0)))
        except FileNotFoundError:
            return "missing"
        except PermissionError as error:
            # EACCES: the node's mode; EPERM: a device cgroup
            return "permission" if error.errno == 13 else "refused"
        except OSError as error:
            return error.strerror or "refused"
        return None

    def free(self, path: str) -> tuple[int, int] | None:
        import shutil

        try:
            usage = shutil.disk_usage(path)
        except OSError:
            return None
        return usage.free, usage.total

    def limit(self, name: str) -> int | None:
        try:
            import resource
        except ImportError:
            return None
        which = {"nofile": "RLIMIT_NOFILE", "memlock": "RLIMIT_MEMLOCK", "address_space": "RLIMIT_AS"}[name]
        if not hasattr(resource, which):
            return None
        soft = resource.getrlimit(getattr(resource, which))[0]
        return -1 if soft == resource.RLIM_INFINITY else soft

    def fact(self, name: str) -> str | None:
        import platform

        if name == "user":
            return str(os.geteuid()) if hasattr(os, "geteuid") else None
        if name == "cpus":
            cores = affinity_cores()
            return None if cores is None else str(cores)
        return {"kernel": platform.release, "machine": platform.machine, "release": platform.version}[name]()

    def which(self, command: str) -> str | None:
        import shutil

        return shutil.which(command)

    def run(self, command: Sequence[str], *, limit_s: float, environment: Mapping[str, str] | None = None) -> CommandResult:
        start_s = time.monotonic()
        try:
            child = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=environment,
                start_new_session=True,
                text=True,
                encoding="utf-8",
                errors="replace",
            )
        except (OSError, ValueError):
            return NOT_THERE
        try:
            out, err = child.communicate(timeout=limit_s)
            return CommandResult(child.returncode, out, err, seconds=time.monotonic() - start_s)
        except subprocess.TimeoutExpired:
            _end(child)
            out, err = _what_is_left(child)
            return CommandResult(None, out, err, timed_out=True, seconds=time.monotonic() - start_s)
        except BaseException:
            _end(child)
            raise


def _end(child: subprocess.Popen[str]) -> None:
    """End a child and all it started: they share a session of their own."""
    with contextlib.suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()


def _what_is_left(child: subprocess.Popen[str]) -> tuple[str, str]:
    try:
        return child.communicate(timeout=1.0)
    except (subprocess.TimeoutExpired, OSError, ValueError):
        # stuck in the kernel (a driver that hangs): leave it, it cannot be ended
        return "", ""


@dataclass(frozen=True, slots=True)
class ScriptedHost:
    """A machine defined by data. A file of bytes is a text of the characters of their numbers.

    ``commands`` maps a command line to its result; a key that ends in ``*`` is a prefix.
    """

    files: Mapping[str, str] = field(default_factory=dict[str, str])
    links: Mapping[str, str] = field(default_factory=dict[str, str])
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    commands: Mapping[str, CommandResult] = field(default_factory=dict[str, CommandResult])
    unusable: Mapping[str, str] = field(default_factory=dict[str, str])
    """Device node -> why it does not open."""
    space: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    paths: Mapping[str, str] = field(default_factory=dict[str, str])
    """Command -> where it is."""
    platform: str = "linux"

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def read_bytes(self, path: str) -> bytes | None:
        text = self.files.get(path)
        return None if text is None else text.encode("latin-1", "replace")

    def link(self, path: str) -> str | None:
        return self.links.get(path)

    def names(self, path: str) -> tuple[str, ...]:
        top = PurePosixPath(path)
        entries = {p.relative_to(top).parts[0] for p in self._all() if p != top and p.is_relative_to(top)}
        return tuple(sorted(entries))

    def exists(self, path: str) -> bool:
        top = PurePosixPath(path)
        return any(p.is_relative_to(top) for p in self._all())

    def usable(self, path: str) -> str | None:
        if path in self.unusable:
            return self.unusable[path]
        return None if path in self.files else "missing"

    def free(self, path: str) -> tuple[int, int] | None:
        return self.space.get(path)

    def limit(self, name: str) -> int | None:
        return self.limits.get(name)

    def fact(self, name: str) -> str | None:
        return self.facts.get(name)

    def which(self, command: str) -> str | None:
        return self.paths.get(command)

    def run(self, command: Sequence[str], *, limit_s: float, environment: Mapping[str, str] | None = None) -> CommandResult:
        words = " ".join(command)
        for key, ran in self.commands.items():
            if words == key or (key.endswith("*") and words.startswith(key[:-1])):
                return ran
        return NOT_THERE

    def _all(self) -> Iterable[PurePosixPath]:
        return (PurePosixPath(p) for p in (*self.files, *self.links))
