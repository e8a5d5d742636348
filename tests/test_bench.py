"""The benchmark of plain formulas and fast forms: equal numbers, and times of both."""

import numpy as np
import pytest
from conftest import loaded_script, ragged_data

from mpmtl.datafits import datafit_for

bench = loaded_script("bench")


@pytest.mark.parametrize(("d", "m"), [(4, 9), (9, 4)])
def test_both_forms_of_the_projection_are_timed_and_equal(d, m, rng):
    plain, fast, difference = bench.both(*bench.projection_forms(d, m, rng), 2)
    assert plain > 0
    assert fast > 0
    assert difference < 1e-9


def test_both_forms_of_the_folds_paths_are_timed_and_equal(rng):
    data = ragged_data(rng, 4, 5, "binary", low=20, high=40)
    rows = [[np.arange(k, len(y), 3) for y in data.y] for k in range(3)]
    parts = [datafit_for(data.take(part)) for part in rows]
    forms = bench.fold_forms(parts, [1e-3, 0.1, 1.0], 2)
    assert forms[0]().shape == (3, 3, 2, 5)
    assert bench.both(*forms, 1)[2] < 1e-9


def test_a_prior_has_the_same_numbers_in_both_forms():
    assert bench.both(*bench.prior_forms(5, 6, 8), 1)[2] < 1e-9
