"""Steps of models beside those of ``training_steps.py``: what kernels are fitted to, where those are what they are checked on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from training_steps import SEED, Step, adamw, built, language, tokens, trains

Make = Callable[[bool, str], Step]
STEPS: dict[str, Make] = {}


def timm_step(name: str, batch: int, side: int = 224, *, autocast: bool = True, channels_last: bool = False) -> Make:
    """A model of timm under SGD (convolutions) or AdamW."""

    def make(tiny: bool, device: str) -> Step:
        import timm
        import torch
        from torch.nn.functional import cross_entropy

        n, size = (2, side if name.startswith(("swin", "mixer", "deit")) else 64) if tiny else (batch, side)
        model = built(lambda: timm.create_model(name, pretrained=False), device).train()
        images, labels = torch.randn(n, 3, size, size, device=device), torch.randint(1000, (n,), device=device)
        if channels_last:
            model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
        return trains(model, lambda: cross_entropy(model(images), labels), adamw(model), autocast=autocast, device=device)

    return make


def transformers_step(
    family: str,
    head: str,
    batch: int,
    length: int,
    *,
    autocast: bool = True,
    dtype: str = "float32",
    foreach: bool = False,
    **config: Any,
) -> Make:
    """A model of transformers with labels over its tokens or its classes."""

    def make(tiny: bool, device: str) -> Step:
        import torch
        import transformers

        made = getattr(transformers, f"{family}Config")(**config)
        model = built(lambda: getattr(transformers, f"{family}{head}")(made), device, dtype).train()
        n, words = (1, 16) if tiny else (batch, length)
        ids = tokens(made.vocab_size, n, words, device)
        call = {"input_ids": ids, "labels": torch.randint(2, (n,), device=device) if "Classification" in head else ids}
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4) if foreach else adamw(model)
        return trains(model, lambda: model(**call).loss, optimizer, autocast=autocast, device=device)

    return make


def whisper(tiny: bool, device: str) -> Step:
    """Speech of 30 s to 128 tokens."""
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    layers, width, heads = (1, 64, 2) if tiny else (12, 768, 12)
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
    batch = 1 if tiny else 8
    mel, ids = torch.randn(batch, 80, 3000, device=device), tokens(50000, batch, 128, device)
    return trains(
        model, lambda: model(input_features=mel, labels=ids).loss, adamw(model), autocast=True, device=device, clip=True
    )


def unet(*, channels_last: bool) -> Make:
    """Residual blocks with GroupNorm and SiLU, attention at the two smaller sides: a denoiser of latents 64 x 64."""

    def make(tiny: bool, device: str) -> Step:
        import torch
        from torch import nn
        from torch.nn.functional import interpolate, mse_loss, scaled_dot_product_attention

        widths, batch, side = ((32, 32), 1, 16) if tiny else ((320, 640, 1280), 8, 64)

        class Residual(nn.Module):
            def __init__(self, given: int, out: int) -> None:
                super().__init__()
                self.first = nn.Sequential(nn.GroupNorm(32, given), nn.SiLU(), nn.Conv2d(given, out, 3, padding=1))
                self.second = nn.Sequential(nn.GroupNorm(32, out), nn.SiLU(), nn.Dropout(0.1), nn.Conv2d(out, out, 3, padding=1))
                self.time = nn.Linear(512, out)
                self.skip = nn.Conv2d(given, out, 1) if given != out else nn.Identity()

            def forward(self, x: Any, t: Any) -> Any:
                return self.skip(x) + self.second(self.first(x) + self.time(t)[:, :, None, None])

        class Attention(nn.Module):
            def __init__(self, width: int) -> None:
                super().__init__()
                self.norm, self.qkv, self.out = nn.GroupNorm(32, width), nn.Linear(width, 3 * width), nn.Linear(width, width)

            def forward(self, x: Any) -> Any:
                b, c, h, w = x.shape
                flat = self.norm(x).flatten(2).transpose(1, 2)
                q, k, v = (s.view(b, h * w, 8, c // 8).transpose(1, 2) for s in self.qkv(flat).chunk(3, -1))
                y = scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, h * w, c)
                return x + self.out(y).transpose(1, 2).reshape(b, c, h, w)

        class UNet(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.enter, self.leave = nn.Conv2d(4, widths[0], 3, padding=1), nn.Conv2d(widths[0], 4, 3, padding=1)
                ins = [widths[0], *widths[:-1]]
                self.down = nn.ModuleList(Residual(i, o) for i, o in zip(ins, widths, strict=True))
                self.look = nn.ModuleList(Attention(w) if n else nn.Identity() for n, w in enumerate(widths))
                self.up = nn.ModuleList(Residual(2 * o, i) for i, o in zip(ins, widths, strict=True))

            def forward(self, x: Any, t: Any) -> Any:
                x, kept = self.enter(x), []
                for block, look in zip(self.down, self.look, strict=True):
                    x = look(block(x, t))
                    kept.append(x)
                    x = nn.functional.avg_pool2d(x, 2)
                for block in reversed(self.up):
                    x = interpolate(x, scale_factor=2.0, mode="nearest")
                    x = block(torch.cat([x, kept.pop()], 1), t)
                return self.leave(x)

        model = built(UNet, device).train()
        x, t = torch.randn(batch, 4, side, side, device=device), torch.randn(batch, 512, device=device)
        if channels_last:
            model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
        return trains(model, lambda: mse_loss(model(x, t), x), adamw(model), autocast=True, device=device)

    return make


def gan(tiny: bool, device: str) -> Step:
    """A generator of transposed convolutions through a critic of strided ones, fp32 as the tutorial has it."""
    import torch
    from torch import nn

    batch = 4 if tiny else 128
    ups, downs = (512, 256, 128, 64), (64, 128, 256, 512)

    def make() -> Any:
        layers: list[Any] = [nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False)]
        for given, out in zip(ups, (*ups[1:], 3), strict=True):
            layers += [nn.BatchNorm2d(given), nn.ReLU(True), nn.ConvTranspose2d(given, out, 4, 2, 1, bias=False)]
        layers.append(nn.Tanh())
        for given, out in zip((3, *downs[:-1]), downs, strict=True):
            layers += [nn.Conv2d(given, out, 4, 2, 1, bias=False), nn.BatchNorm2d(out), nn.LeakyReLU(0.2)]
        return nn.Sequential(*layers, nn.Conv2d(512, 1, 4, 1, 0, bias=False), nn.Flatten())

    model = built(make, device).train()
    z = torch.randn(batch, 100, 1, 1, device=device)
    ones = torch.ones(batch, 1, device=device)
    loss = nn.BCEWithLogitsLoss()
    return trains(model, lambda: loss(model(z), ones), torch.optim.Adam(model.parameters()), autocast=False, device=device)


def recommender(tiny: bool, device: str) -> Step:
    """Bags of embeddings, their products, and two towers of layers."""
    import torch
    from torch import nn

    rows, width, n, batch = (1000, 16, 4, 32) if tiny else (200_000, 64, 26, 8192)

    class Recommender(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(n))
            self.dense = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
            self.top = nn.Sequential(nn.Linear(width + (n + 1) ** 2, 1024), nn.ReLU(), nn.Linear(1024, 1))

        def forward(self, numbers: Any, ids: Any) -> Any:
            found = torch.stack([self.dense(numbers), *(b(ids[i]) for i, b in enumerate(self.bags))], 1)
            return self.top(torch.cat([found[:, 0], torch.bmm(found, found.mT).flatten(1)], 1))

    model = built(Recommender, device).train()
    numbers, ids = torch.randn(batch, 13, device=device), torch.randint(rows, (n, batch, 4), device=device)
    target = torch.rand(batch, 1, device=device)
    loss = nn.BCEWithLogitsLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return trains(model, lambda: loss(model(numbers, ids), target), optimizer, autocast=True, device=device)


def encoder(tiny: bool, device: str) -> Step:
    """``nn.TransformerEncoder`` in fp32 with dropout, as tutorials write it."""
    import torch
    from torch import nn

    width, layers, batch, length = (64, 2, 2, 32) if tiny else (512, 6, 32, 512)

    def make() -> Any:
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
        return nn.Sequential(nn.TransformerEncoder(layer, layers), nn.Linear(width, 1000))

    model = built(make, device).train()
    x, y = torch.randn(batch, length, width, device=device), torch.randint(1000, (batch * length,), device=device)
    loss = nn.CrossEntropyLoss()
    return trains(
        model, lambda: loss(model(x).flatten(0, 1), y), torch.optim.Adam(model.parameters()), autocast=False, device=device
    )


LLAMA_400M = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "vocab_size": 32000,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}
STEPS |= {
    "convnext-tiny": timm_step("convnext_tiny", 64),
    "efficientnet-b0-nhwc": timm_step("efficientnet_b0", 128, channels_last=True),
    "swin-tiny": timm_step("swin_tiny_patch4_window7_224", 64),
    "vgg16-nhwc": timm_step("vgg16", 64, channels_last=True),
    "mobilenetv3": timm_step("mobilenetv3_large_100", 128),
    "densenet121-nhwc": timm_step("densenet121", 64, channels_last=True),
    "regnety-032": timm_step("regnety_032", 64),
    "resnet101-nhwc": timm_step("resnet101", 64, channels_last=True),
    "deit-small-fp32": timm_step("deit_small_patch16_224", 64, autocast=False),
    "mixer-b16": timm_step("mixer_b16_224", 64),
    "unet": unet(channels_last=False),
    "unet-nhwc": unet(channels_last=True),
    "gpt-neox-410m": transformers_step(
        "GPTNeoX",
        "ForCausalLM",
        4,
        1024,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        vocab_size=50304,
        use_cache=False,
    ),
    "opt-350m": transformers_step(
        "OPT",
        "ForCausalLM",
        4,
        1024,
        hidden_size=1024,
        ffn_dim=4096,
        num_hidden_layers=12,
        num_attention_heads=16,
        word_embed_proj_dim=1024,
        use_cache=False,
    ),
    "t5-base": transformers_step(
        "T5", "ForConditionalGeneration", 16, 256, d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0
    ),
    "distilbert-fp32": transformers_step("DistilBert", "ForSequenceClassification", 32, 256, autocast=False, foreach=True),
    "roberta-large": transformers_step(
        "Roberta",
        "ForSequenceClassification",
        16,
        256,
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
    ),
    "gemma2": transformers_step(
        "Gemma2",
        "ForCausalLM",
        2,
        2048,
        autocast=False,
        dtype="bfloat16",
        hidden_size=2304,
        num_hidden_layers=6,
        intermediate_size=9216,
        num_attention_heads=8,
        num_key_value_heads=4,
        use_cache=False,
    ),
    "llama-400m": language(LLAMA_400M, batch=4, length=2048),
    "llama-400m-fp32": language(LLAMA_400M, batch=2, length=1024, autocast=False),
    "llama-400m-fp16": language(LLAMA_400M, batch=4, length=2048, autocast=False, dtype="float16"),
    "llama-400m-lora": language(LLAMA_400M, batch=4, length=1024, dtype="bfloat16", lora=True),
    "whisper-small": whisper,
    "gan": gan,
    "recommender": recommender,
    "encoder-fp32": encoder,
}


def make_step(item: str = "convnext-tiny", tiny: bool = False, device: str = "cuda") -> Step:
    """The step of an item: what is captured and what is run."""
    import torch

    torch.manual_seed(SEED)
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
    return STEPS[item](tiny, device)
