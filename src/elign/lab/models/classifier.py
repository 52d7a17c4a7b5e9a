"""A classifier: a backbone and a head."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from elign.lab.models.blocks import Backbone


class Classifier(nn.Module):
    """Images to latents to logits.

    Args:
        backbone: Images (N, C, H, W) to latents (N, D).
        head: Latents to logits (N, classes), in the order of arrival of the classes.
    """

    def __init__(self, backbone: Backbone, head: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone
        self.head = head

    def latents(self, images: Tensor) -> Tensor:
        """Latents in float32, whatever precision the backbone works in."""
        z: Tensor = self.backbone(images)
        return z.float()

    def scores(self, latents: Tensor) -> Tensor:
        """Logits of latents, in full precision also under autocast: half precision has too few digits for them."""
        with torch.autocast(latents.device.type, enabled=False):
            logits: Tensor = self.head(latents)
        return logits

    def forward(self, images: Tensor) -> Tensor:
        """Images to logits."""
        return self.scores(self.latents(images))
