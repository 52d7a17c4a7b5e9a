"""Methods of a trained model and their metrics."""
