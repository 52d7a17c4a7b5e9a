"""Backbones by name, heads that grow, and the classifier of both; no training code."""

from __future__ import annotations

from elign.lab.models.classifier import BACKBONES, Backbone, make_backbone

__all__ = ["BACKBONES", "Backbone", "make_backbone"]
