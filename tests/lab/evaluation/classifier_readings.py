"""The readings of the catalogue that classifiers have."""

from elign.lab.evaluation import catalogue

READINGS = {name: entry for name, entry in catalogue.READINGS.items() if not name.endswith("/old-classes")}
