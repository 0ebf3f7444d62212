# ruff: noqa: E501
"""Programs of many libraries, captured and run for real on the processor: how many are captured, their FLOP beside torch's counter, the peak
of their tensors beside that of the real run.

    python benchmarks/foreign_programs.py                      # all whose library is installed; a line of JSON each on stdout
    python benchmarks/foreign_programs.py transformers timm    # some libraries
    python benchmarks/foreign_programs.py --table FILE         # sums of a file of such lines

Sizes are small, attention is written out (the fused kernels of a processor are not those of a GPU), and every program is a training
step with AdamW: its loss is the model's, or the mean of the first floating tensor it returns. The peak is that of bytes of storages in
the third step, all storages of the model and the optimizer counted. torch's counter is a program of its own with its own faults: it
counts no ``addmv``, ``mv``, ``dot``, Fourier transforms, recurrent layers or bilinear products; those are left out here on both sides.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import math
import sys
import time
import traceback
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import gpuwise
from gpuwise.workload.capture.ops.nested import tensors_in
from gpuwise.workload.capture.packages import timm, torchvision, transformers
from gpuwise.workload.capture.step import call_with, loss_of

Make = Callable[[], tuple[Any, Any]]
"""Gives a module and its inputs, on the default device."""
PROGRAMS: dict[str, dict[str, Make]] = {}
UNCOUNTED = ("mv", "addmv", "dot", "vdot", "addr", "_fft", "_cudnn_rnn", "lstm", "gru", "rnn", "_trilinear")
"""Products that torch's counter does not know."""


def program(library: str, name: str, make: Make) -> None:
    PROGRAMS.setdefault(library, {})[name] = make


def image(size: int = 64, channels: int = 3, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, channels, size, size)


def ids(length: int = 32, vocabulary: int = 99, batch: int = 2) -> torch.Tensor:
    return torch.randint(1, vocabulary, (batch, length))


# --- transformers ---

SMALL = {
    "vocab_size": 99,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "dim": 32,
    "intermediate_size": 64,
    "n_inner": 64,
    "d_ff": 64,
    "hidden_dim": 64,
    "ffn_dim": 64,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "moe_intermediate_size": 48,
    "num_hidden_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "num_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_attention_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "num_heads": 4,
    "d_kv": 8,
    "head_dim": 8,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 4,
    "num_experts": 4,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "image_size": 32,
    "patch_size": 8,
    "embedding_size": 32,
    "pad_token_id": 0,
    "rotary_dim": 4,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
}
CAUSAL = [
    "gpt2",
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3_text",
    "phi",
    "phi3",
    "opt",
    "bloom",
    "gpt_neox",
    "gptj",
    "gpt_neo",
    "codegen",
    "falcon",
    "mpt",
    "olmo",
    "olmo2",
    "olmoe",
    "stablelm",
    "starcoder2",
    "cohere",
    "granite",
    "granitemoe",
    "persimmon",
    "xglm",
    "biogpt",
    "openai-gpt",
    "ctrl",
    "deepseek_v2",
    "deepseek_v3",
    "glm",
    "glm4",
    "smollm3",
    "helium",
    "ernie4_5",
    "nemotron",
    "exaone4",
    "jetmoe",
    "dbrx",
    "mamba",
    "mamba2",
    "falcon_mamba",
    "gpt_bigcode",
]
ENCODERS = [
    "bert",
    "roberta",
    "distilbert",
    "albert",
    "electra",
    "mpnet",
    "deberta-v2",
    "camembert",
    "modernbert",
    "convbert",
    "squeezebert",
    "nystromformer",
    "megatron-bert",
]
SEQUENCES = ["t5", "bart", "mbart", "pegasus", "marian", "blenderbot", "mt5", "m2m_100", "prophetnet"]
VISION = [
    "vit",
    "deit",
    "beit",
    "dinov2",
    "convnext",
    "swin",
    "resnet",
    "regnet",
    "segformer",
    "mobilenet_v2",
    "poolformer",
    "cvt",
    "levit",
    "vit_mae",
    "siglip_vision_model",
]


UNDROPPED = (
    "attn_pdrop",
    "attn_dropout",
    "attention_dropout",
    "attention_probs_dropout_prob",
    "layerdrop",
    "encoder_layerdrop",
    "decoder_layerdrop",
)
"""Attention's own dropout draws its mask in another format on a processor; dropped layers are drawn anew in each run."""


