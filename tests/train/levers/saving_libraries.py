"""Trains a little by Lightning, or a model of transformers, and saves as that library does."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from saving_nets import Block
from torch import nn
from torch.utils.data import DataLoader

by, folder = sys.argv[1], Path(sys.argv[2])
folder.mkdir(parents=True, exist_ok=True)
torch.manual_seed(0)
if by == "lightning":
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.Flatten(), Block(16 * 16), Block(16 * 16), nn.Linear(16 * 16, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
            return self(batch).square().mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=4,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(), DataLoader(torch.randn(32, 3, 6, 6), batch_size=4))
    trainer.save_checkpoint(folder / "all.ckpt")
else:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=40, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64)
    model = BertForMaskedLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for ids in DataLoader(torch.randint(1, 40, (32, 16)), batch_size=8):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
