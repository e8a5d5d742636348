"""Draw what the audits measured: python scripts/plot_privacy_audit.py [--results results].

Reads every audit below the results folder (make them with mpmtl-audit experiment=privacy_audit).
"""

import argparse
import sys
from pathlib import Path

from mpmtl.errors import ResultsError
from mpmtl.figures.privacy_audit import collect, draw_over_epsilon


def main():
    parser = argparse.ArgumentParser(description="Draw measured delta over stated epsilon.")
    parser.add_argument("--results", default="results", help="results folder of the audits")
    parser.add_argument(
        "--out", help="figure without suffix; default <results>/audit/privacy_audit"
    )
    options = parser.parse_args()
    out = Path(options.out or Path(options.results) / "audit" / "privacy_audit")
    try:
        draw_over_epsilon(collect(options.results), out)
    except ResultsError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(f"{out}.png, .pdf and .csv")


if __name__ == "__main__":
    main()
