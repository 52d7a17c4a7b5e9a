"""Files of pretrained weights from anywhere: weights or the named error, and nothing in them is run."""

import io
import os
import pickle

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, damaged, fuzz
from torch import nn

from elign.lab.detection.models.errors import WeightsError
from elign.lab.detection.models.weights import load_weights

STATE = {"weight": torch.arange(6.0).view(2, 3), "bias": torch.ones(2)}


def saved(**options) -> bytes:
    buffer = io.BytesIO()
    torch.save(STATE, buffer, **options)
    return buffer.getvalue()


WHOLE = {
    "x.pth": (saved(), saved(_use_new_zipfile_serialization=False)),
    "x.safetensors": (safetensors.torch.save(STATE),),
}


@pytest.mark.filterwarnings("ignore")
@fuzz(120)
@given(data=st.data(), name=st.sampled_from(list(WHOLE)))
def test_damaged_files_give_weights_or_are_named(tmp_path, data, name):
    path = tmp_path / name
    path.write_bytes(data.draw(damaged(WHOLE[name])))
    answer(lambda: load_weights(nn.Linear(3, 2), "resnet50", path), names=path)


class Evil:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.mkdir, (self.mark,)


@pytest.mark.parametrize("protocol", [2, 4])
def test_nothing_in_a_file_is_run(tmp_path, protocol):
    mark = tmp_path / "mark"
    torch.save({"weight": Evil(str(mark))}, tmp_path / "x.pth", pickle_protocol=protocol)
    (tmp_path / "y.pth").write_bytes(pickle.dumps(Evil(str(mark)), protocol=protocol))
    for name in ("x.pth", "y.pth"):
        with pytest.raises(WeightsError, match="cannot be read as weights"):
            load_weights(nn.Linear(3, 2), "resnet50", tmp_path / name)
    assert not mark.exists()
