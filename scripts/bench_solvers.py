"""Time the non-private solver against others: python scripts/bench_solvers.py [--m 320].

Every solver works harder, in steps of two, until the relative duality gap of its answer is at most
1e-6; the time is that of the last call alone. One process, one thread of linear algebra. Prints a
table in Markdown; solvers that are not installed (pip install pyproximal cvxpy skglm mutar) are
left out by name.
"""

from mpmtl.experiments.entry import begin, carry_out

if __name__ == "__main__":
    begin()

import argparse
import importlib.util
import time
import warnings
from functools import partial
from itertools import product

import numpy as np
from scipy import sparse

from mpmtl.data.synthetic import GroupSparse, LowRank
from mpmtl.datafits import datafit_for
from mpmtl.penalties import GroupL1, TraceNorm
from mpmtl.solvers.proximal import duality_gap, solve

GAP = 1e-6


def ours(datafit, penalty, lam, effort):
    return solve(datafit, penalty, lam, tol=1e-3 / effort)[0]


def literal(datafit, penalty, lam, effort):
    """Accelerated proximal gradient as textbooks print it: SVD of W, a loop over the tasks."""
    m, d = datafit.shape
    W, Z, theta = np.zeros((m, d)), np.zeros((m, d)), 1.0
    eta = 1 / datafit.lipschitz()
    for _ in range(20 * effort):
        samples = zip(datafit.X, datafit.y, Z, strict=True)
        G = np.array([X.T @ (X @ z - y) for X, y, z in samples])
        before, W = W, Z - eta * G
        if penalty.name == "trace":
            U, s, V = np.linalg.svd(W, full_matrices=False)
            W = U @ np.diag(np.maximum(s - eta * lam, 0)) @ V
        else:
            W = W * np.maximum(0, 1 - eta * lam / np.maximum(np.linalg.norm(W, axis=0), 1e-300))
        theta, old = (1 + np.sqrt(1 + 4 * theta**2)) / 2, theta
        Z = W + (old - 1) / theta * (W - before)
    return W


def pyproximal(datafit, penalty, lam, effort, blocks=False):
    """With one sparse matrix of all tasks, or with pylops' operator of a block for each task."""
    from pylops import BlockDiag, MatrixMult
    from pyproximal import L2, L21, Nuclear
    from pyproximal.optimization.primal import ProximalGradient

    m, d = datafit.shape
    if blocks:
        design = BlockDiag([MatrixMult(X) for X in datafit.X])
    else:
        design = MatrixMult(sparse.block_diag(datafit.X, format="csr"))
    norm = Nuclear((m, d), sigma=lam) if penalty.name == "trace" else L21(m, sigma=lam)
    x = ProximalGradient(
        L2(Op=design, b=np.concatenate(datafit.y)),
        norm,
        np.zeros(m * d),
        tau=1 / datafit.lipschitz(),
        niter=20 * effort,
        acceleration="fista",
    )
    return x.reshape(m, d)


def cvxpy(datafit, penalty, lam, effort):
    import cvxpy as cp

    m, d = datafit.shape
    W = cp.Variable((m, d))
    y, design = np.concatenate(datafit.y), sparse.block_diag(datafit.X, format="csr")
    loss = 0.5 * cp.sum_squares(design @ cp.vec(W, order="C") - y)
    norm = cp.normNuc(W) if penalty.name == "trace" else cp.sum(cp.norm(W, 2, axis=0))
    problem = cp.Problem(cp.Minimize(loss + lam * norm))
    if penalty.name == "trace":  # a semidefinite program
        problem.solve(solver=cp.SCS, eps=1e-3 / effort, max_iters=50 * effort)
    else:
        problem.solve(solver=cp.CLARABEL, tol_gap_rel=1e-3 / effort)
    return W.value


