"""A model of passes on a person's device: the same times as capacity's, no time where it does not fit."""

from __future__ import annotations

import datetime

import pytest

from gpuwise.errors import InputError
from gpuwise.facts.hardware.naming import find_cluster
from gpuwise.facts.models.catalogue import find_model
from gpuwise.facts.models.convnets import known_convnet
from gpuwise.facts.models.denoisers import known_denoiser
from gpuwise.serve.local_machine import machine_of
from gpuwise.serve.passes.capacity import PassQuestion, capacity_of_passes, usual_workload
from gpuwise.serve.passes.kind import Model
from gpuwise.serve.passes.run import PassRun, pass_run_document, run_passes

MODELS = ("sdxl", "flux-dev", "wan-2.1-1.3b", "whisper-large-v3", "bge-m3", "vit-b-16", "resnet-50")


def _model(name: str) -> Model:
    return known_denoiser(name) or known_convnet(name) or find_model(name)


def _run(name: str, gpu: str) -> PassRun:
    return run_passes(_model(name), machine_of(find_cluster(gpu)))


@pytest.mark.parametrize("name", MODELS)
def test_one_alone_takes_as_long_as_capacity_says(name: str) -> None:
    model, cluster = _model(name), find_cluster("4090")
    workload = usual_workload(model)
    assert workload is not None
    for run in _run(name, "4090").ways:
        if run.alone is not None:
            asked = PassQuestion(workload, (), datetime.date(2026, 11, 30), how=run.way.how)
            assert run.alone.expected == pytest.approx(capacity_of_passes(model, cluster, asked).alone_s)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("gpu", ["rtx-3060-12gb", "4090", "h100-sxm5-80gb"])
def test_what_does_not_fit_has_no_time(name: str, gpu: str) -> None:
    run = _run(name, gpu)
    for way in run.ways:
        assert way.fits == (way.way.needed_bytes <= run.machine.most_bytes)
        assert way.fits or way.per_s is None
        assert way.per_s is None or way.alone is None or way.per_s.expected >= 0.999 / way.alone.expected
    assert pass_run_document(run)["fits"] is any(way.fits for way in run.ways)


def test_weights_in_ram_are_slower_and_take_less() -> None:
    inside, layers = _run("sdxl", "4090").ways[0], _run("sdxl", "4090").ways[-1]
    assert layers.alone is not None and inside.alone is not None
    assert layers.way.needed_bytes < inside.way.needed_bytes and layers.alone.expected > inside.alone.expected


def test_programs_are_those_of_the_vendor() -> None:
    def names(gpu: str) -> set[str]:
        return {way.way.name for way in _run("whisper-large-v3", gpu).ways}

    assert "TensorRT-LLM" in names("4090") and "TensorRT-LLM" not in names("rx-7900-xtx")
    assert names("m3-max-40c") == {"Transformers", "openai-whisper", "whisper.cpp"}
    asked = PassQuestion("speech", (), datetime.date(2026, 11, 30), how=_run("whisper-large-v3", "4090").ways[1].way.how)
    with pytest.raises(InputError, match="does not run on"):
        capacity_of_passes(_model("whisper-large-v3"), find_cluster("rx-7900-xtx"), asked)


def test_a_processor_is_refused() -> None:
    from gpuwise.facts.hardware.cpus import find_cpu

    with pytest.raises(InputError, match="on a processor"):
        run_passes(_model("sdxl"), machine_of(find_cpu("i5-12400")))
