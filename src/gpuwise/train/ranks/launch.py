"""Ranks of this machine under torchrun, watched by their journals from outside."""

from __future__ import annotations

import ast
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from gpuwise.errors import GpuwiseError, InputError, require_posix
from gpuwise.export.torchrun import MOST_RESTARTS, SAVE_S
from gpuwise.files import alone_in, open_file, read_bytes
from gpuwise.processes import script_environment
from gpuwise.train.hook.journal import MOST_JOURNAL
from gpuwise.train.hook.launch import FOR_SCRIPTS, PATIENCE
from gpuwise.train.hook.zygote import end_with_parent
from gpuwise.train.ranks.beat import Place, places, silent, stack_of
from gpuwise.train.ranks.layout import Layout
from gpuwise.train.ranks.settings import RankSettings, write_settings
from gpuwise.train.ranks.straggler import Straggler, straggler, usual_counts
from gpuwise.units import format_bytes

REFUSED = "refused.json"
"""Exit code of a rank that rejects the training itself: it is not restarted."""
WATCHED = "GPUWISE_RANKS_WATCHED"
"""Set for ranks whose refusals are read and printed by the launcher."""
LOST = (
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
    "Timed out waiting",
    "connectFullMesh",
    "DataLoader worker",
)
"""In errors of gloo, and of a loader whose worker was ended: the same training may succeed on the next attempt."""
DIVIDE_THEMSELVES = {
    "accelerate": "Accelerate",
    "lightning": "Lightning",
    "pytorch_lightning": "Lightning",
    "deepspeed": "DeepSpeed",
    "composer": "Composer",
}
"""Libraries that divide a loader by themselves where torchrun starts them."""
STARTERS = frozenset({"Accelerator", "Trainer", "Fabric", "initialize"})
"""What a script calls of them for it."""
POLL_S = 0.2
GRACE_S = 5.0
STOPPED = {"SIGTERM": 128 + signal.SIGTERM, "SIGINT": 128 + signal.SIGINT}
Event = dict[str, Any]


class DividesItselfError(InputError):
    """The script divides its work over ranks itself."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Time lost by one failure: from the last step before it until the training was at that step again."""

    steps: int
    """Repeated steps."""
    lost_s: float
    down_s: float
    """Downtime until the first step began again."""


@dataclass(slots=True)
class RankJournal:
    """Output of one rank so far: only the last step, and sums."""

    path: Path
    pid: int | None = None
    attempt: int = 0
    last: Event = field(default_factory=dict[str, Any])
    first_loss: float | None = None
    n_steps: int = 0
    events: list[Event] = field(default_factory=list[Event])
    """All that are no steps."""
    steps: list[Event] = field(default_factory=list[Event])
    """The newest ones."""
    losses: list[Loss] = field(default_factory=list[Loss])
    """Time lost by failures of ranks."""
    n_now: int = 0
    """Steps since the last attempt began."""
    _died: Event | None = None
    """The last step before a death that is not yet made up for."""
    _offset: int = 0
    _down_s: float = 0.0
    _first: int = 0

    @property
    def steady(self) -> list[Event]:
        """The newest steps but the first, in which things are made."""
        return self.steps[1:] or self.steps

    def newest(self, name: str) -> Event | None:
        """The last event ``name``; None where there was none."""
        return next((e for e in reversed(self.events) if e["event"] == name), None)

    @property
    def end(self) -> str | None:
        """The reason of the last attempt's end; None if it still runs or none began."""
        last = [e for e in self.events if e["event"] in ("begin", "end")]
        return str(last[-1]["reason"]) if last and last[-1]["event"] == "end" else None

    @classmethod
    def after(cls, path: Path, *, resumes: bool) -> RankJournal:
        """The journal from here on, without what earlier runs in its folder wrote; of a training that ``resumes`` the last step
        is where it stands."""
        before = cls(path)
        before.read()
        return cls(path, last=before.last if resumes else {}, _offset=before._offset)

    def read(self) -> None:
        """Read what was written since the last call."""
        if not self.path.exists():
            return
        with open_file(self.path, most=MOST_JOURNAL) as file:
            file.seek(self._offset)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._take(msgspec.json.decode(line))

    def _take(self, event: Event) -> None:
        if event["event"] != "step":
            self.events.append(event)
            if event["event"] == "begin":
                self.pid, self.attempt, self.n_now = int(event["pid"]), int(event["attempt"]), 0
                if self.attempt and self.last and self._died is None:
                    self._died = self.last
            return
        self._make_up(event)
        self.n_steps, self.n_now = self.n_steps + 1, self.n_now + 1
        self.last = event
        self.first_loss = event["loss"] if self.first_loss is None else self.first_loss
        self.steps.append(event)
        if len(self.steps) > 2 * KEPT_STEPS:
            del self.steps[:KEPT_STEPS]

    def _make_up(self, event: Event) -> None:
        died = self._died
        if died is None:
            return
        if self.last is died:
            self._down_s = event["at_s"] - event["step_s"] - died["at_s"]
            self._first = event["step"]
        if event["step"] > died["step"]:
            lost_s = event["at_s"] - event["step_s"] - died["at_s"]
            self.losses.append(Loss(died["step"] + 1 - self._first, lost_s, self._down_s))
            self._died = None


