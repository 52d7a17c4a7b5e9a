"""What `elign export` is given, damaged: one line that names the file, and nothing is written."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.fuzzing import bounded, damaged, fuzz

import elign
from elign.lab.cli import main

Z = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))


def repair():
    labels = torch.arange(20) % 2
    statistics = elign.ClassStatistics().update(Z - 1, labels)
    return elign.Repair(force=True).fit_latents(Z - 1, Z, labels + 2, head=torch.nn.Linear(4, 4), statistics=statistics)


@pytest.fixture(scope="module", params=["aligner", "repair"])
def whole(tmp_path_factory, request):
    made = elign.MeanShift().fit_latents(Z - 1, Z) if request.param == "aligner" else repair()
    return made.save(tmp_path_factory.mktemp("whole") / "saved").read_bytes()


@fuzz(40)
@given(data=st.data(), as_gate=st.booleans())
def test_a_damaged_file_or_gate_is_named_and_nothing_is_written(whole, tmp_path, capsys, data, as_gate):
    (tmp_path / "good").write_bytes(whole)
    bad = data.draw(damaged((whole,))) + b"\0"
    # One byte more is always damage, unless it was just cut off.
    assume(bad != whole)
    (tmp_path / "bad").write_bytes(bad)
    files = [str(tmp_path / "good"), "--gate", str(tmp_path / "bad")] if as_gate else [str(tmp_path / "bad")]
    with bounded():
        assert main(["export", *files, str(tmp_path / "out.onnx")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("elign: ")
    assert said.count("\n") == 1
    assert "bad" in said
    assert not (tmp_path / "out.onnx").exists()
