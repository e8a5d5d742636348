"""The methods, each a frozen dataclass that a config of the group `method` names."""

from mpmtl.methods.averaging import Average
from mpmtl.methods.base import NO_BUDGET, Budget, Candidate, FitLog, Scales
from mpmtl.methods.best import BestOf
from mpmtl.methods.decomposed import Decomposed
from mpmtl.methods.feature_learning import FeatureLearning
from mpmtl.methods.mean_regularised import MeanRegularised
from mpmtl.methods.proximal import Proximal, theory_rate
from mpmtl.methods.relationship import PrivateModels, PrivateRelations, TaskRelations
from mpmtl.methods.representation import SharedRepresentation
from mpmtl.methods.single_task import SingleTask

__all__ = [
    "NO_BUDGET",
    "Average",
    "BestOf",
    "Budget",
    "Candidate",
    "Decomposed",
    "FeatureLearning",
    "FitLog",
    "MeanRegularised",
    "PrivateModels",
    "PrivateRelations",
    "Proximal",
    "Scales",
    "SharedRepresentation",
    "SingleTask",
    "TaskRelations",
    "theory_rate",
]
