"""Checks of the host: disks, limits, processor clocks; and notes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuwise.facts.software.compatibility import at_least, find_wheel
from gpuwise.machine.doctor import fixes
from gpuwise.machine.doctor.checks.driver import SEES_NONE
from gpuwise.machine.doctor.finding import Finding, Fix, Severity
from gpuwise.machine.doctor.observation import Machine
from gpuwise.units import GIB, format_bytes

LEAST_FREE_BYTES = 5 * GIB
"""Rule: the wheels of a CUDA build of PyTorch and of what it pins are about 4 GB to download, before they are unpacked."""
LEAST_FILES = 1024
"""The soft limit every distribution starts with; below it a handful of data loaders runs out of files."""
LOCKED_BYTES = 64 << 20
"""Below this an InfiniBand program cannot lock its buffers (the kernel's default is 8 MiB, older ones' 64 KiB)."""

RESERVED = 2.0
"""Times the memory of the cards: the most address space that CUDA was seen to reserve (NVIDIA/cuda-python, pull request 2458).
Drivers differ: PyTorch took 18 GB of it on an H100 of 80 GB (benchmarks/records/ranks/gpu_2026-11-26.md)."""


def instructions(m: Machine) -> Iterator[Finding]:
    """A processor without AVX, as a virtual machine's default model has none."""
    if m.system.avx is not False or not m.means_nvidia:
        return
    yield Finding(
        "cpu-without-avx",
        Severity.LIMIT,
        "This processor has no AVX, or the virtual machine hides it",
        ("flags of /proc/cpuinfo: no avx",),
        "Builds of ollama and llama.cpp fall back to slow code, or to none for the GPU; TensorFlow and JAX do not start.",
        (
            Fix(
                "In a virtual machine: hand the host's processor through (Proxmox: type host; libvirt: mode='host-passthrough')",
                where="person",
            ),
        ),
        "grep -o -m1 avx /proc/cpuinfo",
    )


def c_library(m: Machine) -> Iterator[Finding]:
    """A distribution with musl, on which NVIDIA's libraries and the wheels of frameworks do not load."""
    if "alpine" not in m.system.ids or not (m.means_nvidia or any(n.path.startswith("/dev/nvidia") for n in m.nodes)):
        return
    yield Finding(
        "musl-system",
        Severity.BLOCKER,
        "This system's C library is musl, and NVIDIA's libraries need glibc",
        (m.system.name,),
        "libcuda, nvidia-smi and the wheels of PyTorch are built for glibc: none of them loads on Alpine.",
        (Fix("Use an image with glibc, such as Ubuntu or Debian", ("docker run --rm --gpus all ubuntu nvidia-smi",), "host"),),
        "ldd --version",
        hides=(SEES_NONE, "nvml-*", "driver-*", "gpus-missing"),
        sources=("pytorch-manylinux",),
    )


def killed(m: Machine) -> Iterator[Finding]:
    """A program of AI that the kernel ended because memory was full."""
    lines = [line for line in m.kernel_log if _KILLED.search(line)]
    if not lines:
        return
    match = _KILLED.search(lines[-1])
    name = match[1] if match else "a program"
    yield Finding(
        "memory-ran-out",
        Severity.LIMIT,
        f"The kernel ended {name} because the machine's memory was full",
        (lines[-1],),
        "It ends without a message of its own (`Killed`, exit status 137): a model that is loaded into memory first, or data "
        "loaders that each hold a copy.",
        (
            Fix(
                "See what needs it: a smaller model or fewer workers of data loaders; swap only helps while loading", ("free -h",)
            ),
            Fix("In a container or a job: allow it more memory", where="person"),
        ),
        "sudo dmesg | grep -i 'out of memory'",
    )


_KILLED = re.compile(r"Out of memory: Killed process \d+ \(((?:python|pt_main|ollama|llama|vllm|VLLM|ray|sglang|comfy)[^)]*)\)")


