"""Real architectures are captured without special cases, and what every capture must say of them holds.

Packages' own definitions (timm, torchvision, transformers from a configuration) and the networks of the zoo; sizes are
small, so that the whole group takes a minute or two. FLOP are counted a second time by torch's own formulas
(``torch.utils.flop_counter``), operation by operation.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
for _package in ("transformers", "timm", "torchvision"):  # found, not imported: the zoo mends a torchvision without its binary
    if importlib.util.find_spec(_package) is None:
        pytest.skip(f"{_package} is not installed", allow_module_level=True)

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import conv_flop_count, flop_registry  # noqa: E402

from gpuwise.workload.capture.api import capture  # noqa: E402
from gpuwise.workload.capture.captured import Capture, Category  # noqa: E402
from gpuwise.workload.row_codes import Kind, Phase  # noqa: E402
from studies.networks import support  # noqa: E402
from studies.networks.zoo import build  # noqa: E402

pytestmark = pytest.mark.slow
OWN_FORMULAS = ("_fft", "mv", "dot", "_trilinear", "_cudnn_rnn", "mkldnn_rnn", "lstm", "gru", "rnn_")
"""Operations that torch's counter does not count, or (attention) counts without its causal half."""


@dataclass
class Seen:
    capture: Capture
    gradient_bytes: int
    gradient_storage_bytes: int
    """A gradient that is a part of another tensor's, as of parameters that were joined, keeps the whole."""
    trainable_bytes: int
    torch_flop: float


class TorchCount(TorchDispatchMode):
    """FLOP of products and convolutions by torch's own formulas."""

    total = 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        rule = flop_registry.get(func._overloadpacket)
        if func is torch.ops.aten.convolution_backward.default and args[9] > 1:
            # torch counts the weight gradient of a grouped convolution as if there were one group
            forward = conv_flop_count(args[1].shape, args[2].shape, args[0].shape, transposed=args[7])
            self.total += float(forward) * (int(args[10][0]) + int(args[10][1]))
        elif rule is not None and "attention" not in func._schema.name:
            self.total += float(rule(*args, **(kwargs or {}), out_val=out))
        return out


def captured(make: Callable[[], Any]) -> Seen:
    """Three steps; the third is counted by torch as well."""
    count, facts = TorchCount(), {}

    def factory() -> Callable[[], Any]:
        step = make()
        done = [0]

        def once() -> Any:
            done[0] += 1
            if done[0] < 3:
                return step()
            with count:
                out = step()
            held = [c.cell_contents for c in (step.__closure__ or ()) if isinstance(c.cell_contents, torch.nn.Module)]
            learned = {id(p): p for m in held for p in m.parameters() if p.requires_grad}.values()
            facts["gradient"] = sum(p.grad.numel() * p.grad.element_size() for p in learned if p.grad is not None)
            storages = [p.grad.untyped_storage() for p in learned if p.grad is not None]
            facts["storages"] = sum({s._cdata: s.nbytes() for s in storages}.values())
            facts["trainable"] = sum(p.numel() * p.element_size() for p in learned)
            return out

        return once

    found = capture(factory, n_steps=3, capability=(8, 0))
    return Seen(found, facts["gradient"], facts["storages"], facts["trainable"], count.total)


def check(seen: Seen, backward_over_forward: tuple[float, float] = (1.0, 3.05)) -> None:
    """What must hold of any training step."""
    c = seen.capture
    assert len(c.steps) == 3
    assert all(s.end_op > s.first_op for s in c.steps)
    end = c.steady.end_event - 1
    live = c.live_bytes()
    # a steady step gives back what it takes: what lives after the third step is what lived after the second
    assert int(live[end]) == int(live[c.steps[1].end_event - 1])
    categories = c.bytes_by_category(end)
    assert seen.gradient_bytes == seen.trainable_bytes > 0, "every trainable parameter has a gradient"
    assert categories.get(Category.GRADIENT, 0) == seen.gradient_storage_bytes >= seen.gradient_bytes
    assert c.peak_bytes() >= int(live[end])
    own = steady_flop(c, lambda s: s.kind is not Kind.ATTENTION and not plain(s.op).startswith(OWN_FORMULAS))
    assert own == pytest.approx(seen.torch_flop, rel=1e-9)
    forward, backward = (steady_flop(c, None, phase) for phase in (Phase.FORWARD, Phase.BACKWARD))
    assert c.flop() > 0
    assert backward_over_forward[0] <= backward / forward <= backward_over_forward[1]


