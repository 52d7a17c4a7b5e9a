"""Export of fitted objects, alone or inside the model they are attached to, to ONNX and `torch.export` files.

`export_onnx` and `export_torch` take an aligner with its gate, a classifier or a `Repair`: latents in, aligned latents
or scores out. `export_model_onnx` and `export_model_torch` take a whole model with something attached (`elign.attach`):
inputs in, logits out. All compare their result with what PyTorch computes before a file takes its name. Writing ONNX
needs the extra `export`.

A graph has plain tensor operations and no branches on data. Each aligner, gate and classifier gives its own form for it
(`traceable`, `weights`, `scores`).
"""

from __future__ import annotations

import copy
import importlib.util
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from elign.aligners.base import Aligner
from elign.attachments import Attachment, attachments_of
from elign.classifiers.base import LatentClassifier
from elign.classifiers.voting import Voting
from elign.gates import Always, ByMask, Gate, Head
from elign.utils.errors import AttachError, ElignError, LatentError, OptionError
from elign.utils.extraction import logits_of, unwrapped
from elign.utils.files import write_bytes_atomic
from elign.utils.fitted import FittedModule
from elign.utils.tensors import check_rows, check_tensor, check_whole

# The version that torch's own translations are written in: nothing has to be converted, and old runtimes read it.
OPSET = 18

# Relative to the largest number in the result. Rounding gives 1e-6 (measured); a wrong graph gives far more.
_TOLERANCE = 1e-4
# Scores below this stand for "never" (a `Voting` gives them to classes it has not seen): these say nothing
# of how exact the others must be.
_NEVER = -1e5
# The energy's gradient jumps where a unit changes its sign, and a gate where it decides: for a latent that lies there,
# the last bit decides, and another order of summation may decide otherwise. That must stay rare.
_ODD_SHARE = 0.05
_NOT_WRITTEN = "so nothing was written; verify=False writes it all the same"
# A protocol buffer cannot be larger.
_MOST_BYTES = 2**31 - 2**20
__all__ = ["ExportError", "Exported", "export_model_onnx", "export_model_torch", "export_onnx", "export_torch"]

_ROWS = 64  # of an example that nobody gave
_Fitted = TypeVar("_Fitted", bound=FittedModule)

Example = Tensor | tuple[Tensor, Tensor] | None
"""Latents, latents and the head's logits of them, or Gaussian numbers."""


class ExportError(ElignError, RuntimeError):
    """Something that cannot be exported, a package that exporting needs, or a graph that came out wrong."""


@dataclass(frozen=True)
class Exported:
    """What an export wrote."""

    path: Path
    nodes: int
    """Operations in the graph."""
    difference: float | None
    """Largest difference from PyTorch's own results on the example; None where nothing was compared."""
    signature: str = ""
    """Names and shapes of what goes in and of what comes out."""


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
    latents, ready = _example(example, "example", (_ROWS, what.dim)), ready_gate(gate)
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
            attachment.gate = ready_gate(attachment.gate)
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


