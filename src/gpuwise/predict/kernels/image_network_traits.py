"""What an image network is made of, read from its timm-style name: ``resnext50_32x4d`` has grouped
convolutions.

Totals of FLOP and activations do not tell a depthwise convolution from a dense one, and kernels treat them
very differently. A name that says nothing has no traits, which is an ordinary convolution network.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from gpuwise.errors import UnknownNameError

TRAITS: dict[str, str] = {
    "global_attention": (
        r"(?<!mobile)(?<!efficient)(?<!next)(?<!cross)(?<!max)(?<!naflex)vit_|"
        r"^(deit|beit|eva|aimv2|samvit|naflexvit|cait|volo|tnt|convit|flexivit|hiera|visformer)"
    ),
    "window_attention": (r"swin|maxvit|maxxvit|coatn|nest|twins|halo|gcvit|davit|samvit|hiera|(vit|vitd)_.*(mci|window)"),
    "hybrid": (
        r"maxvit|maxxvit|coat|levit|efficientformer|mobilevit|efficientvit|nextvit|hybrid|botnet|halonet|"
        r"lambda|swiftformer|fastvit|mci|convit|visformer|crossvit|pvt|edgenext|caformer|tiny_vit|vitamin"
    ),
    "channel_attention": r"xcit|edgenext|davit|swiftformer",
    "token_mixer_mlp": r"mixer|resmlp|gmlp|^mlp",
    "pooling_mixer": r"poolformer",
    "reduced_attention": r"pvt|twins|crossvit|mobilevit|edgenext|efficientvit|levit",
    "class_attention": r"cait|volo|xcit",
    "gated_mlp": r"eva02|aimv2|swiglu|dinov2.*giant|dinov3",
    "rotary": r"eva02|dinov3|rope|naflex",
    "relative_bias": r"beit|swin|coatn|maxvit|maxxvit|levit|relpos|samvit",
    "conv_next": r"convnext|coatnext|maxxvit|inception_next|mambaout|focalnet|convformer|caformer",
    "response_norm": r"convnextv2|grn",
    "depthwise": (
        r"mobile|efficientnet|mnasnet|mixnet|tinynet|lcnet|ghost|fbnet|spnasnet|hardcore|rexnet|xception|"
        r"nasnet|repvit|convmixer|starnet|mobileone|fastvit|tf_(?!inception)|test_efficientnet|edgenext|"
        r"efficientformer|swiftformer|levit_conv|hgnetv2|lite|_dw"
    ),
    "large_kernel": (r"convnext|mambaout|focalnet|replknet|inception_next|mixnet|repvit|poolformer|edgenext|starnet"),
    "grouped": (
        r"resnext|regnet|dpn|x_c$|dla\d*x|res2next|resnest|g4$|g2$|g8$|cspresnext|repvgg_b\dg|nfnet|"
        r"nextvit|halo|skresne|_(32x|64x)"
    ),
    "squeeze_excite": (
        r"(^|_|tf_|legacy_|gluon_)se|efficientnet(?!.*lite)|mobilenetv3|regnety|regnetz|mnasnet_a|semnas|"
        r"senet|skresne|gcresnet|(^|_)eca|(^|_)ese|resnetrs|nfnet|resnest|ghostnet|fbnetv3|lcnet|rexnet|"
        r"tinynet|mixnet|maxvit|coatn|repvit|hardcore|levit_m|efficientvit_m"
    ),
    "global_context": r"(^|_)gc",
    "weight_standardised": r"nfnet|_bit|resnetv2_\d+x\d|nf_re",
    "group_norm": r"_gn|_evos|resnetv2_\d+x\d|_bit|_ln|poolformer|mambaout",
    "dense_concat": r"densenet|dpn|hrnet|dla|vovnet|hgnet|rdnet|selecsls|inception|nasnet|cs3|csp|darknet",
    "multi_branch": r"inception|nasnet|mixnet|res2n|hrnet|ghost|selecsls|resnest|skresne|dla",
    "anti_alias": r"aa(\d|$|_|d)|blur",
    "lambda_or_halo": r"lambda|halo|botnet|lamhalo",
    "reparameterised": r"^rep|mobileone|fastvit",
    "in_place_norm": r"iabn|tresnet",
    "plain_wide": r"vgg|repvgg|wide_|alexnet|res.*101x3|50x3|152x4",
    "stem_deep": r"\dd(_|$)|\dt(_|$)|\dts(_|$)|\ds(_|$)|resnetrs|resnest",
    "patch_8": r"patch8|_p8|crossvit",
    "patch_14": r"patch14|so400m",
    "patch_16": r"patch16|_p16",
    "patch_32": r"patch32",
    "edge": r"edgetpu|_edge|efficientnetv2|_es(_|$)|_em(_|$)|_el(_|$)|fused",
    "nested_blocks": r"tnt|volo|nest",
    "silu": r"efficientnet(?!.*lite)|regnetz|cs3|rexnet|mixnet|tinynet|_nfnet|efficientnetv2|ts$|convmixer",
    "space_to_depth": r"tresnet|focus|haloregnet",
}
"""Trait -> pattern searched in the name without its pre-training tag."""


def traits_of(name: str) -> frozenset[str]:
    """The traits a name shows, pre-training tag (after a dot) ignored. Unknown names have none.

    >>> sorted(traits_of("resnext50_32x4d"))
    ['grouped']
    """
    stem = name.split(".")[0].lower()
    return frozenset(trait for trait, pattern in _COMPILED if pattern.search(stem))


_COMPILED = tuple((trait, re.compile(pattern)) for trait, pattern in TRAITS.items())


def indicator(traits: Iterable[Iterable[str]]) -> NDArray[np.float64]:
    """[traits, R] of zeros and ones. Raises UnknownNameError for a trait that is not in :data:`TRAITS`."""
    rows = [frozenset(t) for t in traits]
    for row in set(rows):
        for name in row:
            if name not in TRAITS:
                raise UnknownNameError("network trait", name, TRAITS)
    return np.array([[name in row for row in rows] for name in TRAITS], dtype=np.float64).reshape(len(TRAITS), -1)
