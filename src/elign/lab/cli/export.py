"""Write a saved repair, classifier or aligner as ONNX, or for torch.export.

What is written takes latents: the input of the model's head. An aligner returns aligned latents. A repair
or a classifier returns a score for each class; where it asks for the logits of the model's head, these
are a second input. To export a whole model, from images to logits, use repair.export(...) in Python.

Examples:
  elign export repair.safetensors repair.onnx
  elign export classifier.safetensors classifier.pt2
  elign export aligner.safetensors aligner.onnx --gate gate.safetensors
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from elign.lab.cli.main import say

if TYPE_CHECKING:
    from rich.console import Console

    from elign import Gate
    from elign.utils.fitted import FittedModule


_FORMATS = {".onnx": "onnx", ".pt2": "torch"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command."""
    parser.add_argument("file", type=Path, metavar="FILE", help="what save() of a repair, classifier or aligner wrote")
    parser.add_argument("out", type=Path, metavar="OUT", help="the file to write")
    parser.add_argument("--gate", type=Path, help="what save() of an aligner's gate wrote (default: align all latents)")
    parser.add_argument(
        "--format", choices=("onnx", "torch"), help="what to write (default: by OUT's ending, .onnx or .pt2)"
    )
    parser.add_argument("--drop-noise", action="store_true", help="export an aligner with noise as if it had none")


def run(args: argparse.Namespace, console: Console) -> None:
    """Write the file and print what is in it."""
    from elign import OptionError
    from elign.export import export_onnx, export_torch

    kind = args.format or _FORMATS.get(args.out.suffix.lower())
    if kind is None:
        raise OptionError(f"cannot tell a format from the ending of {args.out}: name one with --format onnx or torch")
    what, gate = _load(args.file, args.gate)
    export = export_onnx if kind == "onnx" else export_torch
    made = export(what, args.out, gate=gate, drop_noise=args.drop_noise)  # type: ignore[arg-type]
    same = "not compared (onnxruntime is not installed)"
    if made.difference is not None:
        same = f"within {made.difference:.1g} of PyTorch's result"
    lines = [
        f"{type(what).__name__}{f' with {type(gate).__name__}' if gate else ''}: {made.path}",
        made.signature,
        f"{made.nodes} operations, {made.path.stat().st_size / 1000:.0f} kB, {same}",
    ]
    if getattr(what, "mode", "") == "head":
        lines.append("This repair leaves the head as it is: its scores are the logits that it gets.")
    for line in lines:
        say(console, line)


def _load(path: Path, gate_path: Path | None) -> tuple[FittedModule, Gate | None]:
    """Read what is to be exported and its gate; raise if the two files do not hold that."""
    from elign import Aligner, Gate, LatentClassifier, OptionError
    from elign.utils.fitted import FittedModule

    what = FittedModule.load(path)
    name = type(what).__name__
    if isinstance(what, Gate):
        raise OptionError(f"{path} holds a {name} gate: give the aligner's file first, and this one with --gate")
    if not isinstance(what, Aligner | LatentClassifier):
        raise OptionError(f"{path} holds a {name}; this command takes a repair, a classifier or an aligner")
    if gate_path is None:
        return what, None
    gate = Gate.load(gate_path)
    if not isinstance(what, Aligner):
        raise OptionError(f"{path} holds a {name}, which works without a gate: leave out --gate")
    if gate.needs_head:
        raise OptionError(
            f"{gate_path} holds a {type(gate).__name__} gate, which asks the model's head, and this command has no "
            "model. In Python, elign.export.export_onnx(aligner, path, gate=gate, head=model.fc) exports both, and "
            "export_model_onnx exports the whole model"
        )
    return what, gate
