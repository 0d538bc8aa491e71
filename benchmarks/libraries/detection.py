"""Detectors."""

from __future__ import annotations

from collections.abc import Callable

from registry import add, image, spread
from spec import Input, Several
from torch import nn

YOLO = {"batch": (2, 1, 3), "height": (128, 96, 160), "width": (96, 160, 128)}


def yolo(settings: str, task: str = "DetectionModel") -> Callable[[], nn.Module]:
    """A network of ultralytics from one of its configuration files."""

    def build() -> nn.Module:
        from ultralytics.nn import tasks

        return getattr(tasks, task)(settings, verbose=False)

    return build


add("ultralytics/yolov8n", image(), **YOLO, random=True)(yolo("yolov8n.yaml"))
add("ultralytics/yolo11n-segment", image(), **YOLO, random=True)(yolo("yolo11n-seg.yaml", "SegmentationModel"))
add("ultralytics/yolov8n-pose", image(), **YOLO, random=True)(yolo("yolov8n-pose.yaml", "PoseModel"))
add("ultralytics/yolov10n", image(), **YOLO, random=True)(yolo("yolov10n.yaml"))
add("ultralytics/yolo11n-obb", image(), **YOLO, random=True)(yolo("yolo11n-obb.yaml", "OBBModel"))


@add("ultralytics/yolov8n-run-once", image(), **YOLO, random=True)
def yolo_run_once() -> nn.Module:
    """The detector keeps its anchors between two calls with the same size."""
    import torch

    model = yolo("yolov8n.yaml")().eval()
    model(torch.zeros(2, 3, 128, 96))
    return model


PICTURES = {"images": Several({"0": Input((3, "height", "width"), between=(0.0, 1.0))})}
PICTURE_SIZES = {"height": (96, 128, 80), "width": (128, 96, 144)}
SCORES = {"box_score_thresh": 0.0, "box_detections_per_img": 10}


def _backbone() -> nn.Module:
    from torchvision.models.detection.backbone_utils import resnet_fpn_backbone

    return spread(resnet_fpn_backbone(backbone_name="resnet18", weights=None, trainable_layers=5), "linear")


SCALE = {"num_classes": 5, "min_size": 96, "max_size": 160}


@add("torchvision/faster-rcnn", PICTURES, **PICTURE_SIZES)
def faster_rcnn() -> nn.Module:
    from torchvision.models.detection import FasterRCNN

    return FasterRCNN(_backbone(), **SCALE, **SCORES)


@add("torchvision/mask-rcnn", PICTURES, **PICTURE_SIZES)
def mask_rcnn() -> nn.Module:
    from torchvision.models.detection import MaskRCNN

    return MaskRCNN(_backbone(), **SCALE, **SCORES)


@add("torchvision/retinanet", PICTURES, **PICTURE_SIZES)
def retinanet() -> nn.Module:
    from torchvision.models.detection import RetinaNet

    return RetinaNet(_backbone(), **SCALE, score_thresh=0.01, detections_per_img=10)


@add("torchvision/fcos", PICTURES, **PICTURE_SIZES)
def fcos() -> nn.Module:
    from torchvision.models.detection import FCOS

    return FCOS(_backbone(), **SCALE, score_thresh=0.01, detections_per_img=10)


@add("torchvision/ssdlite", PICTURES, **PICTURE_SIZES)
def ssdlite() -> nn.Module:
    from torchvision.models.detection import ssdlite320_mobilenet_v3_large

    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=5, detections_per_img=10)
    spread(model.backbone, "linear")
    return model
