"""The user's interpreter and what is installed in it, from the names of folders: nothing is imported."""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping

from gpuwise.machine.doctor.host import CommandResult, Host, LocalHost
from gpuwise.machine.doctor.observation import Package, Python

FRAMEWORKS: Mapping[str, tuple[str, ...]] = {
    "torch": ("torch",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tf-nightly", "tensorflow-rocm"),
    "jax": ("jax",),
    "cupy": ("cupy", "cupy-cuda11x", "cupy-cuda12x", "cupy-cuda13x", "cupy-rocm-5-0", "cupy-rocm-6-0", "cupy-rocm-7-0"),
    "llama-cpp-python": ("llama-cpp-python",),
}
"""Framework -> distributions that bring it."""

LIBRARIES: Mapping[str, str] = {
    "torchvision": "torchvision",
    "torchaudio": "torchaudio",
    "triton": "triton",
    "torchao": "torchao",
    "xformers": "xformers",
    "flash-attn": "flash_attn",
    "bitsandbytes": "bitsandbytes",
    "transformers": "transformers",
    "accelerate": "accelerate",
    "peft": "peft",
    "timm": "timm",
    "diffusers": "diffusers",
    "lightning": "lightning",
    "pytorch-lightning": "pytorch_lightning",
    "datasets": "datasets",
    "trl": "trl",
    "deepspeed": "deepspeed",
    "torch-scatter": "torch_scatter",
    "torch-sparse": "torch_sparse",
    "torch-geometric": "torch_geometric",
    "onnx": "onnx",
    "sentence-transformers": "sentence_transformers",
    "ultralytics": "ultralytics",
    "fastai": "fastai",
    "mosaicml": "composer",
    "stable-baselines3": "stable_baselines3",
    "torchmetrics": "torchmetrics",
    "evaluate": "evaluate",
    "monai": "monai",
    "vllm": "vllm._C",
    "sgl-kernel": "sgl_kernel",
    "flashinfer-python": "flashinfer",
    "causal-conv1d": "causal_conv1d",
    "mamba-ssm": "mamba_ssm",
    "intel-extension-for-pytorch": "intel_extension_for_pytorch",
}
"""Distribution -> module, of what training and serving import beside torch; the compiled part where the package loads it late."""
_INTERESTING = re.compile(
    r"torch|pytorch-triton.*|tensorflow.*|tf-nightly|jax(lib)?|jax-(cuda|rocm).*|cupy.*|nvidia-.*|"
    r"cuda-(python|bindings|toolkit)|tensorrt.*|numba(-cuda)?|ctranslate2|onnxruntime(-gpu)?|pytorch|numpy|llama-cpp-python|flashinfer-(cubin|jit-cache)|"
    + "|".join(LIBRARIES)
)
_PINNED = ("torch", "torchvision", "torchaudio", "xformers", "vllm", "jax-cuda12-plugin", "jax-cuda13-plugin")
_REQUIRES = re.compile(r"^Requires-Dist: ([A-Za-z0-9._-]+)\s*\(?==\s*([0-9A-Za-z.+!_-]+)\)?\s*(?:;(.*))?$", re.MULTILINE)
_ASK = (
    "import json,platform,sys,os,sysconfig;"
    "print(json.dumps([sys.executable,list(sys.version_info[:3]),sys.implementation.cache_tag,platform.machine(),sys.path,"
    "os.path.exists(os.path.join(sysconfig.get_path('include'),'Python.h'))]))"
)
_START_S = 20.0


def choose_python(host: Host, requested: str | None) -> str:
    """Path of the interpreter to examine: ``requested``, else the active environment's, else the current one."""
    if requested:
        return requested
    environment = host.environment
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        place = environment.get(variable)
        for path in (f"{place}/bin/python", f"{place}/Scripts/python.exe", f"{place}/python.exe") if place else ():
            if host.exists(path):
                return path
    return sys.executable


def read_python(host: Host, path: str) -> Python:
    """Packages installed for the interpreter at ``path``. If it does not start, ``problem`` has the reason."""
    if path == sys.executable and isinstance(host, LocalHost):
        # one process less: the result is known here
        ran = CommandResult(
            0,
            json.dumps(
                [
                    path,
                    list(sys.version_info[:3]),
                    sys.implementation.cache_tag,
                    host.fact("machine"),
                    sys.path,
                    host.exists(f"{sysconfig.get_path('include')}/Python.h"),
                ]
            ),
        )
    else:
        ran = host.run((path, "-c", _ASK), limit_s=_START_S)
    try:
        executable, version, tag, machine, places, *more = json.loads(ran.out.strip().splitlines()[-1])
    except (ValueError, IndexError, TypeError):
        words = ran.err.strip().splitlines()
        why = (
            "did not end in time" if ran.timed_out else "is not there" if ran.status is None else words[-1] if words else "fails"
        )
        return Python(path, problem=f"{path} {why}")
    packages = (*_packages(host, places, machine), *_conda_packages(host, path))
    names = {n for p in places for n in ("pip",) if host.exists(f"{p}/{n}")}
    return Python(
        executable or path,
        tuple(version),
        tag,
        machine,
        packages,
        has_pip="pip" in names,
        headers=bool(more[0]) if more else None,
    )


def _packages(host: Host, places: Iterable[str], machine: str) -> Iterable[Package]:
    """The packages installed in the site folders among ``places``."""
    for place in dict.fromkeys(p for p in places if p.endswith(("site-packages", "dist-packages"))):
        for name in host.names(place):
            if not name.endswith((".dist-info", ".egg-info")):
                continue
            project, _, version = name.rsplit(".", 1)[0].partition("-")
            project = re.sub(r"[-_.]+", "-", project).lower()
            if not _INTERESTING.fullmatch(project):
                continue
            pins = _pins(host.read(f"{place}/{name}/METADATA") or "", machine) if project in _PINNED else dict[str, str]()
            tags: tuple[str, ...] = ()
            if project == "torch":
                tag_matches = (re.match(r"_C\.(cpython-\d+)", n) for n in host.names(f"{place}/torch"))
                tags = tuple(sorted({m[1] for m in tag_matches if m}))
            yield Package(project, version.split("-py")[0], place, pins, tags)


def _pins(metadata: str, machine: str) -> Mapping[str, str]:
    """Exact version requirements on this machine, without extras."""
    pins: dict[str, str] = {}
    for name, version, marker in _REQUIRES.findall(metadata.partition("\n\n")[0]):
        other = re.search(r"platform_machine\s*==\s*['\"](\w+)['\"]", marker)
        system = re.search(r"(?:platform_system|sys_platform)\s*==\s*['\"](\w+)['\"]", marker)
        if "extra" in marker or (other and other[1] != machine) or (system and system[1].lower() != "linux"):
            continue
        pins[re.sub(r"[-_.]+", "-", name).lower()] = version
    return pins


def _conda_packages(host: Host, path: str) -> Iterable[Package]:
    """Packages conda installed where ``path`` lives."""
    home = re.sub(r"(/bin/python[0-9.]*|[/\\](Scripts[/\\])?python\.exe)$", "", path)
    for name in host.names(f"{home}/conda-meta"):
        parts = name.removesuffix(".json").rsplit("-", 2)
        if name.endswith(".json") and len(parts) == 3 and _INTERESTING.fullmatch(parts[0]):
            yield Package(parts[0], parts[1], "conda")


def installed_frameworks(python: Python) -> tuple[str, ...]:
    """The frameworks worth asking."""
    return tuple(name for name, distributions in FRAMEWORKS.items() if python.find(*distributions))


def installed_libraries(python: Python) -> tuple[str, ...]:
    """The modules worth importing after torch."""
    return tuple(module for name, module in LIBRARIES.items() if python.find(name)) if python.find("torch") else ()
