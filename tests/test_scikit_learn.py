"""scikit-learn's own checks of estimators, and which of them do not apply."""

import re
import warnings

import pytest
from conftest import ROOT
from sklearn.utils.estimator_checks import parametrize_with_checks

from mpmtl import MultiTaskClassifier, MultiTaskRegressor

pytestmark = pytest.mark.filterwarnings("ignore")

#: One table is one task to the checks, so delta is given; noise is repeated.
PRIVATE = {"delta": 1e-5, "privacy__noise": "seeded", "random_state": 0}
LEARNERS = [
    MultiTaskRegressor("stl", tuning="fixed"),
    MultiTaskClassifier("stl", tuning="fixed"),
    MultiTaskRegressor(**PRIVATE),
    MultiTaskClassifier(**PRIVATE),
]
ALL = {
    "check_estimators_unfitted": (
        "`NotFittedError` is a ValueError and an AttributeError, but not scikit-learn's own class, "
        "which is not imported"
    ),
    "check_do_not_raise_errors_in_init_or_set_params": (
        "it passes a name that no setting has, which is refused at once"
    ),
    "check_dtype_object": (
        "a cell that is no number is an `InputError`, a ValueError, and not a TypeError; to a "
        "private fit it is the task's own affair"
    ),
    "check_supervised_y_2d": (
        "a column of targets is taken as what it is, without a DataConversionWarning"
    ),
}
OF_PRIVATE = {
    "check_estimators_nan_inf": (
        "what one task holds must not stop a private fit of all: such a task gets a zero model "
        "(`idle_`)"
    ),
    "check_no_attributes_set_in_init": (
        "`privacy__noise` is a setting of the privacy, and no name of the constructor"
    ),
}


def expected(learner):
    """Checks that cannot pass, with the reason of each; all others must."""
    return ALL | (OF_PRIVATE if "privacy__noise" in learner.get_params() else {})


with warnings.catch_warnings():  # that they do not inherit from its BaseEstimator
    warnings.simplefilter("ignore", UserWarning)
    CHECKS = parametrize_with_checks(LEARNERS, expected_failed_checks=expected, xfail_strict=True)


@CHECKS
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_the_page_names_the_checks_that_do_not_apply():
    """Every row of the table, and no other."""
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"^\| `(check_\w+)` \| .+? \| (.+?) \|$", page, re.MULTILINE))
    assert rows == ALL | OF_PRIVATE
