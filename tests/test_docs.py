"""The pages: every block runs, lines are short, links lead somewhere, and the site is built.

The quick tests compose the commands of the pages and carry out what is short; those marked slow
carry out all of them. A comment before a block, which no reader sees, says how much smaller:
``<!-- test: scale=smoke -->`` adds these words to its commands.
"""

import ast
import json
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from itertools import count

import forked
import pandas as pd
import pytest
import yaml
from conftest import BIN, ROOT, mpmtl_run
from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser

from mpmtl.experiments.audit import build_audit
from mpmtl.experiments.config import build, register_schema
from mpmtl.experiments.sweep import _choices

PAGES = [ROOT / "README.md", ROOT / "results/README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(path.relative_to(ROOT)) for path in PAGES]
BLOCK = re.compile(
    r"(?:^ *<!-- test: (?P<words>.*?) -->\n+)?^ *```(?P<language>[\w{}]*)\n(?P<text>.*?)^ *```$",
    re.M | re.S,
)
#: What is not carried out, by its first word, and why.
NOT_RUN = {
    "source": "the tests have their own environment",
    "export": "settings of a shell, and of Flower",
    "pip": "needs a network",
    "dask": "needs two processes that do not end; tests/test_parallel.py has a cluster",
    "openssl": "tests/test_federation_flower.py makes certificates",
    "flower-superlink": "tests/test_federation_flower.py starts the curator",
    "flower-supernode": "tests/test_federation_flower.py starts the owners",
    "flwr": "tests/test_federation_flower.py starts a study",
}
#: Words that keep a command of the pages from being carried out in the slow test, and why.
NOT_HERE = {
    "hydra/launcher=submitit_slurm": "needs SLURM",
    "parallel=dask": "needs a cluster; tests/test_parallel.py has one",
    "dataset=school": "needs the real data, after `make data`",
    "scripts/bench_tables.py": "needs the data sets of an extra; tests/test_bench_tables.py",
}
#: Pages whose blocks other tests carry out as they stand.
ELSEWHERE = {"docs/extending.md": "tests/test_extending.py"}


def blocks(name):
    """Language, text and added words of every block of a page."""
    page = (ROOT / name).read_text(encoding="utf-8")
    return [(m["language"], m["text"], (m["words"] or "").split()) for m in BLOCK.finditer(page)]


def commands(text):
    """Commands of a shell block as lists of words; a script that is given follows its words."""
    text = re.sub(r"\\\n\s*", " ", text)
    text, scripts = (
        re.subn(r" <<'PY'\n(.*?)\nPY$", "", text, flags=re.M | re.S)[0],
        re.findall(r" <<'PY'\n(.*?)\nPY$", text, re.M | re.S),
    )
    rest = iter(scripts)
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield [*words, next(rest)] if words[-1] == "-" else words


def of_shell(name):
    return [
        (words, added)
        for language, text, added in blocks(name)
        if language == "sh"
        for words in commands(text)
    ]


ALL = [
    pytest.param(words, id=f"{name}-{words[0]}-{k}")
    for name in NAMES
    if name not in ELSEWHERE
    for k, (words, _) in zip(count(), of_shell(name), strict=False)
]


def first_choices(words):
    """Words of a sweep in which every value stands once; the others are the first ones."""
    parsed = OverridesParser.create().parse_overrides([w for w in words if re.match(r"[+\w]", w)])
    choices = [_choices(word) for word in parsed]
    first = [values[0] for values in choices]
    yield first
    for k, values in enumerate(choices):
        yield from ([*first[:k], value, *first[k + 1 :]] for value in values[1:])


def check_composed(program, words):
    """Every setting of a command can be composed and built."""
    audit = program == "mpmtl-audit"
    config, make = ("audit", build_audit) if audit else ("config", build)
    register_schema()
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        for chosen in first_choices(words):
            launched = [word for word in chosen if not word.startswith("hydra")]
            make(compose(config, launched))


def check_flags(words, folder):
    """The help of a command has every flag that stands in the page."""
    if words[0] == "python":
        done = forked.carried_out(ROOT / words[1], ["--help"], folder, {"PATH": ""})
    else:
        verb = [word for word in words[1:2] if words[0] == "mpmtl-federate"]
        done = mpmtl_run(*verb, "--help", cwd=folder, program=words[0])
    assert done.returncode == 0, done.stderr
    for flag in (word for word in words if word.startswith("--") and word != "--help"):
        assert flag in done.stdout, flag


@pytest.fixture(scope="module")
def schools(tmp_path_factory):
    """A folder with the table of the tutorial and its schema."""
    folder = tmp_path_factory.mktemp("docs")
    (made, drafted, *_) = [words for words, _ in of_shell("docs/tutorial.md")]
    subprocess.run([sys.executable, "-c", made[-1]], cwd=folder, check=True)
    assert mpmtl_run(*drafted[1:], cwd=folder, program=drafted[0]).returncode == 0
    return folder


@pytest.mark.parametrize("words", ALL)
def test_every_command_of_the_pages_can_be_given(words, schools, monkeypatch):
    monkeypatch.chdir(schools)
    program = words[0]
    if program in NOT_RUN:
        return
    if program == "make":
        dry = [program, "-n", *words[1:], f"VENV={BIN.parent}"]
        subprocess.run(dry, cwd=ROOT, check=True, capture_output=True)
    elif program == "python" and words[1] == "-":
        compile(words[-1], "page", "exec")
    elif program in ("mpmtl-run", "mpmtl-audit") and "--help" not in words:
        check_composed(program, [w for w in words[1:] if w not in ("-m", "--cfg", "job")])
    else:
        check_flags(words, schools)


def test_what_cannot_be_run_is_in_the_pages():
    """The lists of exceptions hold no more than is needed."""
    given = [words for name in NAMES for words, _ in of_shell(name)]
    assert {words[0] for words in given} >= set(NOT_RUN)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    known = {"make", "python", *project["scripts"]}
    assert {w[0] for name in NAMES if name not in ELSEWHERE for w, _ in of_shell(name)} <= (
        known | set(NOT_RUN)
    )


@pytest.mark.parametrize("name", NAMES)
def test_other_blocks_are_what_they_say(name):
    for language, text, _ in blocks(name):
        assert language in ("sh", "python", "yaml", "toml", "text", "{toctree}"), language
        if language == "yaml":
            assert yaml.safe_load(text)
        if language == "toml":
            assert tomllib.loads(text)
        if language == "python":
            compile(text, name, "exec")


def test_results_are_read_as_their_page_says(monkeypatch):
    monkeypatch.chdir(ROOT)
    (text,) = [text for language, text, _ in blocks("results/README.md") if language == "python"]
    kept = "\n".join(line for line in text.splitlines() if 'runs("results")' not in line)
    exec(compile(kept, "results/README.md", "exec"), {})


FLOWER = find_spec("flwr") is not None


def smaller(words, added):
    """The words of a command with others, which replace those of the same key."""
    if not {"--help", "--cfg"}.isdisjoint(words):
        return words
    keys = {word.split("=")[0] for word in added}
    return [*(word for word in words if word.split("=")[0] not in keys), *added]


def write_files(name, schools, folder):
    """What the commands of a page find in their folder: the schools, and what owners agreed on."""
    if name == "docs/tutorial.md":  # it starts with nothing
        return
    table = pd.read_csv(schools / "schools.csv")
    schema = (schools / "schools.yaml").read_text()
    names = list(dict.fromkeys(table.school))
    if name == "docs/federated.md":  # it makes its rows itself
        schema = next(text for language, text, _ in blocks(name) if language == "yaml")
        (folder / "schools.yaml").write_text(schema)
        return
    if name == "README.md":
        schema += f"tasks: {json.dumps(names)}\n"
    table.to_csv(folder / "schools.csv", index=False)
    (folder / "schools.yaml").write_text(schema)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["docs/tutorial.md", "README.md", "docs/federated.md"])
