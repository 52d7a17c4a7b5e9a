"""The YAML files of the settings of `elign detect run`; see `elign.lab.config`."""
