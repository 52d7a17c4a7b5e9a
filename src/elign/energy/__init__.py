"""The energy model of ELI, its sampler and its training."""
