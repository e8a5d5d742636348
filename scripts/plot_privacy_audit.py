"""Draw what the audits measured: python scripts/plot_privacy_audit.py [--results results].

Reads every audit below the results folder (make them with mpmtl-audit experiment=privacy_audit).
"""

from mpmtl.paper.figures.command import main

if __name__ == "__main__":
    main(__doc__, "privacy_audit")
