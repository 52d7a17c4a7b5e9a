"""Readings of a trained model and their metrics. Imports `eli` and `eli.lab.models.heads`; never trains a model."""
