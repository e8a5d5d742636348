"""Other settings for the paper's statements: python scripts/try_settings.py --scale laptop.

The runs are below <results>/tried; check_claims.py prints what they say of each statement.
"""

from mpmtl.paper.entry import tried

if __name__ == "__main__":
    tried()
