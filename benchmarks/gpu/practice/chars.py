"""Train a character-level GPT: AdamW with decay for matrices only, clipped gradients, a validation every 40 steps."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

BLOCK, BATCH, STEPS, WIDTH, LAYERS, HEADS, VOCABULARY = 512, 48, 80, 512, 8, 8, 96
torch.set_float32_matmul_precision("high")


class Text(Dataset):
    def __init__(self, n: int, seed: int) -> None:
        self.data = torch.randint(VOCABULARY, (n,), generator=torch.Generator().manual_seed(seed))

    def __len__(self) -> int:
        return len(self.data) - BLOCK - 1

    def __getitem__(self, i: int):
        return self.data[i : i + BLOCK], self.data[i + 1 : i + BLOCK + 1]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(BLOCK, BLOCK)).view(1, 1, BLOCK, BLOCK))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, HEADS, c // HEADS).transpose(1, 2) for y in self.qkv(x).split(c, 2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
        scores = scores.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf"))
        y = self.drop(F.softmax(scores, -1)) @ v
        return self.drop(self.out(y.transpose(1, 2).contiguous().view(b, t, c)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln1, self.ln2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.zeros(1, BLOCK, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, targets):
        logits = self.head(self.norm(self.blocks(self.tokens(ids) + self.places[:, : ids.size(1)])))
        return F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))


@torch.no_grad()
def validate(model: GPT, loader: DataLoader, device: str) -> float:
    model.eval()
    losses = []
    for n, (x, y) in enumerate(loader):
        if n == 4:
            break
        losses.append(model(x.to(device), y.to(device)).item())
    model.train()
    return sum(losses) / len(losses)


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train = DataLoader(Text(1_000_000, 0), BATCH, shuffle=True, num_workers=4, pin_memory=True)
    held_out = DataLoader(Text(100_000, 1), BATCH)
    model = GPT().to(device)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95))
    for step, (x, y) in enumerate(train):
        if step == STEPS:
            break
        loss = model(x.to(device), y.to(device))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 40 == 39:
            print(f"step {step}: loss {loss.item():.3f}, held out {validate(model, held_out, device):.3f}")


if __name__ == "__main__":
    main()
