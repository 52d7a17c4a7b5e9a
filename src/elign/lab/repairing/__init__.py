"""The commands `elign remember`, `elign repair` and `elign doctor`: from checkpoints and folders to a repaired model."""