def small_config(kind: str) -> Any:
    cls = transformers().CONFIG_MAPPING[kind]
    plain = cls()
    sizes = {k: v for k, v in SMALL.items() if hasattr(plain, k) and isinstance(getattr(plain, k), (int, type(None)))}
    sizes = {k: v for k, v in sizes.items() if not isinstance(getattr(cls, k, None), property)}
    sizes |= {k: 0.0 for k in UNDROPPED if hasattr(plain, k)}
    if kind in ("deepseek_v2", "deepseek_v3"):
        sizes["num_key_value_heads"] = 4
    if kind in ("t5", "mt5"):
        sizes["decoder_start_token_id"] = 0
    if kind in ("marian", "pegasus", "mbart", "blenderbot", "m2m_100"):
        sizes |= {"decoder_start_token_id": 2, "eos_token_id": 2}
    if kind == "marian":
        sizes |= {"pad_token_id": 1, "decoder_vocab_size": 99}
    if kind == "mamba2":
        sizes |= {"num_heads": 8, "head_dim": 8, "state_size": 16, "n_groups": 1}
    if kind == "gpt_neo":
        sizes["attention_types"] = [[["global", "local"], 1]]
    if kind in ("resnet", "regnet", "segformer", "convnext", "cvt", "levit", "poolformer", "mobilenet_v2"):
        sizes = {"image_size": 64}
    return cls(**sizes)


def hugging_face(kind: str, auto: str, inputs: Callable[[], Any]) -> Make:
    def make() -> tuple[Any, Any]:
        model = getattr(transformers(), auto).from_config(small_config(kind))
        return model, inputs()

    return make


def _labelled() -> dict[str, torch.Tensor]:
    tokens = ids()
    return {"input_ids": tokens, "labels": tokens}


for _kind in CAUSAL:
    program("transformers", _kind, hugging_face(_kind, "AutoModelForCausalLM", _labelled))
for _kind in ENCODERS:
    program("transformers", _kind, hugging_face(_kind, "AutoModelForMaskedLM", _labelled))
for _kind in SEQUENCES:
    program("transformers", _kind, hugging_face(_kind, "AutoModelForSeq2SeqLM", _labelled))
for _kind in VISION:
    _size = 64 if _kind in ("resnet", "regnet", "segformer", "convnext", "cvt", "poolformer", "mobilenet_v2") else 32
    if _kind == "levit":
        _size = 64
    program("transformers", _kind, hugging_face(_kind, "AutoModel", lambda size=_size: {"pixel_values": image(size)}))


def _speech(kind: str) -> Make:
    def make() -> tuple[Any, Any]:
        library = transformers()
        if kind == "whisper":
            config = library.WhisperConfig(
                vocab_size=99,
                d_model=32,
                encoder_layers=1,
                decoder_layers=1,
                encoder_attention_heads=4,
                decoder_attention_heads=4,
                encoder_ffn_dim=64,
                decoder_ffn_dim=64,
                max_source_positions=50,
                max_target_positions=40,
                num_mel_bins=16,
                pad_token_id=0,
                bos_token_id=1,
                eos_token_id=2,
                decoder_start_token_id=1,
            )
            return library.WhisperForConditionalGeneration(config), {"input_features": torch.randn(2, 16, 100), "labels": ids(20)}
        if kind == "clip":
            part = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
            text = {**part, "vocab_size": 99, "eos_token_id": 98}
            config = library.CLIPConfig(text_config=text, vision_config={**part, "image_size": 32, "patch_size": 8})
            return library.CLIPModel(config), {"input_ids": ids(), "pixel_values": image(32), "return_loss": True}
        config = library.CONFIG_MAPPING[kind](
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            conv_dim=(16, 16),
            conv_stride=(5, 4),
            conv_kernel=(10, 8),
            num_feat_extract_layers=2,
            num_conv_pos_embeddings=16,
            num_conv_pos_embedding_groups=2,
            mask_time_prob=0.0,
            attention_dropout=0.0,
            layerdrop=0.0,
        )
        return library.AutoModel.from_config(config), {"input_values": torch.randn(2, 4000)}

    return make


for _kind in ("whisper", "clip", "wav2vec2", "hubert"):
    program("transformers", _kind, _speech(_kind))


