"""Export of fitted aligners, alone or inside the model they are attached to, to ONNX and `torch.export` files.

`export_onnx` and `export_torch` take an aligner with its gate: latents in, aligned latents out. `export_model_onnx` and
`export_model_torch` take a whole classifier with something attached (`elign.attach`): inputs in, logits out. All
compare their result with what PyTorch computes before a file takes its name. Writing ONNX needs the extra `export`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from elign.aligners.base import Aligner
from elign.attachments.hooks import Attachment, attachments_of
from elign.export.recording import OPSET, Exported, Recording, require_onnx, write_onnx, write_torch
from elign.export.tracing import AlignedLatents, AttachedModel, ExportError, deterministic, ready_gate
from elign.gates.base import Gate
from elign.utils.checks import check_rows, check_tensor
from elign.utils.errors import AttachError, LatentError, OptionError
from elign.utils.heads import logits_of, unwrapped

__all__ = ["ExportError", "Exported", "export_model_onnx", "export_model_torch", "export_onnx", "export_torch"]

_ROWS = 64


def export_onnx(
    aligner: Aligner,
    path: str | os.PathLike[str],
    *,
    gate: Gate | None = None,
    head: nn.Module | None = None,
    example: Tensor | None = None,
    drop_noise: bool = False,
    opset: int = OPSET,
    verify: bool = True,
) -> Exported:
    """Write an aligner and its gate as an ONNX graph: `latents` (batch, D) in, `aligned` (batch, D) out, float32.

    The graph holds the whole chain, step by step, in the space of the first hidden layer; nothing of `elign` or PyTorch
    is needed to run it. Unlike `align` it does not look for NaN or infinite latents.

    Args:
        aligner: A fitted aligner; it stays as it is.
        path: The file to write; it is replaced only when all went well.
        gate: Which rows are aligned; all of them (`Always`) when not given. `ByMask` cannot be exported.
        head: The head that a `ByPrediction` gate asks. It becomes a part of the graph, for the gate's use only.
        example: Latents (N, D) to compare PyTorch and the graph on; Gaussian ones when not given.
        drop_noise: Export an aligner that was made with `noise` as if it had none, instead of raising.
        opset: Version of the ONNX operators.
        verify: Compare the graph's results with PyTorch's, where onnxruntime is installed.

    Returns:
        What was written, the number of the graph's nodes, and the largest difference that was seen.

    Raises:
        ExportError: Something cannot be exported, a package is missing, or the graph computes something else.
        NotFittedError: The aligner or the gate has learned nothing yet.

    Example:
        >>> import tempfile, torch, elign
        >>> from elign.export import export_onnx
        >>> z = torch.randn(100, 8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = export_onnx(elign.MeanShift().fit_latents(z, z + 1), f"{folder}/aligner.onnx")
        ...     made.path.name, made.nodes
        ('aligner.onnx', 1)
    """
    require_onnx()
    recording = _record_aligner(aligner, gate, head, example, drop_noise)
    return write_onnx(recording, path, opset=opset, verify=verify)


def export_torch(
    aligner: Aligner,
    path: str | os.PathLike[str],
    *,
    gate: Gate | None = None,
    head: nn.Module | None = None,
    example: Tensor | None = None,
    drop_noise: bool = False,
    verify: bool = True,
) -> Exported:
    """Write an aligner and its gate as a `torch.export` program (`.pt2`); arguments as of `export_onnx`, but `opset`.

    Example:
        >>> import tempfile, torch, elign
        >>> from elign.export import export_torch
        >>> z = torch.randn(100, 8)
        >>> aligner = elign.MeanShift().fit_latents(z, z + 1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_torch(aligner, f"{folder}/aligner.pt2").path
        ...     served = torch.export.load(path).module()
        >>> torch.equal(served(z), aligner.align(z))
        True
    """
    recording = _record_aligner(aligner, gate, head, example, drop_noise)
    return write_torch(recording, path, verify=verify)


def export_model_onnx(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Tensor,
    *,
    drop_noise: bool = False,
    opset: int = OPSET,
    verify: bool = True,
) -> Exported:
    """Write a model with everything that is attached to its heads as one ONNX graph.

    `input` (batch, ...) in, `logits` out; the logits are what `ByPrediction` takes for them in the model's output.

    Args:
        model: A model with something attached (`elign.attach`). It stays as it is: a copy of it, in
            evaluation mode and float32 on the CPU, is recorded.
        path: The file to write; it is replaced only when all went well.
        example: A batch of inputs. Its shape (but for the number of rows) is that of the graph's input, and on its
            values PyTorch and the graph are compared; they are not stored.
        drop_noise: Export aligners that were made with `noise` as if they had none, instead of raising.
        opset: Version of the ONNX operators.
        verify: Compare the graph's results with PyTorch's, where onnxruntime is installed.

    Raises:
        ExportError: Nothing is attached, something cannot be exported, a package is missing, or the graph computes
            something else.
    """
    require_onnx()
    return write_onnx(_record_model(model, example, drop_noise), path, opset=opset, verify=verify)


def export_model_torch(
    model: nn.Module,
    path: str | os.PathLike[str],
    example: Tensor,
    *,
    drop_noise: bool = False,
    verify: bool = True,
) -> Exported:
    """Write a model with everything that is attached as a `torch.export` program; see `export_model_onnx`."""
    return write_torch(_record_model(model, example, drop_noise), path, verify=verify)


def _record_aligner(
    aligner: Aligner, gate: Gate | None, head: nn.Module | None, example: Tensor | None, drop_noise: bool
) -> Recording:
    if not isinstance(aligner, Aligner):
        raise OptionError(
            f"this takes an aligner, got a {type(aligner).__name__}; for a model that carries one there are "
            "export_model_onnx and export_model_torch"
        )
    if head is not None and not isinstance(head, nn.Module):
        raise OptionError(f"head must be a module, got {type(head).__name__}")
    aligner = deterministic(aligner, drop_noise=drop_noise)
    gate = ready_gate(gate, aligner)
    head = None if head is None else copy.deepcopy(head).cpu().float().eval()
    latents = _latents_like(aligner, example)
    opinion = None if head is None else head.forward

    def align(z: Tensor) -> Tensor:
        return aligner.align(z, where=gate(z, head=opinion, aligner=aligner))

    expected = _results(align, latents)
    return Recording.of(AlignedLatents(aligner, gate, head), latents, expected, names=("latents", "aligned"))


def _record_model(model: nn.Module, example: Tensor, drop_noise: bool) -> Recording:
    check_tensor(example, "example")
    if example.ndim < 2 or not len(example):
        raise LatentError(f"example must be a batch of inputs, (N, ...), got shape {tuple(example.shape)}")
    copied = copy.deepcopy(unwrapped(model)).cpu().float().eval()
    found = [attachment for part in copied.modules() for attachment in attachments_of(part)]
    if not found:
        raise ExportError("nothing is attached to this model: elign.attach an aligner, a classifier or a Repair first")
    for attachment in found:
        # It may have been attached to a larger model that this one is a part of.
        attachment.model.eval()
        attachment.what = deterministic(attachment.what, drop_noise=drop_noise)
        if attachment.gate is not None and isinstance(attachment.what, Aligner):
            attachment.gate = ready_gate(attachment.gate, attachment.what)
    inputs = example.detach().cpu()
    inputs = inputs.float() if inputs.is_floating_point() else inputs
    # torch takes a size of one for a constant: record at least two rows.
    inputs = torch.cat([inputs, inputs]) if len(inputs) == 1 else inputs
    with _watched(found) as called:
        expected = _results(lambda x: logits_of(copied(x)), inputs)
    if not called:
        names = " and ".join(repr(name) for name, part in copied.named_modules() if attachments_of(part))
        raise ExportError(
            f"the model does not call {names} (it may use the weights alone), so that what is attached there has no "
            "effect: attach to a module that it calls"
        )
    return Recording.of(AttachedModel(copied, found), inputs, expected, names=("input", "logits"))


@contextmanager
def _watched(hooks: Sequence[Attachment]) -> Iterator[set[nn.Module]]:
    """Yield a set that collects the heads of these hooks that are called meanwhile."""
    called: set[nn.Module] = set()
    handles = [hook.head.register_forward_pre_hook(lambda head, _: called.add(head)) for hook in hooks]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()


def _latents_like(aligner: Aligner, example: Tensor | None) -> Tensor:
    if example is not None:
        check_rows(example, "example")
        latents = example.detach().cpu().float()
        return torch.cat([latents, latents]) if len(latents) == 1 else latents
    if not aligner.dim:
        raise OptionError(f"a {type(aligner).__name__} does not say which dimension it takes: give example=latents")
    return torch.randn(_ROWS, aligner.dim, generator=torch.Generator().manual_seed(0), device="cpu")


def _results(compute: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
    # Also where nothing will be compared: what does not fit together is named here better than by a tracer.
    with torch.no_grad():
        result = compute(inputs)
    if len(result) != len(inputs):
        raise AttachError(f"the output has {len(result)} rows for {len(inputs)} inputs: it must have one per input")
    return result.detach()
