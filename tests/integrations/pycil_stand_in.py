"""A stand-in for PyCIL, which is no package and cannot be installed: its documented hooks, on small networks.

Written for these tests after PyCIL's public interface. What is as there: names and order of `incremental_train`,
`eval_task` and `after_task`, counters, `update_fc` that replaces the head in each task, heads that return a dict,
datasets of (index, image, label), exemplars by `appendent`. What is not: backbones, schedules, herding, devices.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


class Indexed(Dataset):
    """(index, image, label), as PyCIL's datasets give it."""

    def __init__(self, images, labels) -> None:
        self.images, self.labels = images, labels

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index):
        return index, self.images[index], self.labels[index]


class DataManager:
    """Hands out datasets by class; `asked` notes who asked for what."""

    def __init__(self, digits, increments=(5, 5)) -> None:
        self._digits, self._increments = digits, increments
        self.asked = []

    def get_task_size(self, task: int) -> int:
        return self._increments[task]

    def get_dataset(self, indices, source, mode, appendent=None):
        images, labels = self._digits.of(indices, part=source)
        self.asked.append((source, mode, sorted(set(labels.tolist())), appendent is not None))
        if appendent is not None:
            images, labels = torch.cat([images, appendent[0]]), torch.cat([labels, appendent[1]])
        return Indexed(images, labels)


class SimpleLinear(nn.Linear):
    """A head that returns a dict."""

    def forward(self, x):
        return {"logits": super().forward(x)}


class IncrementalNet(nn.Module):
    """A body whose output is a dict, and a head `fc` that is replaced by a larger one in each task."""

    def __init__(self) -> None:
        super().__init__()
        self.convnet = nn.Sequential(nn.Linear(64, 32), nn.ReLU())
        self.fc = None

    def extract_vector(self, x):
        return self.convnet(x)

    def forward(self, x):
        features = self.convnet(x)
        return {**self.fc(features), "features": features}

    def update_fc(self, classes: int) -> None:
        grown = SimpleLinear(32, classes)
        if self.fc is not None:
            with torch.no_grad():
                grown.weight[: self.fc.out_features] = self.fc.weight
                grown.bias[: self.fc.out_features] = self.fc.bias
        self.fc = grown

    def copy(self):
        return copy.deepcopy(self)


class Finetune:
    """PyCIL's fine-tuning: after the first task, the loss looks at the new classes' logits only. No old network."""

    memory = None
    topk = 1

    def __init__(self, args) -> None:
        torch.manual_seed(args["seed"])
        self._cur_task, self._known_classes, self._total_classes = -1, 0, 0
        self._network = IncrementalNet()
        self._device = torch.device("cpu")

    def after_task(self) -> None:
        self._known_classes = self._total_classes

    def incremental_train(self, data_manager) -> None:
        self._cur_task += 1
        self._total_classes = self._known_classes + data_manager.get_task_size(self._cur_task)
        self._network.update_fc(self._total_classes)
        new = np.arange(self._known_classes, self._total_classes)
        train = data_manager.get_dataset(new, source="train", mode="train", appendent=self.memory)
        test = data_manager.get_dataset(np.arange(self._total_classes), source="test", mode="test")
        self.test_loader = DataLoader(test, batch_size=128)
        self._train(DataLoader(train, batch_size=64, shuffle=True))

    def _train(self, loader) -> None:
        first = 0 if self.memory is not None else self._known_classes
        optimizer = torch.optim.SGD(self._network.parameters(), lr=0.1, momentum=0.9)
        for _ in range(8):
            self._network.train()
            for _, images, labels in loader:
                loss = F.cross_entropy(self._network(images)["logits"][:, first:], labels - first)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def eval_task(self):
        predicted, labels = self._eval_cnn(self.test_loader)
        return 100 * float((predicted[:, 0] == labels).mean()), None

    def _eval_cnn(self, loader):
        self._network.eval()
        predicted, true = [], []
        for _, images, labels in loader:
            with torch.no_grad():
                logits = self._network(images)["logits"]
            predicted.append(torch.topk(logits, k=self.topk, dim=1)[1].numpy())
            true.append(labels.numpy())
        return np.concatenate(predicted), np.concatenate(true)


class ReplayOfExemplars(Finetune):
    """The same with exemplars in the training data and a kept old network, as PyCIL's replay and iCaRL have it."""

    _old_network = None

    def after_task(self) -> None:
        super().after_task()
        self._old_network = self._network.copy()

    def incremental_train(self, data_manager) -> None:
        if self._known_classes:
            old = data_manager.get_dataset(np.arange(self._known_classes), source="train", mode="train")
            self.memory = old.images[::10], old.labels[::10]
        super().incremental_train(data_manager)
