"""Numbers in the prose of the errata page are those that the package computes."""

from pathlib import Path

import numpy as np

from mixattn import (
    AffineDenoiser,
    DenoisingTask,
    GaussianMixture,
    best_affine_denoiser,
    best_linear_denoiser,
)

ERRATA = (Path(__file__).parents[2] / "book" / "errata.md").read_text("utf-8")


def test_figure_2_numbers():
    task = DenoisingTask(GaussianMixture([0.5, 0.5], [[3.0, 0.0], [0.0, 3.0]], np.eye(2)), 4.0)
    linear = task.excess_risk(AffineDenoiser(best_linear_denoiser(task), np.zeros(2)))
    affine = task.excess_risk(AffineDenoiser(*best_affine_denoiser(task)))
    prose = " ".join(ERRATA.split())
    assert f"best linear map is {linear:.3f}, and that of the best **affine** map" in prose
    assert f"**affine** map is {affine:.3f}, for a Bayes risk of {task.bayes_risk():.3f}" in prose
