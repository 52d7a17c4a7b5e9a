"""The code in the README runs as it is printed."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import elign

README = Path(__file__).parents[1] / "README.md"


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(20, 16)
        self.fc = nn.Linear(16, 60)

    def forward(self, x):
        return self.fc(self.body(x))


def test_the_three_lines_work_on_a_model_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blended, aligned = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), flags=re.DOTALL)
    torch.manual_seed(0)
    old_model = Classifier()
    new_model = copy.deepcopy(old_model)
    with torch.no_grad():
        new_model.body.bias += 1

    def loader(classes, each):
        labels = torch.tensor(classes).repeat_interleave(each)
        data = torch.utils.data.TensorDataset(torch.randn(len(labels), 20), labels)
        return torch.utils.data.DataLoader(data, batch_size=64)

    x = torch.randn(200, 20)
    before = new_model.eval()(x)
    names = {
        "old_model": old_model,
        "new_model": new_model,
        "new_task_loader": loader(range(50, 60), 30),
        "exemplar_loader": loader(range(60), 3),
    }
    exec(blended, names)
    voted = new_model(x)
    assert voted.shape == before.shape
    assert (voted != before).any(dim=1).all()
    assert elign.Readout.load("blend.safetensors").fitted
    elign.detach(new_model)
    exec(aligned, names)
    after = new_model(x)
    taken_for_old = before.argmax(dim=1) < 50
    assert taken_for_old.any()
    assert (after[taken_for_old] != before[taken_for_old]).any(dim=1).all()
    assert torch.equal(after[~taken_for_old], before[~taken_for_old])
    assert (tmp_path / "aligner.safetensors").exists()


@pytest.mark.parametrize("page", [README, *sorted((README.parent / "docs").glob("*.md"))], ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("https://"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
