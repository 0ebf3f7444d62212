"""Small trainings that ranks are given. Their optimizers write down what they are told: gradients and weights, whole."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset

from gpuwise.train.ranks.parallel.halves import orders_of
from gpuwise.workload.capture.packages import transformers

sys.path.append(str(Path(__file__).parent))
if "ORDERS" in os.environ:
    from orders import record

    record(Path(os.environ["ORDERS"]) / f"orders-{dist.get_rank()}.jsonl")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "full_tensor", lambda: tensor)().detach().clone()


def put_back(tensor: torch.Tensor, dim: int, order: tuple[tuple[int, int], ...]) -> torch.Tensor:
    """A rearranged tensor as one process has it."""
    pieces = tensor.split([size for _, size in order], dim)
    return torch.cat([p for _, p in sorted(zip(order, pieces, strict=True), key=lambda f: f[0])], dim)


def as_alone(model: nn.Module, values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """With columns that tensor ranks hold in another order where one process has them."""
    for name, dim, order in orders_of(model):
        if name in values:
            values[name] = put_back(values[name], dim, order)
    return values


class Written:
    """Gradients of the first and weights after every step, written by rank 0."""

    def __init__(self, model: nn.Module) -> None:
        self.model, self.steps = model, []

    def note(self, *_: object) -> None:
        if not os.environ.get("GRADIENTS"):
            # they are gathered from all ranks, which are counted
            return
        named = self.model.named_parameters()
        self.steps.append(as_alone(self.model, {n: whole(p.grad) for n, p in named if p.grad is not None}))

    def after(self, *_: object) -> None:
        if not os.environ.get("GRADIENTS"):
            return
        weights = as_alone(self.model, {n: whole(p) for n, p in self.model.named_parameters()})
        name = "written.pt" if dist.get_rank() == 0 else f"written-{dist.get_rank()}.pt"
        torch.save({"gradients": self.steps, "weights": weights}, Path(os.environ["GRADIENTS"]) / name)


def written(optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    notes = Written(model)
    optimizer.register_step_pre_hook(notes.note)
    optimizer.register_step_post_hook(notes.after)
    return optimizer


class Rows(Dataset):
    """Rows of very unequal length, cut from one long row; each drops a number at random (augmentation)."""

    def __init__(self, n: int = 21, vocabulary: int = 32, length: int = 0) -> None:
        generator = torch.Generator().manual_seed(1)
        self.rows = [torch.randint(1, vocabulary, (length or 2 + 3 * (i % 5),), generator=generator) for i in range(n)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> torch.Tensor:
        row = self.rows[index].clone()
        row[torch.randint(len(row), ())] = 0
        return row


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(3 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(functional.gelu(self.up(self.norm(x))))


class Tiny(nn.Module):
    def __init__(self, vocabulary: int = 32, width: int = 10, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x.cumsum(1)))


def pad(rows: list[torch.Tensor]) -> torch.Tensor:
    return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def token_step(model: nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, int]:
    ids, targets = rows[:, :-1].clamp(min=0), rows[:, 1:]
    logits = model(ids)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1, reduction="sum")
    return loss, int((targets != -1).sum())


def tokens(clip: float | None = None, optimizer: str = "AdamW", n: int = 21, layers: int = 2, width: int = 10, length: int = 0):
    model = Tiny(layers=layers, width=width)
    make = getattr(torch.optim, optimizer)
    return {
        "model": model,
        "data": Rows(n, length=length),
        "step": token_step,
        "collate": pad,
        "optimizer": lambda m: written(make(m.parameters(), lr=0.01), m),
        "scheduler": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 1.0 / (1 + step)),
        "clip": clip,
    }


def tied(layers: int = 4):
    """Input and output embeddings are one matrix."""
    model = Tiny(layers=layers)
    model.head.weight = model.tokens.weight
    return {**tokens(clip=0.5), "model": model, "optimizer": lambda m: written(torch.optim.AdamW(m.parameters(), lr=0.01), m)}


def choosing(layers: int = 4):
    """A layer of the first block is for one token alone, which few micro-batches have."""

    class Choosing(Block):
        def __init__(self, width: int) -> None:
            super().__init__(width)
            self.other = nn.Linear(width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            chosen = x[..., :1] > 4.0
            return super().forward(x + self.other(x) * chosen if chosen.any() else x)

    made = tokens(optimizer="SGD", layers=layers)
    for at in range(layers):
        made["model"].blocks[at] = Choosing(10)
    with torch.no_grad():
        made["model"].tokens.weight[5, 0] = 6.0
    return made


def between():
    """Something is computed between its layers."""

    class Between(Tiny):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.tokens(ids)
            for block in self.blocks:
                x = block(x) * 2
            return self.head(x)

    return {"model": Between(), "data": Rows(), "step": token_step, "collate": pad}


def skipping():
    """Its layers are given the embeddings too."""

    class Skip(Block):
        def forward(self, x: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + first

    class Skipping(Tiny):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            first = x = self.tokens(ids)
            for block in self.blocks:
                x = block(x, first)
            return self.head(x)

    model = Skipping()
    model.blocks = nn.ModuleList(Skip(10) for _ in range(2))
    return {"model": model, "data": Rows(), "step": token_step, "collate": pad}


def closed():
    """A step that holds its own batch, as `fit` takes it."""
    return lambda: None


def empty():
    return {"model": Tiny(), "data": [], "step": token_step}


def streamed():
    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    return {"model": Tiny(), "data": Stream(), "step": token_step}


def disagreeing():
    torch.manual_seed(int(os.environ.get("RANK", dist.get_rank())))
    return {"model": Tiny(), "data": Rows(), "step": token_step, "collate": pad}


def leaving():
    """One rank leaves in the middle of its first step."""

    def step(model: nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, int]:
        if dist.get_rank() == 1:
            sys.exit(7)
        return token_step(model, rows)

    return {**tokens(), "step": step}


def diverging():
    return {"model": Tiny(), "data": Rows(), "step": lambda m, b: (m(b.clamp(min=0)).sum() * float("nan"), 1), "collate": pad}


def counted():
    """Plain steps of 1 along the mean of what each sample pushes, times how many there are: a weight counts its sample."""

    class Count(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = nn.Parameter(torch.zeros(23, 1))

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.count[ids].sum()

    def step(model: nn.Module, ids: torch.Tensor) -> tuple[torch.Tensor, int]:
        return -model(ids), len(ids)

    class Whole(torch.optim.SGD):
        """The gradient is a mean over the samples of the step: multiplied by them it is their sum."""

        def step(self, closure=None):
            n = sum(float((whole(g["params"][0].grad) != 0).sum()) for g in self.param_groups)
            self.param_groups[0]["lr"] = n
            return super().step(closure)

    model = Count()
    return {"model": model, "data": list(range(23)), "step": step, "optimizer": lambda m: written(Whole(m.parameters()), m)}


def slow():
    """Ten thousand steps, each with a rest."""

    def step(model: nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, int]:
        time.sleep(0.05)
        return token_step(model, rows)

    return {"model": Tiny(), "data": Rows(80), "step": step, "collate": pad}


def plain():
    return {"model": Tiny(), "data": Rows(), "step": token_step, "collate": pad}


def _late_rank() -> bool:
    return dist.get_rank() == 1


def late_data():
    """Rank 1's samples come late."""

    class Late(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            time.sleep(0.1 if _late_rank() else 0.0)
            return super().__getitem__(index)

    return {"model": Tiny(), "data": Late(80), "step": token_step, "collate": pad}


def late_step():
    """Rank 1 computes longer."""

    def step(model: nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, int]:
        time.sleep(0.4 if _late_rank() else 0.0)
        return token_step(model, rows)

    return {"model": Tiny(), "data": Rows(80), "step": step, "collate": pad}


def hung():
    """Rank 1 stands still in the third step."""
    calls = []

    def step(model: nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, int]:
        calls.append(1)
        if _late_rank() and len(calls) == 3:
            time.sleep(10_000)
        return token_step(model, rows)

    return {"model": Tiny(), "data": Rows(80), "step": step, "collate": pad}


class Attention(nn.Module):
    """Named as in Transformers' Llama; heads are as many as the projections give."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (p(x).view(b, t, -1, self.head_dim).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(attended.transpose(1, 2).reshape(b, t, -1))


class Gated(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width, bias=False)
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.self_attn, self.mlp = Attention(width, heads), Gated(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.self_attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class LlamaLike(nn.Module):
    def __init__(self, width: int = 16, heads: int = 4, vocabulary: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(2))
        self.norm, self.lm_head = nn.RMSNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))


def llama_like(heads: int = 4, n: int = 21, length: int = 0):
    model = LlamaLike(heads=heads)
    made = tokens(clip=0.5, n=n, length=length)
    return {**made, "model": model, "optimizer": lambda m: written(torch.optim.AdamW(m.parameters(), lr=0.01), m)}


def gpt2(length: int = 0, n: int = 0):
    """Transformers' own, with its positions, dropped values and tied embeddings."""
    transformers()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_embd=16, n_layer=3, n_head=2, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    )
    return of_transformers(model, length, n)