def _lora() -> tuple[Any, Any]:
    torchvision()
    peft = importlib.import_module("peft")
    model = transformers().AutoModelForCausalLM.from_config(small_config("llama"))
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"])), _labelled()


program("peft", "lora llama", _lora)


def _adapted(config: str, kind: str = "llama", **settings: Any) -> Make:
    def make() -> tuple[Any, Any]:
        torchvision()
        peft = importlib.import_module("peft")
        model = transformers().AutoModelForCausalLM.from_config(small_config(kind))
        return peft.get_peft_model(model, getattr(peft, config)(task_type="CAUSAL_LM", **settings)), _labelled()

    return make


_ATTENTION = ["q_proj", "v_proj"]
for _name, _config, _settings in (
    ("dora llama", "LoraConfig", {"r": 4, "use_dora": True, "target_modules": _ATTENTION}),
    ("rslora llama", "LoraConfig", {"r": 4, "use_rslora": True, "target_modules": _ATTENTION}),
    ("ia3 llama", "IA3Config", {"target_modules": ["k_proj", "down_proj"], "feedforward_modules": ["down_proj"]}),
    ("prompt tuning llama", "PromptTuningConfig", {"num_virtual_tokens": 4}),
    ("loha llama", "LoHaConfig", {"r": 4, "target_modules": _ATTENTION}),
    ("lokr llama", "LoKrConfig", {"r": 4, "target_modules": _ATTENTION}),
    ("oft llama", "OFTConfig", {"r": 0, "oft_block_size": 8, "target_modules": _ATTENTION}),
    ("vera llama", "VeraConfig", {"r": 4, "target_modules": ["q_proj"]}),
):
    program("peft", _name, _adapted(_config, **_settings))


class Trained(torch.nn.Module):
    """The training step of a LightningModule as a module: its loss for a batch."""

    def __init__(self) -> None:
        super().__init__()
        torchvision()
        lightning = importlib.import_module("lightning")

        class Digits(lightning.LightningModule):
            def __init__(self) -> None:
                super().__init__()
                self.save_hyperparameters()
                self.net = torch.nn.Sequential(
                    torch.nn.Conv2d(1, 8, 3),
                    torch.nn.BatchNorm2d(8),
                    torch.nn.ReLU(),
                    torch.nn.Flatten(),
                    torch.nn.Linear(5408, 10),
                )
                self.example_input_array = torch.zeros(1, 1, 28, 28)

            def training_step(self, batch: Any, _: int) -> torch.Tensor:
                x, y = batch
                return torch.nn.functional.cross_entropy(self.net(x), y)

        self.module = Digits()

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.module.training_step((x, y), 0)


program("lightning", "LightningModule", lambda: (Trained(), (image(28, 1, 4), torch.randint(0, 10, (4,)))))


class Embedded(torch.nn.Module):
    """Mean pooling and a normalised projection of sentence-transformers over a small BERT, two sentences compared."""

    def __init__(self) -> None:
        super().__init__()
        parts = importlib.import_module("sentence_transformers.sentence_transformer.modules")
        self.encoder = transformers().AutoModel.from_config(small_config("bert"))
        self.pooling = parts.Pooling(32)
        self.dense = parts.Dense(32, 16)
        self.normalize = parts.Normalize()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = torch.ones_like(tokens)
        features = {"token_embeddings": self.encoder(tokens, mask).last_hidden_state, "attention_mask": mask}
        out = self.normalize(self.dense(self.pooling(features)))["sentence_embedding"]
        return torch.nn.functional.cross_entropy(out @ out.T * 20, torch.arange(len(tokens), device=tokens.device))


program("sentence_transformers", "bi-encoder", lambda: (Embedded(), ids(batch=4)))

# --- images ---

for _name in [
    "alexnet",
    "convnext_tiny",
    "densenet121",
    "efficientnet_b0",
    "efficientnet_v2_s",
    "mnasnet0_5",
    "mobilenet_v2",
    "mobilenet_v3_small",
    "regnet_y_400mf",
    "resnet18",
    "resnet50",
    "resnext50_32x4d",
    "shufflenet_v2_x0_5",
    "squeezenet1_0",
    "swin_t",
    "swin_v2_t",
    "vgg11_bn",
    "vit_b_32",
    "wide_resnet50_2",
    "maxvit_t",
    "googlenet",
]:
    _size = 224 if _name in ("maxvit_t", "vit_b_32") else 64
    program(
        "torchvision",
        _name,
        lambda name=_name, size=_size: (torchvision().models.get_model(name, weights=None, num_classes=10), image(size)),
    )
