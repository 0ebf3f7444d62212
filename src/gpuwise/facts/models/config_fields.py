"""The fields of one model configuration file, read strictly: a value of the wrong type is refused, never converted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from gpuwise.errors import FieldError, nearest_names
from gpuwise.facts.models.architecture import Mla


@dataclass(frozen=True, slots=True)
class Config:
    """Typed, strict access to one config: a value of the wrong type is refused, never converted."""

    values: Mapping[str, object]
    file: str

    def error(self, message: str, *, field: str, hint: str) -> FieldError:
        """A FieldError that points at ``field`` of this file."""
        return FieldError(message, file=self.file, field=field, hint=hint)

    def has(self, *keys: str) -> bool:
        """Whether one of ``keys`` is there and not null."""
        return any(self.values.get(key) is not None for key in keys)

    def maybe(self, *keys: str, zero: bool = False) -> int | None:
        """The first of ``keys`` that is there and not null, as a whole number above zero (``zero``: or
        zero)."""
        for key in keys:
            value = self.values.get(key)
            if value is None:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, bool) or not isinstance(value, int):
                raise self.error(f"{key} is {str(value)[:40]!r}, not a whole number", field=key, hint="check the file")
            if value < (0 if zero else 1):
                raise self.error(f"{key} is {str(value)[:40]}", field=key, hint="it must be above zero")
            return value
        return None

    def count(self, *keys: str, default: int | None = None, zero: bool = False) -> int:
        """Like :meth:`maybe`, required unless there is a ``default``."""
        value = self.maybe(*keys, zero=zero)
        if value is None:
            value = default
        if value is None:
            near = nearest_names(keys[0], [k for k in self.values if k not in keys], n=1)
            hint = f"does {near[0]!r} mean {keys[0]!r}?" if near else f"give {keys[0]}"
            null = keys[0] in self.values
            raise self.error(f"{keys[0]} is {'null' if null else 'missing'}", field=keys[0], hint=hint)
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A true or false; null and absent mean ``default``."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(f"{key} is {str(value)[:40]!r}, not true or false", field=key, hint="check the file")
        return value

    def share(self, key: str, default: float) -> float:
        """A number from 0 to 1; null and absent mean ``default``. Raises FieldError for anything else."""
        value = self.values.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            raise self.error(f"{key} is {str(value)[:40]!r}, not a number from 0 to 1", field=key, hint="check the file")
        return float(value)

    def word(self, key: str, default: str) -> str:
        """The text under ``key``; ``default`` where it is absent or null. Raises FieldError for anything else."""
        value = self.values.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.error(f"{key} is {str(value)[:40]!r}, not text", field=key, hint="check the file")
        return value

    def words(self, key: str) -> tuple[str, ...]:
        """A list of texts; empty when absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(v, str) for v in cast("list[object]", value)):
            raise self.error(f"{key} is not a list of texts", field=key, hint="check the file")
        return tuple(cast("list[str]", value))

    def part(self, key: str) -> Config:
        """A nested table; empty when absent."""
        value = self.values.get(key)
        if value is None:
            return Config({}, self.file)
        if not isinstance(value, dict):
            raise self.error(f"{key} is not a table", field=key, hint="check the file")
        return Config(cast("dict[str, object]", value), self.file)


def leading_dense(c: Config) -> int:
    """Dense layers before the first with experts, by ``mlp_layer_types``; 0 where there is no such list."""
    kinds = c.words("mlp_layer_types")
    return next((i for i, kind in enumerate(kinds) if kind != "dense"), 0)


def latent(c: Config) -> Mla:
    """Latent attention, by DeepSeek's keys."""
    return Mla(
        c.maybe("q_lora_rank"),
        c.count("kv_lora_rank"),
        c.count("qk_nope_head_dim"),
        c.count("qk_rope_head_dim"),
        c.count("v_head_dim"),
    )
