"""Draw Fig. 4: python scripts/plot_budget_allocation.py convex|strong [--results results]."""

from mpmtl.paper.entry import figure

if __name__ == "__main__":
    figure(
        __doc__,
        "budget_allocation",
        form={
            "nargs": "?",
            "default": "convex",
            "choices": ["convex", "strong"],
            "help": "panel a or b",
        },
    )
