"""Torchvision where its compiled operators do not load. `elign.lab.detection` runs it before it imports torchvision.

A torchvision that was built for CUDA cannot load its library beside a CPU build of torch. It tolerates that itself, but
for one place, which describes the shapes of `nms` and `qnms` even though nobody defined them, so that
`import torchvision` ends with "operator torchvision::nms does not exist". And without the library there is no `nms`,
and `roi_align` has to be compiled on the user's machine at the first call.

What is done about it, if and only if the library does not load:

- The missing operators are defined, and `nms` and `roi_align` of `elign.lab.detection.ops` are registered with torch's
  dispatcher: there, where the library would have registered its own. Torchvision's functions, modules and models stay
  as they are and find them by name, in training too.
- The modules of these two functions are told that there are operators. They took the question "are there operators?" by
  name from `torchvision.extension`, so it is answered in these two modules and nowhere else. Answered in `extension`
  before the import, torchvision would register gradients for all operators, most of which do not exist; after the
  import, `roi_pool`, `deform_conv2d` and others, which stay without an operator, would lose the error that says so.
"""

from __future__ import annotations

import functools
import importlib
import importlib.machinery
import importlib.util
import sys

import torch
from torch import Tensor

from elign.lab.detection import ops
from elign.utils.errors import ElignError

_NMS = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
_SCHEMAS = {
    "nms": _NMS,
    # For quantised boxes; nobody here has any, but torchvision wants to describe its shapes.
    "qnms": _NMS,
    "roi_align": (
        "(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width,"
        " int sampling_ratio, bool aligned) -> Tensor"
    ),
}


class TorchvisionMissingError(ElignError, ImportError):
    """Detection was asked for, but torchvision is not installed."""


def has_compiled_ops() -> bool:
    """Whether torchvision's compiled operators load; it need not be imported yet.

    Raises:
        TorchvisionMissingError: Torchvision is not installed.
    """
    if (torchvision := sys.modules.get("torchvision")) is not None:
        return bool(torchvision.extension._has_ops())
    return _library_loads()


def prepare() -> None:
    """Make torchvision importable, with `nms` and `roi_align`; does nothing where its compiled operators load.

    A second call does nothing. If torchvision was imported before, its operators load, or somebody else defined those
    that its import needs; in the latter case what is still missing is supplied.

    Raises:
        TorchvisionMissingError: Torchvision is not installed.
    """
    if not has_compiled_ops():
        _supply()


def _library_loads() -> bool:
    """Load torchvision's library by the same steps as torchvision, which can repeat them without harm."""
    package = importlib.util.find_spec("torchvision")
    if package is None:
        raise TorchvisionMissingError("detection needs torchvision: pip install 'elign[detection]'")
    library = importlib.machinery.PathFinder.find_spec("_C", package.submodule_search_locations)
    if library is None or library.origin is None:
        return False
    try:
        torch.ops.load_library(library.origin)  # type: ignore[no-untyped-call]
    except OSError:
        return False
    return True


@functools.cache
def _supply() -> torch.library.Library:
    """Define and implement what is missing, import torchvision, and tell it; the operators live as long as the result.

    Registered as a fragment, beside those of others: only one may own the name "torchvision".
    """
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in _SCHEMAS.items():
        if not hasattr(torch.ops.torchvision, name):
            library.define(name + schema)  # type: ignore[no-untyped-call]
    # One kernel for all devices. Places of boxes have no gradient; that of roi_align is the one of its own operations.
    library.impl("nms", _nms, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    library.impl("roi_align", _roi_align, "CompositeImplicitAutograd")  # type: ignore[no-untyped-call]
    if "torchvision" not in sys.modules:
        # An import that failed leaves its parts behind, and the next one would not put them into their package.
        for name in [name for name in sys.modules if name.startswith("torchvision.")]:
            del sys.modules[name]
    # Not by attributes: in torchvision.ops, `roi_align` is the function.
    boxes, roi_align = (importlib.import_module(f"torchvision.ops.{name}") for name in ("boxes", "roi_align"))
    vars(boxes).update(_assert_has_ops=lambda: None)
    vars(roi_align).update(_assert_has_ops=lambda: None, _has_ops=lambda: True)
    return library


def _nms(dets: Tensor, scores: Tensor, iou_threshold: float) -> Tensor:
    return ops.nms(dets, scores, iou_threshold)


def _roi_align(
    input: Tensor,
    rois: Tensor,
    spatial_scale: float,
    pooled_height: int,
    pooled_width: int,
    sampling_ratio: int,
    aligned: bool,
) -> Tensor:
    return ops.roi_align(input, rois, (pooled_height, pooled_width), spatial_scale, sampling_ratio, aligned)
