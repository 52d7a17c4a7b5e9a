"""Attachments that rewrite a head's scores see the latents as they came, whatever the head does with them."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from tests.conftest import DIM
from torch import nn

import elign
from elign import AttachError, LatentError, SplitOutputs

OLD = SplitOutputs(range(2))


def heads():
    """The same head twice: one changes its latents in place."""
    torch.manual_seed(0)
    linear = nn.Linear(DIM, 4)
    return [nn.Sequential(nn.ReLU(inplace=inplace), copy.deepcopy(linear)).eval() for inplace in (True, False)]


@pytest.mark.parametrize("first", ["classifier", "aligner"])
def test_a_classifier_behind_a_head_that_works_in_place(means, shift, first):
    z = torch.randn(9, DIM, generator=torch.Generator().manual_seed(1))
    for head in heads():
        model = nn.Sequential(nn.Identity(), head).eval()
        with elign.attach(model, "1", means):
            assert torch.equal(model(z.clone()), means(z))
        parts = [means, shift] if first == "classifier" else [shift, means]
        for part in parts:
            elign.attach(model, "1", part)
        assert torch.equal(model(z.clone()), means(shift.align(z)))
        assert elign.detach(model) == 2
        assert not head._forward_hooks
        assert not head._forward_pre_hooks


def test_old_outputs_of_a_head_that_works_in_place(shift):
    z = torch.randn(9, DIM, generator=torch.Generator().manual_seed(1))
    outputs = []
    for head in heads():
        with elign.attach(model := nn.Sequential(nn.Identity(), head).eval(), "1", shift, outputs=OLD):
            outputs.append(model(z.clone()))
    assert torch.equal(*outputs)


def test_a_users_own_hook_behind_a_classifier_stays_behind_it(means, shift):
    z, (head, _) = torch.ones(2, DIM), heads()
    model = nn.Sequential(nn.Identity(), head).eval()
    elign.attach(model, "1", means)
    head.register_forward_hook(lambda module, args, output: 10 * output)
    elign.attach(model, "1", shift)
    assert torch.equal(model(z), 10 * means(shift.align(z)))


class Handing(nn.Module):
    """A head that hands its latents on."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(DIM, 4)

    def forward(self, z):
        return {"logits": self.fc(z), "features": z}


def test_latents_that_a_head_hands_on_hold_nothing_more(means):
    model = nn.Sequential(nn.Identity(), Handing()).eval()
    elign.attach(model, "1", means)
    assert not vars(model(torch.ones(2, DIM))["features"])


LOADED = """
import sys, torch, elign
model = torch.load(sys.argv[1], weights_only=False)
x = torch.ones(2, 6)
before = model(x)
elign.Latents(model, "1")(x)
assert torch.equal(model(x), before)
assert elign.detach(model) == 2
"""


def test_a_model_that_another_process_loads_keeps_what_is_attached(means, shift, tmp_path):
    model = nn.Sequential(nn.Identity(), nn.Linear(DIM, 4)).eval()
    elign.attach(model, "1", means)
    elign.attach(model, "1", shift)
    torch.save(model, tmp_path / "model.pt")
    done = subprocess.run([sys.executable, "-c", LOADED, tmp_path / "model.pt"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


class Pooled(nn.Module):
    """A head that reads the first of several tokens."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(DIM, 4)

    def forward(self, tokens):
        return self.fc(tokens[:, 0])


def test_a_head_that_gets_all_tokens_is_named_with_what_to_do(means, shift, x):
    model = nn.Sequential(nn.Linear(5, 3 * DIM), nn.Unflatten(1, (3, DIM)), Pooled()).eval()
    with elign.attach(model, "2", means), pytest.raises(AttachError, match="one latent for each row"):
        model(x)
    with (
        elign.attach(model, "2", shift, gate=elign.ByPrediction(old_classes=2)),
        pytest.raises(LatentError, match="one latent for each row"),
    ):
        model(x)
    loader = [(x, torch.arange(9) % 4)]
    with pytest.raises(LatentError, match=r"3 latents for each input.*head\.fc"):
        elign.Pairs.from_models(model, model, "2", loader)
    with pytest.raises(LatentError, match=r"3 latents for each input.*head\.fc"):
        elign.ClassStatistics.from_data(model, "2", loader)
    with elign.attach(model, "2.fc", means):
        assert model(x).shape == (9, 4)


# --- An aligner attached for some outputs of a head: the head is read twice, in evaluation mode only.


def test_old_outputs_come_from_aligned_latents(net, shift, x):
    plain = net(x)
    with torch.no_grad():
        z = net.body(x)
        wanted = OLD.merge(net.fc.forward(z), net.fc.forward(shift.align(z)))
    with elign.attach(net, "fc", shift, outputs=OLD) as attachment:
        torch.testing.assert_close(net(x), wanted)
        torch.testing.assert_close(copy.deepcopy(net)(x), wanted)
        attachment.outputs = SplitOutputs(range(3))
        assert not torch.allclose(net(x), wanted)
        net.fc.train()
        torch.testing.assert_close(net(x), plain)
        net.eval()
    torch.testing.assert_close(net(x), plain)
