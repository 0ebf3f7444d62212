"""What the libraries of training import in their turn, older or newer than they were made for, as public issues tell of it.

What is true of each was written down before the doctor saw it (27 November 2026, afternoon). The issues: microsoft/DeepSpeed 2845
(torch._six), huggingface/peft 2532 (clear_device_cache), sympy/sympy 26273 (mpmath), pallets/markupsafe 282 (soft_unicode),
protocolbuffers/protobuf 10051 (descriptors), jawah/charset_normalizer 253 (md__mypyc), numpy/numpy 24300 (np.Inf).
"""

from __future__ import annotations

import pytest

from studies.scripted_machine import SITE

from .asserting import Scenario, assert_cause, assert_healthy
from .test_scenarios_imports import FINE, fails
from .test_scenarios_releases import beside
from .test_scenarios_trials import imports, with_packages

FAULTY: dict[str, Scenario] = {
    "an older timm beside today's torch": (
        lambda: beside("ModuleNotFoundError: No module named 'torch._six'", "timm", timm="0.4.12"),
        "timm-import-fails",
        ("-U", "timm"),
    ),
    "an older peft beside today's transformers": (
        lambda: beside(
            f"ImportError: cannot import name 'HybridCache' from 'transformers' ({SITE}/transformers/__init__.py)",
            "peft",
            peft="0.17.0",
            transformers="5.2.0",
        ),
        "peft-import-fails",
        ("-U", "peft"),
    ),
    "an older accelerate beside today's peft": (
        lambda: beside(
            "ImportError: cannot import name 'clear_device_cache' from 'accelerate.utils.memory' "
            f"({SITE}/accelerate/utils/memory.py)",
            "peft",
            peft="0.15.2",
            accelerate="0.34.0",
        ),
        "peft-import-fails",
        ("-U", "accelerate"),
    ),
    "an older bitsandbytes on a newer CUDA": (
        lambda: beside(
            "RuntimeError: CUDA Setup failed despite GPU being available. Please run the following command to get more "
            "information: python -m bitsandbytes",
            "bitsandbytes",
            bitsandbytes="0.42.0",
        ),
        "bitsandbytes-import-fails",
        ("-U", "bitsandbytes"),
    ),
    "an older diffusers beside today's transformers": (
        lambda: beside(
            "RuntimeError: Failed to import diffusers.models.modeling_utils because of the following error: cannot import name "
            f"'FLAX_WEIGHTS_NAME' from 'transformers.utils' ({SITE}/transformers/utils/__init__.py)",
            "diffusers",
            diffusers="0.30.0",
            transformers="5.2.0",
        ),
        "diffusers-import-fails",
        ("-U", "diffusers"),
    ),
    "NumPy 2 beside an older Lightning": (
        lambda: beside(
            "AttributeError: `np.Inf` was removed in the NumPy 2.0 release. Use `np.inf` instead.",
            "pytorch_lightning",
            pytorch_lightning="1.9.5",
            numpy="2.1.0",
        ),
        "pytorch-lightning-import-fails",
        ("numpy<2",),
    ),
    "a Jetson's torch without OpenBLAS": (
        lambda: fails("OSError: libopenblas.so.0: cannot open shared object file: No such file or directory", "2.3.0"),
        "torch-import-fails",
        ("apt", "libopenblas"),
    ),
    "protobuf of today beside older generated code": (
        lambda: beside(
            "TypeError: Descriptors cannot be created directly. If this call came from a _pb2.py file, your generated code is "
            "out of date and must be regenerated with protoc >= 3.19.0.",
            "lightning",
            lightning="2.0.9",
        ),
        "lightning-import-fails",
        ("protobuf<",),
    ),
    "a charset-normalizer of two halves": (
        lambda: beside(
            "AttributeError: partially initialized module 'charset_normalizer' has no attribute 'md__mypyc' (most likely due to "
            "a circular import)",
            "transformers",
            transformers="4.57.0",
        ),
        "transformers-import-fails",
        ("--force-reinstall", "charset"),
    ),
    "an mpmath before its release": (
        lambda: fails("AttributeError: module 'mpmath' has no attribute 'rational'", "2.9.1+cu130"),
        "torch-import-fails",
        ("mpmath<1.4",),
    ),
    "an older Jinja beside today's MarkupSafe": (
        lambda: beside(
            f"ImportError: cannot import name 'soft_unicode' from 'markupsafe' ({SITE}/markupsafe/__init__.py)",
            "transformers",
            transformers="4.57.0",
        ),
        "transformers-import-fails",
        ("-U", "jinja2"),
    ),
    "pandas of NumPy 1 beside NumPy 2": (
        lambda: beside(
            "ImportError: numpy.core.multiarray failed to import",
            "transformers",
            transformers="4.57.0",
            numpy="2.2.0",
        ),
        "transformers-import-fails",
        ("numpy<2",),
    ),
}
HEALTHY = {
    "today's timm": lambda: imports(with_packages([FINE], timm="1.0.20"), timm=None),
    "peft, accelerate and transformers of one time": lambda: imports(
        with_packages([FINE], peft="0.18.0", accelerate="1.12.0", transformers="5.2.0"),
        peft=None,
        accelerate=None,
        transformers=None,
    ),
    "an older Lightning with NumPy 1": lambda: imports(
        with_packages([FINE], pytorch_lightning="1.9.5", numpy="1.26.4"), pytorch_lightning=None
    ),
    "an older diffusers that imports": lambda: imports(
        with_packages([FINE], diffusers="0.30.0", transformers="4.44.0"), diffusers=None, transformers=None
    ),
    "bitsandbytes that imports": lambda: imports(with_packages([FINE], bitsandbytes="0.49.0"), bitsandbytes=None),
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_cause_and_what_mends_it(name: str) -> None:
    assert_cause(FAULTY[name])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine(name: str) -> None:
    assert_healthy(HEALTHY[name])
