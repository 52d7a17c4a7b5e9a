"""Supply torchvision's missing operators before a test imports torchvision."""

import elign.lab.detection  # noqa: F401
