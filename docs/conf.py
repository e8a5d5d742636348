"""Settings of the site that `make docs` builds from these pages and the docstrings."""

import os
import re
from pathlib import Path
from pkgutil import walk_packages

from docutils.nodes import SkipNode
from latex2mathml.converter import convert

import mpmtl

project, author, release = "mpmtl", "the authors of mpmtl", mpmtl.__version__
copyright = f"{author}, MIT licence"
extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"mpmtl {release}"
html_copy_source = False
html_math_renderer = "mathml"  # drawn by the browser itself, so that pages load nothing
smartquotes = False  # w' is a transpose

myst_heading_anchors = 4  # as a repository's own pages have them

autodoc_mock_imports = ["cryptography", "flwr"]  # an extra of owners apart
autodoc_default_options = {"members": True, "show-inheritance": True, "ignore-module-all": True}
autodoc_member_order = "bysource"
autodoc_typehints = "none"
default_role = "py:obj"
numpydoc_show_class_members = False  # autodoc has them
suppress_warnings = ["ref.python"]  # a name that two classes have is linked to the first


DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
GENERATED = DOCS / "generated"
PAGES = {ROOT / "README.md": "readme.md", ROOT / "results/README.md": "results.md"}  # not of DOCS


def relinked(text, old, new):
    """A page's text with its links as they are from another folder, where `PAGES` are pages."""

    def link(match):
        target = Path(os.path.normpath(old / match[1]))
        place = GENERATED / PAGES[target] if target in PAGES else target
        return f"]({os.path.relpath(place, new)}"

    return re.sub(r"\]\((?!\w+:|#)([^)#\s]+)", link, text)


def write(name, text):
    """A generated page; one that is as it was keeps its time, and is not built again."""
    path = GENERATED / name
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def titled(title, text):
    """A page in reStructuredText."""
    return f"{title}\n{'=' * len(title)}\n\n{text}\n"


GENERATED.mkdir(exist_ok=True)
for path, name in PAGES.items():
    write(name, relinked(path.read_text(encoding="utf-8"), path.parent, GENERATED))
modules = [info.name for info in walk_packages(mpmtl.__path__, "mpmtl.")]
for name in modules:
    write(f"{name}.rst", titled(name, f".. automodule:: {name}"))
names = "\n".join(
    f"- :py:obj:`mpmtl.{name} <{getattr(mpmtl, name).__module__}.{name}>`" for name in mpmtl.__all__
)
listed = ".. toctree::\n   :maxdepth: 1\n\n   " + "\n   ".join(modules)
write("library.rst", titled("The library", f"What ``import mpmtl`` has:\n\n{names}\n\n{listed}"))


def with_links(app, name, source):
    """Links of a page in DOCS to `PAGES`."""
    folder = (DOCS / name).parent
    if folder == DOCS:
        source[0] = relinked(source[0], folder, folder)


def as_written(app, what, name, obj, options, lines):
    """In docstrings ``|`` and ``*`` are what formulas mean by them, not markup."""
    math, indent = False, 0
    for i, line in enumerate(lines):
        if line.strip().startswith(".. math::"):
            math, indent = True, len(line) - len(line.lstrip())
        elif math and (not line.strip() or line.startswith(" " * (indent + 1))):
            continue
        else:
            math = False
            lines[i] = re.sub(r"(`[^`]*`)|([|*])", lambda m: m[1] or "\\" + m[2], line)


def formula(translator, node):
    """A formula as MathML."""
    text = re.sub(r"\\[Bb]ig[lr](?=\\[{}])", "", node.astext())  # braces of any size stretch
    if node.tagname == "math":
        translator.body.append(convert(text))
    else:
        made = convert(text, display="block")
        translator.body.append(f'<div style="overflow-x: auto">{made}</div>')
    raise SkipNode


def setup(app):
    """Docstrings are changed before numpydoc reads them."""
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("source-read", with_links)
    app.connect("autodoc-process-docstring", as_written, priority=400)
