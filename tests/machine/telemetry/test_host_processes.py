"""What the operating system says of a process, from a /proc made for the purpose: names that are no text, threads that never
rest, containers, processes that are not ours to see."""

from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuwise.machine.telemetry.host import HostMeter
from gpuwise.machine.telemetry.host_processes import (
    INITIAL_PID_NAMESPACE,
    OTHERS_NAMESPACE,
    ProcReader,
    PsutilReader,
    show_bytes,
)

HZ = os.sysconf("SC_CLK_TCK")


class Proc:
    """A /proc with processes as a test wants them."""

    def __init__(self, root: Path, namespace: str = INITIAL_PID_NAMESPACE) -> None:
        self.root = root
        (root / "self/ns").mkdir(parents=True)
        (root / "self/ns/pid").symlink_to(namespace)
        (root / "1").mkdir()

    def put(
        self,
        pid: int,
        *,
        name: bytes = b"python",
        cmdline: bytes = b"python\0train.py\0",
        ticks: int = 0,
        state: str = "S",
        parent: int = 1,
        started: int = 500,
        cgroup: str = "0::/\n",
        threads: dict[int, tuple[bytes, int]] | None = None,
        children: tuple[int, ...] = (),
    ) -> Path:
        at = self.root / str(pid)
        (at / "task").mkdir(parents=True, exist_ok=True)
        (at / "stat").write_bytes(self.stat(pid, name, state, parent, ticks, started))
        (at / "cmdline").write_bytes(cmdline)
        (at / "cgroup").write_text(cgroup)
        for tid, (thread, used) in {pid: (name, ticks), **(threads or {})}.items():
            (at / f"task/{tid}").mkdir(exist_ok=True)
            (at / f"task/{tid}/stat").write_bytes(self.stat(tid, thread, state, parent, used, started))
        (at / f"task/{pid}/children").write_text(" ".join(map(str, children)) + " ")
        return at

    def stat(self, pid: int, name: bytes, state: str, parent: int, ticks: int, started: int) -> bytes:
        middle = f"{state} {parent} {pid} {pid} 0 -1 4194304 1 0 0 0 {ticks} 0 0 0 20 0 1 0 {started} 4096000 250"
        return b"%d (%s) %s 0 0\n" % (pid, name, middle.encode())


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def test_a_process_as_it_is(proc: Proc) -> None:
    proc.put(77, parent=42)
    reader = ProcReader(proc.root)
    told = reader.read([77], 10.0)[77]
    assert (told.name, told.command, told.parent_pid, told.state, told.container) == ("python", "python train.py", 42, "S", None)
    assert told.started_s == 500 / HZ and told.host_memory_bytes == 250 * os.sysconf("SC_PAGE_SIZE")
    assert told.cpu_share is None and told.unknown == {} and told.user


def test_use_of_the_processor_is_a_difference(proc: Proc) -> None:
    proc.put(77, ticks=1000)
    reader = ProcReader(proc.root)
    reader.read([77], 10.0)
    proc.put(77, ticks=1000 + HZ)
    assert reader.read([77], 10.5)[77].cpu_share == pytest.approx(2.0)
    assert reader.read([77], 10.6)[77].cpu_share == pytest.approx(2.0), "too short a span keeps the last share"
    proc.put(77, ticks=1000 + HZ)
    assert reader.read([77], 12.5)[77].cpu_share == 0.0


def test_a_thread_that_never_rests_is_named(proc: Proc) -> None:
    proc.put(77, threads={78: (b"pt_autograd_0", 0), 79: (b"idle", 0)})
    reader = ProcReader(proc.root, look_every_s=1.0)
    assert reader.read([77], 10.0)[77].pegged_thread is None
    proc.put(77, ticks=2 * HZ, threads={78: (b"pt_autograd_0", 2 * HZ), 79: (b"idle", 3)})
    assert reader.read([77], 12.0)[77].pegged_thread == "python"
    proc.put(77, ticks=4 * HZ + 10, threads={78: (b"pt_autograd_0", 4 * HZ), 79: (b"idle", 3)})
    proc.put(77, ticks=4 * HZ, threads={77: (b"python", 2 * HZ), 78: (b"pt_autograd_0", 4 * HZ), 79: (b"idle", 3)})
    assert reader.read([77], 14.0)[77].pegged_thread == "pt_autograd_0"


def test_workers_that_use_their_cores_whole(proc: Proc) -> None:
    proc.put(77, children=(80, 81, 82))
    for pid in (80, 81, 82):
        proc.put(pid, name=b"pt_data_worker", parent=77)
    reader = ProcReader(proc.root, look_every_s=1.0)
    assert reader.read([77], 10.0)[77].n_workers == 3
    for pid, ticks, state in ((80, 2 * HZ, "R"), (81, 2 * HZ, "R"), (82, 0, "D")):
        proc.put(pid, name=b"pt_data_worker", parent=77, ticks=ticks, state=state)
    told = reader.read([77], 12.0)[77]
    assert (told.n_workers, told.n_workers_pegged, told.n_workers_waiting) == (3, 2, 1)
    assert told.workers_cpu_share == pytest.approx(2.0)


