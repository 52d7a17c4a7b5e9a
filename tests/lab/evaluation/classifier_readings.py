"""The readings of the catalogue that classifiers have."""

from eli.lab.evaluation import catalogue

READINGS = {name: entry for name, entry in catalogue.READINGS.items() if not name.endswith("/old-classes")}
