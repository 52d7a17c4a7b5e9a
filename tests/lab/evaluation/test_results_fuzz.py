"""Results on disk, damaged: what was written, or the named error; never another number."""

import json

from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import answer, damaged, fuzz

from elign.lab.evaluation.results import CSV_NAME, JSON_NAME, Results, read_results, write_csv, write_results
from elign.lab.evaluation.scoring import Row

ROWS = [Row(number, "base", "fc", True, 0.875, 0.5, None, 0.25, None, 0.0, (0.5, 0.75)) for number in (1, 2)]
FACTS = {"seed": 1, "classes": ["a", "b"]}
TASKS = [{"task": 1, "seconds": {"train": 1.5}}]


@fuzz(150)
@given(data=st.data())
def test_no_damage_passes(tmp_path, data):
    path = write_results(tmp_path, ROWS, FACTS, tasks=TASKS)
    path.write_bytes(data.draw(damaged((path.read_bytes(),), text=True)))
    found = answer(lambda: read_results(path), names=path)
    first = json.loads(path.read_bytes().split(b"\n")[0]) if found else {}
    # Without its digest a file is one of an older version, which nothing vouches for.
    assert found is None or found == Results(FACTS, ROWS, TASKS) or "digest" not in first


@fuzz(80)
@given(data=st.data())
def test_damaged_files_of_older_versions_give_rows_or_are_named(tmp_path, data):
    first, *rest = write_results(tmp_path, ROWS, FACTS, tasks=TASKS).read_text().splitlines(keepends=True)
    plain = {name: value for name, value in json.loads(first).items() if name != "digest"}
    whole = (json.dumps(plain) + "\n" + "".join(rest)).encode()
    path = tmp_path / JSON_NAME
    path.write_bytes(whole)
    assert read_results(path) == Results(FACTS, ROWS, TASKS)
    path.write_bytes(data.draw(damaged((whole,), text=True)))
    found = answer(lambda: read_results(path), names=path)
    assert found is None or all(0 <= row.accuracy <= 1 for row in found.rows)


def test_facts_that_are_no_text_can_be_written(tmp_path):
    facts = {"overrides": ["out=f\udce4lder"]}  # a folder's name in Latin-1, as Python sees it
    assert read_results(write_results(tmp_path, ROWS, facts)).facts == facts


def test_a_damaged_table_is_written_again_and_a_right_one_is_left_alone(tmp_path):
    write_csv(tmp_path, ROWS)
    table = tmp_path / CSV_NAME
    whole, stamp = table.read_bytes(), table.stat().st_mtime_ns
    write_csv(tmp_path, ROWS)
    assert table.stat().st_mtime_ns == stamp
    table.write_bytes(whole.replace(b"0.875", b"0.975"))
    write_csv(tmp_path, ROWS)
    assert table.read_bytes() == whole
