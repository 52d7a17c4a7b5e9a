"""Repair of a timm model: it learns digits 0 to 4, then 5 to 9; accuracies without and with the repair.

Needs timm, scikit-learn and elign. The data are embedded, the weights random; it takes seconds.
"""

from __future__ import annotations

import copy
import warnings

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate
from torch.utils.data import DataLoader, TensorDataset

import elign.compat  # first: what it is for stands in docs/integrations.md

warnings.filterwarnings("ignore")

import timm  # noqa: E402


def train(model: nn.Module, loader: DataLoader, *, epochs: int, learning_rate: float) -> None:
    """Train all weights."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    model.train()
    for _ in range(epochs):
        for images, labels in loader:
            optimizer.zero_grad()
            cross_entropy(model(images), labels).backward()
            optimizer.step()
    model.eval()


def show(name: str, model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Print accuracies."""
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).float()
    old, new = (100 * right[part].mean() for part in (labels < 5, labels >= 5))
    print(f"{name}: {old:.1f} % of old digits, {new:.1f} % of new ones")


def main() -> None:
    """Train, evaluate, print."""
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    x = interpolate(torch.tensor(x, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16, scale_factor=4)
    x_train, x_test, y_train, y_test = train_test_split(x, torch.tensor(y), test_size=0.3, stratify=y, random_state=0)
    old_loader, new_loader = (
        DataLoader(TensorDataset(x_train[part], y_train[part]), batch_size=32, shuffle=True)
        for part in (y_train < 5, y_train >= 5)
    )

    model = timm.create_model("test_efficientnet", pretrained=False, num_classes=10, in_chans=1)
    head = model.pretrained_cfg["classifier"]
    train(model, old_loader, epochs=6, learning_rate=2e-3)
    statistics = elign.ClassStatistics.from_data(model, head, old_loader)

    old_model = copy.deepcopy(model)
    train(model, new_loader, epochs=4, learning_rate=3e-4)
    show("before", model, x_test, y_test)

    repair = elign.Repair(head).fit(old_model, model, new_loader, statistics=statistics)
    repair.attach(model)
    print(repair.report)
    show("after", model, x_test, y_test)


if __name__ == "__main__":
    main()
