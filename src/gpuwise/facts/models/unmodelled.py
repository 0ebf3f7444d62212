"""Names of models that people ask for and that no row of layers can describe, with the reason and what to do instead."""

from __future__ import annotations

import re

from gpuwise.errors import UnknownNameError

_OWN = "give its code instead, which is run without a GPU: hf:path/to/config.json (Hugging Face) or train.py:make_step"
_REFUSALS: tuple[tuple[str, str, str], ...] = (
    (
        r"(?:open|mobile|meta|eva)?-?clip|siglip\d?|align|coca",
        "it trains an image and a text tower at once, which one table of layers cannot hold",
        f"clip-b-32, clip-b-16 and clip-l-14 are trained by name; {_OWN}",
    ),
    (
        r"rwkv|retnet|hyena|stripedhyena|xlstm|griffin|recurrentgemma|hawk",
        "its recurrence is neither attention nor the state-space mixer of Mamba, and no kernel of it was measured",
        _OWN,
    ),
    (
        r"dino|dinov\d|swin|convnext|resnet|resnext|efficientnet|mobilenet|vgg|unet|yolo(?:v|x|s|r)?|maskrcnn|retinanet|segformer|sam|detr|mae",
        "the catalogue has plain vision transformers (vit-b-16), ResNets (resnet-50), and to train dinov2-b, dinov3-b, yolov8n, "
        "yolo11n and detr-r50",
        _OWN,
    ),
    (
        r"stable-?diffusion|sdxl|sd|flux|dit|pixart|imagen|dall-?e|sora|wan|hunyuan-?video|cogvideox",
        "sd-1.5, sdxl, sd-3.5-medium, sd-3.5-large, flux-dev, wan-2.1-1.3b and wan-2.1-14b are trained by name",
        f"`gpuwise fit sdxl --on 4090` makes images with one, `gpuwise pick --for image` ranks GPUs; {_OWN}",
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


_VISION_LANGUAGE = re.compile(
    r"(?:^|/)(?:llava|qwen-?\d?(?:\.\d)?-?vl|internvl|pali-?gemma|blip|idefics|smolvlm|kosmos)", re.IGNORECASE
)


def refuse_vision_language(name: str) -> None:
    """Raises UnknownNameError with those that are known where ``name`` is a vision-language model's."""
    if _VISION_LANGUAGE.search(name.strip()) is not None:
        known = "llava-1.5-7b, llava-1.5-13b, qwen2.5-vl-3b, qwen2.5-vl-7b and paligemma-3b are trained by name"
        hint = f"its images are read by a vision tower beside the language model; {known}; {_OWN}"
        raise UnknownNameError("model", name[:80], (), hint=hint)
