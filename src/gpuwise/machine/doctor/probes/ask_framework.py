"""Asks one framework what it can do here. Run as text by the user's interpreter, so it needs nothing but that (3.8 and newer):

    python -c TEXT torch

It imports frameworks by name only, since this package itself must not depend on them, and prints one JSON object a line; the
last ``stage`` says how far it came when it crashes or hangs.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any


def say(**what: Any) -> None:
    """Print one JSON object."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def quietly(call: Callable[[], Any], default: Any = None) -> Any:
    """The result of ``call``, or ``default`` where it raises."""
    try:
        return call()
    except Exception:  # noqa: BLE001  whatever a foreign library raises is an answer
        return default


def error_of(call: Callable[[], Any]) -> str | None:
    """What ``call`` raises; None where it does not."""
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return words(error)
    return None


def words(error: BaseException) -> str:
    """Type and message of an error in one line of at most 600 characters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"


def try_on(devices: Iterable[tuple[int, Any]], run: Callable[[Any], bool]) -> list[dict[str, Any]]:
    """Runs a product on each device: [{"index", "ran", "error"}]."""
    entries: list[dict[str, Any]] = []
    for index, device in devices:
        entry: dict[str, Any] = {"index": index, "ran": None, "error": None}
        try:
            entry["ran"] = bool(run(device))
        except Exception as error:  # noqa: BLE001
            entry["error"] = words(error)
            if "out of memory" not in entry["error"].lower():
                entry["ran"] = False
        entries.append(entry)
    return entries


def ask_torch() -> None:
    """Report on PyTorch."""
    torch: Any = importlib.import_module("torch")

    c = torch._C
    compiled = torch.version.cuda or getattr(torch.version, "hip", None)
    flags = quietly(lambda: c._cuda_getArchFlags()) if compiled else None
    say(
        stage="build",
        version=torch.__version__,
        file=torch.__file__,
        cuda=torch.version.cuda,
        hip=getattr(torch.version, "hip", None),
        xpu=getattr(torch.version, "xpu", None),
        architectures=(flags or "").split(),
        cudnn=quietly(lambda: torch.backends.cudnn.version()) if torch.version.cuda else None,
        nccl=quietly(lambda: ".".join(map(str, torch.cuda.nccl.version()))) if torch.version.cuda else None,
        mps=bool(quietly(lambda: torch.backends.mps.is_available(), False)),
        mps_built=bool(quietly(lambda: torch.backends.mps.is_built(), False)),
        threads=torch.get_num_threads(),
        numpy_error=error_of(lambda: torch.zeros(1).numpy()),
    )
    if not compiled:
        sees = bool(getattr(torch.version, "xpu", None) and quietly(lambda: torch.xpu.is_available(), False))
        say(stage="done", available=sees, count=quietly(lambda: torch.xpu.device_count(), 0) if sees else 0)
        return
    say(stage="devices")
    error = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
        count = torch.cuda.device_count() if available else 0
        if not available:
            try:
                torch.cuda.init()
            except Exception as raised:  # noqa: BLE001
                error = words(raised)
    texts = [" ".join(str(w.message).split())[:600] for w in caught if "CUDA" in str(w.message) or "cuda" in str(w.message)]
    error = " | ".join([*texts, error] if error else texts) or None
    cards: list[dict[str, Any]] = []
    for i in range(count):
        p = quietly(lambda i=i: torch.cuda.get_device_properties(i))
        if p is not None:
            cards.append(
                {"index": i, "name": p.name, "capability": [p.major, p.minor], "uuid": str(getattr(p, "uuid", "") or "")}
            )
    say(stage="run", available=available, count=count, error=error, devices=cards)

    def product(device: Any) -> bool:
        x = torch.ones(64, 64, device=device)
        return float((x @ x).sum()) == 64.0**3

    say(stage="done", ran=try_on([(i, f"cuda:{i}") for i in range(count)], product))


def ask_tensorflow() -> None:
    """Report on TensorFlow."""
    tf: Any = importlib.import_module("tensorflow")

    build = quietly(lambda: dict(tf.sysconfig.get_build_info()), {})
    say(
        stage="build",
        version=tf.__version__,
        file=tf.__file__,
        cuda=build.get("cuda_version") if build.get("is_cuda_build") else None,
        hip=build.get("rocm_version") if build.get("is_rocm_build") else None,
        cudnn=build.get("cudnn_version"),
        architectures=list(build.get("cuda_compute_capabilities") or ()),
    )
    say(stage="devices")
    gpus = tf.config.list_physical_devices("GPU")
    say(stage="run", available=bool(gpus), count=len(gpus))

    def product(device: Any) -> bool:
        with tf.device(device):
            x = tf.ones((64, 64))
            return float(tf.reduce_sum(tf.matmul(x, x))) == 64.0**3

    say(stage="done", ran=try_on([(i, f"/GPU:{i}") for i in range(len(gpus))], product))


def why_jax_has_no_gpu() -> str | None:
    """The error of its plugin for CUDA, which JAX logs before it goes on with the processor."""
    for name in ("jax_plugins.xla_cuda13", "jax_plugins.xla_cuda12"):
        try:
            importlib.import_module(name).initialize()
        except ModuleNotFoundError:
            continue
        except Exception as error:  # noqa: BLE001
            return words(error)
    return None


def ask_jax() -> None:
    """Report on JAX."""
    jax: Any = importlib.import_module("jax")

    say(stage="build", version=jax.__version__, file=jax.__file__)
    say(stage="devices")
    try:
        devices = jax.devices()
    except Exception as error:  # noqa: BLE001
        say(stage="done", available=False, count=0, error=words(error))
        return
    gpus = [d for d in devices if d.platform in ("gpu", "cuda", "rocm")]
    say(stage="run", available=bool(gpus), count=len(gpus), backend=jax.default_backend(), cuda=None)
    if not gpus and (why := why_jax_has_no_gpu()):
        say(stage="done", available=False, count=0, error=why)
        return

    def product(device: Any) -> bool:
        x = jax.device_put(jax.numpy.ones((64, 64)), device)
        return float((x @ x).sum()) == 64.0**3

    say(stage="done", ran=try_on(list(enumerate(gpus)), product))


def ask_cupy() -> None:
    """Report on CuPy."""
    cupy: Any = importlib.import_module("cupy")

    version = quietly(lambda: cupy.cuda.runtime.runtimeGetVersion())
    cuda = f"{version // 1000}.{version % 1000 // 10}" if version and not cupy.cuda.runtime.is_hip else None
    say(stage="build", version=cupy.__version__, file=cupy.__file__, cuda=cuda)
    say(stage="devices")
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except Exception as error:  # noqa: BLE001
        say(stage="done", available=False, count=0, error=words(error))
        return
    say(stage="run", available=count > 0, count=count)

    def product(index: int) -> bool:
        with cupy.cuda.Device(index):
            x = cupy.ones((64, 64), dtype=cupy.float32)
            return float((x @ x).sum()) == 64.0**3

    say(stage="done", ran=try_on([(i, i) for i in range(count)], product))


def ask_llama_cpp() -> None:
    """Report on llama-cpp-python: whether it was built for a GPU of any kind."""
    llama_cpp: Any = importlib.import_module("llama_cpp")

    say(stage="build", version=llama_cpp.__version__, file=llama_cpp.__file__)
    say(stage="done", available=bool(llama_cpp.llama_supports_gpu_offload()))


def ask_driver() -> None:
    """Report on CUDA's driver library, as programs without Python start it (ollama, llama.cpp): ``cuInit``."""
    ctypes: Any = importlib.import_module("ctypes")
    try:
        library = ctypes.CDLL("nvcuda.dll" if os.name == "nt" else "libcuda.so.1")
    except OSError as error:
        say(stage="done", available=False, count=0, error=words(error))
        return
    version, count, text = ctypes.c_int(), ctypes.c_int(), ctypes.c_char_p()
    library.cuDriverGetVersion(ctypes.byref(version))
    say(stage="devices", cuda=f"{version.value // 1000}.{version.value % 1000 // 10}")
    status = library.cuInit(0) or library.cuDeviceGetCount(ctypes.byref(count))
    error = None
    if status:
        library.cuGetErrorString(status, ctypes.byref(text))
        error = f"CUDA error {status}: {(text.value or b'').decode()}"
    say(stage="done", available=count.value > 0, count=count.value, error=error)


def ask_libraries(names: Iterable[str]) -> None:
    """Import each after torch; one that raises is reported, and the others are tried."""
    began_s = time.monotonic()
    importlib.import_module("torch")
    for name in names:
        say(library=name, after_s=time.monotonic() - began_s)
        error = None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                importlib.import_module(name)
        except BaseException as raised:  # noqa: BLE001  a library may even exit
            error = words(raised)
        say(imported=name, error=error)


def main(name: str, *others: str) -> None:
    """Report on the framework ``name``, or on other libraries. Exits with 1 where it raises."""
    faulthandler.enable()
    # the folder one happens to stand in must not stand in for a package
    sys.path[:] = [p for p in sys.path if p]
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    say(stage="import")
    try:
        if name == "libraries":
            ask_libraries(others)
            return
        {
            "torch": ask_torch,
            "tensorflow": ask_tensorflow,
            "jax": ask_jax,
            "cupy": ask_cupy,
            "llama-cpp-python": ask_llama_cpp,
            "driver": ask_driver,
        }[name]()
    except BaseException as error:  # noqa: BLE001
        say(failed=words(error))
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
