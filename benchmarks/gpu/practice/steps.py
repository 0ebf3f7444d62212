"""Training steps as people fine-tune and train, of models that neither ``training_steps.py`` nor ``trace_models.py`` has.

    gpuwise fit benchmarks/gpu/practice/steps.py:make_step --set item=qwen3-0.6b --on H100-SXM

Their predictions are committed before they are measured. ``python benchmarks/gpu/training.py --items practice ...``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import itertools

from training_steps import LLAMA_1B, LLAMA_8B, SEED, TINY, Item, Step, adamw, asks, built, language, tokens, trains

Make = Callable[[bool, str], Step]
QWEN3 = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True}
QWEN3_06B = {**QWEN3, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28}
QWEN3_17B = {**QWEN3, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28}
SMOLLM2_360M = {
    "hidden_size": 960,
    "intermediate_size": 2560,
    "num_hidden_layers": 32,
    "num_attention_heads": 15,
    "num_key_value_heads": 5,
    "vocab_size": 49152,
    "tie_word_embeddings": True,
}
PHI3_MINI = {
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32064,
    "pad_token_id": 0,
}
GEMMA3_1B = {
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "num_hidden_layers": 26,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "vocab_size": 262144,
    "sliding_window": 512,
}
MISTRAL_7B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 32768,
    "sliding_window": None,
    "tie_word_embeddings": False,
}
QWEN3_MOE = {
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "moe_intermediate_size": 768,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 32000,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "tie_word_embeddings": False,
}
LLAMA_WIDE = {
    "hidden_size": 2560,
    "intermediate_size": 6912,
    "num_hidden_layers": 6,
    "num_attention_heads": 20,
    "num_key_value_heads": 5,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}


def optimizer_of(name: str, model: Any) -> Any:
    """By the names people give them; AdamW as PyTorch comes is the one of lists."""
    import torch

    found = [p for p in model.parameters() if p.requires_grad]
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(found, lr=1e-3, scale_parameter=False, relative_step=False)
    if name == "sgd":
        return torch.optim.SGD(found, lr=0.1, momentum=0.9, weight_decay=1e-4)
    return adamw(model) if name == "fused" else torch.optim.AdamW(found, lr=1e-4)


def causal(
    shape: dict[str, Any],
    family: str,
    batch: int,
    length: int,
    *,
    optimizer: str = "fused",
    dtype: str = "float32",
    clip: bool = True,
    compiled: str = "",
) -> Make:
    """A decoder trained whole; half weights have no autocast."""

    def make(tiny: bool, device: str) -> Step:
        import torch
        import transformers

        small = {**TINY, **({"moe_intermediate_size": 32} if "moe_intermediate_size" in shape else {})}
        text = f"{family}Text" if family == "Gemma3" else family
        config = getattr(transformers, f"{text}Config")(**{**shape, **(small if tiny else {})}, use_cache=False)
        model = built(lambda: getattr(transformers, f"{family}ForCausalLM")(config), device, dtype).train()
        ids = tokens(config.vocab_size, *((2, 64) if tiny else (batch, length)), device)
        call = model
        if compiled == "layers":
            for layer in model.model.layers:
                layer.compile()
        elif compiled:
            call = torch.compile(model)
        return trains(
            model,
            lambda: call(input_ids=ids, labels=ids).loss,
            optimizer_of(optimizer, model),
            autocast=dtype == "float32",
            device=device,
            clip=clip,
        )

    return make


def classified(
    family: str, batch: int, length: int, *, head: str = "SequenceClassification", fp16: bool = False, **shape: Any
) -> Make:
    """An encoder under labels, half of its sequences padded; fp16 with a scaler."""

    def make(tiny: bool, device: str) -> Step:
        import torch
        import transformers

        small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
        config = getattr(transformers, f"{family}Config")(**{**shape, **(small if tiny else {})})
        model = built(lambda: getattr(transformers, f"{family}For{head}")(config), device).train()
        n, words = (2, 32) if tiny else (batch, length)
        ids, mask = tokens(min(config.vocab_size, 30000), n, words, device), torch.ones(n, words, dtype=torch.long, device=device)
        mask[: n // 2, words // 2 :] = 0
        if head == "QuestionAnswering":
            labels = {k: torch.randint(words, (n,), device=device) for k in ("start_positions", "end_positions")}
        else:
            labels = {"labels": torch.randint(2, (n,), device=device)}
        optimizer = optimizer_of("lists", model)
        if not fp16:
            return trains(
                model,
                lambda: model(input_ids=ids, attention_mask=mask, **labels).loss,
                optimizer,
                autocast=True,
                device=device,
                clip=True,
            )
        scaler = torch.amp.GradScaler(device)

        def step() -> None:
            with torch.autocast(device, torch.float16 if device == "cuda" else torch.bfloat16):
                loss = model(input_ids=ids, attention_mask=mask, **labels).loss
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)

        return step

    return make


def t5(tiny: bool, device: str) -> Step:
    """FLAN-T5 large to a summary of 128 words, in bf16 under Adafactor."""
    from transformers import T5Config, T5ForConditionalGeneration

    shape = {"d_model": 1024, "d_ff": 2816, "num_layers": 24, "num_heads": 16, "feed_forward_proj": "gated-gelu"}
    small = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 2, "d_kv": 32}
    config = T5Config(
        **{**shape, **(small if tiny else {})}, decoder_start_token_id=0, tie_word_embeddings=False, use_cache=False
    )
    model = built(lambda: T5ForConditionalGeneration(config), device, "bfloat16").train()
    n = 1 if tiny else 8
    ids, labels = tokens(32000, n, 32 if tiny else 512, device), tokens(32000, n, 16 if tiny else 128, device)
    return trains(
        model, lambda: model(input_ids=ids, labels=labels).loss, optimizer_of("adafactor", model), autocast=False, device=device
    )


def whisper_medium(tiny: bool, device: str) -> Step:
    """Speech of 30 s to 200 tokens."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    layers, width, heads = (1, 64, 2) if tiny else (24, 1024, 16)
    config = WhisperConfig(
        encoder_layers=layers,
        decoder_layers=layers,
        d_model=width,
        encoder_attention_heads=heads,
        decoder_attention_heads=heads,
        encoder_ffn_dim=4 * width,
        decoder_ffn_dim=4 * width,
        use_cache=False,
    )
    model = built(lambda: WhisperForConditionalGeneration(config), device).train()
    n = 1 if tiny else 4
    mel, ids = torch.randn(n, 80, 3000, device=device), tokens(50000, n, 200, device)
    return trains(
        model, lambda: model(input_features=mel, labels=ids).loss, adamw(model), autocast=True, device=device, clip=True
    )


