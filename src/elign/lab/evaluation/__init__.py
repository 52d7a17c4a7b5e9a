"""Readings of a trained model and their metrics."""
