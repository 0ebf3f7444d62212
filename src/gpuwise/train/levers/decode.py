"""Cache of decoded images: results of ``PIL.Image.open`` are cached by the file's identity; augmentation after it draws its
random numbers as before.

Only decoding, ``convert`` and ``resize`` are cached: they depend only on the file and their arguments. Cached images are
returned as copies. The first hits are decoded again and compared bit by bit; a difference ends the run.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from gpuwise.errors import GpuwiseError
from gpuwise.units import GIB
from gpuwise.workload.capture.device.patching import Patches

Tell = Callable[..., None]
CHECKED_HITS = 16
"""Hits that are compared with a decoding of their own."""
DEFAULT_BYTES = 2 * GIB
LARGEST_SHARE = 0.25
"""Maximum share of the free memory."""
KEPT_STEPS = ("convert", "resize")
IN_PLACE = (
    "paste",
    "putpixel",
    "putdata",
    "putalpha",
    "putpalette",
    "thumbnail",
    "alpha_composite",
    "draft",
    "seek",
    "frombytes",
)
"""Methods that change an image in place: it no longer equals its file."""


class ByteCache:
    """Values by key up to a number of bytes; once full, what is there stays (a loop over a data set that does not fit would
    push out everything before it came again)."""

    def __init__(self, most_bytes: int) -> None:
        self._values: OrderedDict[Any, Any] = OrderedDict()
        self._most, self.n_bytes = most_bytes, 0
        self.hits = self.misses = 0

    def get(self, key: Any) -> Any:
        """The value of ``key``, None if not cached; counts hits and misses."""
        entry = self._values.get(key)
        if entry is None:
            self.misses += 1
        else:
            self.hits += 1
        return entry

    def put(self, key: Any, value: Any, n_bytes: int) -> bool:
        """Whether there was room."""
        if key in self._values or self.n_bytes + n_bytes > self._most:
            return False
        self._values[key] = value
        self.n_bytes += n_bytes
        return True


def memory_bound(most_bytes: int | None) -> int:
    """``most_bytes``, or what is free allows."""
    import psutil

    free = psutil.virtual_memory().available
    return int(min(most_bytes or DEFAULT_BYTES, LARGEST_SHARE * free))


def file_key(file: Any) -> Any:
    """Identity of an image file: path, size and time, or the bytes of an open one. None if neither is available."""
    if isinstance(file, (str, os.PathLike)):
        path = Path(cast("str | os.PathLike[str]", file))
        try:
            facts = path.stat()
        except OSError:
            return None
        return str(path.absolute()), facts.st_size, facts.st_mtime_ns
    view = getattr(file, "getbuffer", None)
    if view is None or file.tell() != 0:
        return None
    with view() as data:
        return hashlib.blake2b(data, digest_size=16).digest(), data.nbytes


class DecodedImages:
    """Patches PIL, where it is there."""

    def __init__(self, patches: Patches, value: object, tell: Tell) -> None:
        self._tell = tell
        self._store = ByteCache(memory_bound(None if value is True else int(str(value))))
        self._checked = self._checked_steps = 0
        self._told = False
        self._pid = os.getpid()
        try:
            import PIL.Image
        except ImportError:
            tell("lever", name="cache_decode", applied=False, why="PIL is not here")
            return
        self._image = PIL.Image
        opening: Any = PIL.Image.open

        def opened(fp: Any, mode: str = "r", formats: Any = None) -> Any:
            key = file_key(fp) if formats is None else None
            if key is None:
                return opening(fp, mode, formats)
            return self._take(key, lambda: opening(fp, mode, formats))

        patches.set(PIL.Image, "open", opened)
        for name in KEPT_STEPS:
            patches.set(PIL.Image.Image, name, self._step(name, getattr(PIL.Image.Image, name)))
        for name in IN_PLACE:
            patches.set(PIL.Image.Image, name, forgetting(getattr(PIL.Image.Image, name)))
        import PIL.ImageDraw

        patches.set(PIL.ImageDraw.ImageDraw, "__init__", forgetting(PIL.ImageDraw.ImageDraw.__init__, at=1))

    def _take(self, key: Any, make: Callable[[], Any]) -> Any:
        stored = self._store.get(key)
        if stored is not None:
            if self._checked < CHECKED_HITS:
                self._checked += 1
                self._check(stored, make())
            return self._copy(stored, key)
        image = make()
        if getattr(image, "n_frames", 1) != 1:
            return image
        image.load()
        stored = image.copy()
        stored.format = image.format
        stored.filename = getattr(image, "filename", "")
        if self._store.put(key, stored, size_bytes(stored)):
            self._say()
            image._gpuwise_key = key
        return image

    def _copy(self, stored: Any, key: Any) -> Any:
        image = stored.copy()
        image.format, image.filename = stored.format, stored.filename
        image._gpuwise_key = key
        return image

    def _step(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def step(image: Any, *args: Any, **kwargs: Any) -> Any:
            source = getattr(image, "_gpuwise_key", None)
            if source is None:
                return original(image, *args, **kwargs)
            try:
                key = (source, name, args, tuple(sorted(kwargs.items())))
                hash(key)
            except TypeError:
                return original(image, *args, **kwargs)
            return self._take_step(key, lambda: original(image, *args, **kwargs))

        return step

    def _take_step(self, key: Any, make: Callable[[], Any]) -> Any:
        stored = self._store.get(key)
        if stored is not None:
            if self._checked_steps < CHECKED_HITS:
                self._checked_steps += 1
                self._check(stored, make())
            image = stored.copy()
        else:
            image = make()
            stored = image.copy()
            if not self._store.put(key, stored, size_bytes(stored)):
                return image
        image._gpuwise_key = key
        return image

    def _check(self, stored: Any, fresh: Any) -> None:
        fresh.load()
        if stored.mode != fresh.mode or stored.size != fresh.size or stored.tobytes() != fresh.tobytes():
            raise GpuwiseError("an image was different when it was decoded again", hint="leave cache_decode out")

    def _say(self) -> None:
        if not self._told and os.getpid() == self._pid:
            self._told = True
            self._tell("lever", name="cache_decode", applied=True)


def forgetting(original: Callable[..., Any], at: int = 0) -> Callable[..., Any]:
    """The method, after which (and through which) the image at that argument has no key."""

    def changing(*args: Any, **kwargs: Any) -> Any:
        image = args[at] if len(args) > at else kwargs.get("im")
        if image is not None and hasattr(image, "_gpuwise_key"):
            image._gpuwise_key = None
        return original(*args, **kwargs)

    return changing


def size_bytes(image: Any) -> int:
    """Bytes of the decoded pixels."""
    per_pixel = {"1": 1, "L": 1, "P": 1, "I;16": 2, "LA": 2, "RGB": 4, "RGBA": 4, "CMYK": 4, "YCbCr": 4, "I": 4, "F": 4}
    return image.size[0] * image.size[1] * per_pixel.get(image.mode, 4)
