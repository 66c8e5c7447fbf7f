import os

import hypothesis
import numpy as np
import pytest

hypothesis.settings.register_profile("book", deadline=None, derandomize=True, max_examples=25)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "book"))


@pytest.fixture
def rng():
    return np.random.default_rng(20261011)
