"""Write results as tables: python scripts/keep_reference.py results/laptop.

One manifest and one compressed table for each experiment go to results/reference, with the tables
behind the figures; of the cross-validation and the rounds what figures and claims need. There are
no journals and no models. With --add, experiments and data sets that are not in the folder stay as
they are in results/reference: a long reproduction is kept part by part. Pictures and claims are
made anew (make figures claims).
"""

from mpmtl.experiments.entry import begin, carry_out

if __name__ == "__main__":
    begin()

import argparse
import shutil
from pathlib import Path

import pandas as pd

from mpmtl.errors import require
from mpmtl.experiments.reader import NotThere, audits, runs, saved_rows
from mpmtl.experiments.store import write_reference

REFERENCE = Path("results/reference")
#: Runs whose candidates and rounds figures and claims need.
NEEDED = {
    "cv": "tag.str.contains('budget_allocation')",
    "trace": "experiment == 'noise_to_signal' or method == 'dp_mtrl' and epsilon == 0.1"
    " and dataset == 'low_rank' and (tag == '' or tag.str.startswith('tried/noise-dp-mtrl'))",
}
FILES = ("figures/*.csv", "utility_bounds.csv")


def tables_of(chosen, names):
    """Tables of an experiment, digits as they are, with the number of the run in front."""
    numbers = {name: k for k, name in enumerate(chosen.index)}
    tables = {}
    for name in names:
        part = chosen.query(NEEDED.get(name, "index == index"))
        if len(part):
            rows = saved_rows(part, name, dtype=str)
            rows.insert(0, "run", rows.pop("run").map(numbers))
            tables[name] = rows.drop(columns="candidate", errors="ignore")  # that is their order
    return tables


def audits_of(folder):
    """Its audits, each once."""
    try:
        audited = audits(folder)
    except NotThere:
        return pd.DataFrame()
    return audited[~audited.index.duplicated()]


def runs_of(folders):
    """Runs of the first of the folders that has any of their experiment and data set."""
    found = pd.concat([runs(folder).assign(folder=k) for k, folder in enumerate(folders)])
    return found[found.folder == found.groupby(["experiment", "dataset"]).folder.transform("min")]


def keep(sources, target):
    """Write the runs and audits of results folders as tables to another one, the first's first."""
    finished = runs_of(sources)
    untagged = "privacy_accuracy_" + finished.dataset
    names = finished.experiment.where(finished.experiment != "", untagged)
    parts = [(name, part, ("replicates", "cv", "trace")) for name, part in finished.groupby(names)]
    audited = next((a for a in map(audits_of, sources) if len(a)), ())
    parts += [("audit", audited, ("bounds",))] if len(audited) else []
    for name, chosen, tables in parts:
        write_reference(target, name, list(chosen.manifest), tables_of(chosen, tables))
    times = [pd.read_csv(f / "times.csv") for f in sources if (f / "times.csv").is_file()]
    if times:
        pd.concat(times).drop_duplicates("figure").to_csv(target / "times.csv", index=False)
    for source in reversed(sources):
        for path in sorted(path for pattern in FILES for path in source.glob(pattern)):
            copy = target / path.relative_to(source)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)


def main():
    parser = argparse.ArgumentParser(description="Write a results folder as tables.")
    parser.add_argument("results", help="folder of complete runs, such as results/laptop")
    parser.add_argument("--add", action="store_true", help="keep what the folder does not have")
    options = parser.parse_args()
    source = Path(options.results)
    apart = not (
        source.resolve().is_relative_to(REFERENCE.resolve())
        or REFERENCE.resolve().is_relative_to(source.resolve())
    )
    require(apart, f"{source} overlaps {REFERENCE}, which is replaced: give results/laptop")
    partial = REFERENCE.with_name(f"{REFERENCE.name}.part")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    keep([source, REFERENCE] if options.add else [source], partial)
    shutil.rmtree(REFERENCE, ignore_errors=True)
    partial.rename(REFERENCE)
    sizes = [path.stat().st_size for path in REFERENCE.iterdir() if path.is_file()]
    print(f"{len(sizes)} files, {sum(sizes) / 1e6:.1f} MB besides figures, in {REFERENCE}")


if __name__ == "__main__":
    carry_out(main)
