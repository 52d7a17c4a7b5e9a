"""Runs of incremental detectors: configuration, bench, training, readings. On the runner of `elign.lab.experiments`."""
