import pytest
import torch

from eli.lab.experiments.engine import Engine
from eli.lab.models import make_backbone


def test_plain_images_stay_as_they_are():
    images = torch.randn(2, 3, 8, 8)
    placed = Engine(accelerator="cpu").images(images)
    assert placed.is_contiguous()
    assert torch.equal(placed, images)


def test_channels_last_holds_for_images_and_weights():
    engine = Engine(accelerator="cpu", channels_last=True)
    net = engine.place(make_backbone("conv", image_shape=(3, 8, 8)))
    assert engine.images(torch.randn(2, 3, 8, 8)).is_contiguous(memory_format=torch.channels_last)
    assert net.layers[3].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("precision", "dtype"), [("32", torch.float32), ("bf16", torch.bfloat16)])
def test_precision_is_that_of_matrix_products(precision, dtype):
    engine = Engine(accelerator="cpu", precision=precision)
    with engine.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype


def test_one_process_has_all_rows():
    engine = Engine(accelerator="cpu")
    assert engine.is_main
    assert engine.processes == 1
    assert torch.equal(engine.share(torch.arange(7)), torch.arange(7))
