"""The commands `elign remember`, `elign repair` and `elign doctor`: files in, a repaired model out."""