def llama(length: int = 0, n: int = 0, key_heads: int = 2):
    """Transformers' own, with fewer key heads than heads; it needs no step."""
    transformers()
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=key_heads,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    return of_transformers(LlamaForCausalLM(config), length, n)


def mixtral(experts: int = 4, length: int = 0):
    """Transformers' own, whose experts are one tensor a layer."""
    transformers()
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        num_local_experts=experts,
        num_experts_per_tok=2,
    )
    return of_transformers(MixtralForCausalLM(config), length)


def experts_only():
    """Mixtral whose experts and head alone are trained, and whose tokens all go to the same two experts."""
    made = mixtral()
    for name, parameter in made["model"].named_parameters():
        parameter.requires_grad_(".experts." in name or name.startswith("lm_head"))
        if name.endswith("gate.weight"):
            nn.init.zeros_(parameter)
    return made


def qwen3():
    """Transformers' own, whose queries and keys are normed head by head."""
    transformers()
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        tie_word_embeddings=False,
    )
    return of_transformers(Qwen3ForCausalLM(config))


def norms_only():
    """Qwen3 of which the norms of queries and keys alone are trained, by steps that are as long as the gradient is clipped."""
    made = qwen3()
    for name, parameter in made["model"].named_parameters():
        parameter.requires_grad_("_norm.weight" in name and "self_attn" in name)
    return {**made, "clip": 1e-4, "optimizer": lambda m: written(torch.optim.SGD(m.parameters(), lr=1e3), m)}


