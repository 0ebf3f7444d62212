"""Detectors of public training benchmarks, from their published dimensions.

SSD300 (DeepLearningExamples PyTorch/Detection/SSD, README "Model architecture" and ``ssd/model.py``): ResNet-50 up to
its third stage with stride 1 there (38 x 38 x 1024), five extra stages, heads of 4, 6, 6, 6, 4, 4 boxes of 81 classes.
Mask R-CNN and RetinaNet are torchvision's (ResNet-50 with a feature pyramid); benchmarks of Mask R-CNN (facebookresearch/
maskrcnn-benchmark, ``e2e_mask_rcnn_R_50_FPN_1x.yaml``) freeze its norms, stem and first stage. MLPerf's RetinaNet
(mlcommons/training, ``single_stage_detector``) is torchvision's on ResNeXt-50 32x4d, its last three stages trained, 264 classes
of OpenImages. As submitted (mlcommons/training_results, NVIDIA's ``retinanet``) the frozen norms are a scale and a bias beside
each convolution and the focal loss is taken over the whole batch at once, with boxes that the input pipeline has matched.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from studies.networks.support import DEVICE, Network, torchvision

BOXES = 8732
CLASSES = 81
OBJECTS = 7
"""Objects in an image of COCO (860,001 in 118,287 images of its training set)."""


class SSD300(nn.Module):
    """SSD with a ResNet-50 trunk on 300 x 300 images (MLPerf training's detection network)."""

    def __init__(self) -> None:
        super().__init__()
        trunk = torchvision().models.resnet50()
        first = trunk.layer3[0]
        first.conv1.stride = first.conv2.stride = first.downsample[0].stride = (1, 1)
        self.trunk = nn.Sequential(trunk.conv1, trunk.bn1, trunk.relu, trunk.maxpool, trunk.layer1, trunk.layer2, trunk.layer3)
        widths, middle = (1024, 512, 512, 256, 256, 256), (256, 256, 128, 128, 128)
        self.extra = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(a, m, 1, bias=False),
                nn.BatchNorm2d(m),
                nn.ReLU(inplace=True),
                nn.Conv2d(m, b, 3, padding=int(i < 3), stride=2 if i < 3 else 1, bias=False),
                nn.BatchNorm2d(b),
                nn.ReLU(inplace=True),
            )
            for i, (a, b, m) in enumerate(zip(widths, widths[1:], middle, strict=False))
        )
        boxes = (4, 6, 6, 6, 4, 4)
        self.places = nn.ModuleList(nn.Conv2d(w, n * 4, 3, padding=1) for w, n in zip(widths, boxes, strict=True))
        self.labels = nn.ModuleList(nn.Conv2d(w, n * CLASSES, 3, padding=1) for w, n in zip(widths, boxes, strict=True))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = self.trunk(images)
        maps = [x]
        for stage in self.extra:
            x = stage(x)
            maps.append(x)
        places = torch.cat([c(m).reshape(m.shape[0], 4, -1) for c, m in zip(self.places, maps, strict=True)], 2)
        labels = torch.cat([c(m).reshape(m.shape[0], CLASSES, -1) for c, m in zip(self.labels, maps, strict=True)], 2)
        return places.contiguous(), labels.contiguous()


def ssd300() -> Network:
    """Box regression and classification with three hard negatives to a positive (arXiv 1512.02325)."""
    with torch.device(DEVICE):
        module = SSD300()

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch, 3, 300, 300, device=DEVICE),)

    def loss(outputs: Any, batch: int) -> Tensor:
        places, labels = outputs
        target = torch.randint(0, CLASSES, (batch, places.shape[2]), device=DEVICE)
        positive = target > 0
        count = positive.sum(dim=1)
        regression = F.smooth_l1_loss(places, torch.zeros_like(places), reduction="none").sum(dim=1)
        regression = (positive.float() * regression).sum(dim=1)
        entropy = F.cross_entropy(labels, target, reduction="none")
        negative = entropy.detach().masked_fill(positive, 0.0)
        rank = negative.sort(dim=1, descending=True)[1].sort(dim=1)[1]
        hard = rank < (3 * count).clamp(max=labels.shape[2]).unsqueeze(1)
        classification = (entropy * (positive.float() + hard.float())).sum(dim=1)
        return ((regression + classification) / count.float().clamp(min=1e-6)).mean()

    return Network(module, inputs, loss)


