"""Image networks from totals: laws of the form, and published speeds no fit has seen."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuwise.errors import InputError, UnknownNameError
from gpuwise.facts.hardware.naming import find_accelerator
from gpuwise.predict.kernels.image_network import network, network_time
from gpuwise.predict.kernels.image_network_traits import indicator, traits_of

RESNET50 = {"macs": 4.11e9, "activations": 11.11e6, "parameters": 25.56e6}


def seconds(gpu: str, precision: str = "fp16", batch: float = 256, **options: object) -> float:
    return float(network_time(find_accelerator(gpu), precision, network(**RESNET50, batch=batch, **options)).time_s[0])


def test_traits() -> None:
    assert traits_of("resnext101_64x4d") >= {"grouped"}
    assert "depthwise" not in traits_of("resnext50_32x4d")
    assert "stem_deep" in traits_of("resnet50d")
    assert "depthwise" in traits_of("mobilenetv3_large_100.ra_in1k")
    assert "channel_attention" in traits_of("xcit_small_24_p16_384")
    assert traits_of("resnet50") == frozenset()
    assert indicator([{"grouped"}, set()]).sum() == 1
    with pytest.raises(UnknownNameError):
        indicator([{"round"}])


@pytest.mark.parametrize(
    ("gpu", "precision", "images_per_s"),
    [
        # NVIDIA DeepLearningExamples, ResNet50 v1.5 for PyTorch, training, channels last under mixed
        # precision
        ("A100-SXM4-80GB", "fp16", 2470.0),
        ("A100-SXM4-80GB", "tf32", 938.0),
        ("V100-SXM2-16GB", "fp32", 367.0),
    ],
)
def test_resnet50_training_on_devices_outside_the_fit(gpu: str, precision: str, images_per_s: float) -> None:
    time = seconds(gpu, precision, training=True, channels_last=precision == "fp16")
    assert 256 / time == pytest.approx(images_per_s, rel=0.45)


@settings(max_examples=40, deadline=None)
@given(batch=st.floats(16, 4096), factor=st.floats(1.0, 4.0))
def test_more_images_take_longer(batch: float, factor: float) -> None:
    assert seconds("rtx-4090", batch=batch * factor) >= 0.9 * seconds("rtx-4090", batch=batch)


def test_training_costs_more_than_inference_and_compiling_helps() -> None:
    assert seconds("A100-SXM4-80GB", training=True) > 2 * seconds("A100-SXM4-80GB")
    assert seconds("A100-SXM4-80GB", compiled=True) < seconds("A100-SXM4-80GB")


def test_launches_bound_a_small_batch() -> None:
    device = find_accelerator("H100 SXM5")
    one = network(**RESNET50, batch=1)
    assert network_time(device, "fp16", one, n_kernels=500).time_s[0] >= 2e-3
    assert np.isclose(network_time(device, "fp16", one).time_s[0], network_time(device, "fp16", one, n_kernels=1).time_s[0])


def test_bad_input() -> None:
    with pytest.raises(InputError):
        network(0, 1, 1, 1)
    with pytest.raises(InputError):
        network_time(find_accelerator("H100 SXM5"), "fp8", network(**RESNET50, batch=1))
