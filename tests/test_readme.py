"""The code in the README runs as it is printed."""

from __future__ import annotations

import copy
import re
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from torch import nn

import elign

README = Path(__file__).parents[1] / "README.md"
TEXT = README.read_text(encoding="utf-8")


def test_the_three_lines_work_on_a_model_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    kept, repaired, aligned = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    torch.manual_seed(0)
    centers = torch.randn(60, 20)

    def loader(classes, each):
        labels = torch.tensor(classes).repeat_interleave(each)
        data = torch.utils.data.TensorDataset(centers[labels] + 0.3 * torch.randn(len(labels), 20), labels)
        return torch.utils.data.DataLoader(data, batch_size=64)

    old_model = nn.Sequential(OrderedDict(body=nn.Linear(20, 16), fc=nn.Linear(16, 60))).eval()
    new_model = copy.deepcopy(old_model)
    with torch.no_grad():
        new_model.body.bias += 1
    names = {
        "old_model": old_model,
        "new_model": new_model,
        "old_loader": loader(range(50), 30),
        "new_loader": loader(range(50, 60), 30),
    }
    x = torch.cat([batch[0] for batch in loader(range(60), 4)])
    labels = torch.arange(60).repeat_interleave(4)
    before = new_model(x)
    exec(kept, names)
    exec(repaired, names)
    after = new_model(x)
    assert after.shape == before.shape
    assert (after.argmax(dim=1) == labels).float().mean() > 0.5
    assert elign.Repair.load("repair.safetensors").mode == "classifier"
    elign.detach(new_model)
    assert torch.equal(new_model(x), before)
    exec(aligned, names)
    after = new_model(x)
    taken_for_old = before.argmax(dim=1) < 50
    assert taken_for_old.any()
    assert (after[taken_for_old] != before[taken_for_old]).any(dim=1).all()
    assert torch.equal(after[~taken_for_old], before[~taken_for_old])


def test_the_report_is_that_of_the_tutorial():
    (shown,) = re.findall(r"```text\n(.*?)```", TEXT, flags=re.DOTALL)
    tutorial = README.parent / "docs" / "tutorials" / "repair-your-model.md"
    assert shown in tutorial.read_text(encoding="utf-8")


def test_there_is_a_place_for_the_results_of_the_panel():
    assert TEXT.index("<!-- panel -->") < TEXT.index("<!-- /panel -->")


@pytest.mark.parametrize("page", [README, *sorted((README.parent / "docs").glob("*.md"))], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
