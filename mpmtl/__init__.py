"""mpmtl: private multi-task learning.

The public names are loaded on first use, so that `mpmtl-run` can limit the threads of linear
algebra before numpy is imported.
"""

from importlib import import_module

__version__ = "0.1.0"

_PUBLIC = {
    "audit": "mpmtl.auditing.audit",
    "Cost": "mpmtl.privacy.budget",
    "composition_bound": "mpmtl.privacy.budget",
    "allocate": "mpmtl.privacy.budget",
    "optimal_delta": "mpmtl.privacy.budget",
    "gaussian_mu": "mpmtl.privacy.budget",
    "wishart_delta": "mpmtl.privacy.budget",
    "Gaussian": "mpmtl.privacy.mechanisms",
    "Laplace": "mpmtl.privacy.mechanisms",
    "NoNoise": "mpmtl.privacy.mechanisms",
    "TwoSidedWishart": "mpmtl.privacy.mechanisms",
    "Wishart": "mpmtl.privacy.mechanisms",
    "PrivacyCaveat": "mpmtl.privacy.statements",
    "PrivacyStatement": "mpmtl.privacy.statements",
    "InputError": "mpmtl.errors",
    "MultiTaskData": "mpmtl.data",
    "NotFittedError": "mpmtl.estimators",
    "MultiTaskClassifier": "mpmtl.experiments.learners",
    "MultiTaskRegressor": "mpmtl.experiments.learners",
}
#: Names of earlier versions, and what stands for them now.
_RENAMED = {
    "SingleTaskLearner": "MultiTaskRegressor(method='stl')",
    "MultiTaskLearner": "MultiTaskRegressor(method='mtl_lr')",
    "PrivateMultiTaskLearner": "MultiTaskRegressor(method='lr', privacy='gaussian')",
    "PrivateFeatureLearner": "MultiTaskRegressor(method='fl')",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name):
    if name in _RENAMED:
        raise AttributeError(f"mpmtl.{name} is now mpmtl.{_RENAMED[name]}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'mpmtl' has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__():
    return __all__
