"""The settings of a run: a schema, and their composition from YAML files and `key=value` texts.

Defaults are in YAML files, except those of the aligner's options (`elign.EnergyAligner`, `elign.ByEnergy`) and of a
learner's (its class): `config.yaml` holds the values that nothing else sets (the batch size of feature extraction is
`train.eval_batch_size` there), `choices.yaml` the choices of each group (`memory=none`),
`images.yaml` what a kind of images needs, `presets/` a file for each preset.
"""

from elign.lab.config.composition import ConfigError
from elign.lab.config.schema import RunConfig, compose, describe, flatten

__all__ = ["ConfigError", "RunConfig", "compose", "describe", "flatten"]
