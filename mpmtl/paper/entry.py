"""Entry points of the commands on figures and claims, see `mpmtl.experiments.entry`."""

from mpmtl.experiments.entry import RESUMES, command

MODULE = "mpmtl.paper.commands"
reproduce = command(MODULE, "reproduce_main", stopped=RESUMES)
figures = command(MODULE, "figures_main")
figure = command("mpmtl.paper.figures.command")
claims = command(MODULE, "claims_main")
bounds = command(MODULE, "bounds_main")
report = command(MODULE, "report_main")
tried = command("mpmtl.paper.tried", stopped=RESUMES)
