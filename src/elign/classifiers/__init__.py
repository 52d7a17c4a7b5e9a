"""Classifiers on latents, one algorithm a file."""
