"""The probe on real processes: interpreters and frameworks that answer, crash, hang, or are not there; and on nonsense."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import DeviceLostError
from gpuwise.machine.devices.find import DeviceSearch
from gpuwise.machine.devices.null import NullCard
from gpuwise.machine.devices.readings import Driver, Health
from gpuwise.machine.doctor.host import CommandResult, LocalHost, ScriptedHost
from gpuwise.machine.doctor.probes.frameworks import ask, understand
from gpuwise.machine.doctor.probes.machine import probe
from gpuwise.machine.doctor.probes.python import read_python
from gpuwise.machine.doctor.report import diagnose, document
from studies.scripted_machine import PYTHON, SITE, ScriptedDevices, scripted_machine

NOTHING = DeviceSearch((), {})
FAKE_TORCH = """
import os, sys, time, types
__version__ = "2.13.0+cu130"
version = types.SimpleNamespace(cuda="13.0", hip=None)
_C = types.SimpleNamespace(_cuda_getArchFlags=lambda: "sm_80 sm_90")
backends = types.SimpleNamespace(
    cudnn=types.SimpleNamespace(version=lambda: 92000), mps=types.SimpleNamespace(is_available=lambda: False)
)
def get_num_threads(): return 1
def _init():
    import warnings
    raise RuntimeError("No CUDA GPUs are available")
class _Cuda:
    nccl = types.SimpleNamespace(version=lambda: (2, 29, 7))
    @staticmethod
    def is_available():
        import warnings
        warnings.warn("CUDA initialization: CUDA unknown error")
        print("a library that writes to stdout")
        return False
    init = staticmethod(_init)
