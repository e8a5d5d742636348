"""Draw what the audits measured: python scripts/plot_privacy_audit.py [--results results].

Reads every audit below the results folder (make them with mpmtl-audit experiment=privacy_audit).
"""

from mpmtl.paper.entry import figure

if __name__ == "__main__":
    figure(__doc__, "privacy_audit")
