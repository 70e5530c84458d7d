"""ShuffleNet V2 (Ma, Zhang, Zheng and Sun, ECCV 2018), width 1, for images of 32 x 32 pixels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_STAGES = ((116, 4), (232, 8), (464, 4))  # channels and units of each, table 5 of the paper


def _convolution(channels_in: int, channels_out: int) -> nn.Sequential:
    """A convolution of 1 x 1, normalized and rectified."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, 1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(),
    )


def _depthwise(channels: int, stride: int) -> nn.Sequential:
    """A depthwise convolution of 3 x 3, normalized."""
    return nn.Sequential(
        nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False),
        nn.BatchNorm2d(channels),
    )


class Unit(nn.Module):
    """Figure 3 of the paper: (c), or (d) where the resolution is halved."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        half = channels_out // 2
        self.halves = stride == 2
        inner = channels_in if self.halves else half
        self.right = nn.Sequential(
            _convolution(inner, half), _depthwise(half, stride), _convolution(half, half)
        )
        self.left = nn.Sequential()
        if self.halves:
            self.left = nn.Sequential(_depthwise(channels_in, 2), _convolution(channels_in, half))

    def forward(self, images: Tensor) -> Tensor:
        """Transform one half of the channels, and shuffle both halves."""
        left, right = (images, images) if self.halves else images.chunk(2, dim=1)
        out = torch.stack([self.left(left), self.right(right)], dim=2)
        return out.flatten(1, 2)  # a channel of the left, one of the right, and so on


class ShuffleNetV2(nn.Sequential):
    """Logits of `classes`; the first layers keep the resolution, which is small already."""

    def __init__(self, classes: int) -> None:
        layers: list[nn.Module] = [
            nn.Conv2d(3, 24, 3, padding=1, bias=False),
            nn.BatchNorm2d(24),
            nn.ReLU(),
        ]
        channels = 24
        for wider, units in _STAGES:
            layers.append(Unit(channels, wider, stride=2))
            layers += [Unit(wider, wider, stride=1) for _ in range(units - 1)]
            channels = wider
        pooled = (nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, classes))
        super().__init__(*layers, _convolution(channels, 1024), *pooled)
