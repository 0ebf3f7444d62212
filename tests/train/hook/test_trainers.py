"""Training loops of other libraries: their steps are found through torch, not through them."""

from importlib.util import find_spec

import pytest

from gpuwise.train.hook.launch import Limits
from gpuwise.train.hook.settings import Stop

LIGHTNING = """
import warnings
warnings.filterwarnings("ignore")
import torch
import lightning
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(8, 4)

    def training_step(self, batch, _):
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), 1e-3)

data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
trainer = lightning.Trainer(
    max_epochs=9, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, accumulate_grad_batches=2,
)
trainer.fit(Module(), DataLoader(data, 4))
print("done")
"""

HUGGING_FACE = """
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, i):
        ids = torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(i))
        return {"input_ids": ids, "labels": ids}

model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
arguments = TrainingArguments(
    output_dir=sys.argv[1], per_device_train_batch_size=4, gradient_accumulation_steps=2, num_train_epochs=1, report_to=[],
    save_strategy="no", disable_tqdm=True, use_cpu=True,
)
Trainer(model=model, args=arguments, train_dataset=Texts()).train()
print("done")
"""
PATIENCE = Limits(wall_s=500)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("lightning") is None, reason="needs lightning")
def test_lightning_ended_early(run, tmp_path):
    outcome = run(LIGHTNING, limits=PATIENCE, stop=Stop(steps=5))
    assert outcome.ended == "enough", (tmp_path / "output").read_text()
    assert "done" not in (tmp_path / "output").read_text()
    assert {(s.n_backward, s.samples) for s in outcome.journal.steps} == {(2, 8)}
    assert any(m["name"] in ("Linear", "Module") for m in outcome.journal.of("model"))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("accelerate") is None, reason="needs accelerate")
def test_the_trainer_of_transformers(run, tmp_path):
    outcome = run(HUGGING_FACE, str(tmp_path / "out"), limits=PATIENCE)
    assert outcome.ended == "end", (tmp_path / "output").read_text()
    assert len(outcome.journal.ticks) == 8
    steps = outcome.journal.steps
    assert {s.n_backward for s in steps} == {2}
    # it takes a batch ahead
    assert {(s.samples, s.tokens) for s in steps[1:-1]} == {(8, 128)}, [(s.samples, s.tokens) for s in steps]
    assert any(m["name"] == "GPT2LMHeadModel" for m in outcome.journal.of("model"))
