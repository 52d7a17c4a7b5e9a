"""Experiments: what is trained, fitted and read, in which order."""