def skglm(datafit, penalty, lam, effort):
    from skglm.datafits import QuadraticGroup
    from skglm.penalties import WeightedGroupL2
    from skglm.solvers import GroupBCD

    m, d = datafit.shape
    y, design = np.concatenate(datafit.y), sparse.block_diag(datafit.X, format="csc")
    indices = np.arange(m * d).reshape(m, d).T.ravel().astype(np.int32)
    ends = (m * np.arange(d + 1)).astype(np.int32)
    solver = GroupBCD(tol=1e-3 / effort, max_iter=10_000, max_epochs=10_000)
    w, _, _ = solver.solve(
        design,
        y,
        QuadraticGroup(ends, indices),
        WeightedGroupL2(lam / len(y), np.ones(d), ends, indices),
    )
    return w.reshape(m, d)


def mutar(datafit, penalty, lam, effort):
    from mutar import GroupLasso

    X, y = np.stack(datafit.X), np.stack(datafit.y)
    model = GroupLasso(
        alpha=lam / X.shape[1], fit_intercept=False, tol=1e-3 / effort, max_iter=20_000
    )
    return model.fit(X, y).coef_.T


#: Name in the table, function, module it needs.
SOLVERS = (
    ("mpmtl", ours, "mpmtl"),
    ("literal loop", literal, "mpmtl"),
    ("pyproximal, sparse matrix", pyproximal, "pyproximal"),
    ("pyproximal, BlockDiag", partial(pyproximal, blocks=True), "pyproximal"),
    ("cvxpy", cvxpy, "cvxpy"),
    ("skglm", skglm, "skglm"),
    ("mutar", mutar, "mutar"),
)
ONLY_L21 = ("skglm", "mutar")


def timed(solver, datafit, penalty, lam, limit):
    """Seconds of the first call that reaches the gap; None if the next one would pass the limit."""
    effort = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a call that stops early is asked again
        solver(datafit, penalty, lam, 1)  # compiles
        while True:
            started = time.perf_counter()
            W = solver(datafit, penalty, lam, effort)
            seconds = time.perf_counter() - started
            if W is not None:
                gap = duality_gap(datafit, penalty, np.array([lam]), np.asarray(W)[None])[0]
                if gap <= GAP:
                    return seconds
            if 2 * seconds > limit or effort > 2**20:
                return None
            effort *= 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--m", type=int, default=320, help="tasks (320)")
    parser.add_argument("--limit", type=float, default=300.0, help="seconds for one call (300)")
    options = parser.parse_args()
    columns, rows = [], {}
    found = [s for s in SOLVERS if importlib.util.find_spec(s[2]) is not None]
    problems = ((LowRank(m=options.m), TraceNorm()), (GroupSparse(m=options.m), GroupL1()))
    for (data, penalty), share in product(problems, (0.1, 0.01)):
        datafit = datafit_for(data.draw(None, 0, 0)[0])
        biggest = penalty.dual_norm(datafit.gradient(np.zeros((1, *datafit.shape))))[0]
        column, own = f"{penalty.name}, {share:g} of lambda_max", None
        columns.append(column)
        for name, solver, _ in found:
            if penalty.name != "l21" and name in ONLY_L21:
                continue
            seconds = timed(solver, datafit, penalty, share * biggest, options.limit)
            own = own or seconds
            cell = (
                "not reached"
                if seconds is None
                else f"{1e3 * seconds:.3g} ms ({seconds / own:.1f})"
            )
            rows.setdefault(name, {})[column] = cell
    print(f"| to a gap of {GAP:g} (ratio) | {' | '.join(columns)} |")
    print(f"| --- |{' ---: |' * len(columns)}")
    for name, cells in rows.items():
        print(f"| {name} | {' | '.join(cells.get(c, '-') for c in columns)} |")
    missing = [name for name, _, module in SOLVERS if module not in {f[2] for f in found}]
    if missing:
        print(f"\nnot installed, left out: {', '.join(missing)}")


if __name__ == "__main__":
    carry_out(main)