def plain(op: str) -> str:
    return op.split(".")[1]


def steady_flop(c: Capture, wanted: Callable[[Any], bool] | None, phase: Phase | None = None) -> float:
    span = slice(c.steady.first_op, c.steady.end_op)
    rows = c.op_signature[span] if phase is None else c.op_signature[span][c.op_phase[span] == int(phase)]
    counts = np.bincount(rows, minlength=len(c.signatures)).tolist()
    return float(sum(n * s.flop for n, s in zip(counts, c.signatures, strict=True) if n and (wanted is None or wanted(s))))


TIMM = {
    "resnet18": 64,
    "resnext26ts": 64,
    "efficientnet_b0": 64,
    "mobilenetv3_small_050": 64,
    "regnetx_002": 64,
    "convnext_atto": 64,
    "vit_tiny_patch16_224": 64,
    "mixer_s32_224": 224,
    "resmlp_12_224": 224,
    "levit_128s": 224,
    "pvt_v2_b0": 64,
    "poolformer_s12": 64,
    "ghostnet_050": 64,
    "repvgg_a0": 64,
    "mobilevit_xxs": 64,
    "edgenext_xx_small": 64,
    "xcit_nano_12_p16_224": 64,
    "swin_tiny_patch4_window7_224": 224,
    "dla34": 64,
    "coatnet_pico_rw_224": 224,
    "eca_nfnet_l0": 64,
    "halonet26t": 256,
    "darknet17": 64,
    "seresnet18": 64,
}


@pytest.mark.parametrize("name", TIMM)
def test_timm(name: str) -> None:
    factory = build(name, "timm", image_size=TIMM[name], precision="amp")
    check(captured(lambda: factory(2)))


@pytest.mark.parametrize(
    "name", ["alexnet", "squeezenet1_1", "shufflenet_v2_x0_5", "mnasnet0_5", "regnet_y_400mf", "mobilenet_v2"]
)
def test_torchvision(name: str) -> None:
    factory = build(name, "torchvision", image_size=64)
    check(captured(lambda: factory(4)))


OWN = [
    "vae",
    "realnvp",
    "diffusion-unet",
    "nerf",
    "lstm-tagger",
    "gru-tagger",
    "rnn-tagger",
    "message-passing",
    "graph-attention",
    "pointnet",
    "dlrm",
    "expert-mixture",
    "rnn-transducer",
    "speech-ctc",
    "contrastive",
    "temporal-convolutions",
    "sequence-to-sequence",
    "unet-2d",
    "unet-3d",
    "perceptron",
    "metric-learning",
    "low-rank-adapters",
]


@pytest.mark.parametrize("name", OWN)
def test_own(name: str) -> None:
    factory = build(name, "own", optimizer="adamw")
    # a frozen body gives no weight gradients: its backward is about as large as its forward
    check(captured(lambda: factory(4)), (0.5, 3.05))


PUBLISHED = {
    "ssd300-resnet50": {},
    "tacotron2": {"frames": 6, "characters": 12},
    "waveglow": {"samples": 2048},
    "gnmt": {"length": 8},
    "transformer-xl-base": {"layers": 2, "length": 16, "words": 210_000},
    "ncf": {},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_benchmarks(name: str) -> None:
    factory = build(name, "own", optimizer="adam", **PUBLISHED[name])
    check(captured(lambda: factory(2)), (0.9, 3.05))


def test_adversarial_pair_with_two_optimizers() -> None:
    factory = build("dcgan", "own")
    seen = captured(lambda: factory(4))
    c = seen.capture
    assert any(name.startswith("Adam") for name in c.settings.optimizers)
    live = c.live_bytes()
    assert int(live[c.steady.end_event - 1]) == int(live[c.steps[1].end_event - 1])
    assert steady_flop(c, None) == pytest.approx(seen.torch_flop, rel=1e-9)


T: dict[str, int] = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 500,
}
CAUSAL = {**T, "num_key_value_heads": 2, "max_position_embeddings": 128}
SMALL_GPT: dict[str, int] = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500}
TEXT: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", "BertConfig", T),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", T),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"dim": 64, "n_layers": 2, "n_heads": 4, "hidden_dim": 128, "vocab_size": 500},
    ),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", {**T, "embedding_size": 64}),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", {**T, "embedding_size": 32}),
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", SMALL_GPT),
    "gpt-neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {"hidden_size": 64, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "vocab_size": 500},
    ),
    "gpt-neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", T),
    "opt": ("OPTForCausalLM", "OPTConfig", {**T, "ffn_dim": 128, "word_embed_proj_dim": 64}),
    "bloom": ("BloomForCausalLM", "BloomConfig", {"hidden_size": 64, "n_layer": 2, "n_head": 4, "vocab_size": 500}),
    "llama": ("LlamaForCausalLM", "LlamaConfig", CAUSAL),
    "mistral": ("MistralForCausalLM", "MistralConfig", CAUSAL),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", CAUSAL),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", {**CAUSAL, "head_dim": 16}),
    "phi": ("PhiForCausalLM", "PhiConfig", T),
    "mamba": ("MambaForCausalLM", "MambaConfig", {"hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 500}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {"d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4, "vocab_size": 500},
    ),
    "bart": (
        "BartForConditionalGeneration",
        "BartConfig",
        {
            "d_model": 64,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128,
            "vocab_size": 500,
        },
    ),
}


