"""Nothing wrong: full rows, PyTorch's own attention, one optimizer call."""

import torch
from torch import nn

embedding = nn.Embedding(256, 128)
body = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(128, 4, 512, 0.0, batch_first=True, norm_first=True), 2, enable_nested_tensor=False
)
head = nn.Linear(128, 256)
model = nn.Sequential(embedding, body, head)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
for _ in range(60):
    ids = torch.randint(0, 256, (16, 64))
    nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