cuda = _Cuda()
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment without pip."""
    place = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True, timeout=300)
    return place


def _site(environment: Path) -> Path:
    return next(environment.glob("lib/python3*/site-packages"))


def _install(environment: Path, name: str, version: str, code: str) -> str:
    package = _site(environment) / name
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text(code, encoding="utf-8")
    for old in _site(environment).glob(f"{name}-*.dist-info"):
        (old / "METADATA").unlink()
        old.rmdir()
    info = _site(environment) / f"{name}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        f"Name: {name}\nRequires-Dist: nvidia-nccl-cu13==2.29.7; platform_system == 'Linux'\n\n", encoding="utf-8"
    )
    return str(environment / "bin" / "python")


def test_an_interpreter_says_what_is_installed_without_importing_it(environment: Path) -> None:
    python = _install(environment, "torch", "2.13.0+cu130", "raise SystemExit('imported')")
    found = read_python(LocalHost(), python)
    assert found.problem is None and found.version == tuple(sys.version_info[:3]) and not found.has_pip
    torch = found.find("torch")
    assert torch is not None and (torch.version, dict(torch.pins)) == ("2.13.0+cu130", {"nvidia-nccl-cu13": "2.29.7"})


@pytest.mark.parametrize("python", ["/nowhere/python", "/bin/false", "/dev/null", "", "\0"])
def test_an_interpreter_that_does_not_start_says_so(python: str) -> None:
    assert read_python(LocalHost(), python).problem


def test_a_framework_answers_in_its_own_process(environment: Path) -> None:
    python = _install(environment, "torch", "2.13.0+cu130", FAKE_TORCH)
    found = ask(LocalHost(), python, "torch", 60.0)
    assert (found.outcome, found.stage, found.cuda, found.available) == ("ok", "done", "13.0", False)
    assert found.architectures == ("sm_80", "sm_90") and found.answer["nccl"] == "2.29.7"
    assert "CUDA unknown error" in found.error and "No CUDA GPUs" in found.error


@pytest.mark.parametrize(
    ("code", "outcome", "words"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "crash", "SIGSEGV"),
        ("import os; os.abort()", "crash", "SIGABRT"),
        ("import os; os._exit(3)", "crash", "status 3"),
        ("raise ImportError('libcudnn.so.9: cannot open shared object file')", "error", "libcudnn.so.9"),
        ("import no_such_module_of_torch", "error", "no_such_module_of_torch"),
        ("raise SystemExit(0)", "error", "SystemExit"),
    ],
)
def test_a_crash_or_an_error_is_an_answer(environment: Path, code: str, outcome: str, words: str) -> None:
    python = _install(environment, "torch", "2.13.0", code)
    found = ask(LocalHost(), python, "torch", 60.0)
    assert (found.outcome, found.stage) == (outcome, "import") and words in found.detail


@pytest.mark.thorough
def test_a_hang_is_an_answer_and_leaves_nothing_running(environment: Path, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    code = (
        "import subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\ntime.sleep(600)\n"
    )
    python = _install(environment, "torch", "2.13.0", code)
    found = ask(LocalHost(), python, "torch", 4.0)
    assert (found.outcome, found.stage) == ("hang", "import")
    pid = int(note.read_text())
    for _ in range(100):
        if not _alive(pid):
            break
        time.sleep(0.05)
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_frameworks_are_asked_at_the_same_time(environment: Path) -> None:
    """Each waits until the other has started: one after the other they would both hang."""
    place = environment / "met"
    wait = (
        f"import os, time\nopen(os.path.join({str(environment)!r}, 'met-' + __name__), 'w').close()\n"
        f"while sum(n.startswith('met-') for n in os.listdir({str(environment)!r})) < 2: time.sleep(0.05)\n"
        "raise ImportError('both')\n"
    )
    _install(environment, "torch", "2.13.0", wait)
    python = _install(environment, "jax", "0.7.0", wait)
    machine = probe(devices=lambda: NOTHING, python=python, limit_s=60.0)
    assert {(f.name, f.outcome) for f in machine.frameworks} == {("torch", "error"), ("jax", "error")}
    assert not place.exists()
    assert {f.id for f in diagnose(machine).faults} >= {"torch-import-fails", "jax-import-fails"}


def test_a_folder_one_stands_in_does_not_stand_in_for_a_package(
    environment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = _install(environment, "torch", "2.13.0+cu130", FAKE_TORCH)
    (tmp_path / "torch.py").write_text("raise RuntimeError('the wrong one')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert ask(LocalHost(), python, "torch", 60.0).outcome == "ok"


def test_output_that_is_no_answer_is_not_taken_for_one() -> None:
    assert understand("torch", CommandResult(0, 'garbage\n[1]\n"x"\nnull\n', "")).outcome == "ok"
    assert understand("torch", CommandResult(None)).outcome == "error"
    assert understand("torch", CommandResult(-99, "", "")).detail == "ended by signal 99"


# --- this machine ---


def test_this_machine_can_be_looked_at() -> None:
    machine = probe(devices=lambda: NOTHING, frameworks=False)
    found = diagnose(machine)
    assert document(found)["verdict"] in ("ready", "ready with limits", "not ready")
    assert machine.system.platform == sys.platform and machine.resources.cpus


def test_a_node_that_may_not_be_opened_says_why(tmp_path: Path) -> None:
    host = LocalHost()
    assert host.usable(str(tmp_path / "none")) == "missing"
    assert host.usable(str(tmp_path)) not in (None, "missing")
    file = tmp_path / "node"
    file.write_text("")
    assert host.usable(str(file)) is None
    if os.geteuid() != 0:
        file.chmod(0)
        assert host.usable(str(file)) == "permission"


@pytest.mark.parametrize("path", ["/proc/self/mem", "/no/such", "", "\0", "/"])
def test_what_cannot_be_read_is_nothing(path: str) -> None:
    host = LocalHost()
    assert host.read(path) in (None, "") and host.link(path) is None and isinstance(host.names(path), tuple)
    assert host.run((path or "\0", "x"), limit_s=1.0).status is None or path == "/"


def test_names_that_are_not_utf8_are_read(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"NVRM: Xid (PCI:0000:01:00): 79, name=\xff\xfe caf\xe9")
    text = LocalHost().read(str(tmp_path / "log"))
    assert text is not None and "79" in text and "\ufffd" in text


# --- nonsense ---

TEXT = st.text(max_size=80) | st.sampled_from(
    ["", "\0", "\u00b2", "0x10de", "0x030000", "nvidia", "580", "a.b.c", "{", "[]", "max", "1 0", "\n" * 5]
)
PATHS = st.sampled_from(
    [
        "/etc/os-release",
        "/proc/version",
        "/proc/meminfo",
        "/proc/modules",
        "/sys/module/nvidia/version",
        "/proc/driver/nvidia/version",
        "/sys/bus/pci/devices/0000:01:00.0/class",
        "/sys/bus/pci/devices/0000:01:00.0/vendor",
        "/sys/bus/pci/devices/x/class",
        "/proc/self/cgroup",
        "/sys/fs/cgroup/cgroup.controllers",
        "/sys/fs/cgroup/cpu.max",
        "/sys/fs/cgroup/memory.max",
        "/etc/docker/daemon.json",
        "/usr/local/cuda-13.0/version.json",
        "/usr/local/cuda-x/bin/nvcc",
        "/usr/share/misc/pci.ids",
        "/.dockerenv",
        "/dev/dxg",
        "/dev/nvidia0",
        "/dev/nvidia-uvm",
        f"{SITE}/torch-1.dist-info/METADATA",
        f"{SITE}/torch-.dist-info/METADATA",
        f"{SITE}/torchvision-x.dist-info/METADATA",
        f"{SITE}/cupy_cuda12x-1.dist-info/METADATA",
        "/venv/conda-meta/pytorch-x-y.json",
        "/lib/modules/k/updates/nvidia.ko",
        "/proc/driver/nvidia/gpus/0000:01:00.0/information",
        "/usr/lib/x86_64-linux-gnu/libcuda.so.1.2.3",
        "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c",
        "/x/libcudnn.so.9",
        "/x/libcublas.so.12.1",
    ]
)
VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 1000)
    | TEXT
    | st.lists(st.integers() | TEXT | st.dictionaries(TEXT, TEXT), max_size=3)
)
NAMES = st.sampled_from(
    ["stage", "version", "cuda", "hip", "architectures", "available", "count", "error", "devices", "ran", "failed"]
)
ROWS = st.lists(
    st.fixed_dictionaries({}, optional={"index": VALUES, "capability": VALUES, "ran": VALUES, "error": VALUES, "uuid": VALUES}),
    max_size=3,
)
ANSWERS = st.builds(json.dumps, st.dictionaries(NAMES, VALUES | ROWS))
STARTS = st.just(json.dumps([PYTHON, [3, 12, 4], "cpython-312", "x86_64", [SITE]]))
VARIABLES = st.sampled_from(
    ["CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "JAX_PLATFORMS", "HOME"]
)


@settings(max_examples=3 * settings().max_examples)
@given(
    files=st.dictionaries(PATHS, TEXT, max_size=12),
    environment=st.dictionaries(VARIABLES, TEXT | st.just("/x:/y"), max_size=4),
    log=TEXT,
    driver=TEXT | st.none(),
    python=STARTS | TEXT,
    framework=TEXT | ANSWERS,
)
def test_no_machine_is_too_odd(
    files: dict[str, str], environment: dict[str, str], log: str, driver: str | None, python: str, framework: str
) -> None:
    """Whatever the files say: a verdict, and a document without NaN."""
    from gpuwise.machine.doctor.images import compose, dockerfile
    from gpuwise.machine.doctor.report import fix_plan
    from gpuwise.machine.doctor.share import share_text

    host = ScriptedHost(
        files=files,
        environment=environment,
        paths={"dmesg": "/bin/dmesg", "nvcc": "/bin/nvcc", "docker": "/bin/docker"},
        commands={
            "dmesg": CommandResult(0, log),
            "/bin/nvcc --version": CommandResult(0, log),
            f"{PYTHON} -c import json*": CommandResult(0, python),
            f"{PYTHON} -c*": CommandResult(0, framework),
        },
    )
    devices = ScriptedDevices((NullCard("RTX 4090", identity={"vendor": "nvidia"}),), Driver("nvidia", driver))
    machine = probe(host, devices=lambda: DeviceSearch((devices,), {}), python=PYTHON)
    found = diagnose(machine)
    json.dumps(document(found), allow_nan=False)
    for text in (fix_plan(found), share_text(found, names={}), dockerfile(machine), compose(machine)):
        assert text


def test_a_card_that_is_lost_while_it_is_read_is_no_trouble() -> None:
    class Losing(ScriptedDevices):
        def health(self, index: int) -> Health:
            raise DeviceLostError(index, "GPU is lost", vendor="nvidia", code=15)

    devices = Losing((NullCard("H100 SXM", identity={"vendor": "nvidia"}),), Driver("nvidia", "580.95.05"))
    machine = probe(scripted_machine().host, devices=lambda: DeviceSearch((devices,), {}), python=PYTHON)
    assert machine.nvidia_cards[0].problem == "GPU is lost" and machine.nvidia_cards[0].health is None


def test_ten_cards_of_three_vendors() -> None:
    names = {"nvidia": ["RTX 4090"] * 4, "amd": ["MI300X"] * 4, "intel": ["Arc A770"] * 2}
    backends = tuple(
        ScriptedDevices([NullCard(c, identity={"vendor": v}) for c in cards], Driver(v, "580.95.05" if v == "nvidia" else None))
        for v, cards in names.items()
    )
    found = diagnose(probe(scripted_machine().host, devices=lambda: DeviceSearch(backends, {}), python=PYTHON, wanted_gpus=10))
    assert len(found.machine.cards) == 10 and found.faults == ()
