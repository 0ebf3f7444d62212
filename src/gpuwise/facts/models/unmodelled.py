"""Names of models that people ask for and that no row of layers can describe, with the reason and what to do instead."""

from __future__ import annotations

import re

from gpuwise.errors import UnknownNameError

_OWN = "give its code instead, which is run without a GPU: hf:path/to/config.json (Hugging Face) or train.py:make_step"
_REFUSALS: tuple[tuple[str, str, str], ...] = (
    (
        r"(?:open|mobile|meta|eva)?-?clip|siglip\d?|align|coca|blip-?\d?",
        "it trains an image and a text tower at once, which one table of layers cannot hold",
        f"{_OWN}; alone the towers are like vit-b-16, vit-l-16 and clip-text-l",
    ),
    (
        r"rwkv|retnet|hyena|stripedhyena|xlstm|griffin|recurrentgemma|hawk",
        "its recurrence is neither attention nor the state-space mixer of Mamba, and no kernel of it was measured",
        _OWN,
    ),
    (
        r"dino|dinov\d|swin|convnext|resnet|resnext|efficientnet|mobilenet|vgg|unet|yolo|maskrcnn|retinanet|segformer|sam|detr|mae",
        "the catalogue has plain vision transformers (vit-b-16), and ResNets (resnet-50) for plan, fit, capacity and pick",
        _OWN,
    ),
    (
        r"stable-?diffusion|sdxl|sd|flux|dit|pixart|imagen|dall-?e|sora|wan|hunyuanvideo|cogvideox",
        "training such a model by name is not predicted yet",
        f"`gpuwise fit sdxl --on 4090` makes images with it, `gpuwise pick --for image` ranks GPUs; {_OWN}",
    ),
    (
        r"gpt-?[45](?:\.\d)?o?|gpt-?3\.5|chatgpt|claude|gemini",
        "its dimensions are not published",
        "name an open model of about its size, such as llama-3.1-70b or deepseek-v3, or give dimensions",
    ),
)
_TABLE = tuple(
    (re.compile(rf"(?:^|[\s/_-])(?:{names})(?=$|[\s/_.:-]|\d)", re.IGNORECASE), reason, hint) for names, reason, hint in _REFUSALS
)


def refuse_unmodelled(name: str) -> None:
    """Raises UnknownNameError with the reason where ``name`` is that of a model known to be beyond the catalogue."""
    if "text" in name.lower():
        return
    for pattern, reason, hint in _TABLE:
        if pattern.search(name.strip()) is not None:
            raise UnknownNameError("model", name[:80], (), hint=f"{reason}; {hint}")
