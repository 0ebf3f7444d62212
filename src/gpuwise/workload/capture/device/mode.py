"""What every dispatch mode of this project is: plain Python, that torch's compiler leaves alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_PLAIN = getattr(Tensor, "__torch_dispatch__")  # noqa: B009 - the attribute's declared type cannot be bound


class PlainMode(TorchDispatchMode):
    """A mode whose calls torch does not wrap for its compiler (nor import it for that)."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        return True


def dispatches_itself(types: Any) -> bool:
    """Whether one of the tensors' types answers for itself first, as a sharded tensor whose parts come one by one."""
    return any(t is not Tensor and t.__torch_dispatch__ is not _PLAIN for t in types)
