"""Networks that public benchmarks measure, by name: each builds anywhere, without weights, data or downloads.

``timm`` and ``torchvision`` take the packages' own definitions, ``transformers`` a config typed here as dimensions,
``own`` the networks of :data:`LOCAL`, written from their published dimensions in ``calibrate.networks``.
Needs torch; what a source needs besides is said when it is missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from gpuwise.errors import InputError, UnknownNameError, require

Step = Callable[[], Any]
Factory = Callable[[int], Step]
"""Batch to a step without arguments; model, optimizer and inputs are made on the device when it is called."""


@dataclass(frozen=True, slots=True)
class Text:
    """A transformers network: config and head classes, dimensions, loss, and where the dimensions stand."""

    head: str
    config: str
    dimensions: dict[str, Any]
    seq_len: int
    source: str
    labels: str = "labels"
    head_inference: str = ""
    """Head for inference where the benchmark used another."""
    attention: str = "sdpa"
    mask: bool = False
    """A mask is added to the scores."""
    one_expert: int = 0
    """Tokens of a sequence that the first of switched experts takes, the others none."""


BERT_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
NEUSIGHT = "NeuSight (ASPLOS 2025), artifact scripts/asplos/data/DLmodel_configs; torch 2.1, eager attention"
HF = "configuration published with the checkpoint on huggingface.co"


def _neusight(
    head: str,
    config: str,
    inference: str = "",
    labels: str = "labels",
    mask: bool = False,
    one_expert: int = 0,
    **dimensions: Any,
) -> Text:
    return Text(head, config, dimensions, 512, NEUSIGHT, labels, inference, "eager", mask, one_expert)


TEXT: dict[str, Text] = {
    "bert-base-squad": Text("BertForQuestionAnswering", "BertConfig", {}, 384, HF, "span", attention="eager", mask=True),
    "bert-large-squad": Text("BertForQuestionAnswering", "BertConfig", BERT_LARGE, 384, HF, "span", attention="eager", mask=True),
    "neusight-bert_large": _neusight(
        "BertForPreTraining", "BertConfig", "BertForSequenceClassification", "none", mask=True, **BERT_LARGE
    ),
    "neusight-gpt2_large": _neusight(
        "GPT2LMHeadModel", "GPT2Config", labels="none", n_embd=1280, n_layer=36, n_head=20, n_positions=2048
    ),
    "neusight-gpt3_xl": _neusight(
        "GPT2LMHeadModel", "GPT2Config", labels="none", n_embd=3072, n_layer=24, n_head=24, n_positions=2048
    ),
    "neusight-gpt3_27": _neusight(
        "GPT2LMHeadModel", "GPT2Config", labels="none", n_embd=2560, n_layer=32, n_head=32, n_positions=2048
    ),
    "neusight-opt_13": _neusight(
        "OPTForCausalLM",
        "OPTConfig",
        labels="none",
        hidden_size=2048,
        num_hidden_layers=24,
        num_attention_heads=32,
        ffn_dim=8192,
        word_embed_proj_dim=2048,
    ),
    "neusight-switchxl4": _neusight(
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        labels="none",
        one_expert=64,
        d_model=1024,
        d_kv=128,
        d_ff=16384,
        num_heads=32,
        num_layers=24,
        num_decoder_layers=24,
        num_sparse_encoder_layers=12,
        num_sparse_decoder_layers=12,
        num_experts=4,
    ),
    "gpt2": Text("GPT2LMHeadModel", "GPT2Config", {}, 1024, HF),
    "distilgpt2": Text("GPT2LMHeadModel", "GPT2Config", {"n_layer": 6}, 1024, HF),
    "t5-small": Text("T5ForConditionalGeneration", "T5Config", {}, 512, HF),
    "gpt-neo-125m": Text(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {"hidden_size": 768, "num_layers": 12, "num_heads": 12, "attention_types": [[["global", "local"], 6]]},
        1024,
        HF,
    ),
    "cerebras-gpt-111m": Text(
        "GPT2LMHeadModel",
        "GPT2Config",
        {"n_embd": 768, "n_layer": 10, "n_head": 12, "n_inner": 3072, "n_positions": 2048, "activation_function": "gelu"},
        1024,
        HF,
    ),
    "opt-125m": Text("OPTForCausalLM", "OPTConfig", {}, 1024, HF),
    "roberta-base": Text("RobertaForMaskedLM", "RobertaConfig", {"vocab_size": 50265, "max_position_embeddings": 514}, 512, HF),
    "llama-tiny": Text(
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 22,
            "num_attention_heads": 32,
            "num_key_value_heads": 4,
            "vocab_size": 32000,
        },
        2048,
        HF + " (TinyLlama 1.1B)",
    ),
}


@dataclass(frozen=True, slots=True)
class LocalNetwork:
    """A network written here: module of ``workload.capture``, builder and its arguments."""

    module: str
    builder: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])


def _detector(name: str, height: int, width: int) -> LocalNetwork:
    return LocalNetwork("detection", "torchvision_detector", {"name": name, "height": height, "width": width})


LOCAL: dict[str, LocalNetwork] = {
    "ssd300-resnet50": LocalNetwork("detection", "ssd300"),
    "mask-rcnn-r50-fpn": _detector("maskrcnn_resnet50_fpn", 800, 1333),
    # COCO's images are mostly 640 x 480: the shorter side becomes 800, both a multiple of 32
    "benchmark-mask-rcnn": LocalNetwork(
        "detection",
        "torchvision_detector",
        {"name": "maskrcnn_resnet50_fpn", "height": 800, "width": 1088, "frozen": True},
    ),
    "faster-rcnn-r50-fpn": _detector("fasterrcnn_resnet50_fpn", 800, 1333),
    "retinanet-r50-fpn": _detector("retinanet_resnet50_fpn", 800, 800),
    "mlperf-retinanet": LocalNetwork("detection", "mlperf_retinanet"),
    "mlperf-unet3d": LocalNetwork("volumes", "unet3d"),
    # LJSpeech: clips of 567 columns of 256 samples at 22,050 Hz and 100 characters, padded to the longest of a batch; the
    # longest of all has 10.1 s (870 columns) and 187 characters
    "tacotron2": LocalNetwork("speech", "tacotron2", {"frames": 850, "characters": 170}),
    "waveglow": LocalNetwork("speech", "waveglow", {"samples": 8000}),
    # WMT16 English-German in 32,000 pieces: 25 a sentence of at most 50; batches are cut from buckets of ten and padded to the
    # longest, on average half a bucket more
    "gnmt": LocalNetwork("text", "gnmt", {"length": 30}),
    "transformer-xl-base": LocalNetwork(
        "text",
        "transformer_xl",
        {"width": 512, "layer": (8, 64, 2048), "layers": 16, "length": 192, "dropout": (0.1, 0.0), "divide": 1},
    ),
    "transformer-xl-large": LocalNetwork(
        "text",
        "transformer_xl",
        {"width": 1024, "layer": (16, 64, 4096), "layers": 18, "length": 384, "dropout": (0.2, 0.2), "divide": 4},
    ),
    "ncf": LocalNetwork("text", "ncf", {"users": 138493, "items": 26744, "factors": 64, "widths": (256, 256, 128, 64)}),
    "vae": LocalNetwork("generative", "vae"),
    "dcgan": LocalNetwork("generative", "gan"),
    "realnvp": LocalNetwork("generative", "flow"),
    "diffusion-unet": LocalNetwork("generative", "diffusion"),
    "nerf": LocalNetwork("generative", "nerf"),
    "lstm-tagger": LocalNetwork("structures", "tagger", {"cell": "LSTM"}),
    "gru-tagger": LocalNetwork("structures", "tagger", {"cell": "GRU"}),
    "rnn-tagger": LocalNetwork("structures", "tagger", {"cell": "RNN"}),
    "message-passing": LocalNetwork("structures", "graph"),
    "graph-attention": LocalNetwork("structures", "graph", {"attention": True}),
    "pointnet": LocalNetwork("structures", "points"),
    "dlrm": LocalNetwork("structures", "recommender"),
    "expert-mixture": LocalNetwork("structures", "experts"),
    "low-rank-adapters": LocalNetwork("structures", "adapted"),
    "rnn-transducer": LocalNetwork("structures", "transducer"),
    "speech-ctc": LocalNetwork("structures", "speech_ctc"),
    "contrastive": LocalNetwork("structures", "contrastive"),
    "temporal-convolutions": LocalNetwork("structures", "temporal"),
    "sequence-to-sequence": LocalNetwork("structures", "sequence_to_sequence"),
    "unet-2d": LocalNetwork("structures", "segmentation", {"dimensions": 2}),
    "unet-3d": LocalNetwork("structures", "segmentation", {"dimensions": 3, "levels": 3, "side": 16}),
    "perceptron": LocalNetwork("structures", "perceptron"),
    "metric-learning": LocalNetwork("structures", "metric_learning"),
}
SOURCES = ("timm", "torchvision", "transformers", "own")


def build(
    name: str,
    source: str,
    *,
    training: bool = True,
    image_size: int | None = None,
    seq_len: int | None = None,
    precision: str = "fp32",
    channels_last: bool = False,
    optimizer: str = "sgd",
    scaler: bool = False,
    fused: bool | None = None,
    foreach: bool | None = None,
    **options: Any,
) -> Factory:
    """A factory for steps of network ``name`` of ``source`` (one of :data:`SOURCES`).

    ``precision`` is fp32, amp (fp16 autocast), amp_bf16, fp16 or bf16 (weights cast), or fp16_master (weights cast, the
    optimizer on fp32 copies); ``optimizer`` sgd (momentum), sgd-plain, adam, adamw, adagrad, rmsprop, bert-adam, lamb or none
    (forward and backward only), ``fused`` and ``foreach`` its implementation. ``image_size`` and ``seq_len`` replace the
    network's own; ``options`` those of an own network's builder.

    The source's packages are imported now, so that none is imported while a capture pretends a device.

    Raises UnknownNameError for a name or source it does not have, InputError for sizes that are not positive,
    MissingExtraError when a package is missing.
    """
    if source not in SOURCES:
        raise UnknownNameError("source of networks", source, SOURCES)
    for label, value in (("image_size", image_size), ("seq_len", seq_len)):
        if value is not None and value < 1:
            raise InputError(f"{label} must be at least 1, not {value}")
    if source == "transformers" and name not in TEXT:
        raise UnknownNameError("transformers network", name, TEXT)
    if source == "own" and name not in LOCAL:
        raise UnknownNameError("own network", name, LOCAL)
    _import(name, source)

    def factory(batch: int) -> Step:
        if batch < 1:
            raise InputError(f"batch must be at least 1, not {batch}")
        from studies.networks import support as zoo_support

        network = _network(name, source, training, image_size, seq_len, options)
        conditions = zoo_support.Conditions(training, precision, channels_last, optimizer, scaler, fused=fused, foreach=foreach)
        return zoo_support.step_of(network, batch, conditions)

    return factory


def _import(name: str, source: str) -> None:
    import importlib

    require("torch", "building networks")
    zoo_support = importlib.import_module("gpuwise.workload.capture.packages")
    if source == "timm":
        zoo_support.timm()
    elif source == "transformers":
        getattr(zoo_support.transformers(), TEXT[name].head)
    elif source == "torchvision" or LOCAL[name].module == "detection":
        zoo_support.torchvision()
    if source not in ("timm", "transformers", "torchvision"):
        _definitions(name)


def _definitions(name: str) -> ModuleType:
    """The module that writes a network of :data:`OWN`."""
    return importlib.import_module(f"studies.networks.{LOCAL[name].module}")


def _network(name: str, source: str, training: bool, image_size: int | None, seq_len: int | None, options: dict[str, Any]) -> Any:
    from studies.networks import support as zoo_support

    if source == "timm":
        return zoo_support.image_network(name, image_size)
    if source == "torchvision":
        return zoo_support.torchvision_network(name, image_size)
    if source == "transformers":
        t = TEXT[name]
        head = t.head if training or not t.head_inference else t.head_inference
        return zoo_support.text_network(
            head,
            t.config,
            t.dimensions,
            seq_len or t.seq_len,
            attention=t.attention,
            labels=t.labels if training else "none",
            mask=t.mask,
            one_expert=t.one_expert,
        )
    entry = LOCAL[name]
    return getattr(_definitions(name), entry.builder)(**{**entry.options, **options})
