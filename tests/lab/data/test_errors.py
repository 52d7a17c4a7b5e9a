import pickle
from pathlib import Path

import pytest

from elign.lab.data.errors import DamagedFileError, DataError, DatasetNotFoundError, FetchError

ERRORS = [
    FetchError("file", ["first: refused", "second: 404"]),
    DamagedFileError(Path("folder/file"), "it is cut short", "copy it again"),
    DatasetNotFoundError("mnist", Path("folder"), ["one", "two"], ["mirror: no answer", "npm: not installed"]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_survive_a_trip_between_processes(error):
    copy = pickle.loads(pickle.dumps(error))
    assert isinstance(copy, DataError)
    assert str(copy) == str(error)


def test_messages_say_what_where_and_why():
    fetch, damaged, missing = map(str, ERRORS)
    for part in ("file", "first: refused", "second: 404"):
        assert part in fetch
    for part in (str(Path("folder/file")), "cut short", "copy it again"):
        assert part in damaged
    for part in ("'mnist'", "folder", "one", "two", "mirror: no answer", "npm: not installed", "ELIGN_DATA"):
        assert part in missing