def test_the_commands_of_a_page_in_their_order(name, schools, tmp_path):
    """In one folder, one after the other, smaller where a comment says so."""
    write_files(name, schools, tmp_path)
    for words, added in of_shell(name):
        program, *words = words
        skipped = set(NOT_HERE) & set(words)
        skipped |= {"needs Flower"} if program == "mpmtl-federate" and not FLOWER else set()
        if program in NOT_RUN or program == "make" or skipped:
            continue
        if program == "python" and words[0] == "-":
            done = subprocess.run(
                [sys.executable, "-c", words[-1]], cwd=tmp_path, capture_output=True, text=True
            )
        elif program == "python":
            done = forked.carried_out(ROOT / words[0], words[1:], tmp_path, {"PATH": ""})
        else:
            words = smaller(words, added) if program in ("mpmtl-run", "mpmtl-audit") else words
            done = mpmtl_run(*words, cwd=tmp_path, program=program)
        assert done.returncode == 0, (program, words, done.stderr)


def lines_of(name):
    """Numbered lines of a page that are no table, no address and no indented code."""
    for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
        if not line.startswith(("|", "    ", "![")) and "://" not in line:
            yield number, line


@pytest.mark.parametrize("name", [name for name in NAMES if name != "docs/claims.md"])
def test_lines_are_short(name):
    """But for claims.md, which is made by a command."""
    assert [f"{number}: {line}" for number, line in lines_of(name) if len(line) > 110] == []


def slug(heading):
    """The anchor of a heading, as a repository shows it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    page = ROOT / name
    for target in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.M)
            assert anchor in map(slug, headings), target


CORE = {"filelock", "hydra", "joblib", "matplotlib", "numpy", "omegaconf", "pandas", "pooch"}
CORE |= {"mpmtl", "scipy", "tqdm", "yaml"}


def test_the_site_needs_no_other_extra():
    """What modules import at once is a dependency, or the site's settings do without it."""
    (line,) = re.findall(
        r"^autodoc_mock_imports = (\[.*\])", (ROOT / "docs/conf.py").read_text(), re.M
    )
    known = CORE | set(sys.stdlib_module_names) | set(yaml.safe_load(line))
    for path in (ROOT / "mpmtl").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module] if isinstance(node, ast.ImportFrom) else []
            assert {name.split(".")[0] for name in names} <= known, path


@pytest.mark.slow
def test_the_site_is_built_without_a_warning(tmp_path):
    pytest.importorskip("sphinx", reason="needs the docs extra: make docs")
    words = ["-q", "-W", "--keep-going", "docs", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *words], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "index.html").is_file()
