"""Files of aligners and gates from anywhere: an object that is ready to use, or the named error."""

from __future__ import annotations

import json
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, bounded, damaged, fuzz

import elign
from elign import Aligner, ByProbe, EnergyAligner, FileFormatError, MeanShift, Ridge
from elign.utils.fitted import FORMAT, VERSION, FittedModule, digest, read_safetensors, registered

Z = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
SCALARS = st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=6)
VALUES = st.recursive(
    SCALARS,
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.text(max_size=4), some, max_size=3),
    max_leaves=6,
)
CLASSES = sorted({name for name in elign.__all__ if registered(name)})
OLD_CLASSES = ["Blend", "Aligned", "Discriminant", "Prototypes", "NearestMean", "HeadScores", "Dose", "ByPrediction"]


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
    """A file whose digest is right, whatever is in it: what somebody with bad intentions would send."""
    metadata = {"format": form, "version": str(version), "class": name, "config": config}
    path.write_bytes(safetensors.torch.save(tensors, metadata | {"digest": digest(metadata, tensors)}))
    return path


@fuzz(120)
@given(data=st.data())
def test_damaged_files_give_an_object_or_are_named(whole, tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data.draw(damaged(whole)))
    found = answer(lambda: FittedModule.load(path), names=path)
    assert found is None or found.fitted


@fuzz(120)
@given(
    name=st.sampled_from([*CLASSES, "Aligner", "?"]),
    config=st.dictionaries(
        st.sampled_from(["hidden", "steps", "penalty", "norm", "seed", "old_classes", "estimators", "x"]), VALUES
    )
    | VALUES,
    dim=st.integers(-1, 2**40) | st.sampled_from([3, 4]),
    extra=st.dictionaries(st.sampled_from(["shift", "matrix", "weight", "energy.layers.0.weight"]), st.integers(0, 9)),
)
def test_any_options_in_a_sealed_file_give_an_object_or_are_named(tmp_path, name, config, dim, extra):
    tensors = {"latent_dim": torch.tensor(dim), **{key: torch.zeros(size) for key, size in extra.items()}}
    path = sealed(tmp_path / "file", name, json.dumps(config), tensors)
    found = answer(lambda: FittedModule.load(path), names=path)
    assert found is None or found.fitted


OLD_OPTIONS = ["known", "soft", "shrinkage", "steps", "caution", "shares", "tolerance"]
OLD_PARTS = st.deferred(
    lambda: st.fixed_dictionaries(
        {},
        optional={
            "class": st.sampled_from(OLD_CLASSES) | SCALARS,
            "config": OLD_CONFIGS,
        },
    )
)
OLD_CONFIGS = st.recursive(
    st.dictionaries(st.sampled_from(OLD_OPTIONS), VALUES, max_size=5) | VALUES,
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "parts": st.lists(OLD_PARTS, max_size=2) | inner,
            "readout": OLD_PARTS | inner,
            "aligner": OLD_PARTS | inner,
            "known": VALUES,
            "steps": VALUES,
            "caution": VALUES,
        },
    ),
    max_leaves=4,
)


@fuzz(120)
@given(
    name=st.sampled_from(OLD_CLASSES),
    config=OLD_CONFIGS,
    dim=st.integers(-1, 2**40) | st.sampled_from([3, 4]),
    extra=st.dictionaries(
        st.sampled_from(["means", "counts", "weights", "parts.0.means", "parts.0.latent_dim", "readout.precision"]),
        st.integers(0, 9),
    ),
)
def test_any_options_in_a_file_of_version_one_give_an_object_or_are_named(tmp_path, name, config, dim, extra):
    tensors = {"latent_dim": torch.tensor(dim), **{key: torch.zeros(size) for key, size in extra.items()}}
    path = sealed(tmp_path / "file", name, json.dumps(config), tensors, form="eli", version=1)
    found = answer(lambda: FittedModule.load(path), names=path)
    assert found is None or found.fitted


@fuzz(120)
@given(
    dtype=st.sampled_from(["F4", "F6_E2M3", "F8_E4M3", "F8_E8M0", "BOOL", "I8", "F16", "BF16", "F64", "C64", "X"]),
    shape=st.lists(st.sampled_from([0, 1, 3, 2**31, 2**62, 2**64]), max_size=4),
    offsets=st.tuples(st.sampled_from([0, 8, 2**63]), st.sampled_from([0, 8, 24, 2**63])),
    length=st.none() | st.sampled_from([0, 2**31, 2**63]),
)
def test_any_header_gives_tensors_or_is_named(tmp_path, dtype, shape, offsets, length):
    header = json.dumps({"a": {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()
    path = tmp_path / "file"
    path.write_bytes(struct.pack("<Q", len(header) if length is None else length) + header + bytes(24))
    found = answer(lambda: read_safetensors(path), names=path)
    if found is not None:
        answer(lambda: digest(*found))


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
    path = sealed(tmp_path / "file", name, json.dumps(config), {"latent_dim": torch.tensor(dim)})
    with bounded(megabytes=64), pytest.raises(FileFormatError, match="the file has fewer"):
        Aligner.load(path)


def test_more_layers_than_any_energy_needs_are_named(tmp_path):
    config = json.dumps({"hidden": [2] * 1000})
    path = sealed(tmp_path / "file", "EnergyAligner", config, {"latent_dim": torch.tensor(4)})
    with bounded(megabytes=64), pytest.raises(FileFormatError, match="hidden must be at most 64"):
        Aligner.load(path)


def test_options_that_are_nested_too_deeply_are_named(tmp_path):
    path = sealed(tmp_path / "file", "MeanShift", "[" * 100_000, {"latent_dim": torch.tensor(4)})
    with pytest.raises(FileFormatError, match="cannot make a MeanShift"):
        Aligner.load(path)


def test_a_large_aligner_comes_back(tmp_path):
    wide = EnergyAligner(hidden=(700, 1500), iterations=1).fit_latents(Z - 1, Z)
    assert torch.equal(Aligner.load(wide.save(tmp_path / "a")).align(Z), wide.align(Z))
    shift = MeanShift().fit_latents(Z - 1, Z)
    assert torch.equal(Aligner.load(shift.save(tmp_path / "b")).align(Z), shift.align(Z))
