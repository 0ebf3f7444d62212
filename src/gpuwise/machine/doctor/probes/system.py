"""The operating system, its container, and what jobs live on: memory, disks, limits, clocks."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import cast

from gpuwise.machine.devices.control_groups import engines_of, read_limits
from gpuwise.machine.devices.memory import memory_of
from gpuwise.machine.doctor.host import Host
from gpuwise.machine.doctor.observation import Docker, Resources, System, Toolkit

_SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
_CPU0 = "/sys/devices/system/cpu/cpu0/cpufreq/"
_COMMAND_S = 3.0


def read_system(host: Host) -> System:
    """Operating system of the machine."""
    release = _assignments(host.read("/etc/os-release") or "")
    ids = tuple(filter(None, (release.get("ID", ""), *release.get("ID_LIKE", "").split())))
    secure = host.read(_SECURE_BOOT)
    translated = False
    if host.platform == "darwin":
        translated = host.run(("sysctl", "-n", "sysctl.proc_translated"), limit_s=_COMMAND_S).out.strip() == "1"
    return System(
        platform=host.platform,
        ids=ids,
        version=release.get("VERSION_ID", "") or (host.fact("release") or "" if host.platform != "linux" else ""),
        name=release.get("PRETTY_NAME", "") or {"darwin": "macOS", "win32": "Windows"}.get(host.platform, host.platform),
        kernel=host.fact("kernel") or "",
        machine=host.fact("machine") or "",
        wsl=_wsl(host),
        container=_container(host),
        root=host.fact("user") == "0",
        jetson=_jetson(host),
        jetson_release=_jetson_release(host),
        secure_boot=None if not secure else secure[-1] == "\x01",
        translated=translated,
        avx=_avx(host),
    )


def _avx(host: Host) -> bool | None:
    """Whether the processor has AVX, by the flags that the kernel lists."""
    flags = re.search(r"^flags\s*:(.*)$", host.read("/proc/cpuinfo") or "", re.MULTILINE)
    return None if flags is None or host.fact("machine") not in ("x86_64", "AMD64") else "avx" in flags[1].split()


def _jetson(host: Host) -> str | None:
    """The model of a Jetson, from its device tree."""
    model = (host.read("/proc/device-tree/model") or "").strip("\x00\n ")
    if "jetson" in model.lower() or (host.exists("/etc/nv_tegra_release") and "nvidia" in model.lower()):
        return model
    return "Jetson" if host.exists("/etc/nv_tegra_release") else None


def _jetson_release(host: Host) -> int | None:
    """36 of a Jetson's ``# R36 (release), REVISION: 4.3, ...``."""
    release = re.match(r"# R(\d{1,3}) ", host.read("/etc/nv_tegra_release") or "")
    return int(release[1]) if release else None


def _wsl(host: Host) -> int | None:
    """The version of WSL, 1 or 2; None outside of it."""
    kernel = (host.read("/proc/version") or "").lower()
    if "microsoft" not in kernel:
        return None
    return 2 if "wsl2" in kernel or "microsoft-standard" in kernel else 1


def _container(host: Host) -> str | None:
    """The engine of the container this runs in; None outside of one."""
    environment = host.environment
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if host.exists("/.dockerenv"):
        return "docker"
    if host.exists("/run/.containerenv"):
        return "podman"
    if "APPTAINER_CONTAINER" in environment or "SINGULARITY_CONTAINER" in environment:
        return "apptainer"
    engines = engines_of(host.read("/proc/1/cgroup") or "")
    # what runs the pod matters more than the engine below it
    engine = "kubernetes" if "kubernetes" in engines else next(iter(engines), None)
    return engine or environment.get("container") or None


def read_resources(host: Host) -> Resources:
    """Resources available to jobs."""
    shm = host.free("/dev/shm") if host.platform == "linux" else None
    home = host.environment.get("HOME", "")
    places = {
        "home": home,
        "temp": host.environment.get("TMPDIR") or "/tmp",
        "cache": host.environment.get("HF_HOME") or (f"{home}/.cache" if home else ""),
    }
    disks = {name: free_bytes for name, place in places.items() if place and (free_bytes := host.free(place))}
    cpus, limits = host.fact("cpus"), read_limits(host.read)
    huge = re.search(r"\[(\w+)\]", host.read("/sys/kernel/mm/transparent_hugepage/enabled") or "")
    return Resources(
        cpus=_whole(cpus) if cpus else None,
        cpu_quota=limits.cpus,
        memory_bytes=memory_of((host.read("/proc/meminfo") or "").encode()).total_bytes,
        memory_limit_bytes=limits.memory_bytes,
        shm_bytes=shm[1] if shm else None,
        shm_free_bytes=shm[0] if shm else None,
        disks=disks,
        nofile=host.limit("nofile"),
        memlock=host.limit("memlock"),
        address_space=host.limit("address_space"),
        infiniband=bool(host.names("/sys/class/infiniband")),
        governor=_line(host, _CPU0 + "scaling_governor"),
        scaling_driver=_line(host, _CPU0 + "scaling_driver"),
        energy_preference=_line(host, _CPU0 + "energy_performance_preference"),
        huge_pages=huge[1] if huge else None,
    )


def _object(value: object) -> Mapping[str, object]:
    """A JSON object; an empty one where the value is something else."""
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}


