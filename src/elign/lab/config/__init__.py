"""The settings of `elign run`, as YAML files in groups; read by `elign.lab.experiments.run_config` and by nothing else.

A file of a group is a choice (`learner=lucir` is `learner/lucir.yaml`). `config.yaml` says in which order they apply.
"""
