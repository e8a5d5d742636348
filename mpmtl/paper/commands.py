"""The commands on figures and claims: `mpmtl-reproduce`, -figures, -claims and -report."""

import sys
import time
from contextlib import suppress
from pathlib import Path

from mpmtl.errors import ResultsError
from mpmtl.experiments.commands import command_parser
from mpmtl.experiments.layout import one_line, say_error
from mpmtl.experiments.reader import NotThere
from mpmtl.experiments.store import write_atomic
from mpmtl.paper.catalogue import FIGURES, file_of, kind_of, make
from mpmtl.paper.claims import as_markdown, check_all
from mpmtl.paper.figures import privacy_accuracy
from mpmtl.paper.figures.command import redraw
from mpmtl.paper.report import page
from mpmtl.paper.reproduce import plan, reproduce
from mpmtl.paper.utility import claim_3, optima, sizes, table_2
from mpmtl.paper.verdicts import tally

REFERENCE = Path("results/reference")


def _on_results(prog, description):
    """A parser with a results folder: that of a checkout, or else ``results``."""
    default = REFERENCE if REFERENCE.is_dir() else REFERENCE.parent
    parser = command_parser(prog, description)
    parser.add_argument(
        "results", nargs="?", type=Path, default=default, help=f"results folder ({default})"
    )
    return parser


def reproduce_main():
    """All experiments and figures of the paper; a plan with a forecast first."""
    parser = command_parser(
        "mpmtl-reproduce", "All experiments and figures of the paper: what is finished is skipped."
    )
    parser.add_argument(
        "--scale", default="paper", choices=["smoke", "laptop", "standard", "paper"]
    )
    parser.add_argument(
        "--yes", action="store_true", help="do not ask before a plan of more than an hour"
    )
    parser.add_argument("--plan", action="store_true", help="only print the plan")
    parser.add_argument("-v", "--verbose", action="store_true", help="print the card of each job")
    options = parser.parse_args()
    if options.plan:
        plan(options.scale)
        return
    sys.exit(1 if reproduce(options.scale, verbose=options.verbose, sure=options.yes) else 0)


def _wanted(results):
    """Kind and values of each figure, by its file's name: the known ones, and those of own data."""
    wanted = {file_of(f.kind, f.values): (f.kind, f.values) for f in FIGURES}
    with suppress(NotThere):  # no run at all
        for values in ({"dataset": name} for name in privacy_accuracy.datasets(results)):
            wanted.setdefault(file_of("privacy_accuracy", values), ("privacy_accuracy", values))
    return wanted


def figures_main():
    """Draw all figures of a results folder, or some.

    From its runs, or the tables made from them; where those of a figure are not there, from the CSV
    that was saved beside it. Those that have neither are named.
    """
    parser = _on_results(
        "mpmtl-figures", "Draw the figures of a results folder, from its runs or saved tables."
    )
    parser.add_argument(
        "--only", metavar="NAME", help="those whose file's name starts so, as privacy_accuracy"
    )
    options = parser.parse_args()
    results, only = options.results, options.only or ""
    folder, started = results / "figures", time.perf_counter()
    drawn, lacking, failed = [], [], []
    for file, (name, values) in _wanted(results).items():
        if not file.startswith(only):
            continue
        try:
            path = make(name, results, **values)
        except NotThere:
            lacking.append(file)
        else:
            drawn.append(file)
            print(f"{path}.png, .pdf and .csv, from the runs", flush=True)
    for path in sorted(folder.glob(f"{only}*.csv")):
        file = path.stem
        if file in drawn or not kind_of(file):
            continue
        try:
            redraw(kind_of(file).draw, path, folder / file)
        except ResultsError as error:
            failed.append(file)
            say_error(error)
        else:
            drawn.append(file)
            print(f"{folder / file}.png and .pdf, from its own table", flush=True)
    lacking = [file for file in lacking if file not in (*drawn, *failed)]
    if not drawn and not failed:
        which = f"no figure {only}... can be drawn" if only else "no figure can be drawn"
        raise ResultsError(f"{which} from {results}: there are no complete runs of one")
    if lacking:
        line = f"not drawn, as {results} lacks runs or models of them: {', '.join(lacking)}"
        print(one_line(line))
    n = len(drawn) + len(failed) + len(lacking)
    print(f"{len(drawn)} of {n} figures in {time.perf_counter() - started:.0f} s")
    sys.exit(2 if failed else 0)


def claims_main():
    """The paper's statements against the runs of a folder, which gets claims.csv."""
    parser = _on_results("mpmtl-claims", "The paper's statements against measured results.")
    parser.add_argument("--docs", type=Path, help="page to write, such as docs/claims.md")
    options = parser.parse_args()
    table = check_all(options.results)
    write_atomic(options.results / "claims.csv", table.to_csv(index=False))
    if options.docs:
        write_atomic(options.docs, as_markdown(table))
    for row in table.itertuples():
        print(f"{row.verdict:<15}{row.source:<18}{row.statement}")
    print(f"{tally(table.verdict)}; {options.results / 'claims.csv'}")


def report_main():
    """One page about a results folder, report.html."""
    parser = _on_results("mpmtl-report", "One page about a results folder: report.html.")
    parser.add_argument(
        "--ledger", type=Path, help="of the study; default: the file where the runs were charged"
    )
    options = parser.parse_args()
    results, text = options.results, page(options.results, options.ledger)
    write_atomic(results / "report.html", text)
    print(f"{results / 'report.html'}, {len(text) / 1e6:.1f} MB")


def bounds_main():
    """Table 2 recomputed, the optimal alpha and Q beside the stated ones, Claim 3 and the bounds.

    The optima also go to ``<results>/utility_bounds.csv``.
    """
    parser = command_parser(None, "Tables of the paper's utility bounds.")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the CSV")
    parser.add_argument("--mu-over-L", type=float, nargs="+", default=[0.1, 0.001])
    parser.add_argument("--M", type=float, nargs="+", default=[1e-6, 0.001, 1.0, 644.0])
    parser.add_argument("--d", type=int, default=30)
    parser.add_argument("--m", type=int, default=320)
    parser.add_argument("--epsilon", type=float, nargs="+", default=[0.1, 1.0, 10.0])
    parser.add_argument("--K", type=float, default=1.0, help="norm bound of the models")
    options = parser.parse_args()

    def show(title, table):
        text = table.to_string(index=False, float_format=lambda value: f"{value:.4g}")
        print(f"{title}\n{text}\n")

    show("Table 2: exponents, printed and recomputed (mu/L = 0: convex)", table_2())
    table = optima(options.mu_over_L, options.M)
    show("Optimal alpha (convex) and Q, stated and numerical", table)
    claim = claim_3([*options.mu_over_L, 0.3819, 0.382])
    show("Claim 3: fewer rounds with acceleration for noise levels below M", claim)
    ranks = {"lr": 5, "gs": 4}  # of the models of low_rank and group_sparse
    table_of_sizes = sizes(options.d, options.m, options.epsilon, ranks, options.K)
    show("Convex bounds over K^2 L at the stated optimum, and the tasks they need", table_of_sizes)
    options.results.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.results / "utility_bounds.csv", index=False)
    print(options.results / "utility_bounds.csv")
