"""Fine-tune a BERT-large classifier with the Trainer of transformers: bf16, accumulation of two, warm-up."""

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments


class Sentences(Dataset):
    def __init__(self, n: int, words: int = 256) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(1000, 30000, (n, words), generator=generator)
        self.labels = torch.randint(4, (n,), generator=generator)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int):
        return {"input_ids": self.ids[i], "attention_mask": torch.ones_like(self.ids[i]), "labels": self.labels[i]}


def main() -> None:
    config = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096, num_labels=4)
    model = BertForSequenceClassification(config)
    arguments = TrainingArguments(
        output_dir="/tmp/classify",
        per_device_train_batch_size=16,
        gradient_accumulation_steps=2,
        max_steps=24,
        learning_rate=2e-5,
        warmup_steps=4,
        weight_decay=0.01,
        bf16=True,
        logging_steps=8,
        save_strategy="no",
        report_to=[],
        dataloader_num_workers=2,
    )
    Trainer(model=model, args=arguments, train_dataset=Sentences(2000)).train()


if __name__ == "__main__":
    main()