HANG_S, STACK_S = 300.0, 0.5
"""Seconds without progress of any rank, and seconds for a rank to write its stack. Rules of this project."""
KEPT_STEPS = 512
"""Number of the newest steps of a rank used for sums."""


@dataclass(frozen=True, slots=True)
class RanksResult:
    """How a training on ranks ended."""

    ended: str
    """``done``, ``asked`` (by a signal), ``failed``."""
    code: int
    journals: tuple[RankJournal, ...]
    wall_s: float
    restarts: int = 0
    hung: str | None = None
    """Rank that all others waited for, if any."""

    @property
    def step(self) -> int:
        """Updates in all, those of runs before with them."""
        return int(self.journals[0].last.get("step", 0))

    @property
    def straggler(self) -> Straggler | None:
        """Who was waited for, in the newest steps."""
        return straggler([j.steps for j in self.journals])

    @property
    def collectives(self) -> dict[str, dict[str, list[int] | None]]:
        """Number and bytes a step of the first rank, by kind: predicted, and as counted."""
        event = self.journals[0].newest("predicted")
        counts: dict[str, list[int]] = {} if event is None else event["collectives"]
        counted = usual_counts(self.journals[0].steps)
        return {k: {"predicted": counts.get(k), "measured": counted.get(k)} for k in sorted({*counts, *counted})}

    @property
    def step_s(self) -> float | None:
        """Median of the first rank's newest steps, without the very first."""
        steps = self.journals[0].steady
        return statistics.median(s["step_s"] for s in steps) if steps else None

    @property
    def exchange_times(self) -> dict[str, dict[str, float | None]]:
        """Seconds per step of the first rank in each kind of collective: predicted from its line through two payloads,
        measured (None on GPUs, where the process cannot see it), and the line's error at a third payload."""
        times = self.journals[0].newest("exchanges")
        if times is None:
            return {}
        waits: list[dict[str, float]] = [s.get("waits_s") or {} for s in self.journals[0].steady]
        return {
            kind: {
                "predicted_s": seconds,
                "measured_s": statistics.median(w[kind] for w in waits) if waits and all(kind in w for w in waits) else None,
                "line_off": times["off"].get(kind),
            }
            for kind, seconds in times["step_s"].items()
        }

    @property
    def energy_j(self) -> float | None:
        """Energy of the newest steps of all ranks; None if no rank has a counter."""
        joules = [s["energy_j"] for j in self.journals for s in j.steps if s.get("energy_j") is not None]
        return sum(joules) if joules else None

    @property
    def blocked(self) -> float | None:
        """Share of the time between two checkpoints in which steps waited for one; None with fewer than two."""
        saved = [e for e in self.journals[0].events if e["event"] == "saved"]
        between_s = saved[-1]["at_s"] - saved[0]["at_s"] if saved else 0.0
        return sum(e["block_s"] for e in saved[1:]) / between_s if between_s > 0 else None

    @property
    def died(self) -> str | None:
        """Ranks whose last attempt has no end in their journals, and where each was; None where all have one."""
        deaths = [
            f"rank {r} after step {j.last.get('step', 0)}"
            for r, j in enumerate(self.journals)
            if j.pid is not None and j.end is None
        ]
        return ", ".join(deaths) if self.ended == "failed" and deaths else None

    @property
    def losses(self) -> list[Loss]:
        """Losses that rank 0 wrote, by step."""
        return self.journals[0].losses

    @property
    def expected_loss_s(self) -> float | None:
        """Expected loss per failure: half of the work between two checkpoints, and the restart time (Daly 2006, for rare
        failures); None without failures or with fewer than two checkpoints."""
        saved = [e["step"] for e in self.journals[0].events if e["event"] == "saved"]
        gaps = [b - a for a, b in pairwise(saved) if b > a]
        if not self.losses or not gaps or not self.journals[0].steps:
            return None
        step_s = statistics.median(s["step_s"] for s in self.journals[0].steps)
        return statistics.median(gaps) * step_s / 2 + statistics.fmean(x.down_s for x in self.losses)

    @property
    def loss(self) -> float | None:
        """The last loss that rank 0 wrote; None where there was none."""
        return self.journals[0].last.get("loss")


def gpus_here() -> list[str]:
    """Names of the GPUs that torch may use."""
    import torch

    return [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]


