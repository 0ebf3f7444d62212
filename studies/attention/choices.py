"""Which measured kernel stands for what: devices the fit sees, related families, usual and engines' ones."""

from __future__ import annotations

MEASURED = ("a100-sxm-80gb", "h100-sxm-80gb", "b200-sxm", "gb200", "l40s", "arc-pro-b60")
"""Devices the fit may see, in the order they are numbered within a family."""
RELATED = {
    "Blackwell-RTX": "Ada",
    "Ampere": "Ada",
    "Orin": "Ada",
    "Turing": "Ampere-GA100",
    "Volta": "Ampere-GA100",
    "Rubin": "Blackwell",
    "Thor": "Blackwell",
    "Xe-HPG": "Xe2-HPG",
    "Xe-HPC": "Xe2-HPG",
}
"""Families nobody measured and whose kernels run alike: warp-level matrix instructions with asynchronous
copies on GA10x, Ada and consumer Blackwell (CUDA compute capabilities 8.6 to 12.x), the data-centre line
otherwise."""
_FLASH = "vllm:vllm_flash_attn"
USUAL: dict[str, dict[str, str]] = {
    "Ampere-GA100": {"forward": "sglang:flash_attention", "decode": _FLASH},
    "Hopper": {
        "forward": f"{_FLASH}_fa3",
        "decode": f"{_FLASH}_fa3",
        "forward-fp8": "sglang:fa3",
        "decode-fp8": f"{_FLASH}_fa3",
    },
    "Blackwell": {
        "forward": "vllm:vllm_flashinfer_trtllmprefill",
        "decode": "vllm:vllm_flashinfer_trtllmdecode",
        "forward-fp8": "sglang:trtllm_mha",
    },
    "Ada": {"forward": f"{_FLASH}_fa2", "decode": f"{_FLASH}_fa2", "forward-fp8": "trtllm:torch_flow"},
    "Xe2-HPG": {"forward": _FLASH, "decode": _FLASH},
}
"""The kernel that stands for a family where a caller names none."""
TORCH_FLOW = "trtllm:torch_flow"
_CALLS = ("forward-bf16", "decode-bf16", "forward-fp8", "decode-fp8")
_VLLM_BLACKWELL = {
    f"{phase}-{dtype}": f"vllm:vllm_flashinfer_trtllm{kind}"
    for phase, kind in (("forward", "prefill"), ("decode", "decode"))
    for dtype in ("bf16", "fp8")
}
ENGINES: dict[str, dict[str, dict[str, str]]] = {
    "Ampere-GA100": {
        "vllm": dict.fromkeys(_CALLS, _FLASH),
        "sglang": dict.fromkeys(_CALLS, "sglang:flash_attention"),
        "trtllm": dict.fromkeys(_CALLS, TORCH_FLOW),
    },
    "Hopper": {
        "vllm": dict.fromkeys(_CALLS, f"{_FLASH}_fa3"),
        "sglang": dict.fromkeys(_CALLS, "sglang:fa3"),
        "trtllm": dict.fromkeys(_CALLS, TORCH_FLOW),
    },
    "Blackwell": {
        "vllm": _VLLM_BLACKWELL,
        "sglang": dict.fromkeys(_CALLS, "sglang:trtllm_mha"),
        "trtllm": dict.fromkeys(_CALLS, TORCH_FLOW),
    },
    "Ada": {
        "vllm": {
            "forward-bf16": f"{_FLASH}_fa2",
            "decode-bf16": f"{_FLASH}_fa2",
            "forward-fp8": "vllm:vllm_flashinfer_fiprefill",
            "decode-fp8": "vllm:vllm_flashinfer_fidecode",
        },
        "sglang": dict.fromkeys(_CALLS, "sglang:flashinfer"),
        "trtllm": dict.fromkeys(_CALLS, TORCH_FLOW),
    },
    "Xe2-HPG": {"vllm": dict.fromkeys(_CALLS, _FLASH)},
}
"""Which measured kernel an engine runs, read off the tables: the one with the most rows at head size 128."""
