"""IL2M against its formula in plain loops."""

import json

import pytest
import torch
from torch import nn

import elign
from elign import IL2M, LatentError, OptionError


def head_of(seed, dim=4, classes=5, bias=0.0):
    generator = torch.Generator().manual_seed(seed)
    head = nn.utils.skip_init(nn.Linear, dim, classes, dtype=torch.float64)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
        head.bias[3:] += bias
    return head


def latents(rows=100, seed=0, dtype=torch.float64):
    z = torch.randn(rows, 4, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return z, torch.arange(rows) % 5


def softmax(head, row):
    return head(row).softmax(0).tolist()


def by_plain_loops(head, z, labels, old, birth, row):
    """The corrected probabilities of one latent."""
    new_tops = [max(softmax(head, x)) for x, c in zip(z, labels.tolist(), strict=True) if c not in old]
    now_confidence = sum(new_tops) / len(new_tops)
    p = softmax(head, row)
    if p.index(max(p)) not in old:
        for o in old:
            own = [softmax(head, x)[o] for x, c in zip(z, labels.tolist(), strict=True) if c == o]
            p[o] *= birth[o][0] / (sum(own) / len(own)) * now_confidence / birth[o][1]
    return p


@pytest.mark.parametrize("old_classes", [3, [0, 4, 2]])
def test_il2m_against_plain_loops(old_classes):
    z, labels = latents()
    head = head_of(1, bias=2.0)
    old = list(range(3)) if old_classes == 3 else old_classes
    births = [(0.9, 0.8), (0.5, 0.95), (0.7, 0.6)]
    birth = dict(zip(old, births, strict=True))
    made = IL2M().fit(z, labels, head=head, old_classes=old_classes, birth=birth)
    asked, _ = latents(rows=40, seed=3)
    scores = made(asked, logits=head(asked))
    assert torch.allclose(scores.exp().sum(dim=1), torch.ones(40, dtype=torch.float64))
    changed = 0
    for row, found in zip(asked, scores, strict=True):
        expected = torch.tensor(by_plain_loops(head, z, labels, old, birth, row), dtype=torch.float64)
        torch.testing.assert_close(found.exp(), expected / expected.sum())
        changed += int(found.argmax()) != int(head(row).argmax())
    assert 0 < changed < 40


def test_at_birth_is_the_mean_probability_and_the_mean_highest_one():
    z, labels = latents(rows=60)
    head = head_of(2)
    found = IL2M.at_birth(z, labels + 0, head=head)
    p = [softmax(head, row) for row in z]
    confidence = sum(map(max, p)) / 60
    for label in range(5):
        own = [row[label] for row, c in zip(p, labels.tolist(), strict=True) if c == label]
        assert found[label] == pytest.approx((sum(own) / len(own), confidence))
    # Tasks are joined, and a text file keeps them.
    some = labels < 2
    first, second = (IL2M.at_birth(z[part], labels[part], head=head) for part in (some, ~some))
    assert sorted(first | second) == [0, 1, 2, 3, 4]
    kept = {int(label): numbers for label, numbers in json.loads(json.dumps(first)).items()}
    one, two = (IL2M().fit(z, labels, head=head, old_classes=2, birth=each) for each in (first, kept))
    assert torch.equal(one.log_factors, two.log_factors)


def test_a_model_that_did_not_change_is_left_alone():
    z, labels = latents()
    head = head_of(1)
    now = IL2M.at_birth(z[labels < 3], labels[labels < 3], head=head)
    confidence = next(iter(IL2M.at_birth(z[labels >= 3], labels[labels >= 3], head=head).values()))[1]
    birth = {label: (probability, confidence) for label, (probability, _) in now.items()}
    made = IL2M().fit(z, labels, head=head, old_classes=3, birth=birth)
    torch.testing.assert_close(made(z, logits=head(z)), head(z).log_softmax(dim=1))


def test_classes_to_come_and_classes_that_are_forgotten_give_numbers(tmp_path):
    z, labels = latents(dtype=torch.float32)
    head = head_of(1).float()
    labels = labels % 4
    with torch.no_grad():
        head.bias[0], head.bias[4] = -1e6, -torch.inf
    made = IL2M().fit(z, labels, head=head, old_classes=2, birth={0: (1.0, 1.0), 1: (0.0, 1.0)})
    scores = made(z, logits=head(z))
    assert not scores.isnan().any()
    assert scores[:, 4].isneginf().all()
    assert scores[:, :4].isfinite().all()
    assert made.log_factors[0] > 600
    loaded = elign.LatentClassifier.load(made.save(tmp_path / "il2m"))
    assert torch.equal(loaded(z, logits=head(z)), scores)


def test_what_is_missing_is_named():
    z, labels = latents()
    head, birth = head_of(1), dict.fromkeys(range(3), (0.9, 0.9))
    with pytest.raises(LatentError, match="class 1"):
        IL2M().fit(z[labels != 1], labels[labels != 1], head=head, old_classes=3, birth=birth)
    with pytest.raises(LatentError, match="new classes"):
        IL2M().fit(z[labels < 3], labels[labels < 3], head=head, old_classes=3, birth=birth)
    for old_classes in (6, [7], 0, "all"):
        with pytest.raises(OptionError):
            IL2M().fit(z, labels, head=head, old_classes=old_classes, birth=birth)
    with pytest.raises(OptionError, match="too few"):
        IL2M.at_birth(z, labels + 1, head=head)
    for wrong in ({}, {0: 0.9}, {0: (0.9, 0.0)}, {0: (2.0, 0.5)}, {0: ("a", "b")}, {0: (float("nan"), 1)}, None, []):
        with pytest.raises(OptionError, match="birth"):
            IL2M().fit(z, labels, head=head, old_classes=1, birth=wrong)
    with torch.no_grad():
        head.weight.fill_(1e308)
    with pytest.raises(LatentError, match="no probabilities"):
        IL2M().fit(z, labels, head=head, old_classes=3, birth=birth)


@pytest.mark.parametrize("scale", [1e-40, 1e-20, 1e10, 1e20, 1e30, 3e38])
def test_huge_and_tiny_latents_give_numbers_or_a_named_error(scale):
    z, labels = latents(dtype=torch.float32)
    head = head_of(1).float()
    z = z / z.abs().max() * scale
    try:
        made = IL2M().fit(z, labels, head=head, old_classes=3, birth=dict.fromkeys(range(3), (0.9, 0.9)))
    except elign.LatentError:
        assert scale > 1e30
        return
    assert made.log_factors.isfinite().all()
    for asked in (z, torch.zeros(2, 4), latents(dtype=torch.float32)[0]):
        scores = made(asked, logits=head(asked))
        assert not scores.isnan().any()
        assert (scores.amax(dim=1) <= 0).all()
