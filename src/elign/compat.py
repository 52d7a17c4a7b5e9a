"""Let `import timm`, `import transformers` and others work where torchvision's operators do not load.

Beside a CPU build of torch, a torchvision that was built for CUDA cannot load its library, and importing it ends with
`RuntimeError: operator torchvision::nms does not exist`. Import this module first::

    import elign.compat
    import timm

It supplies `nms` and `roi_align` in plain torch, and does nothing where torchvision's own operators load or torchvision
is not installed. `torchvision_state` says which of these it is. `elign doctor` prints it. It needs the extra `lab`.

Example:
    >>> import elign.compat
    >>> elign.compat.torchvision_state in ("compiled", "supplied", "missing")
    True
"""

from __future__ import annotations

import importlib.util
from typing import Literal

torchvision_state: Literal["compiled", "supplied", "missing"] = "missing"
"""Where torchvision's operators come from: its own library, this package, or nowhere, as torchvision is missing."""

if importlib.util.find_spec("torchvision") is not None:
    from elign.lab.detection.operators import has_compiled_ops, prepare

    prepare()
    torchvision_state = "compiled" if has_compiled_ops() else "supplied"
