# pyright: reportPrivateUsage=false
# a FakeGpu is a part of its FakeNvml; what pynvml has loaded is under private names
"""Control of simulated GPUs while clients read them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.testing.fake_nvml.board import Board, encode
from gpuwise.testing.fake_nvml.build import LIBRARY, build_library, function_names
from gpuwise.testing.fake_nvml.cards import Card, Reading, card_readings, change_reading
from gpuwise.testing.fake_nvml.waves import Wave, ramp

MAX_GPUS, MAX_PROCESSES, MAX_EVENTS = 32, 128, 64
XID_EVENT = 0x8
"""nvmlEventTypeXidCriticalError (nvml.h)."""
LOST, RESET_REQUIRED, MISMATCH = 15, 16, 18
_SLICES = {4: 3, 8: 7}
"""Sevenths of a GPU's processors in an instance, by eighths of its memory (NVIDIA's MIG user guide)."""
_KINDS = {"compute": 1, "graphics": 2, "both": 3, "mps": 4}


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    kind: str
    memory_bytes: float
    use: tuple[int, int, int, int]
    instance: tuple[int, int]

    def line(self) -> str:
        use, instance = " ".join(map(str, self.use)), " ".join(map(str, self.instance))
        return f"process {_KINDS[self.kind]} {self.pid} {self.memory_bytes!r} {use} {instance}"


class FakeGpu:
    """One card of a :class:`FakeNvml`; every change is seen by the next call of any client."""

    def __init__(self, owner: FakeNvml, index: int, card: Card) -> None:
        self._owner, self.index = owner, index
        self._said = card_readings(card, index)
        self._processes: dict[int, _Process] = {}
        self._failures: dict[str, tuple[int, int]] = {}
        self._fields: dict[int, float | Wave] = {}
        self._peers: dict[int, tuple[int, int, int]] = {}
        self._mig: list[str] = []
        self._lost = 0
        # the driver counts energy from when it was loaded
        self._energy_counts = "energy_j" in self._said and "energy_j" not in card.readings
        self._count_energy(0.0)

    @property
    def uuid(self) -> str:
        """UUID of the card."""
        return str(self._said["uuid"])

    def get(self, name: str) -> float | str | None:
        """The current value of a reading; None where not supported."""
        value = self._said.get(name)
        return value.at(time.monotonic()) if isinstance(value, Wave) else value

    def set(self, **readings: Reading) -> None:
        """Change readings: numbers, texts, waves; None: no longer supported.

        Energy continues to follow the power, unless it is set itself.
        """
        energy_j = self.get("energy_j")
        for name, value in readings.items():
            change_reading(self._said, name, value)
        if "energy_j" in readings:
            self._energy_counts = False
        elif self._energy_counts and "power_w" in readings and isinstance(energy_j, float):
            self._count_energy(energy_j)
        self._owner._changed()

    def lose(self, code: int = LOST) -> None:
        """Fall off the bus: no handle any more, and every call with an old one gives ``code``."""
        self._lost = code
        self._owner._changed()

    def restore(self) -> None:
        """Return to the bus after :meth:`lose`."""
        self._lost = 0
        self._owner._changed()

    def fail(self, function: str, code: int, *, every: int = 1) -> None:
        """Make every n-th call of ``function`` for this card give ``code``; 0 heals it."""
        self._failures[_function(function)] = (code, every)
        self._owner._changed()

    def field(self, number: int, value: float | Wave) -> None:
        """Answer ``nvmlDeviceGetFieldValues`` for one field id with a whole number."""
        self._fields[number] = value
        self._owner._changed()

    def add_process(
        self,
        pid: int,
        kind: str = "compute",
        *,
        memory_bytes: float | None = None,
        sm: float = 0.0,
        memory: float = 0.0,
        encoder: float = 0.0,
        decoder: float = 0.0,
        gpu_instance: int = 0xFFFFFFFF,
        compute_instance: int = 0xFFFFFFFF,
        name: str | None = None,
    ) -> None:
        """Run a process on the card, or change one: kind compute, graphics, both or mps, use as shares.

        Memory None: not available, as under WDDM. Raises UnknownNameError, InputError.
        """
        if kind not in _KINDS:
            raise UnknownNameError("kind of process", kind, _KINDS)
        if pid not in self._processes and len(self._processes) >= MAX_PROCESSES:
            raise InputError(f"over {MAX_PROCESSES} processes on a fake card")
        use = tuple(round(100 * share) for share in (sm, memory, encoder, decoder))
        held = -1.0 if memory_bytes is None else float(memory_bytes)
        self._processes[pid] = _Process(pid, kind, held, use, (gpu_instance, compute_instance))  # type: ignore[arg-type]
        if name is not None:
            self._owner._names[pid] = name
        self._owner._changed()

    def remove_process(self, pid: int) -> None:
        """End a process."""
        self._processes.pop(pid, None)
        self._owner._changed()

    def peer(self, other: int, *, level: int = 0, n_links: int = 0, status: int = 0) -> None:
        """Set how this card reaches another: NVML's topology level (0: by NUMA node) and P2P status (0: ok)."""
        self._peers[other] = (level, n_links, status)
        self._owner._changed()

    def add_mig_device(self, gpu_instance: int, memory_bytes: float, *, used_bytes: float = 0.0, name: str = "") -> str:
        """Split off a MIG device (turns MIG on); its uuid is returned."""
        uuid = "MIG-" + self.uuid.removeprefix("GPU-")[:-2] + f"{len(self._mig):02x}"
        total = self.get("memory_total_bytes")
        eighths = max(round(8 * memory_bytes / total), 1) if isinstance(total, float) else 1
        gb = int(-(-float(total or 0) // 2**30) * eighths / 8 + 0.5)
        label = name or f"{self._said['name']} MIG {_SLICES.get(eighths, eighths)}g.{gb}gb"
        self._mig.append(f"mig_device {gpu_instance} 0 {memory_bytes!r} {used_bytes!r} {encode(label)} {encode(uuid)}")
        self.set(mig=1, mig_pending=1)
        return uuid

    def _count_energy(self, from_j: float) -> None:
        power = self._said.get("power_w")
        if self._energy_counts and power is not None:
            mean_w = power.mean if isinstance(power, Wave) else float(power)
            self._said["energy_j"] = ramp(from_j, mean_w)

    def _lines(self) -> Iterator[str]:
        for name, value in self._said.items():
            encoded = value.line() if isinstance(value, Wave) else encode(value) if isinstance(value, str) else repr(value)
            yield f"{name} {encoded}"
        for number, value in self._fields.items():
            yield f"field {number} " + (value.line() if isinstance(value, Wave) else repr(float(value)))
        for function, (code, every) in self._failures.items():
            yield f"fail {function} {code} {every}"
        for other, (level, n_links, status) in self._peers.items():
            yield f"peer {other} {level} {n_links} {status}"
        yield from (process.line() for process in self._processes.values())
        yield from self._mig
        if self._lost:
            yield f"lost {self._lost}"


class FakeNvml:
    """A machine's NVML: a folder with ``libnvidia-ml.so.1`` and the script it plays. Use it as a context manager.

    Clients in other processes find it with :attr:`env`; in this one, with :meth:`in_process`.
    """

    def __init__(
        self,
        cards: Sequence[str | Card],
        *,
        driver: str = "580.95.05",
        cuda: str | None = None,
        folder: Path | None = None,
        nvml: str | None = None,
    ) -> None:
        if len(cards) > MAX_GPUS:
            raise InputError(f"{len(cards)} fake cards, at most {MAX_GPUS}")
        self._batch, self._epoch, self._unloaded, self._init_code = 1, 0, False, 0
        cuda = cuda or _cuda_of(driver)
        self._driver, self._nvml = driver, nvml or f"{cuda.split('.')[0]}.{driver}"
        self._cuda = _cuda_number(cuda)
        self._failures: dict[str, tuple[int, int]] = {}
        self._latency_s: dict[str, float] = {}
        self._events: list[str] = []
        self._n_events = 0
        self._names: dict[int, str] = {}
        self._gpus = [FakeGpu(self, i, Card(c) if isinstance(c, str) else c) for i, c in enumerate(cards)]
        built = build_library()
        self._own = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="fake-nvml-")) if folder is None else folder
        self.folder.mkdir(parents=True, exist_ok=True)
        # a copy each: the loader knows a library by its file
        self.library = self.folder / LIBRARY
        shutil.copyfile(built, self.library)
        plain = self.folder / LIBRARY.removesuffix(".1")
        plain.unlink(missing_ok=True)
        plain.symlink_to(LIBRARY)
        self._write_smi()
        self._board = Board(self.folder)
        self._batch = 0
        self._changed()

    def __enter__(self) -> FakeNvml:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove what was made; clients that still run keep what they have loaded."""
        self._batch = 1
        self._board.close()
        if self._own:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _write_smi(self) -> None:
        """The command ``nvidia-smi`` of these cards (:mod:`gpuwise.testing.fake_nvml.smi`)."""
        command = self.folder / "bin" / "nvidia-smi"
        command.parent.mkdir(exist_ok=True)
        package = Path(__file__).parents[3]
        words = f"PYTHONPATH={shlex.quote(str(package))} LD_LIBRARY_PATH={shlex.quote(str(self.folder))}"
        program = f"{shlex.quote(sys.executable)} -m gpuwise.testing.fake_nvml.smi"
        command.write_text(f'#!/bin/sh\n{words} exec {program} "$@"\n', encoding="utf-8")
        command.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        """The environment for a process that should see these cards: this one's, with LD_LIBRARY_PATH, and PATH for
        nvidia-smi."""
        return {**os.environ, **self.overrides}

    @property
    def overrides(self) -> dict[str, str]:
        """Only the variables that :attr:`env` changes."""
        first = {"LD_LIBRARY_PATH": str(self.folder), "PATH": str(self.folder / "bin")}
        return {name: f"{path}:{others}" if (others := os.environ.get(name)) else path for name, path in first.items()}

    @property
    def gpus(self) -> tuple[FakeGpu, ...]:
        """All cards."""
        return tuple(self._gpus)

    def gpu(self, index: int) -> FakeGpu:
        """One card. Raises InputError."""
        if not 0 <= index < len(self._gpus):
            raise InputError(f"no fake card {index}", hint=f"there are {len(self._gpus)}, counted from 0")
        return self._gpus[index]

    def add(self, card: str | Card) -> FakeGpu:
        """Plug in one more card."""
        if len(self._gpus) >= MAX_GPUS:
            raise InputError(f"at most {MAX_GPUS} fake cards")
        self._gpus.append(FakeGpu(self, len(self._gpus), Card(card) if isinstance(card, str) else card))
        self._changed()
        return self._gpus[-1]

    def fail(self, function: str, code: int, *, gpu: int | None = None, every: int = 1) -> None:
        """Make every n-th call of a function give ``code``, on one card or on all; 0 heals it.

        Code 13 is what a client sees of a library too old to have the function. Raises UnknownNameError.
        """
        if gpu is not None:
            self.gpu(gpu).fail(function, code, every=every)
            return
        self._failures[_function(function)] = (code, every)
        self._changed()

    def heal(self) -> None:
        """Undo every failure, latency, loss and refusal, and load the driver."""
        with self.change():
            self._failures.clear()
            self._latency_s.clear()
            self._init_code = 0
            for gpu in self._gpus:
                gpu._failures.clear()
                gpu._lost = 0
            if self._unloaded:
                self.load()

    def latency(self, function: str, seconds: float) -> None:
        """Make every call of a function take that long."""
        self._latency_s[_function(function)] = seconds
        self._changed()

    def refuse_init(self, code: int) -> None:
        """Let no client start: 9 no driver, 4 no permission, 18 library and driver differ; 0: let them."""
        self._init_code = code
        self._changed()

    def mismatch(self) -> None:
        """The driver was updated under a running kernel: clients that start are refused, those that run go on."""
        self.refuse_init(MISMATCH)

    def unload(self) -> None:
        """Unload the driver, also for running clients."""
        self._unloaded = True
        self._changed()

    def load(self) -> None:
        """Load the driver again; a client has to restart to see it. Counters restart."""
        self._unloaded = False
        self._epoch += 1
        for gpu in self._gpus:
            gpu._count_energy(0.0)
        self._changed()

    def xid(self, gpu: int, code: int) -> None:
        """Let the driver report an error of a card to waiting clients."""
        self.event(gpu, XID_EVENT, code)

    def event(self, gpu: int, kind: int, data: int) -> None:
        """Any event, by the bit of its type (nvml.h, ``nvmlEventType*``)."""
        self.gpu(gpu)
        self._n_events += 1
        self._events = [*self._events[-(MAX_EVENTS - 1) :], f"event {self._n_events} {gpu} {kind} {data}"]
        self._changed()

    def calls(self) -> dict[str, int]:
        """Function -> calls by all processes since the start or :meth:`reset_calls`."""
        return self._board.calls()

    def reset_calls(self) -> None:
        """Set all call counts to 0."""
        self._board.reset_calls()

    @contextmanager
    def change(self) -> Generator[None, None, None]:
        """Several changes that clients see at once."""
        self._batch += 1
        try:
            yield
        finally:
            self._batch -= 1
            self._changed()

    @contextmanager
    def in_process(self) -> Generator[None, None, None]:
        """Let pynvml in this process use these cards; what it had loaded is put back.

        The library stays mapped until the process ends (its code and, once written to, its state: some hundred kB): another
        thread may still be inside one of its calls, and unmapping it would take that thread's code away.
        """
        import ctypes

        import pynvml  # pyright: ignore[reportMissingTypeStubs]

        state = {name: getattr(pynvml, name) for name in ("nvmlLib", "_nvmlLib_refcount", "_nvmlGetFunctionPointer_cache")}
        pynvml.nvmlLib = ctypes.CDLL(str(self.library))
        pynvml._nvmlLib_refcount = 0
        pynvml._nvmlGetFunctionPointer_cache = {}
        try:
            yield
        finally:
            for name, value in state.items():
                setattr(pynvml, name, value)

    def _changed(self) -> None:
        if self._batch:
            return
        lines = [f"driver {encode(self._driver)}", f"nvml {encode(self._nvml)}", f"cuda {self._cuda}", f"epoch {self._epoch}"]
        if self._unloaded:
            lines.append("unloaded 1")
        if self._init_code:
            lines.append(f"init {self._init_code}")
        lines += [f"fail {function} {code} {every}" for function, (code, every) in self._failures.items()]
        lines += [f"latency {function} {seconds!r}" for function, seconds in self._latency_s.items()]
        lines += [f"process_name {pid} {encode(name)}" for pid, name in self._names.items()]
        for gpu in self._gpus:
            lines += [f"gpu {gpu.index} {line}" for line in gpu._lines()]
        self._board.write("\n".join([*lines, *self._events, ""]))


def fake_nvml(
    cards: Sequence[str | Card] | Mapping[str, int] = ("H100-SXM",),
    *,
    driver: str = "580.95.05",
    cuda: str | None = None,
    folder: Path | None = None,
    nvml: str | None = None,
) -> FakeNvml:
    """Simulated cards behind a real ``libnvidia-ml.so.1``; also ``{"H100-SXM": 8}``.

    ``driver`` and ``cuda`` are the versions that the driver reports; default ``cuda``: that of the driver's branch. Files are
    created in ``folder``, else in a temporary one that is deleted with the context. Raises NoCompilerError, UnknownNameError,
    InputError.
    """
    if isinstance(cards, Mapping):
        cards = [name for name, n in cards.items() for _ in range(n)]
    return FakeNvml(list(cards), driver=driver, cuda=cuda, folder=folder, nvml=nvml)


def _function(name: str) -> str:
    if name not in function_names():
        raise UnknownNameError("function of the fake NVML", name, function_names())
    return name


def _cuda_of(driver: str) -> str:
    """The newest CUDA of a driver's branch; for an unknown driver, that of the default one."""
    from gpuwise.facts.software.compatibility import newest_cuda, parse_version

    try:
        version = newest_cuda(parse_version(driver))
    except InputError:
        version = None
    return ".".join(map(str, version or (13, 0)))


def _cuda_number(version: str) -> int:
    """13.0 -> 13000, as NVML counts."""
    major, _, minor = version.partition(".")
    if not (major.isdigit() and (minor or "0").isdigit()):
        raise InputError(f"CUDA version {version!r}", hint="give it as 13.0")
    return 1000 * int(major) + 10 * int(minor or "0")
