"""Evaluation of incremental detection: pairs of region latents, readings of regions, average precision, rows.

Test annotations are looked at in two places only: `matching.py`, for readings that are called oracles, and scoring.
"""
