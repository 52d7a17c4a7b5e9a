"""JSON objects with a digest: no damage passes, files without one are read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import bounded, damaged, fuzz

from elign.lab.json_file import digest_of, parse_object, read_object, write_object

CONTENT = {"seed": 3, "name": "Grüße", "sizes": [4, 3], "rate": 0.1, "none": None}


def test_there_and_back(tmp_path):
    write_object(tmp_path / "x", {**CONTENT, "sizes": (4, 3)})
    assert read_object(tmp_path / "x") == (CONTENT, True)
    assert list(json.loads((tmp_path / "x").read_text())) == [*CONTENT, "digest"]


def test_a_file_of_an_older_version_is_read(tmp_path):
    (tmp_path / "x").write_text(json.dumps(CONTENT))
    assert read_object(tmp_path / "x") == (CONTENT, False)


def test_the_order_of_names_is_no_damage(tmp_path):
    written = dict(reversed(CONTENT.items())) | {"digest": digest_of(CONTENT)}
    (tmp_path / "x").write_text(json.dumps(written))
    assert read_object(tmp_path / "x") == (CONTENT, True)


@fuzz(150)
@given(data=st.data())
def test_no_damage_passes(tmp_path, data):
    path = tmp_path / "x"
    write_object(path, CONTENT)
    path.write_bytes(data.draw(damaged((path.read_bytes(),), text=True)))
    with bounded():
        try:
            found, sealed = read_object(path)
        except ValueError:
            return
    # Without its digest a file is one of an older version, which nothing vouches for.
    assert found == CONTENT or not sealed


@pytest.mark.parametrize(("text", "why"), [("[" * 100_000, "deeply"), ("[]", "no object"), (b"\xff", "decode")])
def test_what_is_no_object_is_a_value_error_that_says_why(text, why):
    with pytest.raises(ValueError, match=why):
        parse_object(text)
