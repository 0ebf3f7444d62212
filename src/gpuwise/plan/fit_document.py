"""Fits as plain documents for ``--json``."""

from __future__ import annotations

from gpuwise.plan.changes.remedies import Bigger, Fit, Remedy
from gpuwise.plan.document import cluster_document, estimate_document


def fit_document(fit: Fit) -> dict[str, object]:
    """The whole answer; bytes and seconds."""
    return {
        "model": {"id": fit.goal.arch.id, "name": fit.goal.arch.name},
        "cluster": cluster_document(fit.goal.cluster),
        "seq_len": fit.goal.seq_len,
        "global_batch": fit.goal.global_batch,
        "assumed": list(fit.goal.assumed),
        "fits": fit.fits,
        "device_bytes": fit.estimate.device_bytes,
        "headroom_bytes": fit.estimate.device_bytes - fit.estimate.memory_bytes.expected,
        **{k: v for k, v in estimate_document(fit.estimate).items() if k != "fits"},
        "largest_micro_batch": fit.micro_batch,
        "longest_seq_len": fit.seq_len,
        "remedies": [_remedy(r) for r in fit.remedies],
        "combinations": [_remedy(r) for r in fit.combinations],
        "bigger": [_bigger(b) for b in fit.bigger],
        "more": [_bigger(b) for b in fit.more],
    }


def _remedy(r: Remedy) -> dict[str, object]:
    return {
        "name": r.name,
        "kind": r.kind,
        "saved_bytes": r.saved_bytes,
        "slower": r.slower,
        **estimate_document(r.estimate),
    }


def _bigger(b: Bigger) -> dict[str, object]:
    return {
        "cluster": cluster_document(b.cluster),
        "usd_per_gpu_hour": b.usd_per_hour,
        **estimate_document(b.estimate),
    }