def test_a_number_used_again_is_another_process(proc: Proc) -> None:
    proc.put(77, ticks=10**6, started=500)
    reader = ProcReader(proc.root)
    reader.read([77], 10.0)
    proc.put(77, ticks=5, started=900, name=b"bash", cmdline=b"bash\0")
    told = reader.read([77], 12.0)[77]
    assert (told.name, told.command, told.cpu_share) == ("bash", "bash", None)


def test_names_that_are_no_text_can_be_shown(proc: Proc) -> None:
    proc.put(77, name=b"py\xff) (\x1b[2J", cmdline=b"run\0\xfe\xff\0--x=\n\0")
    told = ProcReader(proc.root).read([77], 1.0)[77]
    assert told.name == "py\\xff) (\\x1b[2J" and told.command == "run \\xfe\\xff --x=\\x0a"


@given(st.binary(max_size=60))
def test_what_is_shown_never_moves_the_cursor(raw: bytes) -> None:
    shown = show_bytes(raw)
    assert all(c.isprintable() or unicodedata.category(c) == "Zs" for c in shown)
    assert shown.encode("utf-8") is not None


@pytest.mark.parametrize("raw", [b"\xd6\x8b", "a\u2028b".encode(), "\ue000".encode(), b"\x1b[2J", "\u202e".encode()])
def test_what_has_no_sign_of_its_own_is_a_number(raw: bytes) -> None:
    assert "\\" in show_bytes(raw) and show_bytes(raw).isprintable()


def test_a_process_without_a_command_line_shows_its_name(proc: Proc) -> None:
    proc.put(77, name=b"kworker/0", cmdline=b"")
    assert ProcReader(proc.root).read([77], 1.0)[77].command == "[kworker/0]"


def test_gone_and_hidden(proc: Proc) -> None:
    reader = ProcReader(proc.root)
    proc.put(77)
    assert reader.read([77], 1.0)[77].name == "python"
    for file in (proc.root / "77").rglob("stat"):
        file.unlink()
    assert reader.read([77], 2.0)[77].unknown["name"] == "no permission"
    assert reader.read([78], 3.0)[78].unknown["name"] == "ended"
    (proc.root / "1").rmdir()
    assert reader.read([78], 4.0)[78].unknown["name"] == "no permission"


@pytest.mark.parametrize("held", [(), ("/dev/null",), ("/dev/nvidia0",)])
def test_in_a_container_a_number_is_only_believed_of_who_holds_the_driver(tmp_path: Path, held: tuple[str, ...]) -> None:
    """The driver speaks of the host's numbers: our process 77 is most likely another one."""
    proc = Proc(tmp_path, "pid:[4026532901]")
    fd = proc.put(77) / "fd"
    fd.mkdir()
    for n, target in enumerate(held):
        (fd / str(n)).symlink_to(target)
    told = ProcReader(proc.root).read([77, 9999], 1.0)
    assert told[77].name == ("python" if "/dev/nvidia0" in held else None)
    assert held == ("/dev/nvidia0",) or told[77].unknown == {"name": OTHERS_NAMESPACE}
    assert told[9999].unknown == {"name": OTHERS_NAMESPACE}


def test_this_very_process() -> None:
    reader = ProcReader()
    told = reader.read([os.getpid()], 1.0)[os.getpid()]
    assert told.parent_pid == os.getppid() and told.state == "R" and told.host_memory_bytes


def test_other_systems_ask_psutil() -> None:
    reader = PsutilReader()
    reader.read([os.getpid()], 1.0)
    told = reader.read([os.getpid(), 2**22 + 9], 3.0)
    assert told[os.getpid()].parent_pid == os.getppid() and told[os.getpid()].cpu_share is not None
    assert told[2**22 + 9].unknown == {"name": "ended"}


def test_the_host(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  100 0 100 700 100 0 0 0 0 0\n")
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 400 kB\n")
    meter = HostMeter(tmp_path)
    first = meter.read()
    (tmp_path / "stat").write_text("cpu  250 0 150 1300 100 0 0 0 0 0\n")
    assert (first.cpu_share, first.memory_total_bytes, first.memory_available_bytes) == (None, 1024000, 409600)
    assert meter.read().cpu_share == pytest.approx(0.25)
    for file in tmp_path.iterdir():
        file.unlink()
    gone = meter.read()
    assert (gone.cpu_share, gone.memory_total_bytes) == (None, None)