def clip(tiny: bool, device: str) -> Step:
    """CLIP ViT-L/14 with its text tower, contrastive over the batch."""
    import torch
    from transformers import CLIPConfig, CLIPModel

    def tower(width: int, layers: int, heads: int, **more: Any) -> dict[str, Any]:
        sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * width}
        return {**sizes, **more}

    vision = tower(64, 1, 2, image_size=56, patch_size=14) if tiny else tower(1024, 24, 16, image_size=224, patch_size=14)
    config = CLIPConfig(text_config=tower(64, 1, 2) if tiny else tower(768, 12, 12), vision_config=vision, projection_dim=768)
    model = built(lambda: CLIPModel(config), device).train()
    n, side = (2, 56) if tiny else (64, 224)
    images, ids = torch.randn(n, 3, side, side, device=device), tokens(49000, n, 77, device)
    return trains(
        model,
        lambda: model(input_ids=ids, pixel_values=images, return_loss=True).loss,
        adamw(model),
        autocast=True,
        device=device,
    )


def wav2vec2(tiny: bool, device: str) -> Step:
    """CTC over 8 s of sound, with its convolutions frozen as the recipe has it."""
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = Wav2Vec2Config(**(small if tiny else {}), mask_time_prob=0.0, layerdrop=0.0, ctc_loss_reduction="mean")
    model = built(lambda: Wav2Vec2ForCTC(config), device).train()
    model.freeze_feature_encoder()
    n = 2 if tiny else 16
    sound, words = torch.randn(n, 16000 * (1 if tiny else 8), device=device), torch.randint(1, 32, (n, 20), device=device)
    return trains(
        model, lambda: model(sound, labels=words).loss, optimizer_of("lists", model), autocast=True, device=device, clip=True
    )


def timm_step(name: str, batch: int, *, channels_last: bool = False, optimizer: str = "fused", compiled: bool = False) -> Make:
    def make(tiny: bool, device: str) -> Step:
        import timm
        import torch
        from torch.nn.functional import cross_entropy

        small = {"vit_large_patch16_224": "vit_tiny_patch16_224", "convnextv2_base": "convnextv2_atto"}
        model = built(lambda: timm.create_model(small[name] if tiny else name, pretrained=False), device).train()
        images = torch.randn(2 if tiny else batch, 3, 224, 224, device=device)
        labels = torch.randint(1000, (len(images),), device=device)
        if channels_last:
            model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
        if compiled:
            for block in model.blocks:
                block.compile()
        return trains(
            model, lambda: cross_entropy(model(images), labels), optimizer_of(optimizer, model), autocast=True, device=device
        )

    return make


