"""The commands `elign remember`, `elign repair` and `elign doctor`: checkpoints and folders in, a repaired model out."""