for _name in ("deeplabv3_mobilenet_v3_large", "fcn_resnet50", "lraspp_mobilenet_v3_large"):
    program(
        "torchvision",
        _name,
        lambda name=_name: (torchvision().models.get_model(name, weights=None, weights_backbone=None, num_classes=5), image(64)),
    )
for _name in ("r3d_18", "mc3_18"):
    program(
        "torchvision",
        _name,
        lambda name=_name: (torchvision().models.get_model(name, weights=None), torch.randn(1, 3, 4, 32, 32)),
    )
for _name in [
    "resnet18",
    "resnetv2_50",
    "convnext_atto",
    "efficientnet_b0",
    "vit_tiny_patch16_224",
    "deit_tiny_patch16_224",
    "mixer_s32_224",
    "regnetx_002",
    "mobilenetv3_small_050",
    "tf_efficientnetv2_b0",
    "ghostnet_050",
    "hrnet_w18_small",
    "res2net50_26w_4s",
    "resnest14d",
    "sknet18",
    "dla34",
    "dpn48b",
    "coat_lite_tiny",
    "pit_ti_224",
    "levit_128s",
    "poolformer_s12",
    "edgenext_xx_small",
    "mobilevit_xxs",
    "nfnet_f0",
    "gernet_s",
    "repvgg_a0",
    "xcit_nano_12_p16_224",
    "cspresnet50",
    "selecsls42",
]:
    _size = 224 if any(p in _name for p in ("224", "levit", "coat", "mobilevit")) else 64
    program(
        "timm",
        _name,
        lambda name=_name, size=_size: (timm().create_model(name, num_classes=10), image(size)),
    )


def _from(module: str, name: str, inputs: Callable[[], Any], **settings: Any) -> Make:
    """A class of a library with its inputs."""

    def make() -> tuple[Any, Any]:
        torchvision()
        return getattr(importlib.import_module(module), name)(**settings), inputs()

    return make


def _classes(library: str, module: str, *rows: tuple[str, Callable[[], Any], dict[str, Any]]) -> None:
    for name, inputs, settings in rows:
        program(library, name, _from(module, name, inputs, **settings))


_VOLUME = {"in_channels": 1, "out_channels": 2}
_classes(
    "monai",
    "monai.networks.nets",
    ("UNet", lambda: image(32, 1), {"spatial_dims": 2, **_VOLUME, "channels": (8, 16, 32), "strides": (2, 2)}),
    ("SegResNet", lambda: image(32, 1), {"spatial_dims": 2, "init_filters": 8, **_VOLUME}),
    (
        "UNETR",
        lambda: image(32, 1),
        {"img_size": 32, "spatial_dims": 2, **_VOLUME, "hidden_size": 48, "mlp_dim": 64, "num_heads": 4},
    ),
    ("VNet", lambda: torch.randn(1, 1, 16, 16, 16), {**_VOLUME}),
    (
        "DynUNet",
        lambda: image(32, 1),
        {"spatial_dims": 2, **_VOLUME, "kernel_size": [3] * 3, "strides": [1, 2, 2], "upsample_kernel_size": [2, 2]},
    ),
    ("BasicUNet", lambda: image(32, 1), {"spatial_dims": 2, **_VOLUME, "features": (8, 8, 16, 32, 64, 8)}),
    ("AttentionUnet", lambda: image(32, 1), {"spatial_dims": 2, **_VOLUME, "channels": (8, 16, 32), "strides": (2, 2)}),
    ("HighResNet", lambda: image(16, 1), {"spatial_dims": 2, **_VOLUME}),
    ("DenseNet121", lambda: image(32, 1), {"spatial_dims": 2, **_VOLUME}),
    ("SwinUNETR", lambda: image(64, 1), {"spatial_dims": 2, **_VOLUME, "feature_size": 12}),
    ("FlexibleUNet", lambda: image(64, 1), {"spatial_dims": 2, **_VOLUME, "backbone": "efficientnet-b0"}),
    ("SENet154", lambda: image(64, 1), {"spatial_dims": 2, "in_channels": 1, "num_classes": 3}),
    (
        "ResNetFeatures",
        lambda: image(64, 1),
        {"model_name": "resnet18", "spatial_dims": 2, "in_channels": 1, "pretrained": False},
    ),
    ("AutoEncoder", lambda: image(32, 1), {"spatial_dims": 2, **_VOLUME, "channels": (8, 16), "strides": (2, 2)}),
    (
        "VarAutoEncoder",
        lambda: image(32, 1),
        {"spatial_dims": 2, "in_shape": (1, 32, 32), "out_channels": 1, "latent_size": 8, "channels": (8, 16), "strides": (2, 2)},
    ),
)
_classes(
    "segmentation_models_pytorch",
    "segmentation_models_pytorch",
    *(
        (n, lambda: image(64), {"encoder_name": "resnet18", "encoder_weights": None})
        for n in ("Unet", "FPN", "Linknet", "PSPNet", "UnetPlusPlus", "MAnet", "DeepLabV3Plus")
    ),
)
_classes(
    "vit_pytorch",
    "vit_pytorch",
    (
        "ViT",
        lambda: image(32),
        {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 64},
    ),
    (
        "SimpleViT",
        lambda: image(32),
        {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 32, "depth": 2, "heads": 4, "mlp_dim": 64},
    ),
)


