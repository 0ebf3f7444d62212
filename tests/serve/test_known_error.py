"""An answer says where an engine was never compared with a run of such a model on such a GPU, by the rows that there are."""

import pytest

from gpuwise.facts.hardware.accelerators import accelerators
from gpuwise.facts.models.catalogue import find_model
from gpuwise.predict.coefficients import load_json
from gpuwise.serve.simulate.front import kind_of, unchecked


@pytest.mark.parametrize(
    ("engine", "model", "gpu", "said"),
    [
        ("sglang", "deepseek-v3", "mi300x", "sglang with latent attention on MI300X was never checked"),
        ("sglang", "deepseek-v3", "b200-sxm", "sglang with latent attention on B200 SXM was never checked"),
        ("sglang", "qwen3-235b-a22b", "b200-sxm", "sglang with experts"),
        ("sglang", "deepseek-v3", "h200-sxm-141gb", None),
        ("vllm", "llama-3.1-8b", "h100-sxm-80gb", None),
        ("vllm", "llama-3.1-8b", "l4", "vllm with dense layers on L4"),
        ("llama.cpp", "llama-3.1-8b", "l4", None),
    ],
)
def test_what_was_never_measured_is_said(engine: str, model: str, gpu: str, said: str | None) -> None:
    text = unchecked(find_model(model), accelerators()[gpu], engine)
    assert text is None if said is None else text is not None and said in text


def test_the_table_names_what_the_catalogue_has() -> None:
    kinds = {kind_of(find_model(m)) for m in ("llama-3.1-8b", "mixtral-8x7b", "deepseek-v3")}
    for by_device in load_json("load")["checked"].values():
        assert set(by_device) <= set(accelerators())
        assert {kind for found in by_device.values() for kind in found} <= kinds