@pytest.mark.parametrize("name", TEXT)
def test_transformers(name: str) -> None:
    head, config, dimensions = TEXT[name]
    support.transformers()

    def make() -> Callable[[], Any]:
        network = support.text_network(head, config, dimensions, 32)
        return support.step_of(network, 2, support.Conditions(training=True, precision="amp_bf16", optimizer="adamw"))

    check(captured(make))


def _speech(features: str) -> Callable[[], Any]:
    package = support.transformers()

    def make() -> Callable[[], Any]:
        shared = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        with torch.device(support.DEVICE):
            if features == "wav2vec2":
                module = package.Wav2Vec2ForCTC(
                    package.Wav2Vec2Config(
                        **shared,
                        conv_dim=(32, 32),
                        conv_stride=(5, 4),
                        conv_kernel=(10, 8),
                        num_feat_extract_layers=2,
                        num_conv_pos_embeddings=16,
                        num_conv_pos_embedding_groups=4,
                        mask_time_prob=0.0,
                        layerdrop=0.0,
                        vocab_size=32,
                        hidden_dropout=0.0,
                    )
                )
            else:
                module = package.WhisperModel(
                    package.WhisperConfig(
                        d_model=64,
                        encoder_layers=2,
                        decoder_layers=2,
                        encoder_attention_heads=4,
                        decoder_attention_heads=4,
                        encoder_ffn_dim=128,
                        decoder_ffn_dim=128,
                        vocab_size=500,
                        num_mel_bins=16,
                        max_source_positions=50,
                        pad_token_id=0,
                        bos_token_id=1,
                        eos_token_id=2,
                        decoder_start_token_id=1,
                    )
                )

        def inputs(batch: int) -> dict[str, Any]:
            if features == "wav2vec2":
                return {"input_values": torch.randn(batch, 4000, device=support.DEVICE)}
            tokens = torch.randint(0, 500, (batch, 12), device=support.DEVICE)
            return {"input_features": torch.randn(batch, 16, 100, device=support.DEVICE), "decoder_input_ids": tokens}

        network = support.Network(module, inputs, lambda out, batch: out[0].float().pow(2).mean())
        return support.step_of(network, 2, support.Conditions(training=True, optimizer="adamw"))

    return make


@pytest.mark.parametrize("name", ["whisper"])
def test_speech(name: str) -> None:
    check(captured(_speech(name)))


DETECTORS = ["retinanet_resnet50_fpn", "fasterrcnn_resnet50_fpn"]


@pytest.mark.parametrize("name", DETECTORS)
def test_detectors(name: str) -> None:
    """Anchors, proposals and matching depend on data: counts are upper bounds, and the step is captured all the same."""
    from studies.networks.detection import torchvision_detector

    support.torchvision()

    def make() -> Callable[[], Any]:
        network = torchvision_detector(name, 128, 128)
        return support.step_of(network, 1, support.Conditions(training=True))

    seen = captured(make)
    assert seen.capture.flop() > 0
    assert seen.gradient_bytes > 0.9 * seen.trainable_bytes
    live = seen.capture.live_bytes()
    assert int(live[seen.capture.steady.end_event - 1]) == int(live[seen.capture.steps[1].end_event - 1])