def qwen3_moe(length: int = 0, n: int = 0, key_heads: int = 2):
    """Transformers' own, with more and smaller experts."""
    transformers()
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    config = Qwen3MoeConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        moe_intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=key_heads,
        head_dim=8,
        max_position_embeddings=64,
        num_experts=8,
        num_experts_per_tok=2,
    )
    return of_transformers(Qwen3MoeForCausalLM(config), length, n)


def t5():
    """Transformers' own: an encoder and a decoder of one class, with one embedding."""
    transformers()
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=32, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, dropout_rate=0.0, decoder_start_token_id=0
    )
    made = of_transformers(T5ForConditionalGeneration(config))

    def step(model: nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, int]:
        targets = torch.where(rows < 0, -100, rows)
        logits = model(input_ids=rows.clamp(min=0), attention_mask=(rows >= 0).long(), labels=targets).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return loss, int((targets >= 0).sum())

    return {**made, "step": step, "collate": pad}


def olmo2(length: int = 0, n: int = 0):
    """Transformers' own, whose norms of queries and keys are of all heads together."""
    transformers()
    from transformers import Olmo2Config, Olmo2ForCausalLM

    config = Olmo2Config(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    return of_transformers(Olmo2ForCausalLM(config), length, n)


def of_transformers(model: nn.Module, length: int = 0, n: int = 0):
    """It needs no step."""
    return {
        "model": model,
        "data": Rows(n or (24 if length else 21), length=length),
        "clip": 0.5,
        "optimizer": lambda m: written(torch.optim.AdamW(m.parameters(), lr=0.01), m),
    }


def teacher() -> nn.Module:
    """Of the same classes, with opinions."""
    torch.manual_seed(7)
    model = Tiny()
    with torch.no_grad():
        model.head.weight.mul_(3.0)
    return model


def other_teacher() -> nn.Module:
    """Of other classes."""
    return Tiny(vocabulary=40)


def gpt_2_heads(length: int = 0, n: int = 0):
    """Transformers' own, whose queries, keys and values lie behind each other in one matrix with its inputs as rows."""
    transformers()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=4, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    )
    return of_transformers(model, length, n)


def phi3(length: int = 0, n: int = 0):
    """Transformers' own, with fewer keys than queries in one matrix, and gate and up in another."""
    transformers()
    from transformers import Phi3Config, Phi3ForCausalLM

    config = Phi3Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=64,
        original_max_position_embeddings=64,
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    return of_transformers(Phi3ForCausalLM(config), length, n)


def opt():
    """Transformers' own, whose second half lies in the layer itself, with biases."""
    transformers()
    from transformers import OPTConfig, OPTForCausalLM

    config = OPTConfig(
        vocab_size=32,
        hidden_size=16,
        word_embed_proj_dim=16,
        ffn_dim=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        dropout=0.0,
    )
    return of_transformers(OPTForCausalLM(config))


def bloom():
    """Transformers' own, with the three of each head together, a slope a head, and a sum in place."""
    transformers()
    from transformers import BloomConfig, BloomForCausalLM

    return of_transformers(BloomForCausalLM(BloomConfig(vocab_size=32, hidden_size=16, n_layer=2, n_head=4)))