def _x_transformer(**settings: Any) -> Make:
    def make() -> tuple[Any, Any]:
        x = importlib.import_module("x_transformers")
        layers = x.Decoder(dim=32, depth=2, heads=4, **settings)
        return x.AutoregressiveWrapper(x.TransformerWrapper(num_tokens=99, max_seq_len=64, attn_layers=layers)), ids()

    return make


for _name, _settings in {
    "decoder": {},
    "rotary": {"rotary_pos_emb": True},
    "alibi": {"alibi_pos_bias": True},
    "glu": {"ff_glu": True},
}.items():
    program("x_transformers", _name, _x_transformer(**_settings))


def _diffusers(name: str, inputs: Callable[[], Any], **settings: Any) -> None:
    program("diffusers", name, _from("diffusers", name, inputs, **settings))


_BLOCKS = {"block_out_channels": (16, 32), "norm_num_groups": 8, "layers_per_block": 1}
_diffusers(
    "UNet2DModel",
    lambda: (image(16), torch.tensor([3, 5])),
    sample_size=16,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=8,
    **_BLOCKS,
)
_diffusers(
    "UNet2DConditionModel",
    lambda: (image(16, 4), torch.tensor([3, 5]), torch.randn(2, 7, 24)),
    sample_size=16,
    cross_attention_dim=24,
    down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
    up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    attention_head_dim=4,
    **_BLOCKS,
)
_diffusers(
    "AutoencoderKL",
    lambda: image(32),
    block_out_channels=(16, 32),
    norm_num_groups=8,
    latent_channels=4,
    down_block_types=("DownEncoderBlock2D",) * 2,
    up_block_types=("UpDecoderBlock2D",) * 2,
)
_diffusers(
    "DiTTransformer2DModel",
    lambda: (image(16, 4), torch.tensor([3, 5]), torch.tensor([1, 2])),
    sample_size=16,
    num_layers=2,
    num_attention_heads=4,
    attention_head_dim=8,
    num_embeds_ada_norm=10,
)
_diffusers("VQModel", lambda: image(32), block_out_channels=(16,), norm_num_groups=8)


class Graph(torch.nn.Module):
    """Two layers of a graph convolution over 60 nodes and 240 edges."""

    def __init__(self, name: str, **settings: Any) -> None:
        super().__init__()
        layers = importlib.import_module("torch_geometric.nn")
        if name == "GINConv":
            self.layers = torch.nn.ModuleList(layers.GINConv(torch.nn.Linear(16, 16)) for _ in range(2))
        else:
            self.layers = torch.nn.ModuleList(getattr(layers, name)(16, 16, **settings) for _ in range(2))

    def forward(self, x: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x, edges).relu()
        return x


for _name, _settings in {
    "GCNConv": {},
    "GATConv": {},
    "GATv2Conv": {},
    "SAGEConv": {},
    "GINConv": {},
    "TransformerConv": {},
    "ChebConv": {"K": 3},
    "TAGConv": {},
    "GraphConv": {},
    "SGConv": {},
    "ARMAConv": {},
    "LEConv": {},
    "ClusterGCNConv": {},
    "FiLMConv": {},
    "SuperGATConv": {},
    "GENConv": {},
    "MFConv": {},
    "ResGatedGraphConv": {},
    "GeneralConv": {},
    "EGConv": {},
}.items():
    program(
        "torch_geometric",
        _name,
        lambda name=_name, settings=_settings: (Graph(name, **settings), (torch.randn(60, 16), torch.randint(0, 60, (2, 240)))),
    )


