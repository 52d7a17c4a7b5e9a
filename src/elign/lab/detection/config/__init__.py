"""The settings of `elign detect run` and their values, as files for hydra."""
