"""Runs: their folders, results, and how they start, resume and are evaluated again."""
