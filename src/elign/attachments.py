"""What `attach` puts on a head: hooks that align its latents, or rewrite what it says of them."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from elign.aligner import Aligner
from elign.errors import AttachError
from elign.gates import Gate
from elign.head_outputs import logits_of, with_logits
from elign.heads import latent_of
from elign.hooks import Call, HeadHook, ScoresHook
from elign.outputs import OldOutputs
from elign.readout import Readout


class Attachment(HeadHook):
    """An aligner and its gate in front of a head; what `attach` returns. Also a context manager.

    Attributes:
        model: The model it was attached to.
        head: The part of it that the aligner sits on.
        aligner: The aligner; may be exchanged for another one at any time.
        gate: The gate; likewise.

    Example:
        >>> import torch, elign
        >>> from torch import nn
        >>> model, z = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4)).eval(), torch.randn(100, 8)
        >>> attachment = elign.attach(model, "1", elign.MeanShift().fit_latents(z, z + 1))
        >>> attachment.gate = elign.ByPrediction(known=2)
        >>> attachment.detach()
    """

    def __init__(self, model: nn.Module, head: nn.Module, aligner: Aligner, gate: Gate, argument: int | str) -> None:
        super().__init__(model, head, argument)
        self.aligner = aligner
        self.gate = gate

    def __call__(self, head: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call | None:
        """Called by torch before the head runs."""
        if self._trains(head):
            return None

        def opinion(latent: Tensor) -> Any:
            # A copy: a head may begin with an operation in place.
            call_args, call_kwargs = self._call_with(latent.clone(), args, kwargs)
            # `forward`, not a call: a call would run this hook again.
            return head.forward(*call_args, **call_kwargs)

        z = latent_of(args, kwargs, self._argument)
        where = self.gate(z.detach(), head=opinion, aligner=self.aligner)
        return self._call_with(self.aligner.align(z, where=where), args, kwargs)


class OutputsAttachment(ScoresHook):
    """An aligner for some of a head's outputs; what `attach` returns with `outputs=`. Also a context manager.

    The head runs twice, on the latents as they are and on the aligned ones.

    Attributes:
        model: The model it was attached to.
        head: The part of it that the aligner sits on.
        aligner: The aligner; may be exchanged for another one at any time.
        outputs: Which outputs are read off aligned latents; likewise.

    Example:
        >>> import torch, elign
        >>> from torch import nn
        >>> model, z = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4)).eval(), torch.randn(100, 8)
        >>> aligner = elign.Ridge().fit_latents(z, z + 1)
        >>> with elign.attach(model, "1", aligner, outputs=elign.OldOutputs(range(2))):
        ...     probabilities = model(torch.randn(3, 20)).exp()
        >>> bool(((0 <= probabilities) & (probabilities <= 1)).all())
        True
    """

    def __init__(
        self, model: nn.Module, head: nn.Module, aligner: Aligner, outputs: OldOutputs, argument: int | str
    ) -> None:
        super().__init__(model, head, argument)
        self.aligner = aligner
        self.outputs = outputs

    def _rewritten(self, output: Any, z: Tensor, head: nn.Module, call: Call) -> Any:
        args, kwargs = self._call_with(self.aligner.align(z), *call)
        return self.outputs.read(output, head.forward(*args, **kwargs))


class ReadoutAttachment(ScoresHook):
    """A readout in the place of a head's own scores; what `attach` returns for one. Also a context manager.

    The head still runs, in case the readout asks for its logits; what it returned keeps its form.

    Attributes:
        model: The model it was attached to.
        head: The part of it whose scores are replaced.
        readout: The readout; may be exchanged for another one at any time.

    Example:
        >>> import torch, elign
        >>> from torch import nn
        >>> model, z = nn.Sequential(nn.Linear(20, 8), nn.Linear(8, 4)).eval(), torch.randn(100, 8)
        >>> prototypes = elign.Prototypes().add(z, torch.arange(100) % 4)
        >>> with elign.attach(model, "1", prototypes):
        ...     cosines = model(torch.randn(3, 20))
        >>> bool((cosines.abs() <= 1.001).all())
        True
    """

    def __init__(self, model: nn.Module, head: nn.Module, readout: Readout, argument: int | str) -> None:
        super().__init__(model, head, argument)
        self.readout = readout

    def _rewritten(self, output: Any, z: Tensor, head: nn.Module, call: Call) -> Any:
        logits = logits_of(output)
        scores = self.readout(z, logits=logits)
        if scores.shape[:-1] != logits.shape[:-1]:
            raise AttachError(
                f"the readout gives scores {tuple(scores.shape)} where the head gives logits {tuple(logits.shape)}: "
                "attach it to the layer that reads one latent for each row of logits"
            )
        return with_logits(output, scores)
