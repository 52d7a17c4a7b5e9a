"""The settings of a run: a schema, and their composition from YAML files and `key=value` texts.

`config.yaml` holds the values that nothing else sets, `choices.yaml` the choices of each group (`memory=none`),
`images.yaml` what a kind of images needs, `presets/` a file for each preset.
"""

from elign.lab.config.composition import ConfigError
from elign.lab.config.schema import RunConfig, compose, describe, flatten, from_dict, with_aligner

__all__ = ["ConfigError", "RunConfig", "compose", "describe", "flatten", "from_dict", "with_aligner"]
