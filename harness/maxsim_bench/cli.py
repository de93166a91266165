"""`maxsim-bench` on the command line: parse, call a room, print. No logic.

Orchestration. May import every room, each inside the command that needs it, so that `--help` starts at once.
Exit codes: 0 all as declared, 1 some row failed that was not allowed to (or a check does not hold), 2 wrong usage.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from maxsim_bench import __version__
from maxsim_bench.declare.experiment import PROFILES, DeclarationError
from maxsim_bench.options import (
    Finite,
    Folder,
    experiments_option,
    grid_options,
    json_option,
    places_options,
    results_option,
)
from maxsim_bench.printing import any_letter_printed, told_if_unwritable
from maxsim_bench.stopping import STOPPED, terminated_as_interrupted


class Commands(click.Group):
    """Commands in the order of their definition; exceptions that our rooms raise on purpose become messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of a user's day, not of the alphabet."""
        return list(self.commands)

    def make_context(self, *given: Any, **extra: Any) -> click.Context:
        """As click makes it, where `--help` of the program is printed."""
        any_letter_printed()
        with told_if_unwritable():
            return super().make_context(*given, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. An exception of ours and what cannot be written are a message and exit code 2; a bug shows."""
        with told_if_unwritable():
            return self._told(ctx)

    def _told(self, ctx: click.Context) -> Any:
        try:
            with terminated_as_interrupted():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo(STOPPED, err=True)
            ctx.exit(1)
        except OSError as error:
            if error.filename is None:
                raise
            click.echo(f"Error: {error.filename}: {error.strerror}. Check the path, or name another.", err=True)
            ctx.exit(2)
        except Exception as error:
            if not type(error).__module__.startswith("maxsim_bench."):
                raise
            click.echo(f"Error: {error}", err=True)
            ctx.exit(2)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__)
def main() -> None:
    """Measure MaxSim (late-interaction) scoring: declared grids in, rows, tables, figures and verdicts out.

    \b
    Example: maxsim-bench plan forward --profile paper
    """


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, indent=1, ensure_ascii=False))


@main.command()
@grid_options
@click.option("--gpu", help="Card to plan for, by key (h200, a100-80gb, cpu); default: the one at hand.")
@json_option
def plan(gpu: str | None, as_json: bool, **grid: Any) -> None:
    """Show the exact grid, with estimates and reasons.

    One line a cell, then what is left out and why, and which cells wait for other cards. Exit code 2 if no cell is
    left, as `run` ends then.

    \b
    Example: maxsim-bench plan forward --profile paper --gpu h200 --where Lq=32
    """
    from maxsim_bench.declare.select import Filters
    from maxsim_bench.planning import outline_lines
    from maxsim_bench.sweeps import nothing, outlines

    plans = outlines(gpu=gpu, **grid)
    if as_json:
        _print_json([p.model_dump(mode="json") for p in plans])
    else:
        click.echo("\n".join(line for one in plans for line in outline_lines(one)))
    if not any(one.planned for one in plans):
        names, profile = grid.pop("names"), grid.pop("profile")
        raise DeclarationError([nothing(names, plans[0].gpu, profile, Filters(**grid))])


@main.command()
@grid_options
@click.option("--force", is_flag=True, help="Measure rows again that are finished.")
@click.option("--timeout", type=Finite(min=1), help="Seconds for one backend of one cell.")
@click.option("--dry-run", is_flag=True, help="Say what would be measured, and measure nothing.")
@click.option("--into", type=Folder(), help="Write here. [default: RESULTS/local]")
@results_option
@json_option
def run(
    force: bool, timeout: float | None, dry_run: bool, into: Path | None, results: Path, as_json: bool, **grid: Any
) -> None:
    """Measure what has no finished row yet.

    Cells are those for the device at hand. A sweep that was stopped or killed goes on where it was.
    Exit code 1 if a row failed that is not allowed to.

    \b
    Example: maxsim-bench run smoke --backend fused --backend eager --where dtype=fp32
    """
    from maxsim_bench.sweeps import Request, sweep, sweep_lines

    request = Request(folder=into or results / "local", force=force, timeout_s=timeout, dry_run=dry_run, **grid)
    done = sweep(request)
    if as_json:
        _print_json(done.model_dump(mode="json"))
    else:
        click.echo("\n".join(sweep_lines(done)))
    sys.exit(1 if done.failed else 0)


@main.command()
@click.argument("datasets", metavar="[DATASET]...", nargs=-1)
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="Only this backend (repeatable).")
@click.option("--encoder", default="minilm", show_default=True, help="Who makes token embeddings.")
@click.option(
    "--dtype", "dtypes", multiple=True, type=click.Choice(["fp16", "bf16", "fp32"]), help="Of the embeddings."
)
@click.option("--split", help="Split of the data set; default: its own.")
@click.option(
    "--profile", type=click.Choice(PROFILES), default="smoke", show_default=True, help="If no data set is named."
)
@click.option("--documents", help="Documents of apidocs, or `all`. [default: 1000]")
@click.option("--queries", help="Queries of apidocs, or `all`. [default: 200]")
@click.option("--level", type=click.IntRange(0, 3), help="Rephrase level of REAL-MM-RAG.")
@click.option("--first-stage", metavar="bm25|RUN", help="Rerank this instead of ranking everything.")
@click.option("--depth", type=click.IntRange(min=1), default=100, show_default=True, help="Documents reranked a query.")
@click.option("--limit", type=Finite(min=0), help="Largest |ΔnDCG@10| of an exact backend. [default: 5e-4]")
@click.option("--data-dir", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder of data sets.")
@click.option("--runs", type=Folder(), help="Write rankings here, as TREC run files.")
@click.option("--force", is_flag=True, help="Audit again what is finished.")
@click.option("--into", type=Folder(), help="Write here. [default: RESULTS/local]")
@experiments_option
@results_option
@json_option
def fidelity(into: Path | None, results: Path, as_json: bool, **given: Any) -> None:
    """Compare rankings with the FP32 reference's.

    DATASET is apidocs (which needs neither network nor files), another name that `maxsim-bench list datasets`
    explains, the name of a BEIR data set, or a path. Without one the declared experiment runs: apidocs alone under the
    profile smoke, every declared data set under full.
    Exit code 1 if an exact backend moves nDCG@10 by more than the limit, or one fails.

    \b
    Example: maxsim-bench fidelity scifact --backend eager --backend fused
    """
    from maxsim_bench.fidelity import Request, audited_lines
    from maxsim_bench.fidelity import fidelity as audit

    sizes = {name: value for name in ("documents", "queries") if (value := given.pop(name)) is not None}
    done = audit(
        Request(folder=into or results / "local", sizes=sizes, **given), lambda line: click.echo(line, err=True)
    )
    if as_json:
        _print_json(done.model_dump(mode="json"))
    else:
        click.echo("\n".join(audited_lines(done)))
    sys.exit(1 if done.failed else 0)


@main.command()
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if something committed no longer follows.")
@click.option("--local", is_flag=True, help="Also a report with this machine's rows, in figures/local.")
@click.option("--pdf", type=click.Path(path_type=Path, dir_okay=False), help="Also the report as one PDF, here.")
@places_options
def report(check: bool, local: bool, pdf: Path | None, **folders: Path) -> None:
    """Make tables, figures, verdicts and the page.

    Everything follows from the committed rows; with --local this machine's rows are shown beside them.

    \b
    Example: maxsim-bench report --check
    """
    from maxsim_bench.reporting import Places, report_lines, stale, write

    places = Places(**folders)
    if check and pdf is not None:
        raise click.UsageError("--check writes nothing. Leave out --pdf, or call it by itself.")
    if check:
        found = stale(places)
        click.echo("\n".join(found) if found else "everything committed follows from the results")
        sys.exit(1 if found else 0)
    made = write(places, local=local, pdf=pdf, say=lambda line: click.echo(line, err=True))
    click.echo("\n".join(report_lines(made)))


@main.command()
@click.option("--element", metavar="NAME", help="Only claims of this table, figure or section (tab:fwd).")
@click.option("--verdict", metavar="VERDICT", help="Only claims with this verdict (differs).")
@click.option("--all", "every", is_flag=True, help="One line a claim, not counts; implied by a filter.")
@click.option("--local", is_flag=True, help="Judge by this machine's rows too.")
@places_options
@json_option
def claims(element: str | None, verdict: str | None, every: bool, local: bool, as_json: bool, **folders: Path) -> None:
    """Judge every published number.

    What was published, on what, what was measured, on what, whether they compare, and the verdict.

    \b
    Example: maxsim-bench claims --element tab:train --verdict differs
    """
    from dataclasses import asdict

    from maxsim_bench.reporting import Places, claims_lines
    from maxsim_bench.reporting import claims as judged

    found, kept = judged(Places(**folders), local=local, element=element, verdict=verdict)
    if as_json:
        _print_json([asdict(entry) for entry in kept])
    else:
        click.echo("\n".join(claims_lines(found, kept, every=every, element=element, verdict=verdict)))


@main.command()
@click.option("--element", metavar="NAME", help="Only what answers this element of the paper, or this experiment.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and do nothing.")
@places_options
def reproduce(element: str | None, dry_run: bool, **folders: Path) -> None:
    """Measure, check, rank and report, in this order.

    Says first what it will do, how long that takes here and how much disk it needs. With a GPU the full grids run;
    without one the smoke grid, and the fused kernel is checked under the Triton interpreter. Resumes where it stopped.
    A step whose rows or device another process holds is left for the next time, the others are done, and the exit code
    is 1.

    \b
    Example: maxsim-bench reproduce --element tab:fwd
    """
    from maxsim_bench.machine import this_machine
    from maxsim_bench.reporting import Places
    from maxsim_bench.reproduce import announcement, steps
    from maxsim_bench.reproduce import reproduce as run_steps

    machine = this_machine()
    planned = steps(machine, Places(**folders), element)
    click.echo("\n".join(announcement(machine, planned)))
    failed = [] if dry_run else run_steps(planned, click.echo)
    for told in failed:
        click.echo(told)
    sys.exit(1 if failed else 0)


@main.command()
@click.argument("base")
@click.argument("new")
@click.option("--rev", is_flag=True, help="BASE and NEW are git revisions whose kernels are measured now, in turn.")
@click.option("--experiment", metavar="NAME", help="Only its rows; with --rev its forward cells, not the headline.")
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="Only this backend's rows (repeatable).")
@click.option("--where", multiple=True, metavar="AXIS=VALUE", help="Only such cells: Lq=32, B>=1000.")
@click.option(
    "--thresholds",
    type=click.Path(path_type=Path, dir_okay=False),
    help="What counts as a difference. [default: EXPERIMENTS/compare/thresholds.toml]",
)
@click.option(
    "--fail-on",
    type=click.Choice(["slower", "undecided", "nothing"]),
    default="slower",
    show_default=True,
    help="What makes the exit code 1; undecided: that or slower.",
)
@click.option("--into", type=Folder(), help="Also write every format here.")
@click.option(
    "--format", "form", type=click.Choice(["markdown", "json", "html"]), default="markdown", show_default=True
)
@places_options
def compare(base: str, new: str, rev: bool, fail_on: str, into: Path | None, form: Any, **given: Any) -> None:
    """Decide what became faster or slower.

    BASE and NEW are stores, folders of them, git revisions of results/, or JSON of pytest-benchmark. Every cell and
    backend is SAME, FASTER, SLOWER or UNDECIDED, with the reason. Exit code 1 if anything is SLOWER, else 2 if a row
    was left out because its own raw samples contradict it.

    With --rev the kernels of two git revisions are loaded into one process and measured turn by turn, on the headline
    cells of the device at hand: did this commit cost anything?

    \b
    Example: maxsim-bench compare HEAD results --format json
    Example: maxsim-bench compare --rev HEAD~1 HEAD --where Lq=32
    """
    from maxsim_bench.comparing import FAIL_ON, Request, compared, comparison_text, write_comparison

    request = Request.of(base, new, **given)
    if rev and request.backends:
        raise click.UsageError("--backend chooses rows of a store, and --rev measures the kernels of revisions")
    found = compared(request, measure=rev)
    if into is not None:
        write_comparison(found, into)
    click.echo(comparison_text(found, form), nl=False)
    for told in found.left_out:
        click.echo(f"left out, at odds with its own samples: {told}", err=True)
    sys.exit(found.fails_on(FAIL_ON[fail_on]))


@main.command()
@click.option("--aa", "tries", type=click.IntRange(min=2), required=True, metavar="N", help="Tries on every cell.")
@click.option("--within", type=Finite(min=1), metavar="SECONDS", help="Begin no further try after so long.")
@click.option("--into", type=Folder(), help="Write here. [default: RESULTS/DEVICE]")
@places_options
@json_option
def selftest(tries: int, within: float | None, into: Path | None, as_json: bool, **folders: Path) -> None:
    """Measure how far comparisons can be trusted.

    The same build against itself, N times on each headline cell: how often is a difference seen where there is none?
    And with a slow-down of 2, 5 and 10 % put behind the call: how often is it found? Rates with their exact 95 %
    intervals go to selftest.json, the raw times beside it. Exit code 1 if a GPU misses a goal; a processor's rates
    are reported only.

    \b
    Example: maxsim-bench selftest --aa 120 --within 150
    """
    from maxsim_bench.comparing import thresholds_path
    from maxsim_bench.machine import this_machine
    from maxsim_bench.report.compare import read_thresholds
    from maxsim_bench.reporting import Places
    from maxsim_bench.selftest import selftest as audit
    from maxsim_bench.selftest import selftest_lines

    places, machine = Places(**folders), this_machine()
    thresholds = read_thresholds(thresholds_path(places))
    done, taken = audit(
        tries, thresholds, machine=machine, within_s=within, say=lambda line: click.echo(line, err=True)
    )
    path = done.write(into or places.results / machine.key, taken)
    if as_json:
        _print_json(done.told())
    else:
        click.echo("\n".join([*selftest_lines(done), path.as_posix()]))
    sys.exit(done.exit_code)


@main.command()
@click.argument("run", required=False, type=click.Path(path_type=Path, exists=True, file_okay=False))
@places_options
def track(run: Path | None, **folders: Path) -> None:
    """Keep a record of a run.

    RUN is a folder of CSVs; default: this machine's rows. Writes a small file below results/history, of the time and
    the commit of the run's last row, and redraws the page of trends, where slow drifts show as steps.

    \b
    Example: maxsim-bench track results/h200/repeat/1
    """
    from maxsim_bench.comparing import track as keep
    from maxsim_bench.reporting import Places

    for path in keep(Places(**folders), run):
        click.echo(path)


@main.command("list")
@click.argument("what", required=False, type=click.Choice(["experiments", "backends", "datasets"]))
@experiments_option
@json_option
def list_(what: str | None, experiments: Path, as_json: bool) -> None:
    """List experiments, backends or data sets.

    Of a backend what it is, and its version or why it cannot run here. All three lists without an argument.

    \b
    Example: maxsim-bench list backends
    """
    from maxsim_bench.catalogue import KINDS, catalogue, catalogue_lines

    found = {kind: catalogue(kind, experiments) for kind in ([what] if what else KINDS)}
    if as_json:
        _print_json(found[what] if what else found)
    else:
        click.echo("\n".join(catalogue_lines(found)))


@main.command()
@click.argument("cell")
@experiments_option
@results_option
@json_option
def show(cell: str, experiments: Path, results: Path, as_json: bool) -> None:
    """Show a cell, its rows and its command.

    CELL is the hash of the cell, or the beginning of it.

    \b
    Example: maxsim-bench show 2026
    """
    from maxsim_bench.catalogue import find_cell, found_lines

    found = find_cell(cell, experiments, results)
    if as_json:
        _print_json(found.model_dump(mode="json"))
    else:
        click.echo("\n".join(found_lines(found)))


@main.command()
@click.argument("sources", metavar="FROM... INTO", nargs=-1, required=True, type=click.Path(path_type=Path))
def merge(sources: tuple[Path, ...]) -> None:
    """Merge results; contradictions are refused.

    FROM and INTO are CSVs of results, or folders of them. If rows of one identity differ, nothing is written, and the
    exit code is 2. Exit code 1 if a row that was added contradicts its own raw samples; it is named on stderr.

    \b
    Example: maxsim-bench merge /media/stick/results results
    """
    from maxsim_bench.record.merge import merge as merge_stores

    if len(sources) < 2:
        raise click.UsageError("name at least one source and, last, where to merge into")
    merged = merge_stores(sources[:-1], sources[-1])
    for done in merged:
        click.echo(f"{done.path}: {done.added} rows added to {done.present}")
        for told in (*done.lost, *done.contradicted):
            click.echo(told, err=True)
    sys.exit(1 if any(done.contradicted for done in merged) else 0)


@main.command()
@click.argument("run_file", metavar="RUN", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("qrels", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--drop-own-id", is_flag=True, help="Leave a query's own id out of its ranking (ArguAna, Quora).")
@json_option
def evaluate(run_file: Path, qrels: Path, drop_own_id: bool, as_json: bool) -> None:
    """Judge a TREC run file by a file of judgements.

    QRELS has three or four columns, with or without a header. Gain is linear, ties go by document id as in trec_eval.

    \b
    Example: maxsim-bench evaluate run.trec qrels/test.tsv
    """
    from dataclasses import asdict

    from maxsim_bench.evaluation import evaluation_lines
    from maxsim_bench.retrieve.trec import evaluate_files

    found = evaluate_files(run_file, qrels, drop_own_id=drop_own_id)
    if as_json:
        _print_json(asdict(found))
    else:
        click.echo("\n".join(evaluation_lines(found)))


@main.command()
@click.argument("dataset")
@click.argument("query")
@click.argument("document")
@click.option("--encoder", default="minilm", show_default=True, help="Who makes token embeddings.")
@click.option("--split", help="Split of the data set; default: its own.")
@click.option("--data-dir", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder of data sets.")
@click.option("--grid", type=(click.IntRange(min=1), click.IntRange(min=1)), help="Patches of a page, across and down.")
@click.option("--first", type=click.IntRange(min=0), default=0, help="Document token that is the first patch.")
@click.option(
    "--into", type=Folder(), default=Path("figures/local/heatmaps"),
    show_default=True, help="Write here.",
)  # fmt: skip
def heatmap(**given: Any) -> None:
    """Draw which document tokens a query chose.

    QUERY is the id of a query, or any text; DOCUMENT is the id of a document. Writes the matrix of similarities as an
    image, and an HTML page with the document's tokens tinted by what they give to the score.

    \b
    Example: maxsim-bench heatmap scifact 1 31715818
    """
    from maxsim_bench.heatmaps import Request, heat_map_lines, heat_maps

    click.echo("\n".join(heat_map_lines(*heat_maps(Request(**given)))))


@main.command()
@click.option("--ceilings/--no-ceilings", default=True, help="Measure what this device reaches (some seconds).")
@json_option
def doctor(ceilings: bool, as_json: bool) -> None:
    """Say what is here, what is missing, how to get it.

    Also measures the ceilings of the device: matrix products, reads, copies, launches.

    \b
    Example: maxsim-bench doctor --no-ceilings
    """
    from maxsim_bench.doctor import diagnosis_lines, examine

    found = examine(with_ceilings=ceilings)
    if as_json:
        _print_json(found.model_dump(mode="json"))
    else:
        click.echo("\n".join(diagnosis_lines(found)))


@main.command("help")
@click.argument("command", required=False)
@click.option("--markdown", is_flag=True, help="The page docs/cli.md.")
@click.pass_context
def help_(ctx: click.Context, command: str | None, markdown: bool) -> None:
    """Show the help of a command, or of all.

    \b
    Example: maxsim-bench help run
    """
    from maxsim_bench.cli_page import page

    if markdown:
        click.echo(page(main), nl=False)
        return
    target = main if command is None else main.commands.get(command)
    if target is None:
        raise click.UsageError(f"no command {command!r}. Choose from {', '.join(main.commands)}.")
    with click.Context(target, info_name=command or "maxsim-bench", parent=ctx.parent if command else None) as own:
        click.echo(target.get_help(own))


if __name__ == "__main__":
    main()
