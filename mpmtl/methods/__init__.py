"""The methods, each a frozen dataclass that a config of the group `method` names."""

from mpmtl.methods.averaging import Average, AverageCandidate
from mpmtl.methods.base import Candidate, Method, Scales, Setting
from mpmtl.methods.best import BestOf
from mpmtl.methods.decomposed import Decomposed, DecomposedCandidate
from mpmtl.methods.feature_learning import FeatureLearning
from mpmtl.methods.mean_regularised import MeanRegularised, MeanRegularisedCandidate
from mpmtl.methods.proximal import PathCandidate, Proximal, ProximalCandidate, theory_rate
from mpmtl.methods.relationship import (
    PrivateModels,
    PrivateModelsCandidate,
    PrivateRelations,
    PrivateRelationsCandidate,
    TaskRelations,
    TaskRelationsCandidate,
)
from mpmtl.methods.representation import RepresentationCandidate, SharedRepresentation
from mpmtl.methods.single_task import SingleTask, SingleTaskCandidate
from mpmtl.privacy.releases import NO_BUDGET, Budget, FitLog

__all__ = [
    "NO_BUDGET",
    "Average",
    "AverageCandidate",
    "BestOf",
    "Budget",
    "Candidate",
    "Decomposed",
    "DecomposedCandidate",
    "FeatureLearning",
    "FitLog",
    "MeanRegularised",
    "MeanRegularisedCandidate",
    "Method",
    "PathCandidate",
    "PrivateModels",
    "PrivateModelsCandidate",
    "PrivateRelations",
    "PrivateRelationsCandidate",
    "Proximal",
    "ProximalCandidate",
    "RepresentationCandidate",
    "Scales",
    "Setting",
    "SharedRepresentation",
    "SingleTask",
    "SingleTaskCandidate",
    "TaskRelations",
    "TaskRelationsCandidate",
    "theory_rate",
]
