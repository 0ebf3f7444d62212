"""How a software stack holds memory: the section ``[memory]`` of its file."""

from __future__ import annotations

from dataclasses import dataclass

from gpuwise.errors import DataError

_WORDS = {
    "weight_gradient": ("cached", "transient", "kept"),
    "gradients": ("buffer", "backward"),
    "half_gradients": ("no", "end", "always"),
}


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """One stack's rules, as facts read from its source code (``source``)."""

    source: str
    weight_gradient: str
    """``cached``: one compute-format dummy for each weight shape, never freed (Transformer Engine get_dummy_wgrad);
    ``transient``: computed in the compute format, added to the gradient buffer, freed; ``kept``: it is the gradient."""
    gradients: str
    """``buffer``: allocated once; ``backward``: appear during the backward and are freed after the update."""
    half_gradients: str
    """Compute-format gradients beside wider accumulated ones: ``no``, ``end`` (all alive when a backward ends) or
    ``always``."""
    bucket_copy: bool
    """A replicated data-parallel run also has its gradients in communication buckets."""
    update_fp32: float
    """Bytes a parameter of the flat fp32 gradients an update makes in one piece, sharded with the state."""
    loss_half: float
    """Copies of the logits in the compute format alive at the worst moment of the loss."""
    loss_fp32: float
    """The same in fp32."""
    master_is_weight: bool
    """Sharded parameters exist once, in fp32; the compute format exists only while gathered."""
    eager_modules: bool
    """CUDA modules are all loaded at start (before CUDA 11.7): a larger context."""
    live_elements: float = 0.0
    """Elements of fully sharded parameters that stay gathered, where more than two layers are; 0: two layers."""
    gathers_by_matrix: bool = False
    """Fully sharded weights are gathered a matrix at a time, the next one ahead, and a gradient is scattered as soon as it is
    there (XLA's scheduler); otherwise a layer at a time."""
    bucket_elements: float = 0.0
    """Elements of each buffer that gradients wait in to be reduced; it is made whole, however small the model."""
    buckets_replicas: bool = False
    """ZeRO-1 and 2 have such buffers too, two where the reduction overlaps, and run on one rank where its optimizer is on the
    host or its gradients are wider than its weights."""
    offloads_gradients: bool = False
    """Sharded gradients are on the host with the optimizer's states."""
    chunked_half: float = 0.0
    """``loss_half`` of a loss in chunks: copies of all logits that outlive their chunk."""
    root_ends: bool = False
    """Embedding and head are one unit of FSDP, the root: both are gathered throughout the backward."""
    keeps_gathered: bool = False
    """Gathered weights stay from the forward to the backward of what is not recomputed: torch's own linear saves them."""
    loads_whole: bool = False
    """The whole model is loaded on the device before it is sharded, and its reserved memory stays."""
    sharded_bucket_elements: float = 0.0
    """Elements, at most, of the bucket that sharded gradients are reduced in, in their format; 0: no such bucket."""
    copies_half_gradients: bool = False
    """Its optimizer reads no gradients narrower than the states: they are copied in fp32."""
    flat_elements: float = 0.0
    """Where not 0, fully sharded gradients have one buffer throughout, and a sharded update copies a rank's into one piece of
    fp32, under ZeRO-3 so many elements at a time."""

    def __post_init__(self) -> None:
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise DataError(f"[memory] of a stack: {name} must be one of {', '.join(words)}")
