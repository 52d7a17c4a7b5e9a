"""What an exported graph computes: aligners and gates as plain tensor operations, without branches on data.

`TracedAligner` and `TracedGate` do what `Aligner.align` and `Gate` do, in float32, in a form that torch can record: no
checks of values, no buffers written in place, every row moved and then chosen from.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from elign.aligner import Aligner
from elign.energy import EnergyModel
from elign.energy_aligner import EnergyAligner
from elign.errors import ElignError
from elign.gates import Always, ByEnergy, ByMask, ByPrediction, ByProbe, Gate, Head
from elign.langevin import Schedule


class ExportError(ElignError, RuntimeError):
    """Something that cannot be exported, a package that exporting needs, or a graph that came out wrong."""


class TracedChain(nn.Module):
    """The noise-free chain of an `EnergyModel`, unrolled in the space of its first hidden layer.

    The form of `hidden_chain.py`: u = W1 z + b1 walks by the Gram matrix, gradients are summed, z moves once at the
    end. A loop inside the graph would be shorter to write down, but runtimes neither fuse nor plan across it.
    """

    entry: Tensor
    entry_bias: Tensor
    descent: Tensor
    exit: Tensor
    up_slope: Tensor
    down_slope: Tensor

    def __init__(self, energy: EnergyModel, *, steps: int, step: float) -> None:
        super().__init__()
        self.steps = steps
        self.slope = energy.slope
        self.layers = len(energy.hidden)
        # As tensors, not numbers: torch would record two more operations for each place that uses them.
        self.register_buffer("up_slope", torch.tensor(1.0))
        self.register_buffer("down_slope", torch.tensor(energy.slope))
        with torch.no_grad():
            maps = [(weight.detach().float(), bias.detach().float()) for weight, bias in energy.linear_maps()]
            first, first_bias = maps[0]
            output, _ = maps.pop()
            # As in `HiddenChain`: the output layer is folded into the topmost matrix on the way down.
            down = [weight for weight, _ in maps]
            first_exit, *rest = [*down[:-1], down[-1] * output.t()] if down else [output]
            self.register_buffer("entry", first.t().contiguous())
            self.register_buffer("entry_bias", first_bias.clone())
            self.register_buffer("exit", first_exit * -step)
            self.register_buffer("descent", (first_exit @ first.t()) * -step)
            for number, (weight, bias) in enumerate(maps[1:]):
                self.register_buffer(f"up{number}", weight.t().contiguous())
                self.register_buffer(f"up_bias{number}", bias.clone())
                self.register_buffer(f"down{number}", rest[number].clone())

    def forward(self, z: Tensor) -> Tensor:
        """Latents (N, D) to latents (N, D)."""
        if self.steps == 0:
            return z.clone()
        if self.layers == 0:
            return z + self.exit * self.steps
        u = torch.addmm(self.entry_bias, z, self.entry)
        total = gradient = self._gradient(u)
        for _ in range(self.steps - 1):
            u = torch.addmm(u, gradient, self.descent)
            gradient = self._gradient(u)
            total = total + gradient
        return torch.addmm(z, total, self.exit)

    def _gradient(self, u: Tensor) -> Tensor:
        """dE/du, without the matrix that `exit` and `descent` already hold."""
        values = [u]
        for number in range(self.layers - 1):
            active = F.leaky_relu(values[-1], self.slope)
            values.append(torch.addmm(self._at("up_bias", number), active, self._at("up", number)))
        gradient = self._slopes(values[-1])
        for number in reversed(range(self.layers - 1)):
            gradient = (gradient @ self._at("down", number)) * self._slopes(values[number])
        return gradient

    def _slopes(self, value: Tensor) -> Tensor:
        return torch.where(value > 0, self.up_slope, self.down_slope)

    def _at(self, name: str, number: int) -> Tensor:
        found: Tensor = getattr(self, f"{name}{number}")
        return found


class TracedAligner(nn.Module):
    """A fitted aligner whose `align` can be recorded.

    Args:
        aligner: From `deterministic`.
    """

    def __init__(self, aligner: Aligner) -> None:
        super().__init__()
        self.energy: nn.Module | None = getattr(aligner, "energy", None)
        # An aligner of one's own moves rows by tensor operations, one hopes; the comparison afterwards will tell.
        self.move: Callable[[Tensor], Tensor] = _chain_of(aligner) or _OwnMove(aligner)

    def align(self, z: Tensor, *, where: Tensor | None = None) -> Tensor:
        """Latents `(..., D)` to aligned latents; `where` as in `Aligner.align`."""
        # A shape is known while recording; latents (N, D) need no reshaping in the graph.
        rows = z if z.ndim == 2 else z.reshape(-1, z.shape[-1])
        moved = self.move(rows)
        if where is not None:
            weights = where.reshape(-1, 1)
            if weights.dtype != torch.bool:
                moved = torch.lerp(rows, moved, weights.to(rows.dtype))
                weights = weights != 0
            moved = torch.where(weights, moved, rows)
        return moved if z.ndim == 2 else moved.reshape(z.shape)


class _OwnMove(nn.Module):
    """Whatever an aligner's own `_move` does: the controls' closed forms are plain tensor operations as they are."""

    def __init__(self, aligner: Aligner) -> None:
        super().__init__()
        self.aligner = aligner

    def forward(self, rows: Tensor) -> Tensor:
        return self.aligner._move(rows, None)


class TracedGate(nn.Module):
    """A gate that can be recorded; called as gates are.

    Args:
        gate: A gate that is ready to use, in float32.
    """

    old: Tensor

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate
        if isinstance(gate, ByPrediction):
            self.register_buffer("old", torch.tensor(gate._old))

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: TracedAligner | None = None) -> Tensor | None:
        """A weight per row, or None for all rows."""
        # A subclass with a rule of its own must not be taken for the one that is known here.
        gate: Any = self.gate
        weights: Tensor
        if type(gate) is Always:
            return None
        if type(gate) is ByEnergy and aligner is not None and aligner.energy is not None:
            weights = aligner.energy(z) < gate.threshold
        elif type(gate) is ByProbe:
            score = z @ gate.weight + gate.bias
            weights = score.sigmoid() if gate.soft else score > 0
        elif type(gate) is ByPrediction and head is not None:
            weights = self._predicted_old(gate._logits(head(z)), soft=gate.soft)
        else:
            weights = gate(z, head=head, aligner=aligner)
        return weights

    def _predicted_old(self, logits: Tensor, *, soft: bool) -> Tensor:
        if soft:
            return logits.softmax(dim=-1).index_select(-1, self.old).sum(dim=-1).clamp(0, 1)
        return (logits.argmax(dim=-1, keepdim=True) == self.old).any(dim=-1)


class AlignedLatents(nn.Module):
    """Latents to aligned latents: a gate and an aligner, with a head that only the gate asks."""

    def __init__(self, aligner: Aligner, gate: Gate, head: nn.Module | None) -> None:
        super().__init__()
        self.aligner, self.gate, self.head = TracedAligner(aligner), TracedGate(gate), head

    def forward(self, z: Tensor) -> Tensor:
        """Latents (N, D) to latents (N, D)."""
        # `forward`, not a call: an aligner that is attached to this head must not run for the gate's question.
        opinion = None if self.head is None else self.head.forward
        return self.aligner.align(z, where=self.gate(z, head=opinion, aligner=self.aligner))


def deterministic(aligner: Aligner, *, drop_noise: bool) -> Aligner:
    """A copy in float32 on the CPU, without noise.

    Raises:
        NotFittedError: It has learned nothing yet.
        ExportError: It moves latents with noise, and `drop_noise` does not say to leave that out.
    """
    aligner.require_fitted()
    made = copy.deepcopy(aligner).cpu().float().eval()
    if isinstance(made, EnergyAligner) and made.noise:
        if not drop_noise:
            raise ExportError(
                f"this aligner adds noise (noise={made.noise}), and an exported graph gives the same latents every "
                "time: say drop_noise=True (--drop-noise) to export it without noise"
            )
        made.noise = 0.0
    return made


def ready_gate(gate: Gate | None, aligner: Aligner) -> Gate:
    """A copy in float32 on the CPU of a gate that makes sense in a graph.

    Raises:
        NotFittedError: It has learned nothing yet.
        ExportError: It is made for one batch, or asks an aligner without an energy for energies.
    """
    if gate is None:
        return Always()
    if isinstance(gate, ByMask):
        raise ExportError(
            "a ByMask gate cannot be exported: its mask belongs to one batch. Export without a gate and choose rows "
            "outside of the graph, or use a gate that decides by itself"
        )
    gate.require_fitted()
    made = copy.deepcopy(gate).cpu().float().eval()
    if isinstance(made, ByEnergy) and getattr(aligner, "energy", None) is None:
        raise ExportError(f"ByEnergy needs an aligner with an energy, and a {type(aligner).__name__} has none")
    return made


def _chain_of(aligner: Aligner) -> TracedChain | None:
    if not isinstance(aligner, EnergyAligner) or type(aligner)._move is not EnergyAligner._move:
        return None
    energy = aligner.energy
    if not isinstance(energy, EnergyModel) or type(energy).forward is not EnergyModel.forward:
        raise ExportError(f"only the chain of an EnergyModel can be exported, not that of a {type(energy).__name__}")
    schedule = Schedule.checked(aligner.steps, aligner.step_size, 0.0, aligner.half_step)
    return TracedChain(energy, steps=schedule.steps, step=schedule.step)
