"""How text meets the terminal: its width, cards, tables, and progress with and without one."""

import math
import re
import shutil
import sys
import textwrap
import threading
import time

from tqdm import tqdm

WIDTH = 96  # of cards where there is no terminal, and in files
NARROWEST, WIDEST = 40, 120
EACH = 30.0  # seconds between two lines of progress where there is no terminal


def columns():
    """Width of the terminal (or COLUMNS), 0 without one."""
    return shutil.get_terminal_size((0, 0)).columns


def width():
    """Width of cards: the terminal's, within bounds."""
    return min(max(columns() or WIDTH, NARROWEST), WIDEST)


def filled(text, first="", rest="", to=None):
    """Text in lines of at most `to` columns (the terminal's) in which no word is broken."""
    return textwrap.fill(
        text,
        to or width(),
        initial_indent=first,
        subsequent_indent=rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def one_line(text, rest="    "):
    """A line, which goes on below itself only on a terminal that is too narrow for it."""
    return filled(text, rest=rest, to=columns() or len(text) + 1)


def say(line, rest="    "):
    """A line on standard error, which goes on below itself only on a terminal."""
    text = one_line(line, rest) if sys.stderr.isatty() else line
    print(text, file=sys.stderr, flush=True)


def say_error(text):
    """An error: one line on standard error (`say`)."""
    say(f"error: {' '.join(str(text).split())}", rest="")


def help_text(text):
    """A command's help; a line that is too long goes on below its last column, or indented."""
    lines = []
    for line in text.splitlines():
        first = re.match(r" *(?:\S+(?: \S+)* {2,})?", line)[0]
        own = len(line) - len(line.lstrip())
        rest = len(first) if len(first) <= width() // 2 else own + 4
        lines.append(one_line(line, rest=" " * max(rest, own + 2)) if line.strip() else "")
    return "\n".join(lines)


def card_text(title, lines, to=None):
    """A card: its title, underlined, and its lines, pairs of a name and a text."""
    to = to or width()
    title = filled(title, to=to)
    rule = "-" * max(map(len, title.splitlines()))
    body = (filled(text, f"{name:<11} ", " " * 12, to) for name, text in lines)
    return "\n".join([title, rule, *body])


def table_text(rows, right=()):
    """Rows, dicts with the same keys, under a heading and a rule.

    On a terminal that is too narrow every row goes on in a second line, and a third, each with the
    columns that stand there in the heading.

    Parameters
    ----------
    rows : list of dict of str to str
    right : collection of str
        Columns that are aligned on the right.
    """
    names = list(rows[0])
    cells = [dict(zip(names, names, strict=True)), *rows]
    sizes = {name: max(len(row[name]) for row in cells) for name in names}
    limit, parts = columns() or math.inf, [[]]
    for name in names:
        used = sum(sizes[other] + 2 for other in parts[-1]) + 4 * (len(parts) > 1)
        if parts[-1] and used + sizes[name] > limit:
            parts.append([])
        parts[-1].append(name)

    def line(row, part, indent):
        fields = (row[n].rjust(sizes[n]) if n in right else row[n].ljust(sizes[n]) for n in part)
        return (indent + "  ".join(fields)).rstrip()

    blocks = [[line(row, part, "    " * (k > 0)) for k, part in enumerate(parts)] for row in cells]
    rule = "-" * max(len(text) for block in blocks for text in block)
    return "\n".join([*blocks[0], rule, *(text for block in blocks[1:] for text in block)])


def duration(seconds):
    """Seconds as a person would say them."""
    if seconds < 90:
        return f"{math.ceil(seconds)} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


class Progress:
    """How far a job is: a bar on a terminal, elsewhere a line on standard error each half minute.

    Parameters
    ----------
    label : str
    unit : str
        What is counted.
    total : int, optional
        May be set later.
    """

    def __init__(self, label, unit, total=None):
        self.label, self.unit, self.total = label, unit, total
        self.done, self.note, self._end = 0, "", threading.Event()

    def __enter__(self):
        self._started = time.perf_counter()
        self._bar = tqdm(
            desc=self.label,
            unit=self.unit,
            total=self.total,
            unit_scale=self.total is None,
            dynamic_ncols=True,
            disable=None,
        )
        if self._bar.disable:
            threading.Thread(target=self._lines, daemon=True).start()
        return self

    def __exit__(self, *exc):
        self._end.set()
        self._bar.close()

    def advance(self, count=1, note=""):
        """Another `count` are done; `note` says how it looks so far."""
        self.done, self.note = self.done + count, note
        self._bar.total = self.total
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update(count)

    def say(self, text, out):
        """Print a line above the bar."""
        self._bar.write(text, file=out)

    def line(self):
        """Where it is, in words."""
        seconds = time.perf_counter() - self._started
        counts = f"{self.done} of {self.total}" if self.total else f"{self.done}"
        words = [f"{counts} {self.unit}s", *filter(None, [self.note]), duration(seconds)]
        if self.done and self.total:
            words.append(f"about {duration(seconds * (self.total / self.done - 1))} left")
        return f"{self.label}: {', '.join(words)}"

    def _lines(self):
        while not self._end.wait(EACH):
            print(self.line(), file=sys.stderr, flush=True)
