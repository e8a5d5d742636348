"""Entry point of `mpmtl-federate`, see `mpmtl.experiments.entry`."""

from mpmtl.experiments.entry import command

federate = command("mpmtl.federation.cli")
