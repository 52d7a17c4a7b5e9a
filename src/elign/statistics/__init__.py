"""Statistics of classes: what is remembered of them instead of images."""
