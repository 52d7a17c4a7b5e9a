"""The settings of `eli detect run` and their values, as files for hydra."""
