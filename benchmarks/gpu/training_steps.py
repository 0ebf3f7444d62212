"""Training and inference steps of usual models, one function for the capture and for the GPU: :func:`make_step`.

    gpuwise fit benchmarks/gpu/training_steps.py:make_step --set item=gpt2 --on H100-SXM

Weights and inputs are random, so nothing is read from the network; torch, transformers, peft, timm and torchvision are needed.
``tiny`` shrinks a model so far that a CPU runs it. ``python training_steps.py ITEM STEPS [tiny]`` trains, for
``gpuwise profile``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SEED = 20261126
Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Item:
    """One step. ``command`` asks the catalogue the same, where it has the model."""

    name: str
    make: Callable[[bool, str], Step]
    unit: str
    amount: int
    """Units a step: tokens, images or sequences."""
    command: str = ""
    limit_s: float = 30.0
    energy_s: float = 2.0
    """Steps run at least so long while energy is counted."""
    steps: int = 12


# --- the steps; torch is imported where it is needed ---


def trains(model: Any, loss_of: Callable[[], Any], optimizer: Any, *, autocast: bool, device: str, clip: bool = False) -> Step:
    """Forward, backward, update."""
    import torch

    kind = device.partition(":")[0]

    def step() -> None:
        with torch.autocast(kind, torch.bfloat16, enabled=autocast):
            loss = loss_of()
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def adamw(model: Any) -> Any:
    """Fused AdamW of what is trained."""
    import torch

    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, fused=True)


def built(make: Callable[[], Any], device: str, dtype: str = "float32") -> Any:
    """A model made on the device in a format."""
    import torch

    usual = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device):
            return make()
    finally:
        torch.set_default_dtype(usual)


def tokens(vocabulary: int, batch: int, length: int, device: str) -> Any:
    import torch

    return torch.randint(vocabulary, (batch, length), device=device)


def gpt2(*, compiled: bool) -> Callable[[bool, str], Step]:
    def make(tiny: bool, device: str) -> Step:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(n_layer=2, n_embd=64, n_head=2, vocab_size=512) if tiny else GPT2Config()
        config.use_cache = False
        model = built(lambda: GPT2LMHeadModel(config), device).train()
        ids = tokens(config.vocab_size, *((2, 64) if tiny else (8, 1024)), device)
        call = torch.compile(model) if compiled else model
        return trains(model, lambda: call(input_ids=ids, labels=ids).loss, adamw(model), autocast=True, device=device)

    return make


def resnet(
    *, channels_last: bool = False, autocast: bool = False, tf32: bool = True, compiled: bool = False, batch: int = 128
) -> Callable[[bool, str], Step]:
    def make(tiny: bool, device: str) -> Step:
        import torch
        from torch.nn.functional import cross_entropy
        from torchvision.models import resnet18, resnet50

        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = tf32
        model = built(resnet18 if tiny else resnet50, device).train()
        images = torch.randn(2 if tiny else batch, 3, *((32, 32) if tiny else (224, 224)), device=device)
        labels = torch.randint(1000, (len(images),), device=device)
        if channels_last:
            model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
        call = torch.compile(model) if compiled else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
        return trains(model, lambda: cross_entropy(call(images), labels), optimizer, autocast=autocast, device=device)

    return make


LLAMA_1B = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
}
LLAMA_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
QWEN_3B = {
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "max_position_embeddings": 32768,
    "tie_word_embeddings": True,
}
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
}


def causal(shape: dict[str, Any], tiny: bool, family: str = "Llama") -> tuple[Any, Callable[[], Any]]:
    """A configuration of transformers and what makes the model."""
    import transformers

    config = getattr(transformers, f"{family}Config")(**{**shape, **(TINY if tiny else {})}, use_cache=False)
    return config, lambda: getattr(transformers, f"{family}ForCausalLM")(config)


def language(
    shape: dict[str, Any],
    *,
    batch: int,
    length: int = 2048,
    dtype: str = "float32",
    lora: bool = False,
    checkpoint: bool = False,
    autocast: bool = True,
    family: str = "Llama",
) -> Callable[[bool, str], Step]:
    def make(tiny: bool, device: str) -> Step:
        config, construct = causal(shape, tiny, family)
        model = built(construct, device, dtype).train()
        if checkpoint:
            # transformers 5.2x has another name for it
            enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
            enable({"use_reentrant": False})
        if lora:
            from peft import LoraConfig, get_peft_model

            if checkpoint:
                model.enable_input_require_grads()
            model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"))
        ids = tokens(config.vocab_size, *((2, 64) if tiny else (batch, length)), device)
        return trains(model, lambda: model(input_ids=ids, labels=ids).loss, adamw(model), autocast=autocast, device=device)

    return make


def prefill(shape: dict[str, Any], *, length: int) -> Callable[[bool, str], Step]:
    def make(tiny: bool, device: str) -> Step:
        import torch

        config, construct = causal(shape, tiny)
        model = built(construct, device, "bfloat16").eval()
        ids = tokens(config.vocab_size, 1, 32 if tiny else length, device)

        def step() -> None:
            with torch.no_grad():
                model(input_ids=ids, use_cache=True, logits_to_keep=1)

        return step

    return make


def decode(shape: dict[str, Any], *, length: int, room: int = 256) -> Callable[[bool, str], Step]:
    """One token after ``length`` in a static cache with room for ``room`` more, which is begun again when it is full."""

    def make(tiny: bool, device: str) -> Step:
        import torch
        from transformers import StaticCache

        config, construct = causal(shape, tiny)
        model = built(construct, device, "bfloat16").eval()
        start = 32 if tiny else length
        cache = StaticCache(config=config, max_cache_len=start + room)
        one = tokens(config.vocab_size, 1, 1, device)
        with torch.no_grad():
            model(input_ids=tokens(config.vocab_size, 1, start, device), past_key_values=cache, use_cache=True, logits_to_keep=1)
        made = 0

        def step() -> None:
            nonlocal made
            if made == room:
                for layer in cache.layers:
                    layer.cumulative_length.fill_(start)
                made = 0
            with torch.no_grad():
                logits = model(input_ids=one, past_key_values=cache, use_cache=True).logits
            one.copy_(logits[:, -1:].argmax(-1))
            made += 1

        return step

    return make


def generate(shape: dict[str, Any], *, length: int, new: int) -> Callable[[bool, str], Step]:
    def make(tiny: bool, device: str) -> Step:
        import torch

        config, construct = causal(shape, tiny)
        model = built(construct, device, "bfloat16").eval()
        ids = tokens(config.vocab_size, 1, 32 if tiny else length, device)
        how = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "disable_compile": True, "pad_token_id": 0}

        def step() -> None:
            with torch.no_grad():
                model.generate(ids, attention_mask=torch.ones_like(ids), cache_implementation="static", use_cache=True, **how)

        return step

    return make


def vit(tiny: bool, device: str) -> Step:
    import timm
    import torch
    from torch.nn.functional import cross_entropy

    name, batch, side = ("vit_tiny_patch16_224", 2, 32) if tiny else ("vit_base_patch16_224", 64, 224)
    model = built(lambda: timm.create_model(name, pretrained=False, img_size=side), device).train()
    images, labels = torch.randn(batch, 3, side, side, device=device), torch.randint(1000, (batch,), device=device)
    return trains(model, lambda: cross_entropy(model(images), labels), adamw(model), autocast=True, device=device)


def bert(tiny: bool, device: str) -> Step:
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = BertConfig(num_labels=2, **(small if tiny else {}))
    model = built(lambda: BertForSequenceClassification(config), device).train()
    batch, length = (2, 32) if tiny else (64, 128)
    ids, labels = tokens(config.vocab_size, batch, length, device), torch.randint(2, (batch,), device=device)
    mask = torch.ones_like(ids)
    mask[: batch // 2, length // 2 :] = 0
    return trains(
        model,
        lambda: model(input_ids=ids, attention_mask=mask, labels=labels).loss,
        adamw(model),
        autocast=True,
        device=device,
    )


def nano_gpt(tiny: bool, device: str) -> Step:
    """Blocks as karpathy/nanoGPT writes them, with dropout 0.1 and clipped gradients."""
    from torch import arange, nn
    from torch.nn.functional import cross_entropy, scaled_dot_product_attention

    width, n_layers, n_heads, vocabulary, batch, length = (64, 2, 2, 512, 2, 64) if tiny else (768, 12, 12, 50304, 12, 1024)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))
            self.drop = nn.Dropout(0.1)

        def forward(self, x: Any) -> Any:
            b, t, c = x.size()
            q, k, v = (s.view(b, t, n_heads, -1).transpose(1, 2) for s in self.c_attn(self.ln_1(x)).split(c, dim=2))
            y = scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
            x = x + self.drop(self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c)))
            return x + self.mlp(self.ln_2(x))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe, self.drop = nn.Embedding(vocabulary, width), nn.Embedding(length, width), nn.Dropout(0.1)
            self.h, self.ln_f = nn.ModuleList(Block() for _ in range(n_layers)), nn.LayerNorm(width)
            self.lm_head = nn.Linear(width, vocabulary, bias=False)
            self.lm_head.weight = self.wte.weight

        def forward(self, ids: Any) -> Any:
            x = self.drop(self.wte(ids) + self.wpe(arange(ids.shape[1], device=ids.device)))
            for block in self.h:
                x = block(x)
            return self.lm_head(self.ln_f(x))

    model = built(Gpt, device).train()
    ids = tokens(vocabulary, batch, length + 1, device)

    def loss_of() -> Any:
        return cross_entropy(model(ids[:, :-1]).view(-1, vocabulary), ids[:, 1:].reshape(-1))

    return trains(model, loss_of, adamw(model), autocast=True, device=device, clip=True)


def small_cnn(tiny: bool, device: str) -> Step:
    import torch
    from torch import nn
    from torch.nn.functional import cross_entropy

    def make() -> Any:
        layers: list[Any] = []
        for given, out in ((3, 32), (32, 64), (64, 128)):
            layers += [nn.Conv2d(given, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(128 * 16, 256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 10))

    model = built(make, device).train()
    images, labels = torch.randn(32, 3, 32, 32, device=device), torch.randint(10, (32,), device=device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    return trains(model, lambda: cross_entropy(model(images), labels), optimizer, autocast=False, device=device)


def lstm(tiny: bool, device: str) -> Step:
    from torch import nn
    from torch.nn.functional import cross_entropy

    vocabulary, width, hidden, batch, length = (512, 32, 32, 2, 16) if tiny else (10000, 512, 1024, 64, 256)

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(vocabulary, width)
            self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True, dropout=0.2)
            self.head = nn.Linear(hidden, vocabulary)

        def forward(self, ids: Any) -> Any:
            return self.head(self.lstm(self.embed(ids))[0])

    model = built(Words, device).train()
    ids = tokens(vocabulary, batch, length + 1, device)

    def loss_of() -> Any:
        return cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())

    return trains(model, loss_of, adamw(model), autocast=False, device=device)


MIXTRAL_1 = {
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "num_hidden_layers": 1,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "vocab_size": 32000,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}
TRAINS = "gpuwise plan {} --on 1xH100-SXM --dp 1 --accumulation 1 --stack {} --recompute {}"


def asks(model: str, seq: int, batch: int, *more: str, stack: str = "trainer", recompute: str = "none") -> str:
    """The catalogue asked for exactly one layout."""
    sizes = f"--seq {seq} --micro-batch {batch} --global-batch {batch}"
    return " ".join((TRAINS.format(model, stack, recompute), sizes, *more))


ITEMS: tuple[Item, ...] = (
    Item("gpt2", gpt2(compiled=False), "tokens", 8192, asks("gpt2", 1024, 8)),
    Item("resnet50-amp-nhwc", resnet(channels_last=True, autocast=True), "images", 128),
    Item(
        "llama1b-lora",
        language(LLAMA_1B, batch=2, dtype="bfloat16", lora=True),
        "tokens",
        4096,
        asks("llama-3.2-1b", 2048, 2, "--lora"),
    ),
    Item(
        "llama1b-lora-ckpt",
        language(LLAMA_1B, batch=2, dtype="bfloat16", lora=True, checkpoint=True),
        "tokens",
        4096,
        asks("llama-3.2-1b", 2048, 2, "--lora", recompute="full"),
    ),
    Item("llama1b-full", language(LLAMA_1B, batch=2), "tokens", 4096, asks("llama-3.2-1b", 2048, 2)),
    Item(
        "llama1b-bf16",
        language(LLAMA_1B, batch=2, dtype="bfloat16", autocast=False),
        "tokens",
        4096,
        asks("llama-3.2-1b", 2048, 2, "--half-weights"),
    ),
    Item("resnet50-amp-nchw", resnet(autocast=True), "images", 128),
    Item("vit-b16", vit, "images", 64, asks("vit-b-16", 197, 64)),
    Item("bert-base", bert, "sequences", 64, asks("bert-base", 128, 64)),
    Item("gpt2-compiled", gpt2(compiled=True), "tokens", 8192, asks("gpt2", 1024, 8, stack="compiled"), limit_s=60.0),
    Item(
        "llama8b-lora-ckpt",
        language(LLAMA_8B, batch=1, dtype="bfloat16", lora=True, checkpoint=True),
        "tokens",
        2048,
        asks("llama-3.1-8b", 2048, 1, "--lora", recompute="full"),
    ),
    Item("llama8b-prefill", prefill(LLAMA_8B, length=2048), "tokens", 2048, energy_s=1.5),
    Item(
        "llama8b-decode",
        decode(LLAMA_8B, length=2048),
        "tokens",
        1,
        "gpuwise op decode llama-3.1-8b --on H100-SXM --weights bf16 --context 2048",
        energy_s=1.5,
    ),
    Item(
        "qwen3b-bf16-ckpt",
        language(QWEN_3B, batch=2, dtype="bfloat16", checkpoint=True, autocast=False, family="Qwen2"),
        "tokens",
        4096,
        asks("qwen2.5-3b", 2048, 2, "--half-weights", recompute="full"),
        energy_s=1.5,
    ),
    Item("nanogpt-dropout", nano_gpt, "tokens", 12288, asks("gpt2", 1024, 12, stack="eager"), energy_s=1.5),
    Item("small-cnn", small_cnn, "images", 32, energy_s=1.0, steps=40),
    Item("lstm", lstm, "tokens", 16384, energy_s=1.5),
    Item(
        "moe-1-layer",
        language(MIXTRAL_1, batch=4, dtype="bfloat16", autocast=False, family="Mixtral"),
        "tokens",
        8192,
        energy_s=1.5,
    ),
    Item("resnet50-tf32", resnet(tf32=True), "images", 128, energy_s=1.5),
    Item("resnet50-fp32", resnet(tf32=False), "images", 128, energy_s=1.5),
    Item("llama8b-generate", generate(LLAMA_8B, length=2048, new=32), "tokens", 32, energy_s=0.0, steps=2),
    Item("resnet50-amp-nhwc-compiled", resnet(channels_last=True, autocast=True, compiled=True), "images", 128, limit_s=60.0),
)
KERNELS: tuple[str, ...] = (
    "gpt2",
    "resnet50-amp-nhwc",
    "llama1b-lora",
    "llama1b-full",
    "vit-b16",
    "bert-base",
    "resnet50-amp-nchw",
    "llama1b-bf16",
    "small-cnn",
    "lstm",
    "moe-1-layer",
    "llama8b-decode",
    "nanogpt-dropout",
)
"""Items run again under the profiler, in order of worth."""


def make_step(item: str = "gpt2", tiny: bool = False, device: str = "cuda") -> Step:
    """The step of an item: what is captured and what is run."""
    import torch

    torch.manual_seed(SEED)
    # as torch comes: convolutions in TF32, products in fp32
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
    return {i.name: i for i in ITEMS}[item].make(tiny, device)


def main() -> None:
    import torch

    item, steps, *more = sys.argv[1:]
    step = make_step(item, bool(more), "cuda" if torch.cuda.is_available() else "cpu")
    for _ in range(int(steps)):
        step()


if __name__ == "__main__":
    main()
