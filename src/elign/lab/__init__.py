"""The bench: everything needed to reproduce and extend the paper, built on `elign`."""
