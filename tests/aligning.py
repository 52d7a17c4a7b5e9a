"""What tests of aligners, classifiers, gates and attachments share: each kind, some latents, what should come out."""

from __future__ import annotations

import torch

import elign
from elign import EnergyAligner, Identity, LocalShift, MeanShift, RandomShift, Ridge

MAKERS = {
    "energy": lambda: EnergyAligner(hidden=(8, 8), iterations=5, learning_rate=1e-2, steps=4),
    "energy-one-layer": lambda: EnergyAligner(hidden=(4,), iterations=5, learning_rate=1e-2, steps=4),
    "energy-linear": lambda: EnergyAligner(hidden=(), iterations=5, learning_rate=1e-2, steps=4),
    "energy-half-step": lambda: EnergyAligner(hidden=(4,), iterations=5, steps=4, half_step=True),
    "energy-noise": lambda: EnergyAligner(hidden=(4,), iterations=5, steps=4, noise=0.5),
    "mean-shift": MeanShift,
    "random-shift": RandomShift,
    "ridge": Ridge,
    "local-shift": lambda: LocalShift(anchors=60),
    "ldc": elign.LDC,
    "ldc-adam": lambda: elign.LDC(solver="adam", epochs=1),
    "gls": elign.GLS,
    "sldc": elign.SLDC,
    "dpcr": elign.DPCR,
    "hopfield": lambda: elign.HopfieldShift(anchors=60, top=20),
    "mlp": lambda: elign.MLPMap(width=2, epochs=1),
    "dual-e": lambda: elign.DualE(experts=3),
    "adc": lambda: elign.ADC(step=0.5, norm="image"),
    "identity": Identity,
}
"""One of each aligner, quick to fit; the fixture `make_aligner` goes through them."""

CLASSIFIERS = {
    "nearest mean": elign.NearestMean,
    "nearest mean, not normalised": lambda: elign.NearestMean(normalize=False),
    "gaussian": elign.Gaussian,
    "directions": lambda: elign.Gaussian(shared=1.0, shrinkage=0.1, normalize=True),
    "linear": lambda: elign.Gaussian(shared=1.0),
    "quadratic": lambda: elign.Gaussian(shared=0.5, shrinkage=0.3),
    "quadratic directions": lambda: elign.Gaussian(shared=0.0, shrinkage=0.5, normalize=True),
    "linear head": elign.LinearHead,
    "ridge head": lambda: elign.RidgeHead(penalty=1.0),
    "random features": lambda: elign.RandomFeatures(width=60),
    "fecam": elign.FeCAM,
}
"""One of each classifier that is fitted on latents of classes."""

Z = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
"""Four latents."""


def learned(aligner, z_prev, z_cur, **options):
    """Fits on pairs of latents; an aligner that needs images gets some that two models turn into these latents."""
    if not aligner.needs_images:
        return aligner.fit_latents(z_prev, z_cur, **options)
    # An image is a latent and its drift. What is done to the latent moves it alike under both models.
    dim = z_prev.shape[1]
    statistics = elign.ClassStatistics(covariance="none").update(z_prev, torch.arange(len(z_prev)) % 3)
    return aligner.fit(
        lambda x: x[:, :dim],
        lambda x: x[:, :dim] + x[:, dim:],
        [torch.cat([z_prev, z_cur - z_prev], dim=1)],
        statistics=statistics,
        **options,
    )


def seeded(aligner, z, **options):
    """Aligned latents, the same ones each time, also with noise."""
    return aligner.align(z, generator=torch.Generator().manual_seed(0), **options)


def expected_output(net, aligner, x, where=None):
    """What the fixture `net` should say with the aligner in front of its head."""
    with torch.no_grad():
        return net.fc.forward(aligner.align(net.body(x), where=where))