def execution(m: Machine) -> Iterator[Finding]:
    """Folders where programs write compiled code, on a file system that runs none."""
    if not m.without_execution or not (m.programs or m.torch_package):
        return
    yield Finding(
        "folder-runs-no-programs",
        Severity.LIMIT,
        f"No program or library starts from {m.without_execution[0]}",
        tuple(f"{folder}: mounted noexec" for folder in m.without_execution),
        "Triton, extensions and some programs load libraries that they have written there: `failed to map segment from shared "
        "object`.",
        (
            Fix("Name another folder for them", ('export TMPDIR="$PWD/tmp" TRITON_CACHE_DIR="$PWD/tmp" && mkdir -p "$PWD/tmp"',)),
            Fix("Or mount it anew until the next restart", (f"sudo mount -o remount,exec {m.without_execution[0]}",)),
        ),
        "grep noexec /proc/mounts",
    )


def disks(m: Machine) -> Iterator[Finding]:
    """Disks with no room for a framework, a data set or a checkpoint."""
    full = {name: both for name, both in m.resources.disks.items() if both[0] < LEAST_FREE_BYTES}
    if not full:
        return
    name, (free, _) = next(iter(full.items()))
    yield Finding(
        "disk-nearly-full",
        Severity.LIMIT,
        f"The disk of {_place(name)} has {format_bytes(free)} left",
        tuple(f"{_place(n)}: {format_bytes(f)} of {format_bytes(t)} free" for n, (f, t) in full.items()),
        f"A framework with its CUDA libraries takes more than {format_bytes(LEAST_FREE_BYTES)} to install, and a "
        "checkpoint that does not fit ends a run.",
        (
            Fix(
                "See what fills it; pip's and the models' caches can go",
                (
                    "du -xh --max-depth=2 ~ | sort -h | tail -20",
                    f"{fixes.pip(m)} cache purge",
                    "rm -r ~/.cache/huggingface/hub/models--NAME",
                ),
            ),
        ),
        "df -h ~ /tmp",
    )


def limits(m: Machine) -> Iterator[Finding]:
    """Limits of the user or container that end jobs."""
    r = m.resources
    if m.system.platform == "linux" and r.nofile is not None and 0 <= r.nofile < LEAST_FILES:
        yield Finding(
            "few-open-files",
            Severity.LIMIT,
            f"Programs may open only {r.nofile} files",
            (f"ulimit -n: {r.nofile}",),
            "Data loaders hold files and pipes for each worker: `Too many open files`.",
            (
                Fix(
                    "Raise it for this user, then log in again",
                    (
                        'echo "$USER - nofile 65535" | sudo tee /etc/security/limits.d/90-nofile.conf',
                        "ulimit -n 65535",
                    ),
                ),
            ),
            "ulimit -n",
        )
    if r.infiniband and r.memlock is not None and 0 <= r.memlock < LOCKED_BYTES:
        yield Finding(
            "memlock-low",
            Severity.LIMIT,
            "Programs may lock too little memory for InfiniBand",
            (f"ulimit -l: {r.memlock >> 10} KiB",),
            "RDMA needs its buffers locked: NCCL falls back to sockets or ends with `Cannot allocate memory`.",
            (
                Fix(
                    "Raise it; in Docker add --ulimit memlock=-1",
                    ("echo '* - memlock unlimited' | sudo tee /etc/security/limits.d/90-memlock.conf",),
                ),
            ),
            "ulimit -l  # unlimited",
        )
    yield from _address_space(m)
    yield from _processors(m)