def torchvision_step(name: str, batch: int, *, channels_last: bool = False, optimizer: str = "sgd", side: int = 224) -> Make:
    """A network of torchvision; a segmentation has a class for each pixel and a second head."""

    def make(tiny: bool, device: str) -> Step:
        import torch
        import torchvision
        from torch.nn.functional import cross_entropy

        n, size = (2, 64) if tiny else (batch, side)
        dense = name.startswith("deeplab")
        of = torchvision.models.segmentation if dense else torchvision.models
        more = {"weights_backbone": None, "aux_loss": True, "num_classes": 21} if dense else {}
        model = built(lambda: getattr(of, name)(weights=None, **more), device).train()
        images = torch.randn(n, 3, size, size, device=device)
        labels = torch.randint(21 if dense else 1000, (n, size, size) if dense else (n,), device=device)
        if channels_last:
            model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)

        def loss_of() -> Any:
            found = model(images)
            if not dense:
                return cross_entropy(found, labels, label_smoothing=0.1)
            return cross_entropy(found["out"], labels) + 0.5 * cross_entropy(found["aux"], labels)

        return trains(model, loss_of, optimizer_of(optimizer, model), autocast=True, device=device)

    return make


def classic_unet(tiny: bool, device: str) -> Step:
    """Ronneberger's, with batch norm, as milesial/Pytorch-UNet and courses write it; fp32 as PyTorch has it."""
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    widths, batch, side = ((8, 16, 32), 1, 32) if tiny else ((64, 128, 256, 512, 1024), 8, 256)

    def twice(given: int, out: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for i, o in ((given, out), (out, out)):
            layers += [nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
        return nn.Sequential(*layers)

    class UNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList(twice(i, o) for i, o in zip((3, *widths[:-1]), widths, strict=True))
            pairs = list(itertools.pairwise(widths))[::-1]
            self.grow = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in pairs)
            self.up = nn.ModuleList(twice(2 * a, a) for a, _ in pairs)
            self.head = nn.Conv2d(widths[0], 2, 1)

        def forward(self, x: Any) -> Any:
            kept: list[Any] = []
            for n, block in enumerate(self.down):
                x = block(nn.functional.max_pool2d(x, 2) if n else x)
                kept.append(x)
            kept.pop()
            for grow, block in zip(self.grow, self.up, strict=True):
                x = block(torch.cat([kept.pop(), grow(x)], 1))
            return self.head(x)

    model = built(UNet, device).train()
    images, labels = torch.randn(batch, 3, side, side, device=device), torch.randint(2, (batch, side, side), device=device)
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-5, weight_decay=1e-8, momentum=0.999)
    return trains(model, lambda: cross_entropy(model(images), labels), optimizer, autocast=False, device=device, clip=True)


def mini_lm(tiny: bool, device: str) -> Step:
    """Pairs of sentences pulled together over the batch, by means of their tokens; fp32."""
    import torch
    from torch.nn.functional import cross_entropy, normalize
    from transformers import BertConfig, BertModel

    config = BertConfig(hidden_size=384, num_hidden_layers=2 if tiny else 6, num_attention_heads=12, intermediate_size=1536)
    model = built(lambda: BertModel(config, add_pooling_layer=False), device).train()
    n, words = (4, 16) if tiny else (128, 128)
    pairs = [tokens(30000, n, words, device) for _ in range(2)]
    mask = torch.ones(n, words, dtype=torch.long, device=device)

    def loss_of() -> Any:
        one, two = (normalize((model(p, attention_mask=mask).last_hidden_state * mask[..., None]).mean(1)) for p in pairs)
        return cross_entropy(20 * one @ two.T, torch.arange(n, device=device))

    return trains(model, loss_of, optimizer_of("lists", model), autocast=False, device=device, clip=True)


def item(name: str, make: Make, unit: str, amount: int, command: str = "", limit_s: float = 20.0, **more: Any) -> Item:
    return Item(name, make, unit, amount, command, limit_s, **{"energy_s": 1.2, "steps": 8, **more})


