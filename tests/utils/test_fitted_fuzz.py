"""Files of aligners and gates from anywhere: an object that is ready to use, or the named error."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, bounded, damaged, fuzz, signed

from elign import Aligner, ByProbe, EnergyAligner, FileFormatError, MeanShift, Ridge
from elign.utils.fitted import FORMAT, VERSION, FittedModule

Z = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
OLD_CLASSES = ["Blend", "Aligned", "Discriminant", "Prototypes", "NearestMean", "HeadScores", "Dose", "ByPrediction"]
OLD_OPTIONS = ["known", "soft", "shrinkage", "steps", "caution", "shares", "tolerance", "parts", "readout", "aligner"]
SCALARS = st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda some: (
        st.lists(some, max_size=3)
        | st.dictionaries(st.sampled_from(OLD_OPTIONS) | st.text(max_size=4), some, max_size=5)
        | st.fixed_dictionaries({}, optional={"class": st.sampled_from(OLD_CLASSES) | SCALARS, "config": some})
    ),
    max_leaves=12,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    made = (
        EnergyAligner(hidden=(3,), iterations=2).fit_latents(Z - 1, Z),
        Ridge().fit_latents(Z - 1, Z),
        ByProbe().fit(Z - 1, Z),
    )
    return tuple(one.save(folder / str(number)).read_bytes() for number, one in enumerate(made))


def sealed(path, name, config, tensors, *, form=FORMAT, version=VERSION):
    metadata = {"format": form, "version": str(version), "class": name, "config": json.dumps(config)}
    return signed(path, metadata, tensors)


@fuzz(120)
@given(data=st.data())
def test_damaged_files_give_an_object_or_are_named(whole, tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data.draw(damaged(whole)))
    found = answer(lambda: FittedModule.load(path), names=path)
    assert found is None or found.fitted


@fuzz(200)
@given(
    name=st.sampled_from(OLD_CLASSES),
    config=st.dictionaries(st.sampled_from(OLD_OPTIONS), VALUES, max_size=5) | VALUES,
    dim=st.integers(-1, 2**40) | st.sampled_from([3, 4]),
    extra=st.dictionaries(
        st.sampled_from(["means", "counts", "weights", "parts.0.means", "parts.0.latent_dim", "readout.precision"]),
        st.integers(0, 9),
    ),
)
def test_any_options_in_a_file_of_version_one_give_an_object_or_are_named(tmp_path, name, config, dim, extra):
    tensors = {"latent_dim": torch.tensor(dim), **{key: torch.zeros(size) for key, size in extra.items()}}
    path = sealed(tmp_path / "file", name, config, tensors, form="eli", version=1)
    found = answer(lambda: FittedModule.load(path), names=path)
    assert found is None or found.fitted


@pytest.mark.parametrize(
    ("name", "config", "dim"),
    [
        ("EnergyAligner", {"hidden": [50_000, 20_000]}, 4),
        ("EnergyAligner", {"hidden": [2000] * 60}, 4),
        ("Ridge", {}, 30_000),
        ("MeanShift", {}, 2**40),
    ],
)
def test_a_small_file_cannot_ask_for_gigabytes(tmp_path, name, config, dim):
    path = sealed(tmp_path / "file", name, config, {"latent_dim": torch.tensor(dim)})
    with bounded(megabytes=64), pytest.raises(FileFormatError, match="the file has fewer"):
        Aligner.load(path)


def test_a_large_aligner_comes_back(tmp_path):
    for made in (EnergyAligner(hidden=(700, 1500), iterations=1), MeanShift()):
        made.fit_latents(Z - 1, Z)
        assert torch.equal(Aligner.load(made.save(tmp_path / "a")).align(Z), made.align(Z))
