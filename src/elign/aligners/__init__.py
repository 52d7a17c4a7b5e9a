"""Maps between the latent spaces of the previous and the current model, one algorithm a file."""
