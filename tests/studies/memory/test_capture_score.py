"""Measured jobs: what is read, how it is split, what is scored. No torch: captures are stand-ins."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gpuwise.workload.capture.captured import Capture
from studies.memory import capture_jobs as captured_memory_jobs
from studies.memory import capture_score as captured_memory
from studies.memory.capture_rows import GPUMEMNET, MemoryJob, family_of, read_jobs
from studies.memory.capture_rows import XMEM as XMEM_SETUP

pytest.importorskip("pyarrow")

XMEM = (
    "source,model,batch,seq_or_image,optimizer,measured_peak_GB,real_oom,dnnmem_pred_GB,llmem_pred_GB,schedtune_pred_GB,"
    "xmem_pred_GB\n"
    "x,ConvNeXtTiny,200,86x86,SGD,3.3198,0,2.4725,,3.0967,3.5232\n"
    "x,EleutherAI/gpt-neo-125M,55,128,SGD,12.0985,1,12.6983,20.7083,3.855,11.4484\n"
)
BOUNDS = (
    "model,mode,batch_that_fits,next_larger_batch_that_failed,image_size,gpu,gpu_total_MiB,torch,cuda,layout,dynamo,precision\n"
    "resnet50,train,256,384,224,rtx3090,24576,pt112,cu113,nhwc,False,amp\n"
    "resnet50,infer,1024,,224,rtx3090,24576,pt113,cu117,nchw,False,amp\n"
    "vit_base_patch16_224,infer,512,768,224,pro6000maxq,97887,pt291,cu130,nchw,True,bf16\n"
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "xmem_rtx3060.csv").write_text(XMEM)
    (tmp_path / "memory" / "timm_fit_bounds.csv").write_text(BOUNDS)
    return tmp_path


def jobs_of(folder: Path) -> list[MemoryJob]:
    jobs = read_jobs(folder)
    assert jobs is not None
    return jobs


def test_rows_become_jobs(folder: Path) -> None:
    jobs = jobs_of(folder)
    tiny, neo, fits, fails, *compiled = jobs
    assert (tiny.library, tiny.model, tiny.image_size, tiny.optimizer) == ("torchvision", "convnext_tiny", 86, "sgd-plain")
    assert tiny.peers["xMem"] == pytest.approx(3.5232e9) and "LLMem" not in tiny.peers
    assert neo.fits is False and np.isnan(neo.measured_bytes) and neo.tokens == 128
    assert (fits.batch, fits.fits, fails.batch, fails.fits) == (256, True, 384, False)
    assert fits.channels_last and fits.setup.torch == "1.12.0" and fits.setup.eager_modules and not fits.setup.foreach
    assert all("compiled" in job.skip for job in compiled) and len(compiled) == 2


def test_no_tables_no_scores(tmp_path: Path) -> None:
    assert read_jobs(tmp_path) is None
    assert captured_memory.score(tmp_path, False) is None


@pytest.mark.parametrize(
    ("model", "family"),
    [
        ("tf_efficientnetv2_b0", "efficientnetv"),
        ("vit_base_patch16_224", "vit"),
        ("EleutherAI/gpt-neo-125M", "gpt"),
        ("legacy_seresnet101", "seresnet"),
        ("resnet50.a1_in1k", "resnet"),
    ],
)
def test_families(model: str, family: str) -> None:
    assert family_of(model) == family


def test_a_family_is_in_one_split(folder: Path) -> None:
    by_family: dict[str, set[str]] = {}
    for job in jobs_of(folder):
        by_family.setdefault(job.family, set()).add(job.split)
    assert all(len(splits) == 1 for splits in by_family.values())


def test_verdicts_and_bytes_are_scored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_memory_jobs, "missing_packages", lambda job: ())
    monkeypatch.setattr(captured_memory, "answer", lambda capture, job: 3.0e9 if job.fits is None else 1.0)
    scores = captured_memory.score(folder, True, capturer=lambda job: None)  # type: ignore[arg-type, return-value]
    assert scores is not None
    by_reason = [r for r in scores.reason if r]
    assert len(by_reason) == 2 and all("compiled" in r for r in by_reason)
    assert scores.predicted[0] == 3.0e9 and scores.baseline[0] == pytest.approx(3.5232e9)
    assert scores.measured[1:4].tolist() == [2.0, 1.0, 2.0]


def test_a_model_that_fails_is_counted_with_its_reason(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: MemoryJob) -> Capture:
        raise ZeroDivisionError

    monkeypatch.setattr(captured_memory_jobs, "missing_packages", lambda job: ())
    scores = captured_memory.score(folder, True, capturer=broken)
    assert scores is not None and "capture failed: ZeroDivisionError" in scores.reason
    assert not np.isfinite(scores.predicted).any()


def test_without_the_packages_the_rows_say_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(captured_memory_jobs, "missing_packages", lambda job: ("torch", "timm"))
    scores = captured_memory.score(folder, True)
    assert scores is not None and "needs torch and timm" in scores.reason


def test_a_usual_run_samples_check_rows_and_keeps_pairs(folder: Path) -> None:
    text = BOUNDS.replace("resnet50,train", "vit_small_patch16_224,train")
    (folder / "memory" / "timm_fit_bounds.csv").write_text(text)
    jobs = jobs_of(folder)
    chosen = captured_memory.sample(jobs)
    assert {(jobs[i].model, jobs[i].batch) for i in chosen} == {
        ("convnext_tiny", 200),
        ("vit_small_patch16_224", 256),
        ("vit_small_patch16_224", 384),
    }
    assert all(jobs[i].split == "check" and not jobs[i].skip for i in chosen)


def test_the_sample_is_of_check_families_and_small() -> None:
    models = [m for source, rows in captured_memory.SAMPLE.items() if source != "gpumemnet mlp" for m, _ in rows]
    assert all(MemoryJob("s", m, "timm", "A100", 1, True, GPUMEMNET).split == "check" for m in models)
    assert 10 <= len(models) + captured_memory.PERCEPTRONS <= 16


GPUMEMNET_HEAD = "model,batch,measured_peak_GB,measured_MiB,their_fake_total_MB,oom_suspect\n"


@pytest.mark.parametrize(
    ("rows", "left_out"),
    [
        ("a,8,0,6929,647,0\na,16,0,3581,1229,1\n", {8: "less memory at a larger batch", 16: "out-of-memory"}),
        ("a,8,0,2800,647,0\na,16,0,3581,1229,0\n", {}),
        # the larger one never ran: it read less than its own tensors
        ("a,8,0,2705,857,0\na,16,0,1993,6291,0\n", {}),
        # the larger one may have run out of memory
        ("a,8,0,35655,17031,0\na,16,0,33000,30000,0\n", {}),
        ("a,8,0,21949,75097,0\n", {8: "out-of-memory"}),
    ],
)
def test_readings_that_cannot_be_the_jobs_own_are_left_out(tmp_path: Path, rows: str, left_out: dict[int, str]) -> None:
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "gpumemnet_timm_train.csv").write_text(GPUMEMNET_HEAD + rows)
    jobs = jobs_of(tmp_path)
    assert {j.batch for j in jobs if j.skip} == set(left_out)
    assert all(left_out[j.batch] in j.skip for j in jobs if j.skip)


@pytest.mark.parametrize(("model", "attention"), [("t5-small", "eager"), ("gpt-neo-125m", "eager"), ("gpt2", "sdpa")])
def test_text_jobs_attend_as_their_library_did(monkeypatch: pytest.MonkeyPatch, model: str, attention: str) -> None:
    pytest.importorskip("torch")
    from studies.networks import support as zoo_support

    asked: list[str] = []
    monkeypatch.setattr(zoo_support, "text_network", lambda *_, attention, labels: asked.append(attention))
    captured_memory_jobs._builder(MemoryJob("xmem", model, "transformers", "RTX 3060 12GB", 2, True, XMEM_SETUP, tokens=128))()
    assert asked == [attention]


def test_perceptrons_have_layers_that_do_nothing() -> None:
    pytest.importorskip("torch")
    from studies.networks import loops as zoo_loops

    kinds = [type(zoo_loops._activation(kind)).__name__ for kind in ("identity", "relu")]
    assert kinds == ["Identity", "ReLU"]


def test_a_long_run_says_how_far_it_is(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(captured_memory_jobs, "missing_packages", lambda job: ())
    monkeypatch.setattr(captured_memory, "answer", lambda capture, job: 1.0)
    captured_memory.score(folder, True, capturer=lambda job: None)  # type: ignore[arg-type, return-value]
    shown = capsys.readouterr()
    assert shown.out == "" and "convnext_tiny, batch 200" in shown.err
    captured_memory.score(folder, False, capturer=lambda job: None)  # type: ignore[arg-type, return-value]
    assert capsys.readouterr().err == ""
