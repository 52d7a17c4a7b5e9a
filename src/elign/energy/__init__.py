"""The energy model of ELI and its sampler."""
