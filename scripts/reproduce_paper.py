"""All experiments and figures of the paper: python scripts/reproduce_paper.py [--scale paper].

Prints a plan with a forecast first; what is finished is skipped, and it may be stopped at any time.
"""

from mpmtl.paper.entry import reproduce

if __name__ == "__main__":
    reproduce()
