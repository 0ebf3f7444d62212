"""The generators of random numbers that a training draws from: torch's, numpy's and Python's."""

from __future__ import annotations

import hashlib
import pickle
import random

import numpy as np
import torch


def random_digest() -> str:
    """Digest of the states of the generators of torch (on every device in use), numpy and random."""
    states = [torch.get_rng_state().numpy().tobytes(), pickle.dumps(random.getstate())]
    states.append(pickle.dumps(np.random.get_state()))  # noqa: NPY002 - the generator that scripts use
    if torch.cuda.is_initialized():
        states += [s.numpy().tobytes() for s in torch.cuda.get_rng_state_all()]
    return hashlib.blake2b(b"".join(states), digest_size=16).hexdigest()


def reseed(seed: int, step: int) -> None:
    """Seed all random generators from the seed and the step number, the same in every run."""
    mixed = (seed * 1_000_003 + step * 7919 + 1) % 2**31
    torch.manual_seed(mixed)  # pyright: ignore[reportUnknownMemberType]
    random.seed(mixed)
    np.random.seed(mixed)  # noqa: NPY002 - the generator that scripts use