def falcon(length: int = 0, n: int = 0):
    """Transformers' own, with groups of queries that have one key, and attention and MLP beside each other."""
    transformers()
    from transformers import FalconConfig, FalconForCausalLM

    config = FalconConfig(
        vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=8, num_kv_heads=4, new_decoder_architecture=True
    )
    return of_transformers(FalconForCausalLM(config), length, n)


def by_gradient(made: dict[str, object]) -> dict[str, object]:
    """Its steps are as long as its gradients: where these are nothing but rounding (of a bias of keys), Adam's are whole."""
    return {**made, "optimizer": lambda m: written(torch.optim.SGD(m.parameters(), lr=0.1), m)}


def persimmon():
    """Transformers' own, with the three of each head together beside a norm of its queries and keys, and biases."""
    transformers()
    from transformers import PersimmonConfig, PersimmonForCausalLM

    config = PersimmonConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        hidden_dropout=0.0,
        attention_dropout=0.0,
    )
    return by_gradient(of_transformers(PersimmonForCausalLM(config)))


def nanochat():
    """Transformers' own, with norms that have no weights and two matrices in the second half."""
    transformers()
    from transformers import NanoChatConfig, NanoChatForCausalLM

    config = NanoChatConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        pad_token_id=0,
    )
    return by_gradient(of_transformers(NanoChatForCausalLM(config)))


def gpt_oss():
    """Transformers' own, whose experts have biases and are called with names of their own."""
    transformers()
    from transformers import GptOssConfig, GptOssForCausalLM

    config = GptOssConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=64,
        pad_token_id=0,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
    )
    return of_transformers(GptOssForCausalLM(config))


def bert(images: bool = False):
    """Transformers' own, with a loss of masked tokens; or ViT, with one of images."""
    transformers()
    from transformers import BertConfig, BertForMaskedLM, ViTConfig, ViTForImageClassification

    more = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    if images:
        model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **more))
        pixels = torch.randn(21, 3, 8, 8, generator=torch.Generator().manual_seed(1))
        rows = [(p, i % 2) for i, p in enumerate(pixels)]

        def of_images(model: nn.Module, batch: list[torch.Tensor]) -> tuple[torch.Tensor, int]:
            return functional.cross_entropy(model(pixel_values=batch[0]).logits, batch[1], reduction="sum"), len(batch[1])

        return {**of_transformers(model), "data": rows, "step": of_images}

    def step(model: nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, int]:
        masked = (rows >= 0) & (torch.arange(rows.shape[1]) % 2 == 0)
        logits = model(input_ids=rows.clamp(min=0).masked_fill(masked, 1), attention_mask=(rows >= 0).long()).logits
        loss = functional.cross_entropy(logits.flatten(0, 1), rows.masked_fill(~masked, -100).flatten(), reduction="sum")
        return loss, int(masked.sum())

    return {**of_transformers(BertForMaskedLM(BertConfig(vocab_size=32, **more))), "step": step, "collate": pad}


def turned():
    """Named as in Llama, with heads that see each other before they are put together."""

    class Mixed(Attention):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            queries = self.q_proj(x)
            return self.o_proj(queries.softmax(-1) * self.k_proj(x) * self.v_proj(x))

    made = llama_like()
    for layer in made["model"].layers:
        layer.self_attn = Mixed(16, 4)
    return made


def dropping(dropout: float = 0.0):
    """Writes down which numbers each rank dropped in the first block."""

    class Dropping(nn.Dropout):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            dropped = super().forward(x)
            drawn.append((dropped == 0).detach().sum(dim=(0, 1)))
            torch.save(drawn, Path(os.environ["GRADIENTS"]) / f"drawn-{dist.get_rank()}.pt")
            return dropped

    drawn: list[torch.Tensor] = []
    made = tokens()
    made["model"].blocks[0].up = nn.Sequential(made["model"].blocks[0].up, Dropping(dropout))
    return made


def resting(where: str = "data"):
    """Rests at one place once, and says so by a file."""
    marker = Path(os.environ["GRADIENTS"]) / f"resting-{where}"

    def rest() -> None:
        if dist.get_rank() == 1 and not marker.exists():
            marker.touch()
            time.sleep(1.0)

    class Data(Rows):
        def __getitem__(self, index: int) -> torch.Tensor:
            if where == "data":
                rest()
            return super().__getitem__(index)

    def step(model: nn.Module, rows: torch.Tensor) -> tuple[torch.Tensor, int]:
        if where == "first step":
            rest()
        return token_step(model, rows)

    if where == "save":
        from gpuwise.train.ranks import saving

        write = saving.entry

        def slowly(path: Path):
            rest()
            return write(path)

        saving.entry = slowly
    return {"model": Tiny(), "data": Data(80), "step": step, "collate": pad}