class TracedGate(nn.Module):
    """A gate that can be recorded; called as gates are."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self.gate = gate

    def forward(self, z: Tensor, *, head: Head | None = None, aligner: nn.Module | None = None) -> Tensor | None:
        """Return a weight per row, or None for all rows."""
        # torch shows its recorder a module that stands in two places as one of another class.
        return None if isinstance(self.gate, Always) else self.gate.weights(z, head, aligner)  # type: ignore[arg-type]


class TracedClassifier(nn.Module):
    """A classifier that can be recorded; called as classifiers are."""

    def __init__(self, classifier: LatentClassifier) -> None:
        super().__init__()
        self.classifier: Any = _traceable(classifier)

    def forward(self, z: Tensor, logits: Tensor | None = None) -> Tensor:
        """Return a score for each row and class."""
        return self.classifier.scores(z, logits)  # type: ignore[no-any-return]


class AlignedLatents(nn.Module):
    """Latents to aligned latents: a gate and an aligner, with a head that only the gate asks."""

    def __init__(self, aligner: Aligner, gate: Gate, head: nn.Module | None) -> None:
        super().__init__()
        self.aligner: Any = _traceable(aligner)
        self.gate, self.head = TracedGate(gate), head

    def forward(self, z: Tensor) -> Tensor:
        """Map latents (N, D) to latents (N, D)."""
        # `forward`, not a call: an aligner that is attached to this head must not run for the gate's question.
        opinion = None if self.head is None else self.head.forward
        where = self.gate(z, head=opinion, aligner=self.aligner)
        return self.aligner.align(z, where=where)  # type: ignore[no-any-return]


class AttachedModel(nn.Module):
    """Inputs to logits: a model, here a copy, whose attachments are exchanged for their traceable forms."""

    def __init__(self, model: nn.Module, found: Sequence[Attachment]) -> None:
        super().__init__()
        self.model = model
        # Attachments are hooks, not parts of the model: as parts of this module, their tensors get names in the graph.
        self.parts = nn.ModuleList()
        attachment: Any
        for attachment in found:
            what = attachment.what
            attachment.what = TracedClassifier(what) if isinstance(what, LatentClassifier) else _traceable(what)
            self.parts.append(attachment.what)
            if attachment.gate is not None:
                attachment.gate = TracedGate(attachment.gate)
                self.parts.append(attachment.gate)

    def forward(self, x: Tensor) -> Tensor:
        """Map a batch of inputs to logits."""
        return logits_of(self.model(x))


def deterministic(what: _Fitted, *, drop_noise: bool) -> _Fitted:
    """Return a copy in float32 on the CPU, without noise; raise if there is some and `drop_noise` is not set."""
    what.require_fitted()
    made = copy.deepcopy(what).cpu().float().eval()
    for part in _noisy(made):
        if not drop_noise:
            raise ExportError(
                f"this aligner adds noise (noise={part.noise}), and an exported graph gives the same latents every "
                "time: say drop_noise=True (--drop-noise) to export it without noise"
            )
        part.noise = 0.0  # type: ignore[assignment]
    return made


def _noisy(part: nn.Module) -> Iterator[Aligner]:
    """Yield all aligners with noise that a graph will hold: estimators without a vote stay out of it."""
    if isinstance(part, Aligner) and getattr(part, "noise", False):
        yield part
    for inner in part.voters()[1] if isinstance(part, Voting) else part.children():
        yield from _noisy(inner)


def _traceable(what: FittedModule) -> nn.Module:
    try:
        return what.traceable()
    except OptionError as error:
        raise ExportError(str(error)) from error


def ready_gate(gate: Gate | None) -> Gate:
    """Return a copy in float32 on the CPU of a gate; raise if it makes no sense in a graph."""
    if gate is None:
        return Always()
    if isinstance(gate, ByMask):
        raise ExportError(
            "a ByMask gate cannot be exported: its mask belongs to one batch. Export without a gate and choose rows "
            "outside of the graph, or use a gate that decides by itself"
        )
    return copy.deepcopy(gate).cpu().float().eval()


@dataclass(frozen=True)
class Recording:
    """A module as a `torch.export` program for any number of rows, with inputs and what must come out for them.

    `names` are those of the inputs and, last, of the output.
    """

    program: torch.export.ExportedProgram
    inputs: tuple[Tensor, ...]
    expected: Tensor
    names: tuple[str, ...]

    @classmethod
    def of(
        cls, module: nn.Module, inputs: tuple[Tensor, ...], expected: Tensor, *, names: tuple[str, ...]
    ) -> Recording:
        """Record a module that gives one tensor; raise an `ExportError` if torch cannot record what it does."""
        # Zeros: torch stores the tensors that it recorded with, and the caller's may be private.
        zeros = tuple(map(torch.zeros_like, inputs))
        shapes = ({0: torch.export.Dim("batch", min=1)},) * len(inputs)
        try:
            with torch.no_grad(), _quiet():
                program = torch.export.export(module.eval(), zeros, dynamic_shapes=shapes, strict=False)
        # torch raises errors of a dozen kinds here, most of them private.
        except Exception as error:
            raise ExportError(f"torch cannot record this: {_first_lines(error)}") from error
        for node in _nodes(program):
            # Where in whose folders the source code lies is nobody's business.
            node.meta.pop("stack_trace", None)
        return cls(program, inputs, expected, names)

    def compare(self, run: Callable[..., Tensor]) -> float:
        """Return the largest difference of what `run` computes, for all inputs and for the first one alone.

        Raises:
            ExportError: It is more than rounding explains.
        """
        worst, odd, rows = 0.0, 0, 0
        for count in (len(self.expected), 1):
            expected = self.expected[:count]
            result = run(*(each[:count] for each in self.inputs))
            if result.shape != expected.shape:
                raise ExportError(f"the graph gives {tuple(result.shape)} where PyTorch gives {tuple(expected.shape)}")
            if (result.isnan() & ~expected.isnan()).any():
                raise ExportError(f"the graph gives NaN where PyTorch gives numbers, {_NOT_WRITTEN}")
            # Equal infinities are equal: a classifier gives minus infinity to classes that it has never seen.
            apart = torch.where(result == expected, 0.0, (result - expected).abs())
            size, never = expected.abs(), expected < _NEVER
            usual = size.masked_fill(never | ~expected.isfinite(), 0).max().clamp(min=1)
            allowed = _TOLERANCE * torch.where(never, size, usual)
            # Not `>`: NaN must count.
            odd += int((~(apart <= allowed)).reshape(len(expected), -1).any(dim=1).sum())
            rows += len(expected)
            worst = max(worst, apart.masked_fill(apart.isnan(), torch.inf).max().item())
        if odd > _ODD_SHARE * rows:
            raise ExportError(
                f"the graph computes something else than PyTorch in {odd} of {rows} rows of the example (by up to "
                f"{worst:.2g}), {_NOT_WRITTEN}"
            )
        return worst

    def written(self, path: str | os.PathLike[str], content: bytes, nodes: int, difference: float | None) -> Exported:
        """Write a file and say what is in it."""
        ends = [
            f"{name} ({', '.join(['batch', *map(str, tensor.shape[1:])])})"
            for name, tensor in zip(self.names, (*self.inputs, self.expected), strict=True)
        ]
        signature = f"{', '.join(ends[:-1])} -> {ends[-1]}"
        return Exported(write_bytes_atomic(path, content), nodes, difference, signature)


def write_onnx(recording: Recording, path: str | os.PathLike[str], *, opset: int, verify: bool) -> Exported:
    """Translate a recording to ONNX, check it, and write it."""
    import onnx

    opset = check_whole(opset, "opset", least=OPSET)
    program = recording.program
    size = sum(t.numel() * t.element_size() for t in (*program.state_dict.values(), *program.tensor_constants.values()))
    if size > _MOST_BYTES:
        raise ExportError(f"{size / 2**30:.1f} GB of weights do not fit into one ONNX file (2 GB): use torch.export")
    try:
        with _quiet():
            made = torch.onnx.export(
                program,
                dynamo=True,
                opset_version=opset,
                input_names=[*recording.names[:-1]],
                output_names=[recording.names[-1]],
                verbose=False,
            )
            assert made is not None  # noqa: S101
            proto = made.model_proto
            _tidy(proto)
            onnx.checker.check_model(proto, full_check=True)
    # As in `Recording.of`.
    except Exception as error:
        raise ExportError(f"torch cannot translate this to ONNX: {_first_lines(error)}") from error
    content = proto.SerializeToString()
    compared = verify and _installed("onnxruntime")
    difference = recording.compare(_onnx_runner(content)) if compared else None
    return recording.written(path, content, len(proto.graph.node), difference)


def write_torch(recording: Recording, path: str | os.PathLike[str], *, verify: bool) -> Exported:
    """Check a recording and write it as a `.pt2` file."""
    program = recording.program
    with torch.no_grad():
        difference = recording.compare(program.module()) if verify else None
    with _quiet(), io.BytesIO() as buffer:
        torch.export.save(program, buffer)
        content = buffer.getvalue()
    nodes = sum(node.op == "call_function" for node in _nodes(program))
    return recording.written(path, content, nodes, difference)


def require_onnx() -> None:
    """Raise if a package that writing ONNX needs is missing."""
    missing = [name for name in ("onnx", "onnxscript") if not _installed(name)]
    if missing:
        raise ExportError(f"export to ONNX needs {' and '.join(missing)}: pip install 'elign[export]'")


def _nodes(program: torch.export.ExportedProgram) -> Iterator[torch.fx.Node]:
    """All operations of a program, also those inside of others (what runs without autocast is)."""
    for part in program.graph_module.modules():
        if isinstance(part, torch.fx.GraphModule):
            yield from part.graph.nodes


def _installed(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


def _onnx_runner(content: bytes) -> Callable[[Tensor], Tensor]:
    import onnxruntime

    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]

    def run(*inputs: Tensor) -> Tensor:
        given = {name: each.numpy() for name, each in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run(None, given)[0])

    return run


def _tidy(proto: Any) -> None:
    """Take out of a model what only its making needed, and call the free dimension `batch`."""
    free = proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param
    # Each operation comes with the stack trace of its making: the maker's folders, and often more bytes than weights.
    del proto.metadata_props[:]
    for graph in _graphs(proto.graph):
        values = (*graph.input, *graph.output, *graph.value_info)
        for thing in (graph, *graph.node, *graph.initializer, *values):
            del thing.metadata_props[:]
        for dim in (dim for value in values for dim in value.type.tensor_type.shape.dim):
            if dim.dim_param and dim.dim_param == free:
                dim.dim_param = "batch"


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph and those inside of its nodes (branches and loops of the caller's model)."""
    yield graph
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        for inner in (attribute.g, *attribute.graphs) if attribute.HasField("g") else attribute.graphs:
            yield from _graphs(inner)


def _first_lines(error: Exception) -> str:
    """What torch says at first and what it says at last, where it has the reason; without colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip() or type(error).__name__
    lines = [line for line in text.splitlines() if line.strip()]
    shown = lines if len(lines) <= 5 else [*lines[:4], lines[-1]]
    if "Constraints violated" in text:
        shown.append("(the model fixes the number of rows: x.shape[0] can be recorded for any number, len(x) cannot)")
    return "\n".join(shown)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings about its own parts, which no caller can do anything about."""
    with warnings.catch_warnings():
        for category in (FutureWarning, DeprecationWarning):
            warnings.simplefilter("ignore", category)
        yield
