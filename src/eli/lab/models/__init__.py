"""Backbones and heads; no training code here. Imported by learners and benchmarks."""