def _speechbrain(module: str, name: str, inputs: Callable[[], Any], **settings: Any) -> None:
    program("speechbrain", name, _from(f"speechbrain.lobes.models.{module}", name, inputs, **settings))


_speechbrain(
    "ECAPA_TDNN", "ECAPA_TDNN", lambda: torch.randn(2, 60, 20), input_size=20, channels=[16, 16, 16, 16, 48], lin_neurons=16
)
_speechbrain(
    "Xvector", "Xvector", lambda: torch.randn(2, 60, 20), in_channels=20, tdnn_channels=[16, 16, 16, 16, 48], lin_neurons=16
)
_speechbrain(
    "CRDNN",
    "CRDNN",
    lambda: torch.randn(2, 60, 20),
    input_shape=[2, 60, 20],
    rnn_layers=1,
    rnn_neurons=16,
    dnn_neurons=16,
    cnn_channels=(8, 8),
)
_classes(
    "torchaudio",
    "torchaudio.models",
    (
        "ConvTasNet",
        lambda: torch.randn(2, 1, 2000),
        {"enc_num_feats": 16, "msk_num_feats": 16, "msk_num_hidden_feats": 32, "msk_num_layers": 2, "msk_num_stacks": 1},
    ),
    (
        "Conformer",
        lambda: (torch.randn(2, 40, 32), torch.tensor([40, 40])),
        {"input_dim": 32, "num_heads": 4, "ffn_dim": 64, "num_layers": 2, "depthwise_conv_kernel_size": 15},
    ),
    ("DeepSpeech", lambda: torch.randn(2, 1, 40, 20), {"n_feature": 20, "n_hidden": 32, "n_class": 10}),
    ("Wav2Letter", lambda: torch.randn(2, 1, 4000), {"num_classes": 10}),
)


def _yolo(file: str) -> Make:
    def make() -> tuple[Any, Any]:
        torchvision()
        return importlib.import_module("ultralytics.nn.tasks").DetectionModel(file, verbose=False), image(64)

    return make


for _name in ("yolov8n.yaml", "yolo11n.yaml", "yolov5nu.yaml"):
    program("ultralytics", _name, _yolo(_name.replace("yolov5nu", "yolov5n")))


def _policy(name: str) -> Make:
    def make() -> tuple[Any, Any]:
        gym = importlib.import_module("gymnasium")
        policies = importlib.import_module("stable_baselines3.common.policies")
        import numpy as np

        if name == "ActorCriticCnnPolicy":
            space, x = gym.spaces.Box(0, 255, (3, 64, 64), np.uint8), torch.randint(0, 255, (4, 3, 64, 64), dtype=torch.uint8)
        else:
            space, x = gym.spaces.Box(-1, 1, (8,), np.float32), torch.randn(32, 8)
        return getattr(policies, name)(space, gym.spaces.Discrete(4), lambda _: 1e-3), x

    return make


for _name in ("ActorCriticPolicy", "ActorCriticCnnPolicy"):
    program("stable_baselines3", _name, _policy(_name))


