"""Fine-tune adapters of a 1.5B decoder: bf16 weights, checkpoints, four micro-batches a step, padded batches."""

import random

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader, Dataset
from transformers import Qwen2Config, Qwen2ForCausalLM, get_cosine_schedule_with_warmup

ACCUMULATION, BATCH, STEPS, LONGEST = 4, 4, 16, 1024


class Chats(Dataset):
    def __init__(self, n: int) -> None:
        draw = random.Random(0)
        self.lengths = [draw.randint(256, LONGEST) for _ in range(n)]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, i: int):
        return torch.randint(10, 150_000, (self.lengths[i],))


def collate(chats):
    ids = torch.nn.utils.rnn.pad_sequence(chats, batch_first=True, padding_value=0)
    mask = (ids != 0).long()
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = Qwen2Config(
        hidden_size=1536,
        intermediate_size=8960,
        num_hidden_layers=28,
        num_attention_heads=12,
        num_key_value_heads=2,
        vocab_size=151936,
        tie_word_embeddings=True,
        use_cache=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(device):
        model = Qwen2ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    targets = ["q_proj", "k_proj", "v_proj", "o_proj"]
    model = get_peft_model(
        model, LoraConfig(r=32, lora_alpha=64, lora_dropout=0.05, target_modules=targets, task_type="CAUSAL_LM")
    )
    model.print_trainable_parameters()
    loader = DataLoader(Chats(ACCUMULATION * BATCH * STEPS), BATCH, shuffle=True, collate_fn=collate)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-4)
    schedule = get_cosine_schedule_with_warmup(optimizer, 2, STEPS)
    model.train()
    for n, batch in enumerate(loader):
        loss = model(**{k: v.to(device) for k, v in batch.items()}).loss / ACCUMULATION
        loss.backward()
        if (n + 1) % ACCUMULATION == 0:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            print(f"step {n // ACCUMULATION}: loss {loss.item() * ACCUMULATION:.3f}")


if __name__ == "__main__":
    main()
