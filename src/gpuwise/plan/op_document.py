"""One operation as values for ``--json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from gpuwise.plan.one_op import Answer, OperationTime
from gpuwise.predict.estimate import to_document

if TYPE_CHECKING:
    from gpuwise.plan.one_model import ModelAnswer, ModelRow


def document(answer: Answer | ModelAnswer) -> dict[str, object]:
    """The answer as plain values in SI units, every estimate as ``{low, expected, high, basis}``."""
    if isinstance(answer, Answer):
        w = answer.work
        head = {"kind": w.kind, "dtype": w.dtype, "flop": w.flop, "bytes": w.bytes, "flop_per_byte": w.intensity}
    else:
        head = {
            "kind": answer.kind,
            "model": answer.model.id,
            "text": answer.text,
            "flop": answer.flop,
            "weight_bytes": answer.weight_bytes,
            "cache_bytes": answer.cache_bytes,
        }
    against = None if answer.against is None else _row(answer.against)
    return {"operation": head, "rows": [_row(r) for r in answer.rows], "against": against}


def _row(r: OperationTime | ModelRow) -> dict[str, object]:
    more = {"share_of_peak": r.share_of_peak} if isinstance(r, OperationTime) else {"fits": r.time_s is not None}
    return cast("dict[str, object]", to_document(r)) | more