def command_of(settings: Path, n_ranks: int, restarts: int = MOST_RESTARTS) -> list[str]:
    """torchrun on this machine."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n_ranks)]
    return [*words, "--max-restarts", str(restarts), "-m", "gpuwise.train.ranks.child", str(settings)]


def run_ranks(
    settings: RankSettings,
    *,
    look: Callable[[tuple[RankJournal, ...]], None] | None = None,
    every_s: float = 1.0,
    streams: tuple[int | None, int | None] = (None, None),
    restarts: int = MOST_RESTARTS,
    hang_s: float = HANG_S,
) -> RanksResult:
    """Train to the end, or to a save requested by a signal. If no rank progresses for ``hang_s``, the straggler is reported
    and ended, and all restart. Raises GpuwiseError if a rank rejects the training, and on Windows."""
    require_posix("training on ranks")
    out = Path(settings.out)
    plain = msgspec.structs.replace(settings.layout, micro_batch=1, global_batch=1)
    is_plain = plain == Layout(dp=plain.dp) and not settings.levers
    if settings.whole and is_plain and (who := divides_itself(Path(settings.target))) is not None:
        sys.stderr.write(f"gpuwise: {who} divides the script's work over ranks: started as torchrun starts it, and watched\n")
        settings = msgspec.structs.replace(settings, own=True)
    with alone_in(out, "training"):
        try:
            return _run_ranks(settings, out, look, every_s, streams, restarts, hang_s)
        except DividesItselfError as error:
            if not is_plain:
                raise
            sys.stderr.write(f"gpuwise: {error.message}: started as torchrun starts it, and watched\n")
            settings = msgspec.structs.replace(settings, own=True)
            return _run_ranks(settings, out, look, every_s, streams, restarts, hang_s)


def _run_ranks(
    settings: RankSettings,
    out: Path,
    look: Callable[[tuple[RankJournal, ...]], None] | None,
    every_s: float,
    streams: tuple[int | None, int | None],
    restarts: int,
    hang_s: float,
) -> RanksResult:
    with suppress(FileNotFoundError):
        (out / REFUSED).unlink()
    write_settings(settings, out / "settings.json")
    n = settings.layout.n_ranks
    journals = tuple(RankJournal.after(out / f"rank-{r}.jsonl", resumes=not settings.whole) for r in range(n))
    began, looked = time.monotonic(), 0.0
    given = {"OMP_NUM_THREADS": str(max((os.cpu_count() or 1) // n, 1)), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(SAVE_S)}
    environment = {WATCHED: "1", **FOR_SCRIPTS, **given, **script_environment()}
    process = subprocess.Popen(
        command_of(out / "settings.json", n, restarts),
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=streams[0],
        stderr=streams[1],
        start_new_session=True,
        preexec_fn=partial(_prepare_launcher, os.getpid()),
    )
    watch = HangWatch(out, n, hang_s, settings)
    try:
        with _passed_on(process, journals) as signals:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_S)
                for journal in journals:
                    journal.read()
                if process.returncode is not None or (out / REFUSED).exists():
                    break
                watch.look(journals)
                if look is not None and time.monotonic() - looked >= every_s:
                    looked = time.monotonic()
                    look(journals)
    finally:
        if (out / REFUSED).exists():
            # already reported: a launcher that is asked to end repeats it at length
            _kill(process, signal.SIGKILL)
        _end(process)
    _raise_refused(out)
    return replace(_result(process.returncode, journals, signals, time.monotonic() - began), hung=watch.hung)


def divides_itself(script: Path) -> str | None:
    """What in a script's text divides its work over ranks: its own process group, or a library; None where nothing does that can
    be seen there."""
    try:
        tree = ast.parse(read_bytes(script))
    except (SyntaxError, ValueError, GpuwiseError):
        return None
    nodes = list(ast.walk(tree))
    called = {getattr(n.func, "attr", getattr(n.func, "id", "")) for n in nodes if isinstance(n, ast.Call)}
    if "init_process_group" in called:
        return "the script (init_process_group)"
    imported = [a.name for n in nodes if isinstance(n, ast.Import) for a in n.names]
    imported += [n.module or "" for n in nodes if isinstance(n, ast.ImportFrom)]
    libraries = [DIVIDE_THEMSELVES[top] for name in imported if (top := name.partition(".")[0]) in DIVIDE_THEMSELVES]
    return libraries[0] if libraries and called & STARTERS else None


class HangWatch:
    """Ends a hanging training, so that the launcher restarts it, and reports the straggler."""

    def __init__(self, out: Path, n_ranks: int, hang_s: float, settings: RankSettings | None = None) -> None:
        """``settings`` of a script, that is a whole program."""
        self._out, self._n, self._hang_s = out, n_ranks, hang_s
        self._whole, self._own = (False, False) if settings is None else (settings.whole, settings.own)
        self._began_s = time.time()
        self.hung: str | None = None

    def look(self, journals: tuple[RankJournal, ...]) -> None:
        """One look at the beats. Until every rank has made a step, data, compilation and connections may take any time: the
        collectives' own limits (10 and 30 minutes in torch) end what hangs there."""
        if not all(j.n_now for j in journals[: self._n]):
            return
        now = [p for p in places(self._out, self._n) if p.at_s >= self._began_s and p.phase != "end"]
        behind = silent(now, self._n, self._hang_s, time.time())
        waits = bool(behind) if self._own else not self._whole or any(p.phase == "exchange" for p in now)
        if behind is None or not waits:
            # a script may do other work for long, as long as no rank waits
            return
        pids = {p.rank: journals[p.rank].pid for p in now}
        # a rank stopped by a signal inside an exchange appears where the others wait for it
        stopped = [p for p in now if _is_stopped(pids[p.rank])]
        behind = stopped or behind
        for place in behind or now:
            _signal(pids[place.rank], signal.SIGUSR2)
        time.sleep(STACK_S)
        self.hung = words = self._words(now, behind, bool(stopped))
        sys.stderr.write(f"gpuwise: {words}\n")
        self._began_s = time.time()
        for place in now:
            _signal(pids[place.rank], signal.SIGKILL)

    def _words(self, now: list[Place], behind: list[Place], stopped: bool) -> str:
        if not behind:
            return (
                f"no rank moved for {self._hang_s:g} s, all at step {now[0].step} in {now[0].phase}: the collective itself hangs"
            )
        words: list[str] = []
        for place in behind:
            line = stack_of(self._out, place.rank)
            what = "was stopped by a signal" if stopped else "is silent"
            words.append(f"rank {place.rank} {what} in {place.phase} of step {place.step}" + (f" ({line})" if line else ""))
        return f"no rank moved for {self._hang_s:g} s: {'; '.join(words)}; the others wait for it"


