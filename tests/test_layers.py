"""The walls: paper and federation import experiments, these the library, and nothing goes back."""

import ast
import re
import subprocess
import sys

import pytest
from conftest import ROOT

#: What a layer must not know: the layers above it and, for the library, folders and terminals.
FORBIDDEN = {
    "library": (
        "mpmtl.experiments",
        "mpmtl.federation",
        "mpmtl.paper",
        "flwr",
        "hydra",
        "omegaconf",
        "joblib",
        "filelock",
        "tqdm",
        "matplotlib",
    ),
    "experiments": ("mpmtl.federation", "mpmtl.paper", "flwr", "matplotlib"),
    "federation": ("mpmtl.paper", "matplotlib"),
    "paper": ("mpmtl.federation", "flwr"),
}
#: The same without what other packages load.
OWN = {name: set(modules) - {"tqdm"} for name, modules in FORBIDDEN.items()}
#: Packages that few functions need and that take long to load: only these functions import them.
LATE = {"scipy.stats", "scipy.io", "pooch"}
#: The package's own names are loaded on first use, wherever they are.
FORBIDDEN["front"] = tuple(set(FORBIDDEN["library"]) - {"mpmtl.experiments"})
FILES = sorted((ROOT / "mpmtl").rglob("*.py"))


def layer(path):
    if path == ROOT / "mpmtl" / "__init__.py":
        return "front"
    part = path.relative_to(ROOT / "mpmtl").parts[0]
    return part if part in ("experiments", "federation", "paper") else "library"


def imported(source, package):
    """Modules that a source names: imports anywhere in it, and names for `import_module`.

    Parameters
    ----------
    source : str
    package : str
        The package of the module, for relative imports.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")[: len(package.split(".")) - node.level + 1]
            start = ".".join(parents) if node.level else ""
            module = ".".join(filter(None, (start, node.module)))
            yield from (f"{module}.{name.name}" for name in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from re.findall(r"^mpmtl[\w.]+$", node.value)


def breaches(source, package, forbidden):
    """Imports of a source that are forbidden to it."""
    names = set(imported(source, package))
    return sorted(n for n in names for f in forbidden if n == f or n.startswith(f + "."))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_an_import_never_goes_back(path):
    package = ".".join(path.relative_to(ROOT).parent.parts)
    assert breaches(path.read_text(encoding="utf-8"), package, FORBIDDEN[layer(path)]) == []


@pytest.mark.parametrize(
    "source",
    [
        "import mpmtl.paper.report",
        "from mpmtl.paper import report",
        "from mpmtl import paper",
        "from ..paper.report import page",
        "from .. import paper",
        "def late():\n    from mpmtl.paper.report import page",
        "module = import_module('mpmtl.paper.report')",
        "import matplotlib.pyplot as plt",
    ],
)
def test_a_breach_is_seen_in_every_form(source):
    assert breaches(source, "mpmtl.experiments", FORBIDDEN["experiments"])
    assert not breaches(source, "mpmtl.paper", FORBIDDEN["paper"])


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("mpmtl.auditing.audit, mpmtl.estimators, mpmtl.methods", OWN["library"]),
        (
            "mpmtl.experiments.cli, mpmtl.experiments.audit, mpmtl.experiments.learners",
            OWN["experiments"] | {"sklearn"},
        ),
        ("mpmtl.federation.cli", OWN["federation"] | {"flwr"}),  # an extra, loaded by Flower's apps
    ],
)
def test_what_is_loaded_keeps_to_its_layer(module, forbidden):
    """Through all that the imports import."""
    script = f"import sys, {module}; print(*sys.modules, sep='\\n')"
    command = [sys.executable, "-c", script]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not set(loaded) & (forbidden | LATE)
