"""Low-rank adapters: which linear layers have one (arXiv 2106.09685, section 4.1).

``targets`` are what PEFT calls ``target_modules``: ``all-linear``, or names of modules; ``attention`` means every projection
of the attention. Experts stored as one tensor are not linear layers and have no adapter, nor does the output head.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from gpuwise.errors import UnknownNameError

ALL_LINEAR, ATTENTION, MLP = "all-linear", "attention", "mlp"
DEFAULT_TARGETS = (ALL_LINEAR,)
_ATTENTION = ("q", "k", "v", "out", "q_down", "q_up", "kv_down", "kv_up")
_MLP = ("gate", "up", "down")
_MIXER = ("in_proj", "x_proj", "dt_proj", "out_proj", "latent_in", "latent_out")
_GROUPS = {ALL_LINEAR: (*_ATTENTION, *_MLP, *_MIXER, "pooler"), ATTENTION: _ATTENTION, MLP: _MLP}
_QKV = ("q", "k", "v")
MODULE_NAMES: dict[str, tuple[str, ...]] = {
    # Llama, Mistral, Qwen, Gemma, Phi-3, OPT
    "q_proj": ("q",), "k_proj": ("k",), "v_proj": ("v",), "o_proj": ("out",), "out_proj": ("out", "out_proj"), "qkv_proj": _QKV,
    "gate_proj": ("gate",), "up_proj": ("up",), "down_proj": ("down",), "gate_up_proj": ("gate", "up"),
    "fc1": ("up",), "fc2": ("down",),
    # Mamba
    "in_proj": ("in_proj",), "x_proj": ("x_proj",), "dt_proj": ("dt_proj",),
    "fc1_latent_proj": ("latent_in",), "fc2_latent_proj": ("latent_out",),
    # DeepSeek
    "q_a_proj": ("q_down",), "q_b_proj": ("q_up",), "kv_a_proj_with_mqa": ("kv_down",), "kv_b_proj": ("kv_up",),
    # GPT-2 (both outputs are called c_proj), GPT-NeoX, BLOOM and Falcon, MPT
    "c_attn": _QKV, "c_proj": ("out", "down"), "c_fc": ("up",),
    "query_key_value": _QKV, "dense": ("out",), "dense_h_to_4h": ("up",), "dense_4h_to_h": ("down",), "Wqkv": _QKV,
    # T5
    "wi_0": ("gate",), "wi_1": ("up",), "wi": ("up",), "wo": ("out", "down"), "q": ("q",), "k": ("k",), "v": ("v",),
    "o": ("out",),
    # BERT, ViT
    "query": ("q",), "key": ("k",), "value": ("v",),
    # Megatron
    "linear_qkv": _QKV, "linear_proj": ("out",), "linear_fc1": ("gate", "up"), "linear_fc2": ("down",),
    # torchtune, LitGPT, Llama's own
    "output_proj": ("out",), "w1": ("gate",), "w2": ("down",), "w3": ("up",), "wq": ("q",), "wk": ("k",), "wv": ("v",),
    "attn": _QKV, "proj": ("out", "down"), "fc_1": ("gate",), "fc_2": ("up",), "fc": ("up",),
}  # fmt: skip
"""Names of linear layers in published modules, and the products of a layer they are."""


@lru_cache(maxsize=256)
def adapted_products(targets: tuple[str, ...]) -> frozenset[str]:
    """The products of a layer that have adapters: q, k, v, out, the parts of latent attention, gate, up, down, pooler. Raises
    UnknownNameError for an unknown module."""
    found: set[str] = set()
    for name in targets:
        products = _GROUPS.get(name) or MODULE_NAMES.get(name)
        if products is None:
            raise UnknownNameError("adapter target", name, (*_GROUPS, *MODULE_NAMES))
        found.update(products)
    return frozenset(found)


def split_targets(text: str) -> tuple[str, ...]:
    """``q_proj, v_proj`` as names. Raises UnknownNameError for an unknown name or an empty list."""
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    adapted_products(names or ("",))
    return names


def carries(targets: tuple[str, ...], product: str) -> bool:
    """Whether the product of that name has an adapter; ``qkv`` is all three in one."""
    products = adapted_products(targets)
    return bool(products & set(_QKV)) if product == "qkv" else product in products


def module_names(targets: Sequence[str]) -> tuple[str, ...]:
    """``targets`` as names of modules that PEFT takes: ``attention`` and ``mlp`` are Llama's."""
    modules_by_target = {ATTENTION: ("q_proj", "k_proj", "v_proj", "o_proj"), MLP: ("gate_proj", "up_proj", "down_proj")}
    return tuple(dict.fromkeys(name for target in targets for name in modules_by_target.get(target, (target,))))


def targets_text(targets: Sequence[str]) -> str:
    """``all-linear``, ``q_proj and v_proj``."""
    return targets[0] if len(targets) == 1 else ", ".join(targets[:-1]) + " and " + targets[-1]
