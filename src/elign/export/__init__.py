"""Export of fitted objects, alone or inside the model they are attached to, to ONNX and `torch.export` files.

`export_onnx` and `export_torch` take an aligner with its gate, a classifier or a `Repair`: latents in, aligned latents
or scores out. `export_model_onnx` and `export_model_torch` take a whole model with something attached (`elign.attach`):
inputs in, logits out. All compare their result with what PyTorch computes before a file takes its name. Writing ONNX
needs the extra `export`.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from elign.aligners.base import Aligner
from elign.attachments import attachments_of
from elign.classifiers.base import LatentClassifier
from elign.export.recording import (
    OPSET,
    AlignedLatents,
    AttachedModel,
    Exported,
    ExportError,
    Recording,
    TracedClassifier,
    deterministic,
    ready_gate,
    require_onnx,
    write_onnx,
    write_torch,
)
from elign.gates import Gate
from elign.utils.errors import AttachError, LatentError, OptionError
from elign.utils.extraction import logits_of, unwrapped
from elign.utils.tensors import check_rows, check_tensor

__all__ = ["ExportError", "Exported", "export_model_onnx", "export_model_torch", "export_onnx", "export_torch"]

_ROWS = 64

Example = Tensor | tuple[Tensor, Tensor] | None
"""Latents, latents and the head's logits of them, or Gaussian numbers."""


def export_onnx(
    aligner: Aligner | LatentClassifier,
    path: str | os.PathLike[str],
    *,
    gate: Gate | None = None,
    head: nn.Module | None = None,
    example: Example = None,
    drop_noise: bool = False,
    opset: int = OPSET,
    verify: bool = True,
) -> Exported:
    """Write an aligner with its gate, a classifier or a `Repair` as an ONNX graph, in float32.

    An aligner maps `latents` (batch, D) to `aligned` (batch, D). A classifier or a `Repair` maps `latents` to `scores`
    (batch, classes); where it asks for the `logits` (batch, classes) of the model's head, these are a second input. The
    graph needs neither `elign` nor PyTorch to run. It does not look for NaN or infinite latents.

    Args:
        aligner: A fitted aligner, classifier or `Repair`; it stays as it is.
        path: The file to write; it is replaced only when all went well.
        gate: Which rows an aligner moves; all of them (`Always`) when not given. `ByMask` cannot be exported.
        head: The head that a `ByPrediction` gate asks. It becomes a part of the graph, for the gate's use only.
        example: Latents (N, D) to compare PyTorch and the graph on, or a pair of latents and the head's logits of them;
            Gaussian numbers when not given.
        drop_noise: Export aligners that were made with `noise` as if they had none, instead of raising.
        opset: Version of the ONNX operators.
        verify: Compare the graph's results with PyTorch's, where onnxruntime is installed.

    Raises:
        ExportError: Something cannot be exported, a package is missing, or the graph computes something else.
        NotFittedError: The aligner, the classifier or the gate has learned nothing yet.

    Example:
        >>> import tempfile, torch, elign
        >>> from elign.export import export_onnx
        >>> z = torch.randn(100, 8)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     made = export_onnx(elign.MeanShift().fit_latents(z, z + 1), f"{folder}/aligner.onnx")
        ...     made.path.name, made.nodes, made.signature
        ('aligner.onnx', 1, 'latents (batch, 8) -> aligned (batch, 8)')
    """
    require_onnx()
    return write_onnx(_record(aligner, gate, head, example, drop_noise), path, opset=opset, verify=verify)