def _address_space(m: Machine) -> Iterator[Finding]:
    """A limit of address space below what CUDA may reserve, of which it uses little: none where a framework sees the GPUs."""
    limit = m.resources.address_space
    of_cards = sum(c.identity.memory_bytes or 0 for c in m.nvidia_cards)
    if limit is None or limit < 0 or limit >= RESERVED * of_cards or any(f.available for f in m.frameworks):
        return
    stopped = any(f.outcome != "skipped" for f in m.frameworks)
    yield Finding(
        "address-space-limited",
        Severity.BLOCKER if stopped else Severity.LIMIT,
        f"Programs may reserve only {format_bytes(limit)} of address space",
        (f"ulimit -v: {limit >> 10} KiB", f"the GPUs have {format_bytes(of_cards)}"),
        "CUDA reserves address space before it uses any, with some drivers for the memory of every GPU and of the machine: "
        "under the limit it ends with `out of memory` while the GPU is free.",
        (
            Fix("Take the limit away where this shell sets it", ("ulimit -v unlimited",)),
            Fix(
                "Where a batch system sets it, ask for more: Grid Engine's h_vmem, Slurm's VSizeFactor; control groups "
                "limit memory itself",
                where="person",
            ),
        ),
        "ulimit -v  # unlimited",
        hides=(SEES_NONE, "uvm-*"),
        sources=("cuda-python-2458",),
    )


def _processors(m: Machine) -> Iterator[Finding]:
    """Fewer processors for this process than GPUs, by its group's quota or by the processors it may run on."""
    r, n = m.resources, len(m.cards)
    limits_n = ((r.cpu_quota, "control group's quota"), (r.cpus, "processors this process may run on"))
    short = [(count, what) for count, what in limits_n if count is not None and count < n]
    if not short:
        return
    least = min(count for count, _ in short)
    if m.system.container:
        fix = Fix("Ask for more", (f"docker run --cpus={4 * n} --gpus all IMAGE",), "host")
    else:
        fix = Fix(
            f"Ask whoever hands out processors for about {4 * n}: Slurm's --cpus-per-task, systemd's CPUQuota, taskset",
            where="person",
        )
    yield Finding(
        "few-cpus",
        Severity.LIMIT,
        f"{least:g} CPUs are allowed for {n} GPUs",
        tuple(f"{what}: {count:g}" for count, what in short),
        "Each GPU needs at least one processor core that launches its work, and its data loaders more.",
        (fix,),
        "nproc; cat /proc/self/cgroup; cat /sys/fs/cgroup/cpu.max",
    )


def clock(m: Machine) -> Iterator[Finding]:
    """A governor that keeps the processor slow. `powersave` of intel_pstate and amd-pstate is the normal one and is not meant."""
    r = m.resources
    active = r.scaling_driver in ("intel_pstate", "amd-pstate-epp", "amd_pstate_epp")
    slow = r.governor == "powersave" and not active
    sparing = active and r.energy_preference == "power"
    if not m.cards or not (slow or sparing):
        return
    command = (
        "sudo cpupower frequency-set -g performance"
        if slow
        else ("echo balance_performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/energy_performance_preference")
    )
    yield Finding(
        "cpu-powersave",
        Severity.LIMIT,
        "The processor is kept at a low clock",
        (
            f"governor {r.governor} of {r.scaling_driver}",
            *((f"energy preference {r.energy_preference}",) if r.energy_preference else ()),
        ),
        "Launches and data loading take longer, and small kernels leave the GPU waiting.",
        (Fix("Let it run fast", (command,)),),
        "cat /sys/devices/system/cpu/cpu0/cpufreq/scaling_governor",
    )


def interpreter(m: Machine) -> Iterator[Finding]:
    """An interpreter that does not start, or an x86 one on Apple silicon."""
    if m.python is not None and m.python.problem:
        yield Finding(
            "python-does-not-start",
            Severity.BLOCKER,
            "The Python to look at does not start",
            (m.python.problem,),
            "Nothing can be said of what is installed in it.",
            (Fix("Name another with --python, or make the environment anew", ("python3 -m venv .venv",)),),
            f"{m.python.path} --version",
        )
    if m.system.translated:
        yield Finding(
            "python-translated",
            Severity.LIMIT,
            "This Python is built for Intel and runs translated",
            ("sysctl.proc_translated is 1",),
            "PyTorch of such a Python has no access to Apple's GPU.",
            (
                Fix(
                    "Install a Python for Apple silicon and make the environment anew",
                    ("arch -arm64 /opt/homebrew/bin/python3 -m venv .venv",),
                ),
            ),
            "python -c 'import platform; print(platform.machine())'  # arm64",
        )


