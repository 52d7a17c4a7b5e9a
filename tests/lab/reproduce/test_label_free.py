"""The table of label-free readings, from hand-made numbers."""

import csv
import io

from elign.lab.reproduce.label_free import sheet
from elign.lab.reproduce.sheet import sheet_csv


def values(*numbers, **others):
    names = ("average", "average_incremental", "last", "old", "new")
    return {name: others.get(name, numbers) for name in names}


READINGS = {
    "base": values(40.0, 42.0),
    "oracle-mask †": values(60.0, 62.0),
    "eli/all": values(46.0, 50.0),
    "blend": values(50.0, 52.0, old=(49.0, None)),
}


def made(seeds=2, readings=READINGS):
    return sheet([(("icarl", "cifar100", "half-5"), readings)], notes=("scale",), seeds=seeds, made_by="elign it")


def test_by_hand():
    page = made().page
    rows = {row[0]: dict(zip(page.columns, row, strict=True)) for row in page.rows}
    assert list(rows) == list(READINGS)
    assert rows["eli/all"]["without the first task"] == "48.0 ± 2.8"
    assert rows["eli/all"]["gain over base"] == "+7.00"
    assert rows["eli/all"]["95% interval"] == "[-5.71, +19.71]"  # 7 ± 12.706 · 1.4142 / √2
    assert rows["eli/all"]["blend above it"] == "+3.00"
    assert rows["eli/all"]["its 95% interval"] == "[-9.71, +15.71]"
    assert rows["eli/all"]["recovered"] == "35.0 ± 7.1"  # 6 and 8 of 20
    assert rows["blend"]["recovered"] == "50.0 ± 0.0"
    assert rows["base"]["gain over base"] == rows["blend"]["blend above it"] == "–"
    assert rows["base"]["blend above it"] == "+10.00"
    # A value that one seed lacks is no mean of the other.
    assert rows["blend"]["old"] == "–"


def test_what_all_rows_share_goes_into_the_title():
    assert made().title == "Readings without test labels, icarl, cifar100, half-5"
    assert "over 2 seeds" in made().notes[-1]


def test_one_seed_has_no_interval():
    single = {name: {key: numbers[:1] for key, numbers in found.items()} for name, found in READINGS.items()}
    page = made(seeds=1, readings=single).page
    row = dict(zip(page.columns, page.rows[2], strict=True))
    assert (row["gain over base"], row["95% interval"], row["its 95% interval"]) == ("+6.00", "–", "–")
    assert "one seed, no interval" in made(seeds=1, readings=single).notes[-1]


def test_without_a_default_nothing_is_compared_with_it():
    others = {name: found for name, found in READINGS.items() if name != "blend"}
    page = made(readings=others).page
    assert {row[page.columns.index("blend above it")] for row in page.rows} == {"–"}


def test_values_for_spreadsheets():
    records = list(csv.DictReader(io.StringIO(sheet_csv(made()))))
    assert records[2]["reading"] == "eli/all"
    assert float(records[2]["average_incremental"]) == 48
    assert records[2]["seeds"] == "2"


def test_a_terminal_gets_three_narrower_tables_with_all_columns():
    sheet = made()
    assert [len(piece.columns) for piece in sheet.terminal] == [6, 4, 3]
    assert {piece.columns[0] for piece in sheet.terminal} == {"reading"}
    shown = [(name.replace("\n", " "), *(row[place] for row in piece.rows))
             for piece in sheet.terminal for place, name in enumerate(piece.columns) if place]  # fmt: skip
    whole = [(name, *(row[place] for row in sheet.page.rows)) for place, name in enumerate(sheet.page.columns) if place]
    assert sorted(shown) == sorted(whole)
