"""Repair in Lightning: fit digits 0 to 4, then 5 to 9, and compare accuracies without and with the repair.

Needs lightning, scikit-learn and elign. The data are embedded; it takes seconds.
"""

from __future__ import annotations

import logging
import tempfile
import warnings

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import elign.compat  # noqa: F401  (first: what it is for stands in docs/integrations.md)

# isort: split

import lightning

from elign.integrations.lightning import RepairCallback

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


class Classifier(lightning.LightningModule):
    """A small network with a head called `head`."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.body(x))

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        return F.cross_entropy(self(batch[0]), batch[1])

    def predict_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        """Say for each image whether it is classified correctly."""
        return self(batch[0]).argmax(dim=1) == batch[1]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return plain SGD."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def loaders() -> tuple[list[DataLoader], list[DataLoader]]:
    """Return training and test data of the old digits and of the new ones."""
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x / 16, y, test_size=0.3, stratify=y, random_state=0)
    made = []
    for images, labels in ((x_train, y_train), (x_test, y_test)):
        tasks = [
            TensorDataset(torch.tensor(images[part], dtype=torch.float32), torch.tensor(labels[part]))
            for part in (labels < 5, labels >= 5)
        ]
        made.append([DataLoader(task, batch_size=64) for task in tasks])
    return made[0], made[1]


def main() -> None:
    """Train, evaluate, print."""
    torch.manual_seed(0)
    (old_train, new_train), (old_test, new_test) = loaders()
    model = Classifier()
    callback = RepairCallback("head")
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu"}
        quiet |= {"enable_checkpointing": False, "default_root_dir": folder}
        for task in (old_train, new_train):
            trainer = lightning.Trainer(max_epochs=8, callbacks=[callback], **quiet)
            trainer.fit(model, task)
        print(callback.task_repair.report)

        for name, enabled in (("before", False), ("after", True)):
            callback.task_repair.enabled = enabled
            old, new = (100 * torch.cat(trainer.predict(model, test)).float().mean() for test in (old_test, new_test))
            print(f"{name}: {old:.1f} % of old digits, {new:.1f} % of new ones")


if __name__ == "__main__":
    main()