def _is_stopped(pid: int | None) -> bool:
    """Whether a signal (SIGSTOP, a debugger) keeps a process from running."""
    import psutil

    try:
        return pid is not None and psutil.Process(pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
    except psutil.Error:
        return False


def _signal(pid: int | None, number: int) -> None:
    if pid is not None:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _prepare_launcher(parent: int) -> None:
    """A launcher would by default die from a request to save; and if this process is killed, its ranks save and end instead of
    training on unseen."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if sys.platform == "linux":
        end_with_parent(parent, signal.SIGTERM)


def _result(code: int | None, journals: tuple[RankJournal, ...], signals: list[str], wall_s: float) -> RanksResult:
    reasons = {j.end for j in journals}
    restarts = max(j.attempt for j in journals)
    if code == 0 and reasons == {"asked"}:
        return RanksResult("asked", STOPPED.get(signals[0] if signals else "SIGTERM", 0), journals, wall_s, restarts)
    if code == 0 and reasons == {"done"}:
        return RanksResult("done", 0, journals, wall_s, restarts)
    return RanksResult("failed", 1 if not code else (128 - code if code < 0 else code), journals, wall_s, restarts)


def _raise_refused(out: Path) -> None:
    try:
        refusal = json.loads((out / REFUSED).read_text("utf-8"))
    except OSError:
        return
    except ValueError:
        free = format_bytes(shutil.disk_usage(out).free)
        raise GpuwiseError(
            f"a rank ended, and could not write why to {out}, where {free} are free",
            hint="free space there: the same command resumes from the last checkpoint, if there is one",
        ) from None
    if refusal.get("itself"):
        raise DividesItselfError(refusal["error"], hint=refusal.get("hint"))
    raise (
        InputError(refusal["error"], hint=refusal.get("hint"))
        if refusal.get("input", True)
        else GpuwiseError(refusal["error"], hint=refusal.get("hint"))
    )


@contextmanager
def _passed_on(process: subprocess.Popen[bytes], journals: tuple[RankJournal, ...]) -> Generator[list[str], None, None]:
    """Signals to this process are requests to the ranks: an end after a save, or with SIGUSR1 a save. The ``PATIENCE``-th ends
    them at once."""
    signals: list[str] = []
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if name != "SIGUSR1":
            signals.append(name)
        if len(signals) >= PATIENCE:
            _kill(process, signal.SIGKILL)
            return
        pids = [j.pid for j in journals if j.pid is not None]
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGUSR1 if name == "SIGUSR1" else signal.SIGTERM)
        if not pids and name != "SIGUSR1":
            _kill(process, signal.SIGTERM)

    numbers = [getattr(signal, n) for n in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1") if hasattr(signal, n)]
    handlers = {number: signal.signal(number, pass_on) for number in numbers}
    try:
        yield signals
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _kill(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask the launcher, then end all of its group: ranks, and loaders' workers that outlived them."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    _kill(process, signal.SIGKILL)
    process.wait()
