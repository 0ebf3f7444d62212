# The libraries that build the networks are not installed, and leave their modules untyped.
# pyright: basic
# pyright: reportMissingImports=false, reportCallIssue=false, reportAttributeAccessIssue=false, reportReturnType=false
"""The networks that ``write.py`` captures, built from their published configurations, without weights or data.

Diffusion models are those of diffusers, encoders and vision-language models those of transformers, detectors those of
ultralytics and transformers. A builder takes the batch and the size (side of an image in pixels, or a length) and returns the
module, the paths of the modules that adapters are put in, and a function that makes its loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Built = tuple[nn.Module, Callable[[], Any]]
CUDA = "cuda"


def _noise(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=CUDA, dtype=torch.bfloat16)


def _mse(out: torch.Tensor) -> torch.Tensor:
    return nn.functional.mse_loss(out.float(), torch.randn_like(out).float())


def unet(cross: int, **config: Any) -> Callable[..., Built]:
    def build(batch: int, side: int, frames: int) -> Built:
        from diffusers import UNet2DConditionModel

        net = UNet2DConditionModel(cross_attention_dim=cross, sample_size=side // 8, **config)
        h = side // 8
        added = {}
        if config.get("addition_embed_type"):
            added = {"text_embeds": _noise(batch, 1280), "time_ids": torch.zeros(batch, 6, device=CUDA)}

        def loss() -> torch.Tensor:
            out = net(
                _noise(batch, 4, h, h),
                torch.randint(0, 1000, (batch,), device=CUDA),
                encoder_hidden_states=_noise(batch, 77, cross),
                added_cond_kwargs=added or None,
                return_dict=False,
            )[0]
            return _mse(out)

        return net, loss

    return build


def sd3(layers: int, heads: int, dual: int) -> Callable[..., Built]:
    def build(batch: int, side: int, frames: int) -> Built:
        from diffusers import SD3Transformer2DModel

        net = SD3Transformer2DModel(
            sample_size=128,
            patch_size=2,
            in_channels=16,
            num_layers=layers,
            attention_head_dim=64,
            num_attention_heads=heads,
            joint_attention_dim=4096,
            caption_projection_dim=64 * heads,
            pooled_projection_dim=2048,
            out_channels=16,
            pos_embed_max_size=384 if dual else 192,
            dual_attention_layers=tuple(range(dual)),
            qk_norm="rms_norm",
        )
        h = side // 8

        def loss() -> torch.Tensor:
            out = net(
                hidden_states=_noise(batch, 16, h, h),
                encoder_hidden_states=_noise(batch, 333, 4096),
                pooled_projections=_noise(batch, 2048),
                timestep=torch.randint(0, 1000, (batch,), device=CUDA),
                return_dict=False,
            )[0]
            return _mse(out)

        return net, loss

    return build


def flux(batch: int, side: int, frames: int) -> Built:
    from diffusers import FluxTransformer2DModel

    net = FluxTransformer2DModel(guidance_embeds=True)
    n = (side // 16) ** 2

    def loss() -> torch.Tensor:
        out = net(
            hidden_states=_noise(batch, n, 64),
            timestep=torch.rand(batch, device=CUDA),
            guidance=torch.ones(batch, device=CUDA),
            pooled_projections=_noise(batch, 768),
            encoder_hidden_states=_noise(batch, 512, 4096),
            txt_ids=torch.zeros(512, 3, device=CUDA),
            img_ids=torch.zeros(n, 3, device=CUDA),
            return_dict=False,
        )[0]
        return _mse(out)

    return net, loss


def wan(layers: int, heads: int, ffn: int) -> Callable[..., Built]:
    def build(batch: int, side: int, frames: int) -> Built:
        from diffusers import WanTransformer3DModel

        net = WanTransformer3DModel(num_attention_heads=heads, attention_head_dim=128, num_layers=layers, ffn_dim=ffn)
        h = side // 8

        def loss() -> torch.Tensor:
            out = net(
                hidden_states=_noise(batch, 16, frames, h, h),
                timestep=torch.randint(0, 1000, (batch,), device=CUDA),
                encoder_hidden_states=_noise(batch, 512, 4096),
                return_dict=False,
            )[0]
            return _mse(out)

        return net, loss

    return build


def _labels(batch: int, classes: int) -> torch.Tensor:
    return torch.randint(classes, (batch,), device=CUDA)


class Classifier(nn.Module):
    """A linear classifier on the first token of a transformers backbone."""

    def __init__(self, trunk: nn.Module, hidden: int) -> None:
        super().__init__()
        self.trunk, self.classifier = trunk, nn.Linear(hidden, 1000)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.trunk(images).last_hidden_state[:, 0])

    def gradient_checkpointing_enable(self) -> None:
        self.trunk.gradient_checkpointing_enable()


def dino(version: int, hidden: int, layers: int, heads: int, *, swiglu: bool = False) -> Callable[..., Built]:
    def build(batch: int, side: int, frames: int) -> Built:
        import transformers as t

        if version == 2:
            config = t.Dinov2Config(
                hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, patch_size=14, image_size=518,
                use_swiglu_ffn=swiglu,
            )  # fmt: skip
            net = Classifier(t.Dinov2Model(config), hidden)
        else:
            config = t.DINOv3ViTConfig(
                hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers, num_attention_heads=heads,
                patch_size=16, num_register_tokens=4,
            )  # fmt: skip
            net = Classifier(t.DINOv3ViTModel(config), hidden)
        images = torch.randn(batch, 3, side, side, device=CUDA)
        return net, lambda: nn.functional.cross_entropy(net(images).float(), _labels(batch, 1000))

    return build


def clip(patch: int, hidden: int, layers: int, heads: int, text: int, text_heads: int, projection: int) -> Callable[..., Built]:
    def build(batch: int, side: int, frames: int) -> Built:
        import transformers as t

        net = t.CLIPModel(
            t.CLIPConfig(
                text_config={"hidden_size": text, "intermediate_size": 4 * text, "num_attention_heads": text_heads},
                vision_config={
                    "hidden_size": hidden, "intermediate_size": 4 * hidden, "num_hidden_layers": layers,
                    "num_attention_heads": heads, "patch_size": patch, "image_size": side,
                },
                projection_dim=projection,
            )
        )  # fmt: skip
        images = torch.randn(batch, 3, side, side, device=CUDA)
        words = torch.randint(1000, (batch, 77), device=CUDA)
        return net, lambda: net(input_ids=words, pixel_values=images, return_loss=True).loss

    return build


def yolo(config: str) -> Callable[..., Built]:
    """A detector of ultralytics; its loss over the raw heads, without the assignment of boxes."""

    def build(batch: int, side: int, frames: int) -> Built:
        from ultralytics.nn.tasks import DetectionModel

        net = DetectionModel(config, verbose=False)
        net.train()
        images = torch.randn(batch, 3, side, side, device=CUDA)

        def loss() -> torch.Tensor:
            return sum(part.float().sigmoid().mean() for part in _tensors(net(images)))

        return net, loss

    return build


def _tensors(thing: Any) -> list[torch.Tensor]:
    if isinstance(thing, torch.Tensor):
        return [thing] if thing.is_floating_point() else []
    parts = thing.values() if isinstance(thing, dict) else thing if isinstance(thing, (list, tuple)) else []
    return [t for part in parts for t in _tensors(part)]


def detr(batch: int, side: int, frames: int) -> Built:
    """DETR with ResNet-50; its loss over logits and boxes, without the matching, which the host does."""
    import transformers as t

    net = t.DetrForObjectDetection(t.DetrConfig(use_timm_backbone=True, backbone="resnet50", use_pretrained_backbone=False))
    images = torch.randn(batch, 3, side, side, device=CUDA)
    mask = torch.ones(batch, side, side, device=CUDA, dtype=torch.long)

    def loss() -> torch.Tensor:
        out = net(pixel_values=images, pixel_mask=mask)
        return out.logits.float().sigmoid().mean() + out.pred_boxes.float().mean()

    return net, loss


def wav2vec2(hidden: int, layers: int, heads: int, *, large: bool) -> Callable[..., Built]:
    """CTC fine-tuning with a frozen feature encoder; the size is a hundredth of a second of sound."""

    def build(batch: int, side: int, frames: int) -> Built:
        import transformers as t

        net = t.Wav2Vec2ForCTC(
            t.Wav2Vec2Config(
                hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=4 * hidden,
                feat_extract_norm="layer" if large else "group", do_stable_layer_norm=large, conv_bias=large,
                mask_time_prob=0.0, layerdrop=0.0, attn_implementation="sdpa",
            )
        )  # fmt: skip
        net.freeze_feature_encoder()
        sound = torch.randn(batch, side * 160 + 80, device=CUDA)

        def loss() -> torch.Tensor:
            logits = net(sound).logits.float()
            return nn.functional.cross_entropy(
                logits.flatten(0, 1), torch.randint(32, (logits.shape[0] * logits.shape[1],), device=CUDA)
            )

        return net, loss

    return build


def llava(text: dict[str, Any]) -> Callable[..., Built]:
    """LLaVA 1.5: CLIP ViT-L/14 of 336 pixels (frozen), 576 of its tokens; the size is the tokens, those of the image included."""

    def build(batch: int, side: int, frames: int) -> Built:
        import transformers as t

        vision = t.CLIPVisionConfig(
            hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=336, patch_size=14,
        )  # fmt: skip
        tower, model = t.CLIPVisionModel(vision), t.LlamaForCausalLM(t.LlamaConfig(vocab_size=32064, **text))
        tower.requires_grad_(False)
        bridge = nn.Sequential(
            nn.Linear(1024, text["hidden_size"]), nn.GELU(), nn.Linear(text["hidden_size"], text["hidden_size"])
        )
        return _joined(tower, bridge, model, torch.randn(batch, 3, 336, 336, device=CUDA), batch, side, 576)

    return build


class Joined(nn.Module):
    """A vision tower, its projector and a language model, as vision-language models join them."""

    def __init__(self, tower: nn.Module, bridge: nn.Module, language: nn.Module, cut: int) -> None:
        super().__init__()
        self.tower, self.bridge, self.language, self.cut = tower, bridge, language, cut

    def forward(self, images: torch.Tensor, words: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.set_grad_enabled(any(p.requires_grad for p in self.tower.parameters()) and torch.is_grad_enabled()):
            seen = self.tower(images).last_hidden_state[:, self.cut :]
        seen = self.bridge(seen)
        table = self.language.get_input_embeddings()(words)
        return self.language(inputs_embeds=torch.cat([seen.to(table.dtype), table], 1), labels=labels).loss

    def gradient_checkpointing_enable(self) -> None:
        self.language.gradient_checkpointing_enable()


def _joined(tower: Any, bridge: Any, model: Any, images: torch.Tensor, batch: int, side: int, seen: int, cut: int = 1) -> Built:
    net = Joined(tower, bridge, model, cut)
    words = torch.randint(1000, (batch, side - seen), device=CUDA)
    labels = torch.randint(1000, (batch, side), device=CUDA)
    return net, lambda: net(images, words, labels)


def paligemma(batch: int, side: int, frames: int) -> Built:
    """PaliGemma 3B: SigLIP So400m/14 of 224 pixels, 256 tokens, and Gemma 2B; the size is the tokens."""
    import transformers as t

    vision = t.SiglipVisionConfig(
        hidden_size=1152, intermediate_size=4304, num_hidden_layers=27, num_attention_heads=16, image_size=224, patch_size=14,
        vision_use_head=False,
    )  # fmt: skip
    tower = t.SiglipVisionModel(vision)
    tower.requires_grad_(False)
    model = t.GemmaForCausalLM(
        t.GemmaConfig(
            vocab_size=257216, hidden_size=2048, intermediate_size=16384, num_hidden_layers=18, num_attention_heads=8,
            num_key_value_heads=1, head_dim=256,
        )
    )  # fmt: skip
    return _joined(tower, nn.Linear(1152, 2048), model, torch.randn(batch, 3, 224, 224, device=CUDA), batch, side, 256, cut=0)


class Blocks(nn.Module):
    """Blocks of attention and a gated MLP over patches, with RMS norms: Qwen2.5-VL's vision tower, with full attention."""

    def __init__(self, hidden: int, width: int, layers: int, heads: int, out: int) -> None:
        super().__init__()
        self.patches = nn.Linear(1176, hidden, bias=False)
        self.blocks = nn.ModuleList(Block(hidden, width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(4 * hidden)
        self.merger = nn.Sequential(nn.Linear(4 * hidden, 4 * hidden), nn.GELU(), nn.Linear(4 * hidden, out))

    def forward(self, images: torch.Tensor) -> Any:
        x = self.patches(images)
        for block in self.blocks:
            x = block(x)
        b, n, c = x.shape
        merged = self.merger(self.norm(x.reshape(b, n // 4, 4 * c)))
        return type("Out", (), {"last_hidden_state": merged})


class Block(nn.Module):
    def __init__(self, hidden: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.RMSNorm(hidden), nn.RMSNorm(hidden)
        self.qkv, self.proj = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.gate, self.up, self.down = nn.Linear(hidden, width), nn.Linear(hidden, width), nn.Linear(width, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        x = x + self.proj(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, c))
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def qwen_vl(text: dict[str, Any], out: int) -> Callable[..., Built]:
    """Qwen2.5-VL: 32 blocks of width 1,280 (frozen), one image of 448 x 448 a sample (256 tokens); the size is the tokens."""

    def build(batch: int, side: int, frames: int) -> Built:
        import transformers as t

        tower = Blocks(1280, 3420, 32, 16, out)
        tower.requires_grad_(False)
        model = t.Qwen2ForCausalLM(t.Qwen2Config(**text))
        return _joined(tower, nn.Identity(), model, torch.randn(batch, 1024, 1176, device=CUDA), batch, side, 256, cut=0)

    return build


def clip_text(hidden: int, layers: int, heads: int) -> Callable[..., Built]:
    """A text encoder of Stable Diffusion, frozen."""

    def build(batch: int, side: int, frames: int) -> Built:
        import transformers as t

        net = t.CLIPTextModel(
            t.CLIPTextConfig(
                hidden_size=hidden, intermediate_size=4 * hidden, num_hidden_layers=layers, num_attention_heads=heads
            )
        )  # fmt: skip
        return net, lambda: net(torch.randint(1000, (batch, 77), device=CUDA)).last_hidden_state

    return build


def t5(tokens: int) -> Callable[..., Built]:
    """The encoder of T5 v1.1 XXL, frozen."""

    def build(batch: int, side: int, frames: int) -> Built:
        import transformers as t

        config = t.T5Config(d_model=4096, d_kv=64, d_ff=10240, num_layers=24, num_heads=64, feed_forward_proj="gated-gelu")
        net = t.T5EncoderModel(config)
        return net, lambda: net(torch.randint(1000, (batch, tokens), device=CUDA)).last_hidden_state

    return build


def kl_vae(channels: int) -> Callable[..., Built]:
    """The encoder of an image autoencoder, frozen."""

    def build(batch: int, side: int, frames: int) -> Built:
        from diffusers import AutoencoderKL

        net = AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            block_out_channels=(128, 256, 512, 512),
            layers_per_block=2,
            latent_channels=channels,
        )
        return net, lambda: net.encode(_noise(batch, 3, side, side)).latent_dist.sample()

    return build


SDXL_CONFIG: dict[str, Any] = {
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (320, 640, 1280),
    "transformer_layers_per_block": [1, 2, 10],
    "attention_head_dim": [5, 10, 20],
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}
LLAMA_7B = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}
LLAMA_13B = {"hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40, "num_attention_heads": 40}
QWEN_3B = {
    "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36, "num_attention_heads": 16,
    "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
}  # fmt: skip
QWEN_7B = {
    "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28,
    "num_key_value_heads": 4, "vocab_size": 152064, "tie_word_embeddings": False,
}  # fmt: skip
IMAGE, LENGTH = (512, 768), (1024, 1536)
NETWORKS: dict[str, tuple[Callable[..., Built], tuple[int, int], int]] = {
    "sd-1.5": (unet(768, block_out_channels=(320, 640, 1280, 1280), attention_head_dim=8), IMAGE, 1),
    "sdxl": (unet(2048, **SDXL_CONFIG), IMAGE, 1),
    "sd-3.5-medium": (sd3(24, 24, 13), IMAGE, 1),
    "sd-3.5-large": (sd3(38, 38, 0), IMAGE, 1),
    "flux-dev": (flux, IMAGE, 1),
    "wan-2.1-1.3b": (wan(30, 12, 8960), IMAGE, 11),
    "wan-2.1-14b": (wan(40, 40, 13824), IMAGE, 11),
    "dinov2-s": (dino(2, 384, 12, 6), (224, 448), 1),
    "dinov2-b": (dino(2, 768, 12, 12), (224, 448), 1),
    "dinov2-l": (dino(2, 1024, 24, 16), (224, 448), 1),
    "dinov2-g": (dino(2, 1536, 40, 24, swiglu=True), (224, 448), 1),
    "dinov3-s": (dino(3, 384, 12, 6), (256, 384), 1),
    "dinov3-b": (dino(3, 768, 12, 12), (256, 384), 1),
    "dinov3-l": (dino(3, 1024, 24, 16), (256, 384), 1),
    "clip-b-32": (clip(32, 768, 12, 12, 512, 8, 512), (224, 448), 1),
    "clip-b-16": (clip(16, 768, 12, 12, 512, 8, 512), (224, 448), 1),
    "clip-l-14": (clip(14, 1024, 24, 16, 768, 12, 768), (224, 448), 1),
    "yolov8n": (yolo("yolov8n.yaml"), (640, 960), 1),
    "yolov8s": (yolo("yolov8s.yaml"), (640, 960), 1),
    "yolov8m": (yolo("yolov8m.yaml"), (640, 960), 1),
    "yolov8l": (yolo("yolov8l.yaml"), (640, 960), 1),
    "yolov8x": (yolo("yolov8x.yaml"), (640, 960), 1),
    "yolo11n": (yolo("yolo11n.yaml"), (640, 960), 1),
    "yolo11m": (yolo("yolo11m.yaml"), (640, 960), 1),
    "detr-r50": (detr, (640, 960), 1),
    "wav2vec2-base": (wav2vec2(768, 12, 12, large=False), (1000, 1500), 1),
    "wav2vec2-large": (wav2vec2(1024, 24, 16, large=True), (1000, 1500), 1),
    "llava-1.5-7b": (llava(LLAMA_7B), LENGTH, 1),
    "llava-1.5-13b": (llava(LLAMA_13B), LENGTH, 1),
    "qwen2.5-vl-3b": (qwen_vl(QWEN_3B, 2048), LENGTH, 1),
    "qwen2.5-vl-7b": (qwen_vl(QWEN_7B, 3584), LENGTH, 1),
    "paligemma-3b": (paligemma, LENGTH, 1),
}
"""By name: the builder, the two sizes it is captured at, and the latent frames of a video."""
FROZEN: dict[str, tuple[Callable[..., Built], tuple[int, int], int]] = {
    "clip-l-text": (clip_text(768, 12, 12), IMAGE, 1),
    "clip-g-text": (clip_text(1280, 32, 20), IMAGE, 1),
    "t5-xxl-text": (t5(512), IMAGE, 1),
    "kl-encoder": (kl_vae(4), IMAGE, 1),
    "kl-encoder-16": (kl_vae(16), IMAGE, 1),
}
"""Networks beside the trained one that run forward where their results are not cached."""
LENGTHS = (LENGTH, (1000, 1500))
"""Pairs of sizes that are lengths."""
CONVOLUTIONAL = ("yolo", "detr")
"""Networks without adapters and without blocks that are recomputed."""
HALF = ("sd", "flux", "wan")
"""Networks whose weights people also train in 16 bits."""


def variants_of(name: str) -> list[tuple[str, str, bool, bool]]:
    """Name, method, recomputation and 16-bit weights of each variant."""
    if name in FROZEN:
        return [("forward", "forward", False, True)]
    if name.startswith(CONVOLUTIONAL):
        return [("full", "full", False, False)]
    found = [(m + "+recompute" * r, m, r, False) for m in ("lora", "full") for r in (False, True)]
    return [*found, ("full+half+recompute", "full", True, True)] if name.startswith(HALF) else found
