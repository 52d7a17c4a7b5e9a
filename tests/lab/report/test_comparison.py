"""Several experiments side by side: the label-free default stands among what they are compared by."""

from __future__ import annotations

from elign.lab.report.run_curves import comparison_figure
from elign.lab.report.run_tables import comparison_table

DOTS = {"base": [50, 40, 30], "eli__oracle": [50, 45, 40], "eli__all": [50, 42, 33], "oracle_mask": [50, 48, 44]}


def test_the_default_stands_beside_the_oracle(build_experiment):
    with_default = build_experiment(2, **DOTS, blend=[50, 47, 44])
    without = build_experiment(2, name="iod on digit-scenes, 4+3", **DOTS)
    table = comparison_table([with_default, without])
    place = table.header.index("blend (default)")
    assert [row[place].text for row in table.rows] == ["47.5 ± 0.7", "–"]
    assert table.rows[0][place + 1].text.startswith("+7.0")
    assert table.header[place + 2] == "eli/oracle †"
    figure = comparison_figure([with_default, without])
    (dots,) = (trace for trace in figure.spec["data"] if trace["name"] == "blend (label-free default)")
    assert (dots["x"], dots["y"]) == ([47.5], [0])


def test_experiments_without_a_default_have_no_place_for_one(build_experiment):
    experiments = [build_experiment(**DOTS), build_experiment(name="another", **DOTS)]
    table = comparison_table(experiments)
    assert not any("blend" in heading for heading in table.header)
    assert {len(row) for row in table.rows} == {len(table.header)}
    names = [trace["name"] for trace in comparison_figure(experiments).spec["data"]]
    assert names == ["base", "eli/oracle †", "oracle-mask †", "best label-free ELI"]
