"""Libraries of training beside older or newer mates, as public issues tell of it: a second list.

What is true of each was written down before the doctor saw it (27 November 2026, evening): it did not import four of these
libraries then (onnx, whose place deepspeed has here, is not imported yet). The kinds of error are those of public issues on
cached_download, split_torch_state_dict_into_shards, top_k_top_p_filtering, pkg_resources.packaging, protobuf's builder,
PartialState, PyExtensionType and LRScheduler.
"""

from __future__ import annotations

import pytest

from studies.scripted_machine import SITE

from .asserting import Scenario, assert_cause, assert_healthy
from .test_scenarios_imports import FINE
from .test_scenarios_releases import beside
from .test_scenarios_trials import imports, with_packages

FAULTY: dict[str, Scenario] = {
    "an older diffusers beside a newer hub": (
        lambda: beside(
            f"ImportError: cannot import name 'cached_download' from 'huggingface_hub' ({SITE}/huggingface_hub/__init__.py)",
            "diffusers",
            diffusers="0.25.0",
            huggingface_hub="0.27.0",
        ),
        "diffusers-import-fails",
        ("-U", "diffusers"),
    ),
    "an accelerate that is newer than its hub": (
        lambda: beside(
            "ImportError: cannot import name 'split_torch_state_dict_into_shards' from 'huggingface_hub' "
            f"({SITE}/huggingface_hub/__init__.py)",
            "accelerate",
            accelerate="1.15.0",
            huggingface_hub="0.20.3",
        ),
        "accelerate-import-fails",
        ("-U", "huggingface"),
    ),
    "a peft that is newer than its transformers": (
        lambda: beside(
            f"ImportError: cannot import name 'EncoderDecoderCache' from 'transformers' ({SITE}/transformers/__init__.py)",
            "peft",
            peft="0.21.0",
            transformers="4.40.0",
        ),
        "peft-import-fails",
        ("-U", "transformers"),
    ),
    "an older trl beside a newer transformers": (
        lambda: beside(
            f"ImportError: cannot import name 'top_k_top_p_filtering' from 'transformers' ({SITE}/transformers/__init__.py)",
            "trl",
            trl="0.7.10",
            transformers="5.17.0",
        ),
        "trl-import-fails",
        ("-U", "trl"),
    ),
    "setuptools without pkg_resources": (
        lambda: beside(
            "ModuleNotFoundError: No module named 'pkg_resources'", "lightning", lightning="1.9.5", setuptools="82.0.0"
        ),
        "lightning-import-fails",
        ("setuptools<81",),
    ),
    "setuptools without pkg_resources.packaging": (
        lambda: beside(
            f"ImportError: cannot import name 'packaging' from 'pkg_resources' ({SITE}/pkg_resources/__init__.py)",
            "deepspeed",
            deepspeed="0.12.6",
            setuptools="72.1.0",
        ),
        "deepspeed-import-fails",
        ("setuptools<70",),
    ),
    "generated code beside an older protobuf": (
        lambda: beside(
            "ImportError: cannot import name 'builder' from 'google.protobuf.internal' "
            f"({SITE}/google/protobuf/internal/__init__.py)",
            "deepspeed",
            deepspeed="0.16.0",
            protobuf="3.19.6",
        ),
        "deepspeed-import-fails",
        ("-U", "protobuf"),
    ),
    "a transformers that is newer than its accelerate": (
        lambda: beside(
            f"ImportError: cannot import name 'PartialState' from 'accelerate' ({SITE}/accelerate/__init__.py)",
            "transformers",
            transformers="4.40.0",
            accelerate="0.17.1",
        ),
        "transformers-import-fails",
        ("-U", "accelerate"),
    ),
    "tokenizers that transformers does not take": (
        lambda: beside(
            "ImportError: tokenizers>=0.22.0,<=0.23.0 is required for a normal functioning of this module, but found "
            "tokenizers==0.19.1.\nTry: `pip install transformers -U` or `pip install -e '.[dev]'`",
            "transformers",
            transformers="4.57.1",
            tokenizers="0.19.1",
        ),
        "transformers-import-fails",
        ("tokenizers>=0.22.0,<=0.23.0",),
    ),
    "a hub that is too new for transformers": (
        lambda: beside(
            "ImportError: huggingface-hub>=0.34.0,<1.0 is required for a normal functioning of this module, but found "
            "huggingface-hub==1.0.1.\nTry: `pip install transformers -U` or `pip install -e '.[dev]'`",
            "transformers",
            transformers="4.57.1",
            huggingface_hub="1.0.1",
        ),
        "transformers-import-fails",
        ("huggingface-hub>=0.34.0,<1.0",),
    ),
    "an older datasets beside a newer pyarrow": (
        lambda: beside(
            "AttributeError: module 'pyarrow' has no attribute 'PyExtensionType'",
            "datasets",
            datasets="2.14.6",
            pyarrow="21.0.0",
        ),
        "datasets-import-fails",
        ("-U", "datasets"),
    ),
    "a lightning that is newer than its torch": (
        lambda: beside(
            f"ImportError: cannot import name 'LRScheduler' from 'torch.optim.lr_scheduler' ({SITE}/torch/optim/lr_scheduler.py)",
            "lightning",
            lightning="2.6.0",
        ),
        "lightning-import-fails",
        ("-U", "torch"),
    ),
}


HEALTHY = {
    "datasets, trl and deepspeed of one time": lambda: imports(
        with_packages([FINE], datasets="5.2.0", trl="1.4.0", deepspeed="0.19.0"), datasets=None, trl=None, deepspeed=None
    )
}


@pytest.mark.parametrize("name", FAULTY)
def test_the_mate_to_change_is_named(name: str) -> None:
    assert_cause(FAULTY[name])


@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_machine(name: str) -> None:
    assert_healthy(HEALTHY[name])
