"""Repair in Avalanche: learn digits 0 to 4, then 5 to 9, and compare accuracies without and with the repair.

Needs avalanche-lib, scikit-learn and elign. The data are embedded; it takes seconds.
"""

from __future__ import annotations

import warnings

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import TensorDataset

import elign.compat  # noqa: F401  (first: what it is for stands in docs/integrations.md)

warnings.filterwarnings("ignore")

from avalanche.benchmarks import nc_benchmark  # noqa: E402
from avalanche.evaluation.metrics import accuracy_metrics  # noqa: E402
from avalanche.models import SimpleMLP  # noqa: E402
from avalanche.training import Naive  # noqa: E402
from avalanche.training.plugins import EvaluationPlugin  # noqa: E402

from elign.integrations.avalanche import RepairPlugin  # noqa: E402


def digits() -> list[TensorDataset]:
    """Return training and test images as vectors, with the `targets` that Avalanche asks for."""
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x / 16, y, test_size=0.3, stratify=y, random_state=0)
    parts = []
    for images, labels in ((x_train, y_train), (x_test, y_test)):
        part = TensorDataset(torch.tensor(images, dtype=torch.float32), torch.tensor(labels))
        part.targets = labels.tolist()
        parts.append(part)
    return parts


def main() -> None:
    """Train, evaluate, print."""
    torch.manual_seed(0)
    benchmark = nc_benchmark(*digits(), n_experiences=2, task_labels=False, fixed_class_order=list(range(10)))
    model = SimpleMLP(num_classes=10, input_size=64, hidden_size=64, drop_rate=0)
    plugin = RepairPlugin("classifier")
    strategy = Naive(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        train_mb_size=64,
        train_epochs=8,
        eval_mb_size=256,
        plugins=[plugin],
        evaluator=EvaluationPlugin(accuracy_metrics(experience=True)),
    )
    for experience in benchmark.train_stream:
        strategy.train(experience)
    print(plugin.task_repair.report)
    for name, enabled in (("before", False), ("after", True)):
        plugin.task_repair.enabled = enabled
        strategy.eval(benchmark.test_stream)
        accuracies = strategy.evaluator.get_last_metrics()
        old, new = (100 * value for key, value in sorted(accuracies.items()) if "/Exp00" in key)
        print(f"{name}: {old:.1f} % of old digits, {new:.1f} % of new ones")


if __name__ == "__main__":
    main()
