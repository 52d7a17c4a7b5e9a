"""Tables, figures and self-contained pages of finished results. Reads records of experiments; trains nothing."""
