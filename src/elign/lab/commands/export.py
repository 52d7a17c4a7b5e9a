"""`elign export`: a fitted aligner, with its gate, as a file that runs without elign."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from elign import Aligner

HELP = "write a fitted aligner as ONNX, or for torch.export: latents in, aligned latents out"
EXAMPLES = """examples:
  elign export aligner.safetensors aligner.onnx
  elign export aligner.safetensors aligner.onnx --gate gate.safetensors
  elign export aligner.safetensors aligner.pt2
"""

_FORMATS = {".onnx": "onnx", ".pt2": "torch"}


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of this command."""
    parser.add_argument("aligner", type=Path, metavar="ALIGNER", help="the file of an aligner's save()")
    parser.add_argument("out", type=Path, metavar="OUT", help="the file to write")
    parser.add_argument("--gate", type=Path, help="the file of a gate's save() (default: all latents are aligned)")
    parser.add_argument(
        "--format", choices=("onnx", "torch"), help="what to write (default: by OUT's ending, .onnx or .pt2)"
    )
    parser.add_argument("--drop-noise", action="store_true", help="export an aligner with noise as if it had none")


def _load(path: Path) -> Aligner:
    from elign import Aligner, OptionError
    from elign.utils.fitted import FittedModule

    found = FittedModule.load(path)
    if not isinstance(found, Aligner):
        raise OptionError(
            f"{path} holds a {type(found).__name__}, and this takes an aligner: in Python, attach it to its model, and "
            "elign.export.export_model_onnx or export_model_torch write both"
        )
    return found


def run(args: argparse.Namespace, console: Console) -> None:
    """Write the file and say what is in it."""
    from elign import ByPrediction, Gate, OptionError
    from elign.export import export_onnx, export_torch

    kind = args.format or _FORMATS.get(args.out.suffix.lower())
    if kind is None:
        raise OptionError(f"cannot tell a format from the ending of {args.out}: name one with --format onnx or torch")
    aligner = _load(args.aligner)
    gate = Gate.load(args.gate) if args.gate else None
    if isinstance(gate, ByPrediction):
        raise OptionError(
            f"{args.gate} holds a ByPrediction gate, which asks the model's head, and a head is Python code: use "
            "elign.export.export_onnx(aligner, path, gate=gate, head=model.fc) there, or export_model_onnx for the "
            "whole model"
        )
    export = export_onnx if kind == "onnx" else export_torch
    made = export(aligner, args.out, gate=gate, drop_noise=args.drop_noise)
    gated = f" with {type(gate).__name__}" if gate else ""
    console.print(
        f"{type(aligner).__name__}{gated} for latents of dimension {aligner.dim}: {made.path}",
        markup=False,
        soft_wrap=True,
    )
    same = "not compared (onnxruntime is not installed)"
    if made.difference is not None:
        same = f"within {made.difference:.1g} of PyTorch's result"
    console.print(f"{made.nodes} operations, {made.path.stat().st_size / 1000:.0f} kB, {same}", markup=False)
