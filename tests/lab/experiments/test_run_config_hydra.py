"""Hydra behind the configuration of a run: it is left as it was found, and is not noticed from outside."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import resources

import pytest
from tests.lab.experiments.composing import PRESETS, composed

from elign.lab.experiments import config_files
from elign.lab.experiments.run_config import TREE, ConfigError, compose


@pytest.fixture
def afresh():
    """Nothing is remembered from other tests, so that hydra is really asked."""
    config_files._compose_files.cache_clear()


@pytest.mark.usefixtures("afresh")
def test_hydra_is_left_as_it_was_found():
    from hydra.core.global_hydra import GlobalHydra

    compose()
    assert not GlobalHydra.instance().is_initialized()
    with pytest.raises(ConfigError):
        composed("seed=${nope}")
    assert not GlobalHydra.instance().is_initialized()


@pytest.mark.usefixtures("afresh")
def test_it_can_be_composed_inside_a_program_of_hydras_own():
    from hydra import initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    with initialize_config_module("elign.lab.config", version_base="1.3"):
        theirs = GlobalHydra.instance().hydra
        assert compose(["seed=4"]).seed == 4
        assert GlobalHydra.instance().hydra is theirs


@pytest.mark.usefixtures("afresh")
def test_threads_do_not_get_each_others_settings():
    with ThreadPoolExecutor(4) as pool:
        configs = list(pool.map(lambda seed: compose([f"preset={PRESETS[seed % 3]}", f"seed={seed}"]), range(6)))
    assert [config.seed for config in configs] == list(range(6))
    assert [config.preset for config in configs] == [*PRESETS, *PRESETS]


def test_to_import_it_is_not_to_import_hydra():
    code = "import sys, elign.lab.experiments.run_config; print('hydra' in sys.modules, 'omegaconf' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


@pytest.mark.usefixtures("afresh")
def test_nothing_is_printed_or_written(tmp_path, monkeypatch, capfd, recwarn):
    monkeypatch.chdir(tmp_path)
    compose(["seed=2"])
    with pytest.raises(ConfigError):
        composed("seed=[")
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.iterdir())
    assert not recwarn.list


@pytest.mark.parametrize("group", ["learner", "data", "protocol", "model", "train", "memory", "aligner", "preset"])
def test_the_files_are_part_of_the_package(group):
    assert resources.files("elign.lab.config").joinpath("config.yaml").is_file()
    assert TREE.choices(group)
