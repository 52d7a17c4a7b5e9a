"""The folder of a run: there and back, its lock, and damage as a named error."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, bounded, damaged, fuzz
from tests.lab.starting import METADATA

from elign.lab.cli.main import main
from elign.lab.config import compose, describe
from elign.lab.data.scenario import Memory
from elign.lab.evaluation.metrics import Row
from elign.lab.runs.run_dir import Results, RunDir, RunError, read_results, run_text
from elign.lab.storage import DamagedRunError, write_object, write_tensors


def results(task):
    """Results of a task, from 1."""
    row = Row(task, "base", "fc", True, 0.5, None, None, None, None, 0.0, (0.5,) * task)
    return Results({}, [row], [{"task": task, "evaluation_version": 1, "seconds": {}, "drift": {}}])


@pytest.fixture
def folder(tmp_path):
    folder = RunDir(tmp_path / "run")
    folder.write_metadata(METADATA)
    return folder


@pytest.fixture
def memory():
    memory = Memory(per_class=2)
    memory.restore({11: torch.tensor([5, 3, 4]), 2: torch.tensor([9, 8])})
    return memory


def test_a_folder_without_a_run_says_so(tmp_path):
    assert not RunDir(tmp_path).exists
    with pytest.raises(RunError, match="no run in"):
        RunDir(tmp_path).metadata()
    (tmp_path / "run").write_text("x")
    with pytest.raises(RunError, match="is a file"):
        _ = RunDir(tmp_path / "run").exists


def test_a_newer_format_is_refused(folder):
    write_object(folder.path / "run.json", {**METADATA, "format": 2})
    with pytest.raises(RunError, match="upgrade elign"):
        folder.metadata()


def test_a_model_and_its_memory_survive(folder, memory):
    state = {"backbone.w": torch.randn(2, 3), "head.b": torch.randn(4)}
    folder.save_model(0, state, memory.ranked, {"seconds": 1.5})
    found, ranked, metadata = folder.load_model(0)
    assert folder.is_learned(0)
    assert folder.tasks() == 1
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert {label: ranks.tolist() for label, ranks in ranked.items()} == {2: [9, 8], 11: [5, 3, 4]}
    assert metadata == {"seconds": 1.5}


def test_progress_is_of_one_task_and_damage_counts_as_none(folder):
    assert folder.progress(1) is None
    folder.save_progress(1, {"a": torch.arange(3)}, {"epoch": 4, "step": 2, "seconds": 0.5})
    state, metadata = folder.progress(1)
    assert metadata == {"task": 1, "epoch": 4, "step": 2, "seconds": 0.5}
    assert state["a"].tolist() == [0, 1, 2]
    assert folder.progress(2) is None
    folder.save_progress(1, {"a": torch.arange(3)}, {"epoch": "4", "step": 2, "seconds": 0.5})
    assert folder.progress(1) is None
    (folder.path / "progress.safetensors").write_bytes(b"half")
    assert folder.progress(1) is None
    folder.drop_progress()
    folder.drop_progress()
    assert not (folder.path / "progress.safetensors").exists()


def test_a_second_process_is_kept_out_and_a_killed_one_is_not_waited_for(folder):
    code = (
        "import sys, time; from elign.lab.runs.run_dir import RunDir\n"
        "with RunDir(sys.argv[1]).locked():\n    print('in', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder.path)], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"in\n"
        assert folder.is_locked()
        with pytest.raises(RunError, match="another process is at work"), folder.locked():
            pass
        other.kill()
        other.wait()
    assert not folder.is_locked()
    with folder.locked():
        assert folder.is_locked()
    assert (folder.path / ".lock").stat().st_size == 0


def test_parts_of_an_unknown_run_are_not_taken_over(folder, memory):
    folder.save_model(0, {"w": torch.zeros(8)}, memory.ranked, {})
    (folder.path / "run.json").unlink()
    with pytest.raises(RunError, match=r"has task-00/model\.safetensors but no run\.json"):
        _ = folder.exists


@pytest.fixture
def whole_folder(folder):
    """The same with a finished task."""
    folder.save_model(0, {"w": torch.zeros(3)}, {}, {"seconds": 1.0})
    folder.write_task_results(0, results(1))
    folder.write_results([results(1)])
    return folder


@fuzz(80)
@given(data=st.data())
def test_no_damage_of_the_first_file_passes(whole_folder, data):
    path, metadata = whole_folder.path / "run.json", whole_folder.metadata()
    whole = path.read_bytes()
    path.write_bytes(data.draw(damaged((whole,), text=True)))
    assert metadata == {"format": 1, **METADATA}
    found = answer(whole_folder.metadata, names=path)
    sealed = found is not None and "digest" in json.loads(path.read_bytes())
    path.write_bytes(whole)
    assert found == metadata or not sealed


@fuzz(5)
@given(data=st.data(), name=st.sampled_from(["run.json", "task-00/results.jsonl", "task-00/model.safetensors"]))
def test_a_damaged_run_does_not_keep_others_from_being_listed(whole_folder, capsys, data, name):
    other = whole_folder.path.parent / "other"
    shutil.copytree(whole_folder.path, other, dirs_exist_ok=True)
    (other / name).write_bytes(data.draw(damaged(((other / name).read_bytes(),), text=name != "model.safetensors")))
    with bounded():
        assert main(["list", str(whole_folder.path.parent)]) == 0
    assert "icarl" in capsys.readouterr().out


TAMPERED = [
    ("config", None),
    ("config", {}),
    ("config", {**METADATA["config"], "learner": 3}),
    ("config", {**METADATA["config"], "seed": "0"}),
    ("config", {**METADATA["config"], "train": {}}),
    ("config", {**METADATA["config"], "memory": None}),
    ("sizes", 5),
    ("sizes", []),
    ("sizes", [5, -1]),
    ("sizes", [10**9]),
    ("sizes", ["5", "5"]),
    ("classes", {"a": 1}),
    ("classes", [1, 2]),
    ("precision", "64"),
    ("precision", None),
    ("channels_last", 1),
    ("threads", "two"),
    ("environment", [1]),
    ("evaluation", "aligner.steps=2"),
    ("overrides", 7),
    ("benchmark", 7),
]


@pytest.mark.parametrize(("key", "value"), TAMPERED)
def test_tampered_metadata_are_a_named_error(folder, key, value, capsys):
    write_object(folder.path / "run.json", {"format": 1, **METADATA, key: value})
    with pytest.raises(DamagedRunError, match=rf"run\.json is damaged \({key}"):
        folder.metadata()
    assert main(["show", str(folder.path)]) == 1
    assert "is damaged" in capsys.readouterr().err


def test_a_benchmark_of_a_newer_elign_is_named(folder, capsys):
    write_object(folder.path / "run.json", {"format": 1, **METADATA, "benchmark": "segmentation"})
    assert main(["resume", str(folder.path)]) == 1
    assert "upgrade" in capsys.readouterr().err


def test_results_of_another_task_are_named(whole_folder):
    whole_folder.write_task_results(1, results(1))
    with pytest.raises(DamagedRunError, match=r"task-01/results\.jsonl is of another task"):
        whole_folder.gather()


def test_a_tensor_that_is_no_exemplar_is_named(whole_folder):
    write_tensors(whole_folder.task(0) / "model.safetensors", {"memory.x": torch.zeros(2)})
    with pytest.raises(DamagedRunError, match=r"model\.safetensors is of something else"):
        whole_folder.load_model(0)


def repair(folder):
    folder.repair_results([folder.results(each) for each in range(folder.finished_tasks())])


@pytest.mark.parametrize("name", ["results.jsonl", "results.csv", "task-00/results.csv"])
@pytest.mark.parametrize("damage", ["missing", "cut", "changed"])
def test_what_only_repeats_other_files_is_made_again(whole_folder, name, damage):
    path = whole_folder.path / name
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(whole[:-5] if damage == "cut" else whole.replace(b"0.5", b"0.6"))
    repair(whole_folder)
    assert path.read_bytes() == whole


def test_a_task_that_was_evaluated_right_before_a_kill_is_in_the_results_and_whole_files_stay(whole_folder):
    whole_folder.write_task_results(1, results(2))
    assert len(read_results(whole_folder.path / "results.jsonl").tasks) == 1
    repair(whole_folder)
    assert len(read_results(whole_folder.path / "results.jsonl").tasks) == 2
    files = [*whole_folder.path.glob("**/results.*")]
    stamps = [file.stat().st_mtime_ns for file in files]
    repair(whole_folder)
    assert [file.stat().st_mtime_ns for file in files] == stamps


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ("learner=lucir data=cifar100", "lucir on cifar100, half-5, resnet20, 12/8 epochs, 20 exemplars per class"),
        (
            "learner=aanet-implicit memory=none",
            "aanet (less_forget=0) on digits, half-5, conv, 12/6 epochs, no exemplars",
        ),
        ("protocol=b50-5 memory=budget", "icarl on digits, half-5, conv, 12/6 epochs, 2000 exemplars"),
        ("protocol.first=4 protocol.increment=2", "icarl on digits, 4+2, conv, 12/6 epochs, 10 exemplars per class"),
    ],
)
def test_a_run_in_words(typed, text):
    metadata = {"config": describe(compose(typed.split()))}
    assert run_text(metadata) == text
    assert run_text({**metadata, "evaluation": ["aligner.steps=3"]}) == f"{text}, aligner.steps=3"
