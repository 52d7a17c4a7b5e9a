"""Runs of incremental detectors: configuration, bench, training, readings. On the runner of `eli.lab.experiments`."""
