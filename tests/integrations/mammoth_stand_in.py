"""A stand-in for mammoth, which cannot be installed as a package: its documented hooks, on small networks.

Written for these tests after mammoth's public interface. What is as there: `meta_begin_task` and
`meta_end_task` with their counters, `begin_task`, `observe`, `end_task` and `forward` on an `nn.Module` that owns `net`
with its `classifier`, a loader of (augmented image, label, plain image), and an evaluation that puts only `net` into
evaluation mode. What is not: arguments, datasets, buffers, devices, logging.
"""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import ConcatDataset, DataLoader, TensorDataset


class ContinualDataset:
    """Two tasks of digits; `train_loader` is that of the current one."""

    N_CLASSES, N_CLASSES_PER_TASK = 10, 5

    def __init__(self, digits) -> None:
        self._digits = digits

    def get_data_loaders(self, task: int) -> None:
        images, labels = self._digits.of(range(5 * task, 5 * task + 5))
        self.train_loader = DataLoader(TensorDataset(images, labels, images), batch_size=64, shuffle=True)


class ContinualModel(nn.Module):
    """The base of mammoth's models."""

    def __init__(self, backbone, loss=None, args=None, transform=None, dataset=None) -> None:
        super().__init__()
        self.net, self.device = backbone, torch.device("cpu")
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self._current_task, self._n_past_classes = 0, -1

    @property
    def current_task(self) -> int:
        return self._current_task

    @property
    def n_past_classes(self) -> int:
        return self._n_past_classes

    def begin_task(self, dataset) -> None:
        pass

    def end_task(self, dataset) -> None:
        pass

    def forward(self, x):
        return self.net(x)

    def meta_begin_task(self, dataset) -> None:
        self._n_past_classes = dataset.N_CLASSES_PER_TASK * self._current_task
        self.begin_task(dataset)

    def meta_end_task(self, dataset) -> None:
        self.end_task(dataset)
        self._current_task += 1


class Sgd(ContinualModel):
    """Fine-tuning; the loss looks at the current task's logits only, so that old outputs do not simply die."""

    def observe(self, inputs, labels, not_aug_inputs, epoch=None) -> float:
        self.opt.zero_grad()
        first = 0 if (labels < self.n_past_classes).any() else self.n_past_classes
        loss = F.cross_entropy(self.net(inputs)[:, first:], labels - first)
        loss.backward()
        self.opt.step()
        return loss.item()


class Rehearsal(Sgd):
    """Merges a buffer into the loader as a task begins, and copies its network as it ends: so does mammoth's iCaRL."""

    kept = None

    def begin_task(self, dataset) -> None:
        if self.kept is not None:
            merged = ConcatDataset([dataset.train_loader.dataset, self.kept])
            dataset.train_loader = DataLoader(merged, batch_size=64, shuffle=True)

    def end_task(self, dataset) -> None:
        images, labels, plain = (torch.stack(side) for side in zip(*dataset.train_loader.dataset, strict=True))
        self.kept = TensorDataset(images[::10], labels[::10], plain[::10])
        self.old_net = copy.deepcopy(self.net.eval())
        self.net.train()


def train(model, dataset, task: int) -> None:
    """What mammoth's training loop does with one task."""
    dataset.get_data_loaders(task)
    model.net.train()
    model.meta_begin_task(dataset)
    for epoch in range(8):
        for inputs, labels, plain in dataset.train_loader:
            model.observe(inputs, labels, plain, epoch=epoch)
    model.meta_end_task(dataset)


@torch.no_grad()
def evaluate(model, images):
    """What mammoth's evaluation does: only the network changes its mode, and the model is asked."""
    mode = model.net.training
    model.net.eval()
    outputs = model(images)
    model.net.train(mode)
    return outputs
