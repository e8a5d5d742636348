"""The paper's statements against the runs of a folder: python scripts/check_claims.py [RESULTS].

Writes claims.csv into the folder, and with --docs the page docs/claims.md.
"""

from mpmtl.paper.entry import claims

if __name__ == "__main__":
    claims()
