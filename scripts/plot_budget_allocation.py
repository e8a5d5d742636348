"""Draw Fig. 4: python scripts/plot_budget_allocation.py convex|strong [--results results]."""

from mpmtl.paper.figures.command import main

if __name__ == "__main__":
    main(
        __doc__,
        "budget_allocation",
        form={
            "nargs": "?",
            "default": "convex",
            "choices": ["convex", "strong"],
            "help": "panel a or b",
        },
    )
