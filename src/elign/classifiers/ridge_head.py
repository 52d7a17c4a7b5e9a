"""A linear head in closed form, from the first and second moments of classes."""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from elign.classifiers.base import Given, RefittedClassifier
from elign.statistics.class_statistics import ClassStatistics
from elign.utils.fitted import Shapes, register
from elign.utils.tensors import check_number, compute_dtype, product


@register
class RidgeHead(RefittedClassifier):
    """Ridge regression of one-hot classes on latents: the classifier of DPCR (R. He et al., ICML 2025) and of ACIL.

    `W = (sum_c F_c + penalty I)^-1 sum_c n_c m_c e_c'` with `F_c = n_c (S_c + m_c m_c')`; then, with `normalize`, each
    column of W is scaled to length 1, which corrects the bias towards frequent classes. There is no intercept.

    Args:
        penalty: DPCR has 200 for CIFAR-100 and 2000 for ImageNet. It is not relative to the size of the latents.
        normalize: Whether columns have length 1.

    Attributes:
        weight: (classes, D), and `counts` (classes,); 0 for a class without data.

    Example:
        >>> import torch, elign
        >>> z, labels = torch.eye(2).repeat(5, 1), torch.arange(2).repeat(5)
        >>> elign.RidgeHead(penalty=1.0).fit(z=z, labels=labels)(z[:2]).argmax(dim=1)
        tensor([0, 1])
    """

    rows_of: ClassVar[str] = "weight"
    shapes: ClassVar[Shapes] = {"weight": "RD"}
    weight: Tensor

    def __init__(self, *, penalty: float = 200.0, normalize: bool = True) -> None:
        super().__init__()
        self.penalty, self.normalize = check_number(penalty, "penalty", positive=True), normalize

    def _learn(self, given: Given) -> None:
        known = ClassStatistics() if given.statistics is None else copy.deepcopy(given.statistics)
        if given.labelled is not None:
            known.update(*given.labelled)
        self.rows = max(int(known.classes.max()) + 1, given.classes)
        counts, means = known.counts.cpu().double(), known.means.cpu().double()
        gram = int(counts.sum()) * known.pooled() + (means * counts[:, None]).t() @ means
        gram.diagonal().add_(self.penalty)
        weight = torch.linalg.solve(gram, (means * counts[:, None]).t()).t()
        if self.normalize:
            weight = F.normalize(weight, dim=1)
        weight = known.per_output(weight, self.rows).to(compute_dtype(given.like))
        self._set(weight.shape[1], weight=weight, counts=known.per_output(known.counts, self.rows))

    def _row_scores(self, rows: Tensor) -> Tensor:
        return product(rows, self.weight.to(rows).t())
