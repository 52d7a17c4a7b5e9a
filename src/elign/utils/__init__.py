"""Parts that every layer shares: errors, checks, files, fitted modules, heads, latents of models."""