def export_torch(
    aligner: Aligner | LatentClassifier,
    path: str | os.PathLike[str],
    *,
    gate: Gate | None = None,
    head: nn.Module | None = None,
    example: Example = None,
    drop_noise: bool = False,
    verify: bool = True,
) -> Exported:
    """Write what `export_onnx` writes as a `torch.export` program (`.pt2`); the arguments are the same.

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
    return write_torch(_record(aligner, gate, head, example, drop_noise), path, verify=verify)


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
        model: A model with something attached (`elign.attach`). It stays as it is: a copy of it, in evaluation mode and
            float32 on the CPU, is recorded.
        path: The file to write; it is replaced only when all went well.
        example: A batch of inputs. Its shape (but for the number of rows) is that of the graph's input, and on its
            values PyTorch and the graph are compared; they are not stored.
        drop_noise: As of `export_onnx`, like the options below.
        opset: Version of the ONNX operators.
        verify: Compare the graph's results with PyTorch's.
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
    """Write a model with what is attached to its heads as a `torch.export` program; see `export_model_onnx`."""
    return write_torch(_record_model(model, example, drop_noise), path, verify=verify)


def _record(what: Any, gate: Gate | None, head: nn.Module | None, example: Example, drop_noise: bool) -> Recording:
    if not isinstance(what, Aligner | LatentClassifier):
        raise OptionError(
            f"this takes an aligner, a classifier or a Repair, got a {type(what).__name__}; for a model that carries "
            "one there are export_model_onnx and export_model_torch"
        )
    if head is not None and not isinstance(head, nn.Module):
        raise OptionError(f"head must be a module, got {type(head).__name__}")
    what = deterministic(what, drop_noise=drop_noise)
    if isinstance(what, LatentClassifier):
        if gate is not None or head is not None:
            raise OptionError(f"a gate and its head go with an aligner; a {type(what).__name__} works without them")
        z, logits = example if isinstance(example, tuple) and len(example) == 2 else (example, None)
        return _record_classifier(what, _example(z, "example", (_ROWS, what.takes)), logits)
    latents, ready = _example(example, "example", (_ROWS, what.dim)), ready_gate(gate, what)
    head = None if head is None else copy.deepcopy(head).cpu().float().eval()
    opinion = None if head is None else head.forward
    expected = _results(lambda z: what.align(z, where=ready(z, head=opinion, aligner=what)), latents)
    return Recording.of(AlignedLatents(what, ready, head), (latents,), expected, names=("latents", "aligned"))


def _record_classifier(classifier: LatentClassifier, latents: Tensor, logits: Tensor | None) -> Recording:
    traced = TracedClassifier(classifier)
    try:
        expected = _results(classifier, latents)
    except LatentError:
        # A Repair says only now whether it asks for the head's logits. Any other error is raised again below.
        if not classifier.needs_logits:
            raise
        outputs = max(part.rows for part in classifier.modules() if isinstance(part, LatentClassifier))
        logits = _example(logits, "the logits of the example", (len(latents), outputs), seed=1)
        if len(logits) != len(latents):
            raise LatentError(f"the example has {len(latents)} latents and {len(logits)} rows of logits") from None
        expected = _results(lambda z, given: classifier(z, logits=given), latents, logits)
        return Recording.of(traced, (latents, logits), expected, names=("latents", "logits", "scores"))
    return Recording.of(traced, (latents,), expected, names=("latents", "scores"))


def _record_model(model: nn.Module, example: Tensor, drop_noise: bool) -> Recording:
    check_tensor(example, "example")
    if example.ndim < 2 or not len(example):
        raise LatentError(f"example must be a batch of inputs, (N, ...), got shape {tuple(example.shape)}")
    copied = copy.deepcopy(unwrapped(model)).cpu().float().eval()
    found = attachments_of(copied)
    if not found:
        raise ExportError("nothing is attached to this model: elign.attach an aligner, a classifier or a Repair first")
    for attachment in found:
        # It may have been attached to a larger model that this one is a part of.
        attachment.model.eval()
        attachment.what = deterministic(attachment.what, drop_noise=drop_noise)
        if attachment.gate is not None and isinstance(attachment.what, Aligner):
            attachment.gate = ready_gate(attachment.gate, attachment.what)
    inputs = example.detach().cpu()
    inputs = _twice(inputs.float() if inputs.is_floating_point() else inputs)
    called: set[nn.Module] = set()
    watching = [each.head.register_forward_pre_hook(lambda head, _: called.add(head)) for each in found]
    expected = _results(lambda x: logits_of(copied(x)), inputs)
    for handle in watching:
        handle.remove()
    if not called:
        heads = [each.head for each in found]
        names = " and ".join(repr(name) for name, part in copied.named_modules() if part in heads)
        raise ExportError(
            f"the model does not call {names} (it may use the weights alone), so that what is attached there has no "
            "effect: attach to a module that it calls"
        )
    return Recording.of(AttachedModel(copied, found), (inputs,), expected, names=("input", "logits"))


def _example(given: Any, what: str, shape: tuple[int, int | None], seed: int = 0) -> Tensor:
    """Return rows in float32 on the CPU: those given, or Gaussian ones of this shape."""
    if given is not None:
        check_rows(given, what)
        return _twice(given.detach().cpu().float())
    rows, width = shape
    if not width:
        raise OptionError(
            "this object does not say which dimension it takes, or how many classes there are: give example=latents, "
            "or example=(latents, logits) where it asks for the head's logits"
        )
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed), device="cpu")


def _twice(rows: Tensor) -> Tensor:
    """Return two rows in place of a single one: torch takes a size of one for a constant."""
    return torch.cat([rows, rows]) if len(rows) == 1 else rows


def _results(compute: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
    # Also where nothing will be compared: what does not fit together is named here better than by a tracer.
    with torch.no_grad():
        result = compute(*inputs)
    if len(result) != len(inputs[0]):
        raise AttachError(f"the output has {len(result)} rows for {len(inputs[0])} inputs: it must have one per input")
    return result.detach()
