"""What learners of every kind share: a frozen teacher that is no part of their state. `learner.py` files import it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from torch import Tensor, nn

from elign.utils.errors import OptionError


class WithTeacher(nn.Module):
    """A module whose `teacher`, the model before the task, stays in evaluation mode and can be made anew."""

    teacher: nn.Module | None

    def train(self, mode: bool = True) -> Self:
        """Training or evaluation mode; the teacher always stays in evaluation mode."""
        super().train(mode)
        if self.teacher is not None:
            self.teacher.eval()
        return self

    def state(self) -> dict[str, Tensor]:
        """What changes while a task is learned: everything but the teacher."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("teacher.")}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` gave to a learner that has grown in the same way."""
        missing, unexpected = self.load_state_dict(state, strict=False)
        missing = [name for name in missing if not name.startswith("teacher.")]
        if missing or unexpected:
            raise OptionError(f"a state that does not fit: lacks {missing[:3]}, has {unexpected[:3]} too many")
