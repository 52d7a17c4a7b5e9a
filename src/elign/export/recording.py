"""Record a traced module, check the recording against PyTorch, and write it as a file."""

from __future__ import annotations

import importlib.util
import io
import os
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from elign.export.tracing import ExportError
from elign.utils.files import write_bytes_atomic
from elign.utils.tensors import check_whole

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
# A protocol buffer cannot be larger.
_MOST_BYTES = 2**31 - 2**20


@dataclass(frozen=True)
class Exported:
    """What an export wrote.

    Attributes:
        path: The file.
        nodes: Operations in the graph.
        difference: Largest difference from PyTorch's own results on the example; None where nothing was compared.
        signature: Names and shapes of what goes in and of what comes out.
    """

    path: Path
    nodes: int
    difference: float | None
    signature: str = ""


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
                raise ExportError(
                    "the graph gives NaN where PyTorch gives numbers, so nothing was written; verify=False writes it "
                    "all the same"
                )
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
                f"{worst:.2g}), so nothing was written; verify=False writes it all the same"
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