def notes(m: Machine) -> Iterator[Finding]:
    """Notes that are no faults."""
    if not m.cards and not m.means_nvidia and not (m.system.jetson and any(f.available for f in m.frameworks)):
        threads = f", {m.resources.cpus} CPUs" if m.resources.cpus else ""
        yield Finding(
            "no-gpu",
            Severity.NOTE,
            f"No GPU is here: work runs on the processor{threads}",
            (),
            "That is no fault. `--gpus 1` makes it one.",
        )
    yield from _settings(m)
    if m.nvidia_cards and m.python is not None and not m.python.find("torch") and not m.python.problem:
        wheel = fixes.best_wheel(m, fixes.capabilities_here(m))
        if wheel is not None:
            yield Finding(
                "torch-not-installed",
                Severity.NOTE,
                f"PyTorch is not installed in {m.python.path}",
                (),
                "The newest build that runs on this driver and these cards:",
                (Fix(f"PyTorch {wheel.release} with CUDA {fixes.version_text(wheel.cuda)}", fixes.install_torch(m, wheel)),),
                fixes.check_torch(m),
            )
    package = m.torch_package
    torch, driver = m.framework("torch"), fixes.driver_number(m)
    if package and torch and torch.available and driver:
        row = find_wheel(package.version, package.version.partition("+")[2] or None)
        paired = row.paired_driver_linux if row and m.system.platform == "linux" else None
        if row and paired and not at_least(driver, paired):
            yield Finding(
                "older-driver-of-family",
                Severity.NOTE,
                f"The driver is older than the one released with CUDA {fixes.version_text(row.cuda)}, which is fine",
                (f"driver {m.driver_version}, released with it: {fixes.version_text(paired)}",),
                "Within a CUDA family software runs on any driver of the family; only code that the driver itself "
                "compiles (PTX, as Numba "
                "makes it) may be too new for it.",
                sources=("cuda-minor-compatibility",),
            )


def _settings(m: Machine) -> Iterator[Finding]:
    """Settings of the driver and the kernel that cost little, and that a server usually has otherwise."""
    off = [c.identity.index for c in m.nvidia_cards if c.identity.persistence is False]
    if off and m.system.platform == "linux" and not m.system.container and not m.system.wsl:
        yield Finding(
            "persistence-off",
            Severity.NOTE,
            f"Persistence mode is off on GPU {', '.join(map(str, off))}",
            (f"persistence mode off: {len(off)} of {len(m.nvidia_cards)}",),
            "Where no screen holds it, the driver lets a card go when its last program ends: the next one waits for it to start, "
            "and power limits and clocks that were set are lost.",
            (Fix("Keep it started", ("sudo systemctl enable --now nvidia-persistenced || sudo nvidia-smi -pm 1",)),),
            "nvidia-smi --query-gpu=persistence_mode --format=csv",
            tuple(off),
            sources=("nvidia-driver-persistence",),
        )
    if m.resources.huge_pages == "never" and m.cards:
        yield Finding(
            "huge-pages-never",
            Severity.NOTE,
            "Transparent huge pages are switched off",
            ("transparent_hugepage/enabled: never",),
            "Programs that ask for them (large pinned and shared buffers) get pages of 4 KiB.",
            (Fix("Give them to those who ask", ("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",)),),
            "cat /sys/kernel/mm/transparent_hugepage/enabled",
            sources=("linux-transparent-hugepages",),
        )


def _place(name: str) -> str:
    return {"home": "your home folder", "temp": "temporary files", "cache": "the models' cache"}.get(name, name)
