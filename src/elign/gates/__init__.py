"""Which latents are aligned, where an aligner stands alone in front of a head."""
