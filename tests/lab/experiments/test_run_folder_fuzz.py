"""Folders of runs, damaged: the run that was written, or the named error."""

import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, bounded, damaged, fuzz

from elign.lab.cli import main
from elign.lab.evaluation.results import read_results, write_results
from elign.lab.evaluation.scoring import Row
from elign.lab.experiments.run_config import compose, describe
from elign.lab.experiments.run_folder import RunFolder
from elign.lab.tensor_file import DamagedRunError, write_tensors

ROW = Row(1, "base", "fc", True, 0.5, None, None, None, None, 0.0, (0.5,))


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    speed = {"precision": "32", "channels_last": False}
    config = describe(compose(["data=digits", "preset=smoke"]))
    folder.write_facts({"config": config, "sizes": [5, 5], "speed": speed, "classes": list("0123456789")})
    folder.save_model(0, {"w": torch.zeros(3)}, {}, {"seconds": 1.0})
    write_results(folder.task(0), [ROW], {}, tasks=[{"task": 1, "seconds": {}}])
    folder.collect()
    return folder


@fuzz(80)
@given(data=st.data())
def test_no_damage_of_the_first_file_passes(folder, data):
    path, facts = folder.path / "run.json", folder.facts()
    whole = path.read_bytes()
    path.write_bytes(data.draw(damaged((whole,), text=True)))
    found = answer(folder.facts, names=path)
    sealed = found is not None and "digest" in json.loads(path.read_bytes())
    path.write_bytes(whole)
    assert found == facts or not sealed


@fuzz(15)
@given(data=st.data(), name=st.sampled_from(["run.json", "task-00/results.jsonl", "task-00/model.safetensors"]))
def test_a_damaged_run_does_not_keep_others_from_being_listed(folder, capsys, data, name):
    other = folder.path.parent / "other"
    shutil.copytree(folder.path, other, dirs_exist_ok=True)
    (other / name).write_bytes(data.draw(damaged(((other / name).read_bytes(),), text=name != "model.safetensors")))
    with bounded():
        assert main(["list", str(folder.path.parent)]) == 0
    assert "icarl" in capsys.readouterr().out


@pytest.mark.parametrize("key", ["config", "sizes", "speed", "classes"])
def test_a_file_of_an_older_version_that_lacks_something_is_named(folder, key):
    facts = folder.facts()
    (folder.path / "run.json").write_text(json.dumps(facts))
    assert folder.facts() == facts
    del facts[key]
    (folder.path / "run.json").write_text(json.dumps(facts))
    with pytest.raises(DamagedRunError, match=f"it lacks {key}"):
        folder.facts()


def test_another_number_in_the_first_file_is_noticed(folder):
    path = folder.path / "run.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 1'))
    with pytest.raises(DamagedRunError, match=r"run\.json is damaged .*digest.*start it anew in another folder"):
        folder.facts()


def test_a_tensor_that_is_no_exemplar_is_named(folder):
    write_tensors(folder.task(0) / "model.safetensors", {"memory.x": torch.zeros(2)})
    with pytest.raises(DamagedRunError, match=r"model\.safetensors is of something else"):
        folder.load_model(0)


@pytest.mark.parametrize("name", ["results.jsonl", "results.csv", "task-00/results.csv"])
@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_what_only_repeats_other_files_is_made_again(folder, name, damage):
    path = folder.path / name
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(whole[:-5] if damage == "cut" else whole.replace(b"0.5", b"0.6"))
    folder.complete()
    assert path.read_bytes() == whole


def test_a_task_that_was_read_right_before_a_kill_is_in_the_results(folder):
    write_results(folder.task(1), [ROW], {}, tasks=[{"task": 2, "seconds": {}}])
    assert len(read_results(folder.path / "results.jsonl").tasks) == 1
    folder.complete()
    assert len(read_results(folder.path / "results.jsonl").tasks) == 2


def test_results_that_are_whole_are_not_written_again(folder):
    files = [*folder.path.glob("**/results.*")]
    stamps = [file.stat().st_mtime_ns for file in files]
    folder.complete()
    assert [file.stat().st_mtime_ns for file in files] == stamps