class Equivariant(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        o3 = importlib.import_module("e3nn.o3")
        self.harmonics = o3.spherical_harmonics
        self.product = o3.FullyConnectedTensorProduct("8x0e + 4x1o", "1x0e + 1x1o", "8x0e + 4x1o")

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.product(x, self.harmonics([0, 1], places, normalize=True))


program("e3nn", "tensor product", lambda: (Equivariant(), (torch.randn(50, 20), torch.randn(50, 3))))
program(
    "efficientnet_pytorch",
    "b0",
    lambda: (importlib.import_module("efficientnet_pytorch").EfficientNet.from_name("efficientnet-b0"), image(64)),
)
program(
    "linformer",
    "Linformer",
    _from("linformer", "Linformer", lambda: torch.randn(2, 32, 32), dim=32, seq_len=32, depth=2, heads=4, k=16),
)
program(
    "performer_pytorch",
    "Performer",
    _from("performer_pytorch", "Performer", lambda: torch.randn(2, 32, 32), dim=32, depth=2, heads=4, dim_head=8),
)
program(
    "perceiver_pytorch",
    "Perceiver",
    _from(
        "perceiver_pytorch",
        "Perceiver",
        lambda: torch.randn(2, 8, 8, 3),
        num_freq_bands=4,
        depth=2,
        max_freq=10.0,
        num_latents=16,
        latent_dim=32,
        input_channels=3,
        num_classes=10,
    ),
)
program(
    "denoising_diffusion_pytorch",
    "Unet",
    _from(
        "denoising_diffusion_pytorch",
        "Unet",
        lambda: (image(16), torch.tensor([3, 5])),
        dim=16,
        dim_mults=(1, 2),
        flash_attn=False,
    ),
)
program(
    "vector_quantize_pytorch",
    "VectorQuantize",
    _from("vector_quantize_pytorch", "VectorQuantize", lambda: torch.randn(2, 64, 16), dim=16, codebook_size=64),
)
program("egnn_pytorch", "EGNN", _from("egnn_pytorch", "EGNN", lambda: (torch.randn(2, 16, 16), torch.randn(2, 16, 3)), dim=16))
program(
    "conformer",
    "Conformer",
    _from("conformer", "Conformer", lambda: torch.randn(2, 32, 32), dim=32, depth=2, dim_head=8, heads=4),
)
program(
    "kornia",
    "VisionTransformer",
    _from(
        "kornia.contrib", "VisionTransformer", lambda: image(32), image_size=32, patch_size=8, embed_dim=32, depth=2, num_heads=4
    ),
)
program(
    "open_clip",
    "CLIP",
    lambda: (
        importlib.import_module("open_clip").CLIP(
            32,
            {"layers": 2, "width": 64, "head_width": 16, "patch_size": 8, "image_size": 32},
            {"context_length": 16, "vocab_size": 99, "width": 32, "heads": 4, "layers": 2},
        ),
        (image(32), ids(16)),
    ),
)
for _cell in ("LSTM", "GRU"):
    program("torch", _cell, lambda cell=_cell: (getattr(torch.nn, cell)(16, 32, 2, batch_first=True), torch.randn(4, 20, 16)))
program(
    "torch",
    "Transformer",
    lambda: (torch.nn.Transformer(32, 4, 2, 2, 64, batch_first=True), (torch.randn(2, 16, 32), torch.randn(2, 12, 32))),
)


# --- measures ---


class Storages(TorchDispatchMode):
    """Bytes of the storages that live, and their peak since the last reset."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, Any] = {}
        self.bytes = self.peak = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tensors_in(out):
            if tensor.layout is torch.strided:
                self.see(tensor.untyped_storage())
        return out

    def see(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self.alive:
            return

        def dead(_: Any) -> None:
            if self.alive.pop(key, None) is not None:
                self.bytes -= size

        self.alive[key] = weakref.ref(storage, dead)
        self.bytes += size
        self.peak = max(self.peak, self.bytes)


def step_of(make: Make) -> Callable[[], None]:
    """A training step on the default device."""
    torch.manual_seed(0)
    module, inputs = make()
    module.train()
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], foreach=False)

    def step() -> None:
        output = call_with(module, inputs)
        loss_of(output, inputs, None).backward()
        del output
        optimizer.step()
        optimizer.zero_grad()

    return step


def _grouped(a: Any, b: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    return 2 * math.prod(a) * b[-1] if len(a) == 2 else 2 * math.prod(out_shape) * a[-1]


def _convolution_backward(
    grad: Any, x: Any, w: Any, _bias: Any, _stride: Any, _padding: Any, _dilation: Any, transposed: bool, *rest: Any, **__: Any
) -> int:
    return sum(rest[-1][:2]) * 2 * x[0] * math.prod((x if transposed else grad)[2:]) * math.prod(w)


MENDED = {torch.ops.aten._grouped_mm: _grouped, torch.ops.aten.convolution_backward: _convolution_backward}
"""Faults of torch's counter: grouped products are not counted, and the weight gradient of a convolution in groups as if it had one."""


def _dropout(x: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """As a GPU does it: one kernel that keeps a mask of bytes."""
    return torch.native_dropout(x, p, True)[0] if train and 0 < p < 1 else x


@contextlib.contextmanager
def masks_of_bytes() -> Iterator[None]:
    held = torch._VF.dropout
    torch._VF.dropout = torch.dropout = _dropout
    try:
        yield
    finally:
        torch._VF.dropout = torch.dropout = held


def real(make: Make) -> tuple[float, int]:
    """FLOP that torch counts in a step on the processor, and the peak bytes of the third."""
    with sdpa_kernel(SDPBackend.MATH), masks_of_bytes():
        storages = Storages()
        with storages:
            step = step_of(make)
            step()
            step()
            gc.collect()
            storages.peak = storages.bytes
            step()
            peak = storages.peak
        with FlopCounterMode(display=False, custom_mapping=MENDED) as counter:
            step()
    return float(counter.get_total_flops()), peak


def captured(make: Make) -> tuple[float, int]:
    """FLOP and peak bytes of the same step captured, products that torch does not count left out."""
    with sdpa_kernel(SDPBackend.MATH):
        found = gpuwise.capture(lambda: step_of(make), device="cpu", n_steps=3)
    span = found.steady
    flop = 0.0
    for index, n in Counter(found.op_signature[span.first_op : span.end_op].tolist()).items():
        signature = found.signatures[index]
        if not signature.op.partition(".")[2].partition(".")[0].startswith(UNCOUNTED):
            flop += n * signature.flop
    return flop, found.peak_bytes()


def measure(library: str, name: str, make: Make) -> dict[str, Any]:
    row: dict[str, Any] = {"library": library, "program": name}
    start = time.process_time()
    try:
        row["real_flop"], row["real_bytes"] = real(make)
    except Exception as error:  # noqa: BLE001 - the program itself does not run here
        return {**row, "not_run": f"{type(error).__name__}: {error}"[:200]}
    try:
        row["flop"], row["bytes"] = captured(make)
    except Exception as error:  # noqa: BLE001 - what is counted
        row["error"] = f"{type(error).__name__}: {error}"[:300]
        row["trace"] = traceback.format_exc(limit=-3)[-600:]
    return {**row, "cpu_s": round(time.process_time() - start, 2)}


def off(row: dict[str, Any], what: str) -> float:
    """Captured over real, less one."""
    there = row[f"real_{what}"]
    return row[what] / there - 1 if there else float(row[what] > 0)


def table(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Lines of Markdown: sums by library, then the misses."""
    ran = [r for r in rows if "not_run" not in r]
    yield "| library | programs | captured | FLOP within 2 % | peak within 1 % |"
    yield "|---|---:|---:|---:|---:|"
    for library in [*dict.fromkeys(r["library"] for r in ran), None]:
        own = [r for r in ran if library in (None, r["library"])]
        done = [r for r in own if "flop" in r]
        flop = sum(abs(off(r, "flop")) <= 0.02 for r in done)
        peak = sum(abs(off(r, "bytes")) <= 0.01 for r in done)
        yield f"| {library or '**all**'} | {len(own)} | {len(done)} | {flop} | {peak} |"
    yield ""
    for r in ran:
        if "error" in r:
            yield f"- {r['library']} {r['program']}: {r['error']}"
        elif abs(off(r, "flop")) > 0.02 or abs(off(r, "bytes")) > 0.01:
            yield f"- {r['library']} {r['program']}: FLOP {off(r, 'flop'):+.1%}, peak {off(r, 'bytes'):+.1%}"
    failed = [f"{r['library']} {r['program']}" for r in rows if "not_run" in r]
    if failed:
        yield f"\nDo not run here for reasons of their own: {', '.join(failed)}."


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--table"]:
        rows = [json.loads(line) for line in Path(arguments[1]).read_text(encoding="utf-8").splitlines() if line.startswith("{")]
        last = {(row["library"], row["program"]): row for row in rows}
        sys.stdout.write("\n".join(table(list(last.values()))) + "\n")
        return
    warnings.simplefilter("ignore")
    for library, programs in PROGRAMS.items():
        if (arguments and not any(a.partition(":")[0] == library for a in arguments)) or importlib.util.find_spec(
            library
        ) is None:
            continue
        for name, make in programs.items():
            if not {library, f"{library}:{name}"} & {*arguments} and arguments:
                continue
            with contextlib.redirect_stdout(sys.stderr):
                row = measure(library, name, make)
            sys.stdout.write(json.dumps(row) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
