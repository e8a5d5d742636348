"""All experiments and figures of the paper: python scripts/reproduce_paper.py [--scale paper].

Prints a plan with a forecast first; what is finished is skipped, and it may be stopped at any time.
"""

import argparse
import os
import sys

for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ[name] = "1"

from mpmtl.paper.reproduce import plan, reproduce


def main():
    parser = argparse.ArgumentParser(description="All experiments and figures of the paper.")
    parser.add_argument(
        "--scale", default="paper", choices=["smoke", "laptop", "standard", "paper"]
    )
    parser.add_argument("--plan", action="store_true", help="only print the plan")
    options = parser.parse_args()
    if options.plan:
        plan(options.scale)
        return
    try:
        sys.exit(1 if reproduce(options.scale) else 0)
    except KeyboardInterrupt:
        print(
            "\nstopped: finished replicates are saved; the same command goes on from there",
            file=sys.stderr,
        )
        sys.exit(130)


if __name__ == "__main__":
    main()
