"""A transformers configuration from a file on this disk; nothing is fetched."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from gpuwise.errors import InputError
from gpuwise.files import read_json
from gpuwise.workload.capture.packages import transformers


def read_configuration(path: Path) -> Any:
    """The configuration object of a ``config.json`` (or of the folder that holds one).

    Raises InputError for a file that is not there or not one transformers knows, MissingExtraError without transformers.
    """
    file = path / "config.json" if path.is_dir() else path
    found = read_json(file, hint="write it like hf:path/to/config.json; nothing is downloaded", finite=False)
    content = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    if not isinstance(content.get("model_type"), str):
        raise InputError(f"{file} names no model_type", hint="it must be a model's config.json of transformers")
    config_classes = transformers().CONFIG_MAPPING
    kind = content.pop("model_type")
    if kind not in config_classes:
        raise InputError(
            f"this transformers has no model_type {kind!r}", hint="pip install --upgrade transformers, or name your own code"
        )
    try:
        return config_classes[kind].from_dict(content)
    except Exception as error:  # noqa: BLE001 - its checks of the fields raise errors without a common class
        why = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        raise InputError(f"transformers refuses {file}: {why[0].strip()[:200]}", hint="correct that field of the file") from None
