"""Sentences of unlike length through BERT, as accelerate's ``nlp_example.py`` has them; by Accelerate or by Trainer."""

from __future__ import annotations

import sys

import torch
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification

by, width, longest, n_rows = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.manual_seed(42)
config = BertConfig(
    vocab_size=99,
    hidden_size=width,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=4 * width,
    max_position_embeddings=longest,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
# like the lengths of MRPC: most short, few long
lengths = (torch.rand(n_rows, generator=torch.Generator().manual_seed(1)) ** 3 * (longest - 8)).long() + 8
rows = [{"input_ids": torch.randint(1, 99, (int(n),)), "labels": int(n) % 2} for n in lengths]


def collate(items: list[dict]) -> dict[str, torch.Tensor]:
    ids = torch.nn.utils.rnn.pad_sequence([item["input_ids"] for item in items], batch_first=True)
    labels = torch.tensor([item["labels"] for item in items])
    return {
        "input_ids": ids,
        "token_type_ids": torch.zeros_like(ids),
        "attention_mask": (ids != 0).long(),
        "labels": labels,
    }


model = BertForSequenceClassification(config)
if by == "accelerate":
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(rows, shuffle=True, collate_fn=collate, batch_size=16, drop_last=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    model.train()
    for batch in loader:
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
else:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        sys.argv[5],
        num_train_epochs=1,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collate).train()
