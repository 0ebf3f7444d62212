"""The format in a model's name or config is used or refused, never dropped."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.facts.models.test_configs import CONFIGS

from gpuwise.errors import FieldError, InputError, UnknownNameError
from gpuwise.facts.models.catalogue import find_model, models
from gpuwise.facts.models.configs import architecture_from_config
from gpuwise.plan.api import make_fit, make_plan
from gpuwise.plan.goal import Wishes
from gpuwise.serve.engines.engine import bits_as_stored
from gpuwise.serve.formats import find_format

NAMES = {
    "{}-AWQ": "int4_wo",
    "{}-GPTQ-Int4": "int4_wo",
    "{}-GPTQ-Int8": "int8_wo",
    "org/{}-FP8": "fp8",
    "Qwen/{}-FP8": "fp8_block",
    "unsloth/{}-bnb-8bit": "bnb_8bit",
    "{}-4bit": "int4_wo",
    "{}-8bit": "int8_wo",
    "unsloth/{}-bnb-4bit": "nf4",
    "{}-NVFP4": "nvfp4",
    "{}-MXFP4": "mxfp4",
    "{}-Q4_K_M.gguf": "Q4_K_M",
    "{}:q8_0": "Q8_0",
    "mlx-community/{}-4bit": "mlx_4bit",
    "lmstudio-community/{}-MLX-8bit": "mlx_8bit",
    "{}-6bit": "mlx_6bit",
    "{}-bf16": None,
    "{}": None,
}
QUANTIZED = {
    "awq": ({"quant_method": "awq", "bits": 4}, "int4_wo"),
    "gptq": ({"quant_method": "gptq", "bits": 8}, "int8_wo"),
    "bnb": ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "nf4"),
    "fp8": ({"quant_method": "fp8"}, "fp8"),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
    "compressed": (
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}},
        "int4_wo",
    ),
}
CONFIG = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "max_position_embeddings": 512,
}


@given(st.sampled_from(["qwen3-8b", "llama-3.1-8b", "mistral-7b-v0.3", "gemma-2-9b"]), st.sampled_from(sorted(NAMES)))
def test_a_name_keeps_the_format_it_says(model, pattern):
    found = find_model(pattern.format(model))
    assert found == find_model(model) and found.stored_format == NAMES[pattern]


def test_no_model_of_the_catalogue_is_stored_in_another_format_than_published():
    for name, arch in models().items():
        assert find_model(name).stored_format is None, name
        assert find_model(arch.name).stored_format is None, arch.name


@pytest.mark.parametrize("kind", QUANTIZED)
def test_a_config_keeps_the_format_it_says(kind):
    written, form = QUANTIZED[kind]
    assert architecture_from_config({**CONFIG, "quantization_config": written}).stored_format == form


def test_a_config_in_an_unknown_format_is_refused():
    with pytest.raises(FieldError, match="no known format"):
        architecture_from_config({**CONFIG, "quantization_config": {"quant_method": "quip"}})


@pytest.mark.parametrize("bits", [4, 5, 6, 8])
def test_a_config_of_mlx_says_bits_and_group(bits):
    written = {"bits": bits, "group_size": 64, "mode": "affine"}
    assert architecture_from_config({**CONFIG, "quantization": written}).stored_format == f"mlx_{bits}bit"
    both = {**CONFIG, "quantization": written, "quantization_config": written}  # as mlx_lm.convert writes it
    assert architecture_from_config(both).stored_format == f"mlx_{bits}bit"
    for other, form in (({"group_size": 32}, f"mlx_{bits}bit_g32"), ({"mode": "nvfp4"}, "mlx_nvfp4"), ({"bits": 3}, "mlx_3bit")):
        assert architecture_from_config({**CONFIG, "quantization": written | other}).stored_format == form
    for other in ({"bits": 2}, {"group_size": 128}, {"mode": "other"}):
        with pytest.raises(FieldError, match="no known format"):
            architecture_from_config({**CONFIG, "quantization": written | other})


@pytest.mark.parametrize("pattern", [p for p, form in NAMES.items() if form])
def test_training_refuses_a_narrow_checkpoint_and_serving_uses_it(pattern):
    name, form = pattern.format("qwen3-8b"), NAMES[pattern]
    with pytest.raises(InputError, match="it is not trained as it is"):
        make_plan(name, "8xh100-sxm", Wishes(tokens=1e9))
    with pytest.raises(InputError, match="it is not trained as it is"):
        make_fit(name, "8xh100-sxm")
    try:
        bits = bits_as_stored(find_model(name), None)
    except InputError as error:
        assert form not in ("int4_wo", "fp8", "Q4_K_M", "Q8_0") and "is not simulated" in str(error)
        return
    assert bits == ((8,) if form in ("fp8", "fp8_block", "Q8_0", "mlx_8bit") else (4,))
    assert bits_as_stored(find_model(name), bits) == bits
    with pytest.raises(InputError, match="the model's name or config has"):
        bits_as_stored(find_model(name), (16,))


@pytest.mark.thorough
def test_bitsandbytes_weights_are_the_base_of_qlora():
    assert make_fit("unsloth/qwen3-8b-bnb-4bit", "4090", Wishes(quantized_base=True)).estimate.fits


def test_a_folder_with_quantized_weights_decodes_in_them(tmp_path):
    from gpuwise.facts.hardware.targets import find_target
    from gpuwise.plan.one_model import decode

    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, "quantization_config": {"quant_method": "awq", "bits": 4}}))
    arch = find_model(str(tmp_path))
    assert arch.stored_format == "int4_wo"
    assert "int4_wo weights" in decode(arch, arch.stored_format, [find_target("4090")], context=128).text


@pytest.mark.parametrize(
    ("name", "form", "near"),
    [
        ("someone/Qwen3-8B-exl3-4.0bpw", "exl3-4bpw", "Q3_K_M"),
        ("someone/Qwen3-8B-5.0bpw-h6-exl2", "exl2-5bpw", "Q4_K_M"),
        ("someone/Llama-3.1-8B-Instruct-exl2", "exl2", "Q4_K_M or another"),
    ],
)
def test_formats_of_exllama_are_refused_with_the_nearest(name: str, form: str, near: str) -> None:
    arch = find_model(name)
    assert arch.stored_format == form and arch.id in ("qwen3-8b", "llama-3.1-8b")
    with pytest.raises(UnknownNameError) as caught:
        find_format(form)
    assert near in str(caught.value.hint) and "ExLlama" in str(caught.value.hint)


@pytest.mark.parametrize(("method", "form"), [("exl2", "exl2-4.25bpw"), ("exl3", "exl3-4.25bpw")])
def test_a_config_of_exllama_says_its_bits(method: str, form: str, tmp_path: Path) -> None:
    config = {**CONFIGS["llama-3-8b"], "quantization_config": {"quant_method": method, "bits": 4.25, "head_bits": 6}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert find_model(str(tmp_path)).stored_format == form
