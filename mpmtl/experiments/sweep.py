"""A sweep: the jobs that the words of a command make, carried out one by one, and what came out."""

import json
from contextlib import suppress
from copy import deepcopy
from itertools import product
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from mpmtl.errors import InputError, ResultsError, require
from mpmtl.experiments.config import register_schema
from mpmtl.experiments.layout import say, say_error
from mpmtl.experiments.terminal import caveats_of, sweep_table
from mpmtl.privacy.spending import Spent, in_words

PACKAGE = Path(__file__).resolve().parents[1]


def conf_dir():
    """The configs: inside the package of a wheel, beside it in a checkout."""
    inside = PACKAGE / "conf"
    return inside if inside.is_dir() else PACKAGE.parent / "conf"


def jobs(config_name, build, words):
    """The jobs of a command with ``-m`` and these words, each once.

    Parameters
    ----------
    config_name : str
        Primary config: config or audit.
    build : callable
        ``build(cfg)`` gives a job with `results_dir`, `folder` and `settings`.
    words : list of str
        Overrides; those of a sweep replace the choices of the experiment that they name.

    Returns
    -------
    list of Run or AuditRun
    """
    _, made = _composed(config_name, build, words)
    return list({_identity(job): job for job, _ in made}.values())


def _composed(config_name, build, words):
    """The choices of every key, and each job with the raw tag of its config."""
    register_schema()
    with initialize_config_dir(str(conf_dir().resolve()), version_base="1.3"):
        choices = choices_of(config_name, words)
        cfgs = list(configs(config_name, choices))
        tags = (cfg._get_node("tag")._value() if "tag" in cfg else None for cfg in cfgs)
        return choices, [(build(cfg), tag) for cfg, tag in zip(cfgs, tags, strict=True)]


def choices_of(config_name, words):
    """Overrides of every key that the experiment or the words give, each a list; Hydra is
    initialised."""
    parse = OverridesParser.create().parse_overrides
    given = parse(list(words))
    named = [word.input_line for word in given if word.key_or_group == "experiment"]
    params = compose(config_name, named, return_hydra_config=True).hydra.sweeper.params
    swept = parse([f"{key}={value}" for key, value in (params or {}).items()])
    return {word.get_key_element(): _choices(word) for word in (*swept, *given)}


def configs(config_name, choices):
    """The config of each combination of choices, as Hydra composes it.

    Composing takes a tenth of a second. Combinations that differ in single values alone are copies
    of the first of them with their own values, which are set as Hydra sets them.

    Parameters
    ----------
    config_name : str
    choices : dict of str to list of str
        Overrides, by key; Hydra is initialised.

    Yields
    ------
    DictConfig
    """
    parse = OverridesParser.create().parse_overrides
    parsed = {key: parse(words) for key, words in choices.items()}
    single, first = _single_values(parsed), {}
    for chosen in product(*parsed.values()):
        words = dict(zip(parsed, chosen, strict=True))
        lines = [word.input_line for word in chosen]
        alike = tuple(word.input_line for key, word in words.items() if key not in single)
        if alike not in first:
            first[alike] = cfg = compose(config_name, lines)
        else:
            values = {key: words[key].value() for key in single}
            cfg = with_values(first[alike], values) or compose(config_name, lines)
        yield cfg


def with_values(cfg, values):
    """A copy of a config with other values, set as Hydra sets them; None where one cannot be."""
    cfg = deepcopy(cfg)
    with suppress(OmegaConfBaseException):
        for key, value in values.items():
            OmegaConf.update(cfg, key, value, merge=True)
        return cfg


def _single_values(parsed):
    """Keys that choose no file and have several numbers or words; none where a key is given a
    mapping, as then the order of all words counts."""
    options = GlobalHydra.instance().config_loader().get_group_options
    values = {key: [word.value() for word in words] for key, words in parsed.items()}
    if any(isinstance(value, dict) for several in values.values() for value in several):
        return []
    return [
        key
        for key, several in values.items()
        if len(several) > 1
        and all(isinstance(value, str | int | float) for value in several)
        and not options(key)
    ]


IN_FOLDER = ("dataset", "method", "privacy", "epsilon", "experiment")  # keys that name a folder


