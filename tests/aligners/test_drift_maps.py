"""The maps of other methods, each against its formula written out in plain loops or by another solver."""

import numpy as np
import pytest
import torch
from torch import nn

import elign
from elign import ClassStatistics, OptionError


def pairs(rows=120, dim=5, seed=0):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    moved = z @ torch.randn(dim, dim, generator=generator, dtype=torch.float64) + 0.3
    return z, moved + 0.1 * torch.randn(rows, dim, generator=generator, dtype=torch.float64)


def statistics_of(z):
    return ClassStatistics().update(z, torch.arange(len(z)) % 3)


# Those that need more than pairs, which is not in their files; all others are in test_aligner_contract.py.
MAPS = [
    elign.FisherShift(head=nn.Linear(5, 3)),
    elign.DualE(experts=3, statistics=statistics_of(pairs()[0])),
]


@pytest.mark.parametrize("aligner", MAPS, ids=lambda each: type(each).__name__)
def test_a_saved_map_transports_as_before(aligner, tmp_path):
    z, moved = pairs()
    aligner.fit_latents(z, moved, direction="forward")
    again = elign.Aligner.load(aligner.save(tmp_path / "map.safetensors"))
    one, two = (each.transport(statistics_of(z)) for each in (aligner, again))
    assert torch.equal(one.means, two.means)
    assert torch.equal(one.covariances, two.covariances)
    assert torch.equal(one.counts, statistics_of(z).counts)


def test_ldc_is_the_least_squares_solution():
    z, moved = pairs()
    found = elign.LDC().fit_latents(z, moved, direction="forward").align(z)
    expected = z.numpy() @ np.linalg.lstsq(z.numpy(), moved.numpy(), rcond=None)[0]
    assert found.numpy() == pytest.approx(expected, abs=1e-6)


def test_ldc_by_adam_comes_to_the_closed_form():
    z, moved = (each.float() for each in pairs(rows=400))
    trained = elign.LDC(solver="adam", epochs=300, learning_rate=1e-2).fit_latents(z, moved, direction="forward")
    closed = elign.LDC().fit_latents(z, moved, direction="forward")
    assert (trained.matrix - closed.matrix).abs().max() < 0.05


def test_ldc_without_enough_pairs_takes_the_smallest_map():
    z, moved = pairs(rows=3)
    found = elign.LDC().fit_latents(z, moved, direction="forward")
    assert found.align(z).numpy() == pytest.approx(moved.numpy(), abs=1e-4)
    assert found.matrix.norm() < 2 * np.linalg.norm(np.linalg.pinv(z.numpy()) @ moved.numpy())


@pytest.mark.parametrize("rho", [0.01, 1.0])
def test_gls_solves_its_sylvester_equation(rho):
    z, moved = pairs()
    aligner = elign.GLS(rho=rho).fit_latents(z, moved, direction="forward")
    x, y = z - z.mean(0), moved - moved.mean(0)
    a = aligner.matrix
    left = (x.t() @ x / len(x)) @ a + rho * a @ (y.t() @ y / len(y))
    assert torch.allclose(left, x.t() @ y / len(x), atol=1e-9)
    assert torch.allclose(aligner.align(z.mean(0)), moved.mean(0))


def test_sldc_goes_to_the_identity_as_pairs_get_fewer():
    z, moved = pairs(rows=10)
    weight = np.exp(-10 / (2.0 * 5))
    solved = np.linalg.solve(z.numpy().T @ z.numpy() + 1e-4 * np.eye(5), z.numpy().T @ moved.numpy())
    aligner = elign.SLDC(tau=2.0).fit_latents(z, moved, direction="forward")
    assert aligner.matrix.numpy() == pytest.approx((1 - weight) * solved + weight * np.eye(5), abs=1e-8)
    before = statistics_of(z)
    after = aligner.transport(before)
    expected = aligner.matrix.t() @ before.covariance_of(1) @ aligner.matrix + 1e-3 * torch.eye(5)
    assert torch.allclose(after.covariance_of(1), expected.double(), atol=1e-6)


