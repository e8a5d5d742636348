"""The paper's statements against the runs of a folder: python scripts/check_claims.py [RESULTS].

Writes claims.csv into the folder, and with --docs the page docs/claims.md.
"""

import argparse
from pathlib import Path

from mpmtl.errors import exit_in_one_line
from mpmtl.experiments.store import write_atomic
from mpmtl.paper.claims import as_markdown, check_all


def main():
    parser = argparse.ArgumentParser(description="The paper's statements against measured results.")
    parser.add_argument("results", nargs="?", default="results/reference", help="results folder")
    parser.add_argument("--docs", type=Path, help="page to write, such as docs/claims.md")
    options = parser.parse_args()
    results = Path(options.results)
    with exit_in_one_line():
        table = check_all(results)
    write_atomic(results / "claims.csv", table.to_csv(index=False))
    if options.docs:
        write_atomic(options.docs, as_markdown(table))
    for row in table.itertuples():
        print(f"{row.verdict:<15}{row.source:<18}{row.statement}")
    counts = ", ".join(f"{n} {verdict}" for verdict, n in table.verdict.value_counts().items())
    print(f"{counts}; {results / 'claims.csv'}")


if __name__ == "__main__":
    main()
