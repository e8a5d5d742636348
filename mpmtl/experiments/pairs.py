"""``method=lr/gaussian``: a method with a mechanism, as one choice that a sweep can list."""

from hydra.core.config_search_path import ConfigSearchPath
from hydra.core.object_type import ObjectType
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult, ConfigSource
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import OmegaConf


class Pairs(ConfigSource):
    """A config ``method/<method>/<privacy>`` for any two names: the method's, with that privacy.

    Whether there are such names is seen when they are read, wherever on the search path they are;
    pairs are in no list of choices.
    """

    @staticmethod
    def scheme():
        return "pairs"

    def load_config(self, config_path):
        """The method's config with the privacy overridden."""
        _, method, privacy = config_path.removesuffix(".yaml").split("/")
        override = {"override /privacy@_global_.privacy": privacy}
        config = OmegaConf.create({"defaults": [f"/method/{method}@_here_", override, "_self_"]})
        return ConfigResult(self.provider, self.full_path(), config, header={"package": None})

    def available(self):
        return True

    def is_group(self, config_path):
        """Never: pairs are single configs."""
        return False

    def is_config(self, config_path):
        """Whether the path has the form of a pair."""
        return config_path.startswith("method/") and config_path.count("/") == 2

    def list(self, config_path, results_filter: ObjectType | None):
        return []


class PairsPath(SearchPathPlugin):
    """Puts `Pairs` at the end of Hydra's search path, so that a file of such a name comes first."""

    def manipulate_search_path(self, search_path: ConfigSearchPath):
        """Called by Hydra when it composes."""
        search_path.append("mpmtl", "pairs://")


def register_pairs():
    """Make pairs known to Hydra."""
    for plugin in (Pairs, PairsPath):
        Plugins.instance().register(plugin)