def read_docker(host: Host) -> Docker:
    """Docker and NVIDIA's container toolkit, as far as files readable without root show them."""
    try:
        daemon = _object(json.loads(host.read("/etc/docker/daemon.json") or "{}"))
    except ValueError:
        daemon = dict[str, object]()
    runtimes = _object(daemon.get("runtimes"))
    program = str(_object(runtimes.get("nvidia")).get("path") or "")
    missing = bool(program) and not (host.which(program) or host.exists(program))
    cdi = any(name.startswith("nvidia") for place in ("/etc/cdi", "/var/run/cdi", "/run/cdi") for name in host.names(place))
    return Docker(
        path=host.which("docker"),
        runtimes=tuple(sorted(runtimes)),
        runtime_missing=missing,
        toolkit=host.which("nvidia-ctk") or host.which("nvidia-container-runtime"),
        cdi=cdi,
        desktop=_uses_desktop(host),
        no_cgroups=bool(re.search(r"^\s*no-cgroups\s*=\s*true", host.read(_TOOLKIT_FILE) or "", re.MULTILINE)),
    )


_TOOLKIT_FILE = "/etc/nvidia-container-runtime/config.toml"


def _uses_desktop(host: Host) -> bool:
    """Whether Docker's command line speaks to Docker Desktop: the context of its configuration."""
    try:
        configuration = _object(json.loads(host.read(f"{host.environment.get('HOME', '')}/.docker/config.json") or "{}"))
    except ValueError:
        return False
    return configuration.get("currentContext") == "desktop-linux"


def without_execution(host: Host) -> tuple[str, ...]:
    """Folders of temporary files and caches whose file system is mounted noexec."""
    mounts: dict[str, bool] = {}
    for line in (host.read("/proc/mounts") or "").splitlines():
        words = line.split(" ")
        if len(words) > 3:
            mounts[words[1]] = "noexec" in words[3].split(",")
    folders = (host.environment.get("TMPDIR") or "/tmp", host.environment.get("HOME") or "/root")
    return tuple(f for f in dict.fromkeys(folders) if mounts.get(_mount_of(f, mounts)))


def _mount_of(folder: str, mounts: Mapping[str, bool]) -> str:
    """The mount that ``folder`` is on: the longest that it begins with."""
    return max((m for m in mounts if f"{folder}/".startswith(m.rstrip("/") + "/")), key=len, default="")


def backends(host: Host, programs: Iterable[str]) -> tuple[str, ...]:
    """Ways to a GPU that llama.cpp has libraries for, in the folder of a program here (``libggml-vulkan.so``)."""
    folders = dict.fromkeys((host.which(name) or "").rpartition("/")[0] for name in programs)
    found = (re.match(r"libggml-(cuda|hip|vulkan|sycl)\.so", name) for folder in folders if folder for name in host.names(folder))
    return tuple(dict.fromkeys(match[1] for match in found if match))


def vulkan_drivers(host: Host) -> tuple[str, ...]:
    """Descriptions of drivers (ICDs) in the folders of the Vulkan loader, without those of a processor."""
    folders = ("/usr/share/vulkan/icd.d", "/etc/vulkan/icd.d", "/usr/local/share/vulkan/icd.d")
    return tuple(n for folder in folders for n in host.names(folder) if n.endswith(".json") and not n.startswith("lvp"))


def compilers(host: Host) -> tuple[str, ...]:
    """The C compilers that Triton and extensions would use."""
    named = host.environment.get("CC", "").split(" ")[0]
    return tuple(c for c in (named, "cc", "gcc", "clang") if c and (host.which(c) or host.exists(c)))


def read_toolkits(host: Host, *, ask_nvcc: bool) -> tuple[Toolkit, ...]:
    """CUDA toolkits under /usr/local, and the one in the shell's path (``ask_nvcc``: by its own report)."""
    versions: dict[str, tuple[int, ...]] = {}
    for name in host.names("/usr/local"):
        place = f"/usr/local/{name}"
        if not name.startswith("cuda-") or not host.exists(f"{place}/bin/nvcc"):
            continue
        version = _toolkit_version(host, place) or _numbers(name.removeprefix("cuda-"))
        if version:
            versions[place] = version
    nvcc = host.which("nvcc")
    current: tuple[int, ...] | None = None
    if nvcc and ask_nvcc:
        release = re.search(r"release (\d{1,4})\.(\d{1,4})", host.run((nvcc, "--version"), limit_s=_COMMAND_S).out)
        current = (int(release[1]), int(release[2])) if release else None
    home = host.environment.get("CUDA_HOME") or host.environment.get("CUDA_PATH") or ""
    listed = [Toolkit(place, version, on_path=version[:2] == current or place == home) for place, version in versions.items()]
    if nvcc and current and not any(t.on_path for t in listed):
        listed.append(Toolkit(nvcc.removesuffix("/bin/nvcc"), current, on_path=True))
    return tuple(listed)


def _toolkit_version(host: Host, place: str) -> tuple[int, ...]:
    """The version in a toolkit's version.json; empty where it cannot be read."""
    try:
        loaded = json.loads(host.read(f"{place}/version.json") or "{}")
        return _numbers(str(loaded["cuda"]["version"]))
    except (ValueError, KeyError, TypeError):
        return ()


def _numbers(text: str) -> tuple[int, ...]:
    """The numbers that ``text`` begins with; empty where it begins with none."""
    match = re.match(r"\d{1,6}(\.\d{1,6})*", text)
    return tuple(int(p) for p in match[0].split(".")) if match else ()


def _whole(text: str) -> int | None:
    """A whole number of a sane length, or None."""
    return int(text) if text.isdecimal() and len(text) < 20 else None


def _line(host: Host, path: str) -> str | None:
    """The content of a small file without the white space around it; None where it is empty or missing."""
    text = host.read(path)
    return text.strip() if text else None


def _assignments(text: str) -> dict[str, str]:
    """``ID="ubuntu"`` lines as a mapping."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}
