import subprocess
import sys

import pytest
import torch

from elign.lab.data.memory import Memory
from elign.lab.experiments.run_folder import RunError, RunFolder
from elign.lab.tensor_file import DamagedRunError


@pytest.fixture
def folder(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.write_facts({"seed": 3})
    return folder


@pytest.fixture
def memory():
    memory = Memory(per_class=2)
    memory.restore({11: torch.tensor([5, 3, 4]), 2: torch.tensor([9, 8])})
    return memory


def test_facts_survive(folder):
    assert folder.exists
    assert folder.facts() == {"format": 1, "seed": 3}


def test_a_folder_without_a_run_says_so(tmp_path):
    assert not RunFolder(tmp_path).exists
    with pytest.raises(RunError, match="no run in"):
        RunFolder(tmp_path).facts()


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_damaged_facts_are_named(folder, content):
    (folder.path / "run.json").write_text(content)
    with pytest.raises(DamagedRunError, match=r"run\.json is damaged"):
        folder.facts()


def test_a_newer_format_is_refused(folder):
    (folder.path / "run.json").write_text('{"format": 2}')
    with pytest.raises(RunError, match="upgrade elign"):
        folder.facts()


def test_a_model_and_its_memory_survive(folder, memory):
    state = {"backbone.w": torch.randn(2, 3), "head.b": torch.randn(4)}
    folder.save_model(0, state, memory.ranked, {"seconds": 1.5})
    found, ranked, facts = folder.load_model(0)
    assert folder.is_learned(0)
    assert folder.tasks() == 1
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert {label: ranks.tolist() for label, ranks in ranked.items()} == {2: [9, 8], 11: [5, 3, 4]}
    assert facts == {"seconds": 1.5}


def test_a_damaged_model_is_named(folder, memory):
    folder.save_model(0, {"w": torch.zeros(8)}, memory.ranked, {})
    file = folder.task(0) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DamagedRunError, match=r"model\.safetensors is damaged .* 'elign resume'"):
        folder.load_model(0)


def test_progress_is_of_one_task_and_damage_counts_as_none(folder):
    assert folder.progress(1) is None
    folder.save_progress(1, {"a": torch.arange(3)}, {"epoch": 4})
    state, facts = folder.progress(1)
    assert facts == {"task": 1, "epoch": 4}
    assert state["a"].tolist() == [0, 1, 2]
    assert folder.progress(2) is None
    (folder.path / "progress.safetensors").write_bytes(b"half")
    assert folder.progress(1) is None
    folder.drop_progress()
    folder.drop_progress()
    assert not (folder.path / "progress.safetensors").exists()


@pytest.mark.skipif(sys.platform == "win32", reason="locks are advisory locks of POSIX systems")
def test_a_second_process_is_kept_out_and_a_killed_one_is_not_waited_for(folder):
    code = (
        "import sys, time; from elign.lab.experiments.run_folder import RunFolder\n"
        "with RunFolder(sys.argv[1]).locked():\n    print('in', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(folder.path)], stdout=subprocess.PIPE) as other:
        assert other.stdout.readline() == b"in\n"
        with pytest.raises(RunError, match="another process is at work"), folder.locked():
            pass
        other.kill()
        other.wait()
    with folder.locked():
        pass


def test_parts_of_an_unknown_run_are_not_taken_over(folder, memory):
    folder.save_model(0, {"w": torch.zeros(8)}, memory.ranked, {})
    (folder.path / "run.json").unlink()
    with pytest.raises(RunError, match=r"has no run\.json but task-00/model\.safetensors"):
        _ = folder.exists


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "run").write_text("x")
    with pytest.raises(RunError, match="is a file"):
        _ = RunFolder(tmp_path / "run").exists
