import torch

from elign.lab.detection.models.parts import RegionPool


def test_bins_lie_where_the_pixels_are():
    """On a map that says where it is, pooled values are the places of the bins, whatever images came first."""
    stride = 8
    across = (torch.arange(12.0) + 0.5) * stride
    places = torch.stack(torch.meshgrid(across[:4], across, indexing="ij"))[None]
    pool = RegionPool(2, stride=stride, samples=2)
    box = torch.tensor([[16.0, 8.0, 48.0, 24.0]])
    # A wide image whose padding is a large part of its height: here torchvision would guess another scale.
    pooled = pool({"0": places}, [box], [(20, 96)])
    torch.testing.assert_close(pooled[0, 0], torch.tensor([[12.0, 12.0], [20.0, 20.0]]))
    torch.testing.assert_close(pooled[0, 1], torch.tensor([[24.0, 40.0], [24.0, 40.0]]))
