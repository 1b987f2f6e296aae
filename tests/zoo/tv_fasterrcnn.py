"""Faster R-CNN of torchvision: lists of images and boxes as input, a dict of losses as output."""

import torch
import torchvision
from common import training_job
from torch import nn
from torchvision.models.detection import FasterRCNN
from torchvision.models.detection.rpn import AnchorGenerator
from torchvision.ops.roi_align import _roi_align

import onecurve as oc


def suppress_overlaps(boxes, scores, iou_threshold):
    """Non-maximum suppression: indices of the boxes to keep, the highest score first."""
    overlap = torchvision.ops.box_iou(boxes, boxes)
    remaining = scores.argsort(descending=True, stable=True)
    selected = []
    while len(remaining):
        best, remaining = remaining[0], remaining[1:]
        selected.append(int(best))
        remaining = remaining[~(overlap[best, remaining] > iou_threshold)]
    return torch.tensor(selected, dtype=torch.int64, device=boxes.device)


# A torchvision whose compiled operators do not fit the installed torch lacks these two, and its detection models
# refuse to run. A composite of ordinary torch operations needs no gradient of its own.
if not torchvision.extension._has_ops():
    roi_align_schema = (
        "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    )
    torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torch.library.define("torchvision::roi_align", roi_align_schema)
    torch.library.impl("torchvision::nms", "CompositeImplicitAutograd", suppress_overlaps)
    torch.library.impl("torchvision::roi_align", "CompositeImplicitAutograd", _roi_align)
    torchvision.extension._has_ops = lambda: True  # also makes _assert_has_ops pass


def sample(index):
    target = {"boxes": torch.tensor([[4.0, 4.0, 30.0 + index % 9, 34.0]]), "labels": torch.tensor([1 + index % 2])}
    return torch.rand(3, 64, 64), target


def collate(samples):
    pictures, targets = zip(*samples, strict=True)
    return (list(pictures), list(targets)), len(samples)


def build():
    backbone = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1), nn.ReLU())
    backbone.out_channels = 16
    return FasterRCNN(
        backbone,
        num_classes=3,
        min_size=64,
        max_size=64,
        box_detections_per_img=10,
        rpn_anchor_generator=AnchorGenerator(((16, 32),), ((1.0,),)),
        rpn_pre_nms_top_n_train=20,
        rpn_post_nms_top_n_train=10,
        rpn_pre_nms_top_n_test=20,
        rpn_post_nms_top_n_test=10,
        box_batch_size_per_image=8,
        rpn_batch_size_per_image=8,
        box_roi_pool=torchvision.ops.MultiScaleRoIAlign(["0"], 3, 2),
    )


def sum_of_losses(output, _samples):
    return sum(output.values())


def weighted(output, samples):
    return oc.Weighted(sum(output.values()) * samples, samples)


def job(form: str = "scalar"):
    losses = {"scalar": sum_of_losses, "weighted": weighted}
    return training_job(build, sample, losses[form], collate=collate)