OPENIMAGES_CLASSES = 264
"""Of MLPerf's subset of OpenImages (``single_stage_detector/ssd``)."""
ANCHORS = 9


class RetinaNet(nn.Module):
    """torchvision's RetinaNet without its boxes: logits and offsets of every anchor of a batch of images."""

    def __init__(self) -> None:
        super().__init__()
        package = torchvision()
        fpn = import_module(f"{package.__name__}.models.detection.backbone_utils")
        blocks = import_module(f"{package.__name__}.ops.feature_pyramid_network")
        heads = import_module(f"{package.__name__}.models.detection.retinanet")
        self.trunk = fpn.resnet_fpn_backbone(
            backbone_name="resnext50_32x4d",
            weights=None,
            trainable_layers=3,
            returned_layers=[2, 3, 4],
            extra_blocks=blocks.LastLevelP6P7(256, 256),
            norm_layer=Affine,
        )
        self.head = heads.RetinaNetHead(256, ANCHORS, OPENIMAGES_CLASSES)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        outputs = self.head(list(self.trunk(images).values()))
        return outputs["cls_logits"], outputs["bbox_regression"]


class Affine(nn.Module):
    """A frozen batch norm whose statistics are taken in its scale and bias, which no gradient reaches."""

    scale: Tensor
    bias: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1, channels, 1, 1, dtype=torch.float16))
        self.register_buffer("bias", torch.zeros(1, channels, 1, 1, dtype=torch.float16))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale + self.bias


def mlperf_retinanet(side: int = 800) -> Network:
    """MLPerf's RetinaNet on square images: focal loss (gamma 2, arXiv 1708.02002) and L1 of the offsets."""
    with torch.device(DEVICE):
        module = RetinaNet()

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return (torch.randn(batch, 3, side, side, device=DEVICE),)

    def loss(outputs: Any, batch: int) -> Tensor:
        logits, offsets = outputs
        target = torch.zeros_like(logits)
        chance = torch.sigmoid(logits)
        entropy = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
        match = chance * target + (1 - chance) * (1 - target)
        return (entropy * (1 - match) ** 2).sum() / batch + F.l1_loss(offsets, torch.zeros_like(offsets))

    return Network(module, inputs, loss)


def torchvision_detector(name: str, height: int, width: int, frozen: bool = False) -> Network:
    """A torchvision detector with its own losses, on images that already have the size it works at. ``frozen``: the norms of its
    trunk, and all of the trunk's stem and first stage."""
    package = torchvision()
    with torch.device(DEVICE):
        module = package.models.detection.__dict__[name](weights=None, weights_backbone=None, min_size=height, max_size=width)
        if frozen:
            _freeze(module.backbone.body, package.ops.misc.FrozenBatchNorm2d)

    def inputs(batch: int) -> tuple[Any, ...]:
        images = [torch.randn(3, height, width, device=DEVICE) for _ in range(batch)]
        corner = torch.tensor([[8.0 * i, 8.0 * i, 8.0 * i + 64, 8.0 * i + 64] for i in range(OBJECTS)], device=DEVICE)
        targets: list[dict[str, Tensor]] = []
        for _ in range(batch):
            one = {"boxes": corner, "labels": torch.ones(OBJECTS, dtype=torch.int64, device=DEVICE)}
            if name.startswith("maskrcnn"):
                one["masks"] = torch.zeros(OBJECTS, height, width, dtype=torch.uint8, device=DEVICE)
            targets.append(one)
        return (images, targets)

    def loss(outputs: Any, batch: int) -> Tensor:
        return torch.stack(list(outputs.values())).sum()

    return Network(module, inputs, loss)


def _freeze(trunk: nn.Module, norm: Any) -> None:
    for part in (trunk.conv1, trunk.layer1):
        part.requires_grad_(False)
    for parent in list(trunk.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm2d):
                setattr(parent, name, norm(child.num_features))
