"""Evaluation of incremental detection: methods on regions, average precision, unknown objects."""
