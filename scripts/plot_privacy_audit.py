"""Draw what the audits measured: python scripts/plot_privacy_audit.py [--results results].

Reads every audit below the results folder (make them with mpmtl-audit experiment=privacy_audit).
"""

from mpmtl.figures.command import main
from mpmtl.figures.privacy_audit import collect, draw

if __name__ == "__main__":
    main(__doc__, collect, draw, "privacy_audit")