def folders_apart(config_name, build, words):
    """Words that give every job of a sweep a folder of its own, where some would share one.

    Two jobs share a folder if they differ in a key that is not part of its name, such as the seed:
    these keys then are added to the tag.

    Returns
    -------
    list of str
        Empty, or ``tag=...``.
    """

    def attempted(cfg):
        with suppress(InputError):  # a job that cannot be is reported when its turn comes
            return build(cfg)

    choices, made = _composed(config_name, attempted, words)
    if not _shared(job for job, _ in made):
        return []
    keys = [k for k, values in choices.items() if len(values) > 1 and k not in (*IN_FOLDER, "tag")]
    tag = made[0][1]
    parts = [f"{key.split('.')[-1].lstrip('+')}=${{as_word:{key.lstrip('+')}}}" for key in keys]
    word = "tag=" + json.dumps("/".join([*([tag] if tag else []), *parts]))
    alike = tag is not None and all(other == tag for _, other in made)
    again = _composed(config_name, attempted, [*words, word])[1] if alike else made
    shared = _shared(job for job, _ in again)
    require(
        not shared,
        "jobs of the sweep with other settings would share the folder "
        f"{', '.join(shared[:1])}: run them one by one, each with its own tag or results_dir",
    )
    return [word]


def _shared(made):
    """Folders that jobs with other settings share."""
    settings = {}
    for job in filter(None, made):
        words = json.dumps(job.settings, sort_keys=True)
        settings.setdefault((job.results_dir, job.folder), set()).add(words)
    return [folder for (_, folder), others in settings.items() if len(others) > 1]


def _choices(word):
    """An override for each value of a parsed word; a list in brackets is one value."""
    if not word.is_sweep_override():
        return [word.input_line]
    return [f"{word.get_key_element()}={value}" for value in word.sweep_string_iterator()]


def _identity(job):
    """What two jobs share that are the same."""
    settings = json.dumps(job.settings, sort_keys=True)
    return job.results_dir, job.folder, settings, getattr(job, "n_replicates", None)


def attempt(name, make, execute, done, brief=True, **options):
    """Carry out one job of a sweep, unless the same was done before.

    Parameters
    ----------
    name : str
        Of the job, for the list of those that failed.
    make : callable
        ``make()`` gives the job, with `label`, `results_dir`, `folder` and `settings`.
    execute : callable
        ``execute(job, explained=codes, **options)`` carries it out and returns a row of the
        sweep's table, with the codes of its caveats.
    done : dict
        Rows of the jobs before, by what makes a job the same; it gets the new one.
    brief : bool
        Whether a job that is not `verbose` is one line, as in a sweep.

    Returns
    -------
    dict
        The name; row and folder, or the error, which is printed.
    """
    try:
        job = make()
        same = _identity(job)
        if same in done:  # epsilon does not matter to a method that is not private
            print(f"{job.label}: the same run as above")
        else:
            brief = brief and not job.verbose
            known = {c for row in done.values() for c in (*row["notes"], *row["caveats"])}
            done[same] = execute(job, explained=known, brief=brief, **options)
        return {"name": name, "row": done[same], "folder": job.folder, "verbose": job.verbose}
    except (InputError, ResultsError) as error:
        say_error(error)
        return {"name": name, "error": str(error)}


def together(rows):
    """Lines that say what all jobs of a sweep have spent on the owners of a table.

    Parameters
    ----------
    rows : list of dict
        With the name of the data set and, under "spent", what `runner.execute` gives.
    """
    shares = {}
    for row in rows:
        if row["spent"]:
            shares.setdefault((row["dataset"], row["spent"]["data"]), []).append(row["spent"])
    lines = []
    for (name, _), parts in shares.items():
        spent = sum((Spent.from_dict(part["spent"]) for part in parts), Spent())
        fits, delta = (f(part[key] for part in parts) for f, key in ((sum, "fits"), (min, "delta")))
        if fits > 1:
            lines.append(f"{name}, the same owners: {in_words(spent, fits, delta)}")
    return lines


def report(outcomes, table=True):
    """Print the table of a sweep, its caveats and the jobs that failed; returns how many these are.

    Without `table` only these; caveats that stand in cards above are not repeated.
    """
    rows = {outcome["folder"]: outcome["row"] for outcome in outcomes if "row" in outcome}
    brief = [o["row"] for o in outcomes if "row" in o and not o["verbose"]]
    if rows and table:
        print(f"\n{sweep_table(list(rows.values()))}", flush=True)
        if text := caveats_of(brief):
            print(text, flush=True)
        for line in together([row for row in rows.values() if "spent" in row]):
            print(line, flush=True)
    failed = [outcome for outcome in outcomes if "error" in outcome]
    if failed:
        say(f"failed jobs of the sweep ({len(failed)}; all others are done):")
    for outcome in failed:
        say(f"  {outcome['name']}: {outcome['error']}")
    return len(failed)