BF16 = {"dtype": "bfloat16"}
ITEMS: tuple[Item, ...] = (
    item("qwen3-0.6b", causal(QWEN3_06B, "Qwen3", 4, 2048), "tokens", 8192, asks("qwen3-0.6b", 2048, 4)),
    item(
        "llama8b-lora",
        language(LLAMA_8B, batch=1, dtype="bfloat16", lora=True),
        "tokens",
        2048,
        asks("llama-3.1-8b", 2048, 1, "--lora"),
    ),
    item("modernbert", classified("ModernBert", 32, 512), "sequences", 32, asks("modernbert-base", 512, 32)),
    item("efficientnetv2-s", torchvision_step("efficientnet_v2_s", 64, channels_last=True), "images", 64),
    item("convnextv2-base", timm_step("convnextv2_base", 32), "images", 32),
    item(
        "smollm2-360m-lists",
        causal(SMOLLM2_360M, "Llama", 8, 1024, optimizer="lists"),
        "tokens",
        8192,
        asks("smollm2-360m", 1024, 8),
    ),
    item(
        "phi3-lora-ckpt",
        language(PHI3_MINI, batch=1, length=4096, dtype="bfloat16", lora=True, checkpoint=True, family="Phi3"),
        "tokens",
        4096,
        asks("phi-3-mini", 4096, 1, "--lora", recompute="full"),
    ),
    item("vit-l16", timm_step("vit_large_patch16_224", 32), "images", 32, asks("vit-l-16", 197, 32)),
    item("vit-l16-layers", timm_step("vit_large_patch16_224", 32, compiled=True), "images", 32, limit_s=30.0),
    item("clip-l14", clip, "images", 64),
    item("t5-large-adafactor", t5, "sequences", 8, asks("t5-large", 512, 8, "--half-weights", "--optimizer adafactor")),
    item(
        "gemma3-1b-bf16",
        causal(GEMMA3_1B, "Gemma3", 4, 1024, **BF16),
        "tokens",
        4096,
        asks("gemma-3-1b", 1024, 4, "--half-weights"),
    ),
    item(
        "qwen3-1.7b-bf16-ckpt",
        language(QWEN3_17B, batch=2, length=4096, dtype="bfloat16", checkpoint=True, autocast=False, family="Qwen3"),
        "tokens",
        8192,
        asks("qwen3-1.7b", 4096, 2, "--half-weights", recompute="full"),
        steps=5,
    ),
    item("moe-32x4", causal(QWEN3_MOE, "Qwen3Moe", 8, 1024, **BF16), "tokens", 8192),
    item(
        "deberta-v3",
        classified(
            "DebertaV2",
            16,
            256,
            vocab_size=128100,
            relative_attention=True,
            position_buckets=256,
            norm_rel_ebd="layer_norm",
            share_att_key=True,
            pos_att_type=["p2c", "c2p"],
            layer_norm_eps=1e-7,
            max_relative_positions=-1,
            position_biased_input=False,
            type_vocab_size=0,
        ),
        "sequences",
        16,
        asks("deberta-v3-base", 256, 16),
    ),
    item("classic-unet", classic_unet, "images", 8),
    item("swin-s", torchvision_step("swin_s", 32, optimizer="lists"), "images", 32),
    item("llama-wide", causal(LLAMA_WIDE, "Llama", 8, 1024), "tokens", 8192),
    item("llama-wide-compiled", causal(LLAMA_WIDE, "Llama", 8, 1024, compiled="whole"), "tokens", 8192, limit_s=40.0),
    item("llama-wide-layers", causal(LLAMA_WIDE, "Llama", 8, 1024, compiled="layers"), "tokens", 8192, limit_s=30.0),
    item("whisper-medium", whisper_medium, "sequences", 4, asks("whisper-medium", 200, 4)),
    item(
        "bert-large-fp16",
        classified(
            "Bert",
            16,
            384,
            head="QuestionAnswering",
            fp16=True,
            hidden_size=1024,
            num_hidden_layers=24,
            num_attention_heads=16,
            intermediate_size=4096,
        ),
        "sequences",
        16,
        asks("bert-large", 384, 16, "--precision fp16"),
    ),
    item(
        "llama1b-16k-lora-ckpt",
        language(LLAMA_1B, batch=1, length=16384, dtype="bfloat16", lora=True, checkpoint=True),
        "tokens",
        16384,
        asks("llama-3.2-1b", 16384, 1, "--lora", recompute="full"),
        steps=4,
    ),
    item("deeplab", torchvision_step("deeplabv3_resnet50", 8, side=513), "images", 8),
    item("wav2vec2", wav2vec2, "sequences", 16),
    item("minilm-pairs-fp32", mini_lm, "pairs", 128),
    item(
        "mistral7b-8k-lora-ckpt",
        language(MISTRAL_7B, batch=1, length=8192, dtype="bfloat16", lora=True, checkpoint=True, family="Mistral"),
        "tokens",
        8192,
        asks("mistral-7b", 8192, 1, "--lora", recompute="full"),
        steps=2,
        energy_s=1.0,
    ),
    item("smollm2-360m-fused", causal(SMOLLM2_360M, "Llama", 8, 1024), "tokens", 8192),
)


def make_step(item: str = "qwen3-0.6b", tiny: bool = False, device: str = "cuda") -> Step:
    """The step of an item: what is captured and what is run."""
    import torch

    torch.manual_seed(SEED)
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
    return {i.name: i for i in ITEMS}[item].make(tiny, device)