def test_the_projection_of_dpcr_changes_nothing_on_the_exact_span():
    z, moved = pairs()
    few = ClassStatistics().update(z[:3], torch.zeros(3, dtype=torch.int64))  # a span of three directions of five
    one, two = (each.fit_latents(z, moved, direction="forward").transport(few) for each in (elign.DPCR(), elign.LDC()))
    assert torch.allclose(one.means, two.means, atol=1e-5)
    assert torch.allclose(one.covariances, two.covariances, atol=1e-4)


def test_a_coarse_span_of_dpcr_drops_small_directions():
    z, _ = pairs(dim=2)
    statistics = ClassStatistics().update(
        torch.tensor([[3.0, 0.1], [-3.0, -0.1], [3.0, -0.1], [-3.0, 0.1]]), torch.zeros(4).long()
    )
    moved = elign.DPCR(tolerance=0.01).fit_latents(z, 2 * z, direction="forward").transport(statistics)
    assert torch.allclose(moved.covariances[0], torch.tensor([[36.0, 0.0], [0.0, 0.0]]), atol=1e-4)


def test_hopfield_shift_against_plain_loops():
    z, moved = pairs(rows=30)
    aligner = elign.HopfieldShift(temperature=0.2, top=7, share=0.5).fit_latents(z, moved, direction="forward")
    query = torch.randn(4, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for row, found in zip(query.numpy(), aligner.align(query).numpy(), strict=True):
        cosines = [row @ a / np.linalg.norm(row) / np.linalg.norm(a) for a in z.numpy()]
        best = sorted(range(30), key=lambda i: -cosines[i])[:7]
        weights = {i: np.exp(cosines[i] / 0.2) for i in best}
        drift = sum(w * (moved - z).numpy()[i] for i, w in weights.items()) / sum(weights.values())
        assert found == pytest.approx(row + 0.5 * drift, abs=1e-9)


def test_fisher_shift_against_plain_loops():
    torch.manual_seed(0)
    z, moved = pairs(rows=20)
    head = nn.Linear(5, 3).double()
    aligner = elign.FisherShift(head=head, width=0.3).fit_latents(z, moved, direction="forward")
    w = head.weight.detach().numpy()
    metric = np.zeros((5, 5))
    for p in head(z).softmax(1).detach().numpy():
        metric += w.T @ (np.diag(p) - np.outer(p, p)) @ w / 20
    row = torch.randn(5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).numpy()
    distances = np.array([(row - a) @ metric @ (row - a) for a in z.numpy()])
    scaled = (distances - distances.min()) / (distances.max() - distances.min())
    weights = np.exp(-scaled / (2 * 0.3**2))
    expected = row + weights @ (moved - z).numpy() / weights.sum()
    assert aligner.align(torch.from_numpy(row)).numpy() == pytest.approx(expected, abs=1e-6)


def test_fisher_shift_needs_the_previous_head():
    z, moved = pairs()
    with pytest.raises(elign.LatentError, match="previous head"):
        elign.FisherShift().fit_latents(z, moved, direction="forward")


def test_a_network_follows_a_bend_that_no_linear_map_can():
    z = torch.randn(400, 3, generator=torch.Generator().manual_seed(0))
    bent = elign.MLPMap(width=16, learning_rate=0.1).fit_latents(z, z.abs(), direction="forward")
    straight = elign.Ridge().fit_latents(z, z.abs(), direction="forward")
    assert bent.report.drift_after < 0.3 * straight.report.drift_after


def three_groups(rows=300):
    """Latents in three directions, each of which drifts by a map of its own."""
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(rows) % 3
    z = 6 * torch.eye(5, dtype=torch.float64)[groups] + torch.randn(rows, 5, generator=generator, dtype=torch.float64)
    maps = torch.randn(3, 5, 5, generator=generator, dtype=torch.float64)
    return z, torch.einsum("nd,nde->ne", z, maps[groups]), groups, maps


def test_dual_e_against_plain_loops():
    z, moved, *_ = three_groups()
    old = 2 * torch.randn(4, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    statistics = ClassStatistics().update(old, torch.arange(4))
    aligner = elign.DualE(experts=3, statistics=statistics, temperature=0.5, rank=0.6, keep=3.0, rounds=500)
    aligner.fit_latents(z, moved, direction="forward")
    x, y, centers = z.numpy(), moved.numpy(), aligner.centers.numpy()

    def cosines(row):
        return np.array([row @ c / np.linalg.norm(row) / np.linalg.norm(c) for c in centers])

    owners = np.array([cosines(row).argmax() for row in x])
    experts = [np.linalg.lstsq(x[owners == k], y[owners == k], rcond=None)[0] for k in range(3)]
    # The best map of rank 3 is known: the least squares map, projected on the main directions of what it gives.
    stacked = np.concatenate([x, np.sqrt(3.0) * old.numpy()]), np.concatenate([y, np.sqrt(3.0) * old.numpy()])
    full = np.linalg.lstsq(*stacked, rcond=None)[0]
    main = np.linalg.svd(stacked[0] @ full)[2][:3].T
    for row in torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64):
        near = cosines(row.numpy())
        weights = np.exp(near / 0.5) / np.exp(near / 0.5).sum()
        local = sum(w * row.numpy() @ q for w, q in zip(weights, experts, strict=True))
        expected = near.max() * local + (1 - near.max()) * row.numpy() @ full @ main @ main.T
        assert aligner.align(row).numpy() == pytest.approx(expected, abs=1e-5)


def test_dual_e_finds_the_groups_and_their_maps():
    z, moved, groups, maps = three_groups()
    aligner = elign.DualE(experts=3).fit_latents(z, moved, direction="forward")
    order = [int((aligner.centers - z[groups == k].mean(0)).norm(dim=1).argmin()) for k in range(3)]
    assert sorted(order) == [0, 1, 2]
    assert torch.allclose(aligner.centers[order], torch.stack([z[groups == k].mean(0) for k in range(3)]), atol=0.3)
    # A few latents lie between the directions.
    assert (aligner.maps[order] - maps).norm() < 0.5 * maps.norm()


def test_dual_e_with_one_expert_and_full_rank_is_least_squares():
    z, moved = pairs()
    aligner = elign.DualE(experts=1, rank=1.0).fit_latents(z, moved, direction="forward")
    expected = elign.LDC().fit_latents(z, moved, direction="forward")
    assert torch.allclose(aligner.align(z), expected.align(z), atol=1e-6)


def test_old_means_hold_the_global_map_of_dual_e():
    z, moved = pairs()
    statistics = statistics_of(z)
    free, held = (
        elign.DualE(rank=1.0, keep=keep, statistics=statistics).fit_latents(z, moved, direction="forward")
        for keep in (0.0, 1e6)
    )
    means = statistics.means.double()
    off = [(means @ each.left @ each.right - means).norm() for each in (free, held)]
    assert off[1] < 0.01 * off[0]
    with pytest.raises(elign.LatentError, match="dimension"):
        elign.DualE(statistics=statistics).fit_latents(z[:, :3], moved[:, :3])


def test_a_network_that_would_not_fit_is_refused():
    z = torch.zeros(4, 4096)
    with pytest.raises(OptionError, match="width"):
        elign.MLPMap().fit_latents(z, z, direction="forward")


def test_a_network_that_diverges_says_so():
    z = 30 * torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(elign.LatentError, match="learning_rate"):
        elign.MLPMap(width=8, learning_rate=1.0).fit_latents(z, -z, direction="forward")


@pytest.mark.parametrize("maker", [elign.LDC, elign.GLS, elign.SLDC, elign.DPCR, elign.DualE])
def test_latents_too_large_for_sums_are_named(maker):
    z = 1e200 * torch.randn(50, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with pytest.raises(elign.LatentError, match="too large"):
        maker().fit_latents(z, -z, direction="forward")


@pytest.mark.parametrize(("size", "epochs"), [(1e10, 1), (1e5, 2)])
def test_a_network_that_diverged_is_an_error_and_no_map_to_nan(size, epochs):
    z = size * torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(elign.LatentError, match="infinite while learning"):
        elign.MLPMap(width=2, epochs=epochs).fit_latents(z, z + 1)
