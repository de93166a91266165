"""Goals beside what was measured."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from maxsim_bench.declare.experiment import Experiment
from maxsim_bench.declare.load import load_directory
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples
from maxsim_bench.report import names
from maxsim_bench.report.elements.goals import _interval, goal_tables
from maxsim_bench.report.goals import Assessed, Goal, Goals, assess, measuring, read_goals
from maxsim_bench.report.load import ReportError, load

ROOT = Path(__file__).parents[3]

ENTRY = """
[[goals]]
id = "one"
text = "t"
metric = "latency_ms"
bound = "<= 1"
rows = { experiment = "forward", backend = "fused", gpu = "h200" }
"""


def goal(**changes: Any) -> Goal:
    fields: dict[str, Any] = {
        "id": "g", "text": "a goal", "metric": "latency_ms", "bound": "<= 1",
        "rows": {"experiment": "forward", "backend": "fused", "gpu": "h200"},
    }  # fmt: skip
    return Goal.model_validate({**fields, **changes})


def test_a_goal_is_met_only_if_every_row_meets_it(made: Any) -> None:
    results = made.results(made.sweep([made.cell(B=B) for B in (1000, 100_000)], ["fused"]))
    times = [row.latency_ms for row in results.rows]
    between = sum(times) / 2
    one = assess([goal(bound=f"<= {between:.6f}")], results)[0]
    assert (one.verdict, one.rows, one.met, one.worst, one.best) == ("missed", 2, 1, max(times), min(times))
    assert one.at is not None
    assert one.at.cell.B == 100_000
    assert assess([goal(bound="<= 1000")], results)[0].verdict == "met"


def test_conditions_are_those_of_an_experiments_constraints(made: Any) -> None:
    results = made.results(made.sweep([made.cell(B=B) for B in (100, 1000, 10_000)], ["fused"]))
    assert assess([goal(when={"B": ">= 1000"})], results)[0].rows == 2
    assert assess([goal(when={"B": {"not": 100}, "Lq": [32, 64]})], results)[0].rows == 2


def test_without_rows_a_goal_is_not_measured_and_with_failed_ones_missed(made: Any) -> None:
    results = made.results(made.sweep([made.cell(B=100_000, Lq=1024, Ld=1024), made.cell(B=10)], ["eager"]))
    assert (
        assess([goal(rows={"experiment": "forward", "backend": "fused", "gpu": "h200"})], results)[0].verdict
        == "not measured"
    )
    failed = assess(
        [goal(bound="<= 1000", rows={"experiment": "forward", "backend": "eager", "gpu": "h200"})], results
    )[0]
    assert (failed.verdict, failed.rows, failed.failed) == ("missed", 1, 1)


def test_a_condition_on_the_rows_numbers_drops_those_with_too_little_work(made: Any) -> None:
    """The work of a cell is its time at the ceiling, whatever the backend took."""
    rows = made.sweep([made.cell(B=B) for B in (10, 1000, 100_000)], ["fused"])
    ideal = [row.latency_ms * row.percent_of_ceiling / 100 for row in rows]
    results = made.results(rows)
    assert assess([goal(only={"ideal_ms": f">= {0.99 * ideal[1]:.9f}"})], results)[0].rows == 2
    assert assess([goal(only={"ideal_ms": f">= {2 * ideal[2]:.9f}"})], results)[0].verdict == "not measured"


def test_a_failed_row_is_not_hidden_by_a_condition_on_numbers(made: Any) -> None:
    failed = made.modelled(made.cell(), "fused").model_copy(
        update={"status": "crash", "latency_ms": None, "percent_of_ceiling": None}
    )
    one = assess([goal(bound="<= 1000", only={"ideal_ms": ">= 0"})], made.results([failed]))[0]
    assert (one.verdict, one.failed) == ("missed", 1)
    both = made.results([failed, made.modelled(made.cell(B=2000), "fused")])
    assert assess([goal(bound="<= 1000", only={"ideal_ms": ">= 0"})], both)[0].verdict == "missed"


def _capped(made: Any, cap: int) -> Any:
    at = made.cell("memory_scaling", B=1000, memory_cap=cap)
    return made.modelled(at, "fused").model_copy(update={"status": "oom", "latency_ms": None})


@pytest.mark.parametrize(
    ("cap", "allowed", "verdict", "failed", "unfit"),
    [
        (1000 * 300 * 128, True, "met", 0, 1),  # the documents alone take twice that
        (1000 * 300 * 128, False, "missed", 1, 0),
        (3 * 1000 * 300 * 128, True, "missed", 1, 0),  # the inputs fit: running out of memory is the backend's doing
    ],
)
def test_an_allowed_failure_of_inputs_that_do_not_fit_is_left_out_and_counted(
    made: Any, cap: int, allowed: bool, verdict: str, failed: int, unfit: int
) -> None:
    declared = Experiment.model_validate(
        {
            "name": "memory_scaling", "title": "t", "backends": ["fused"], "axes": {"B": 1},
            "allow": [{"status": "oom", "why": "it is the question"}] if allowed else [],
        }
    )  # fmt: skip
    results = made.results([_capped(made, cap), made.modelled(made.cell("memory_scaling"), "fused")])
    asked = goal(bound="<= 1000", rows={"experiment": "memory_scaling", "backend": "fused", "gpu": "h200"})
    one = assess([asked], results, {"memory_scaling": declared})[0]
    assert (one.verdict, one.failed, one.unfit) == (verdict, failed, unfit)
    table = next(goal_tables(results, [Goals(title="t", goals=(asked,))], {"memory_scaling": declared}))
    assert ("left out: the inputs do not fit" in table.frame["rows"][0]) == bool(unfit)


def test_every_row_that_misses_is_named_by_what_differs_the_worst_first(made: Any) -> None:
    results = made.results(
        made.sweep([made.cell(B=B, Ld=Ld) for B, Ld in ((10, 300), (5000, 300), (20_000, 600))], ["fused"])
    )
    between = sorted(row.latency_ms for row in results.rows)[0]
    frame = next(goal_tables(results, [Goals(title="t", goals=(goal(bound=f"<= {between + 1e-6}"),))])).frame
    assert frame["missed"][0] == "B = 20K, Ld = 600; B = 5K, Ld = 300"


def test_against_the_best_other_backend_of_the_same_cell(made: Any) -> None:
    results = made.results(made.sweep([made.cell()], ["eager", "lik", "fused"]))
    times = {row.backend: row.latency_ms for row in results.rows}
    one = assess([goal(bound=">= 1", against={"backends": ["eager", "lik"]})], results)[0]
    assert one.worst == pytest.approx(min(times["eager"], times["lik"]) / times["fused"])


def test_against_the_same_backend_elsewhere(made: Any) -> None:
    results = made.results(made.sweep([made.cell(), made.cell(B=10_000)], ["fused"]))
    one = assess(
        [goal(metric="achieved_gbs", bound=">= 0.9", when={"B": 1000}, against={"when": {"B": 10_000}})], results
    )[0]
    rates = {row.cell.B: row.achieved_gbs for row in results.rows}
    assert one.worst == pytest.approx(rates[1000] / rates[10_000])


def test_against_the_cell_that_differs_in_one_axis(made: Any) -> None:
    """Each bf16 row against the fp16 row of its own shape, and one without such a row says nothing."""
    cells = [made.cell(B=B, dtype=dtype) for B in (1000, 10_000) for dtype in ("bf16", "fp16")]
    results = made.results(made.sweep([*cells, made.cell(B=20_000, dtype="bf16")], ["eager", "fused"]))
    one = assess([goal(bound=">= 0.97", when={"dtype": "bf16"}, against={"same": {"dtype": "fp16"}})], results)[0]
    times = {(row.cell.B, row.cell.dtype): row.latency_ms for row in results.rows if row.backend == "fused"}
    ratios = [times[B, "fp16"] / times[B, "bf16"] for B in (1000, 10_000)]
    assert (one.rows, one.worst, one.best) == (2, pytest.approx(min(ratios)), pytest.approx(max(ratios)))


@pytest.mark.parametrize(("bound", "told"), [(">= 1", ", spans the bound"), (">= 0.5", ""), (">= 2", "")])
def test_an_interval_that_spans_the_bound_says_so(made: Any, bound: str, told: str) -> None:
    row = made.modelled(made.cell(), "fused")
    one = Assessed(goal(bound=bound), 1.01, 1.2, 1, 1, 0, row, low=0.989, high=1.04)
    assert one.open == bool(told)
    assert _interval(one) == f"0.989 to 1.04{told}"


@pytest.mark.parametrize(("Lq", "copies"), [(32, 1), (128, 1), (129, 3), (1024, 9)])
def test_memory_beyond_the_scores_counts_partial_sums(made: Any, Lq: int, copies: int) -> None:
    row = made.modelled(made.cell(Lq=Lq), "fused").model_copy(update={"peak_extra_bytes": copies * 4 * 1000 + 672})
    one = assess([goal(metric="bytes_beyond_scores", bound="<= 1e6")], made.results([row]))[0]
    assert (one.worst, one.verdict) == (672, "met")


def test_numbers_of_one_experiment_alone_are_read_from_extra(made: Any) -> None:
    row = made.modelled(made.cell(), "fused").model_copy(update={"extra": '{"launches": 3}'})
    assert assess([goal(metric="extra.launches", bound="<= 3")], made.results([row]))[0].verdict == "met"


def searched(made: Any, ceiling: str, percent: float, **axes: Any) -> Any:
    """A row of `search` whose binding ceiling is named."""
    usual = {"op": "search", "k": 10, "timing_policy": "host", **axes}
    row = made.modelled(made.cell("search_scaling", **usual), "fused")
    return row.model_copy(update={"backend": "search", "ceiling": ceiling, "percent_of_ceiling": percent})


def declared(name: str, key: str) -> Goal:
    """A goal of the committed files."""
    (file,) = [one for one in read_goals(ROOT / "experiments" / "goals") if one.name == name]
    (found,) = [one for one in file.goals if one.id == key]
    return found


@pytest.mark.parametrize(
    ("percents", "verdict", "met"), [((97.0, 90.0), "met", 2), ((97.0, 89.9), "missed", 1), ((), "not measured", 0)]
)
def test_a_search_is_judged_by_the_copy_only_where_that_was_measured_and_binds(
    made: Any, percents: tuple[float, ...], verdict: str, met: int
) -> None:
    """A row of before, 1 % "of the read bandwidth", is neither a hit nor a miss; nor is one that products bind."""
    rows = [searched(made, "memory", 1.2, B=10), searched(made, "memory", 99.0, B=20)]
    rows += [searched(made, "compute", 30.0, B=30, Nq=1024)]
    rows += [searched(made, "copy", percent, B=100 + n) for n, percent in enumerate(percents)]
    (one,) = assess([declared("forward", "search-copy")], made.results(rows))
    assert (one.verdict, one.rows, one.met, one.failed, one.unspoken) == (verdict, len(percents), met, 0, 3)
    assert one.worst == (min(percents) if percents else None)


def test_a_goal_that_is_not_measured_has_the_command_that_measures_it(made: Any) -> None:
    """Where rows are there, but lack the metric, they have to be measured again."""
    experiments = load_directory(ROOT / "experiments")
    goals = [Goals(title="t", name="x", goals=(declared("forward", "search-copy"),))]

    def told(*rows: Any) -> tuple[str, str]:
        frame = next(goal_tables(made.results(rows), goals, experiments)).frame
        return frame["verdict"][0], frame["binds"][0]

    run = "maxsim-bench run search_scaling --profile paper"
    assert told() == ("not measured", run)
    assert told(searched(made, "memory", 1.2)) == ("not measured", f"{run} --force")
    assert told(searched(made, "memory", 1.2), searched(made, "copy", 97.0, B=5)) == ("met", "")


@pytest.mark.parametrize(
    ("experiment", "backend", "when", "command"),
    [
        ("memory_scaling", "fused", {}, "maxsim-bench run memory_scaling --profile paper"),
        ("search_scaling", "search", {"B": 208_000}, "maxsim-bench run search_scaling --profile full"),
        ("search_scaling", "search", {"B": 7}, ""),
        ("search_scaling", "eager", {}, ""),
        ("fidelity", "fused", {}, "maxsim-bench fidelity --profile full"),
        ("training_parity", "fused", {}, "python -m maxsim_bench.parity"),
    ],
)
def test_the_command_is_of_the_smallest_profile_that_has_the_cell(
    made: Any, experiment: str, backend: str, when: dict[str, int], command: str
) -> None:
    asked = goal(rows={"experiment": experiment, "backend": backend, "gpu": "h200"}, when=when)
    (one,) = assess([asked], made.results([]))
    assert measuring(one, load_directory(ROOT / "experiments")) == command


def test_every_experiment_of_a_command_has_its_module() -> None:
    assert all(find_spec(f"maxsim_bench.{command.module}") for command in names.COMMANDS.values())


def test_every_declared_goal_that_is_not_measured_names_a_command(made: Any) -> None:
    experiments = load_directory(ROOT / "experiments")
    for table in goal_tables(made.results([]), read_goals(ROOT / "experiments" / "goals", experiments), experiments):
        assert table.frame["binds"].str.startswith(("maxsim-bench ", "python -m maxsim_bench.")).all(), table.name


@pytest.mark.parametrize(("largest", "verdict"), [(1.0, "met"), (1.09, "met"), (1.11, "missed"), (2.0, "missed")])
def test_memory_of_a_search_is_flat_if_it_grows_by_a_tenth_at_most(made: Any, largest: float, verdict: str) -> None:
    sizes = {6500: 0.5, 26_000: 1.0, 104_000: largest}
    rows = [
        searched(made, "memory", 1.2, B=B).model_copy(update={"peak_extra_bytes": round(529e6 * share)})
        for B, share in sizes.items()
    ]
    (one,) = assess([declared("forward", "search-memory")], made.results(rows))
    assert (one.verdict, one.rows) == (verdict, 1)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('bound = "about 3"', "no bound"),
        ('metric = "latencyms"', "neither a column"),
        ('bound = ">= 1.2.3"', r"g: bound: '>= 1\.2\.3' is no bound\. Write an operator and a number"),
        ('bound = ">= ."', "g: bound: .* is no bound"),
        ('metric = "kernel_config"', "g: metric: 'kernel_config' is neither a column of numbers"),
        ('metric = "latency"', "g: metric: .* Did you mean 'latency_ms'"),
        ('metric = "extra."', "g: metric: .*neither a column"),
        ("when = { Lqq = 3 }", "g: when: Lqq: unknown axis. Did you mean 'Lq'"),
        ("against = { when = { Lqq = 3 } }", "g: against.when: Lqq: unknown axis. Did you mean 'Lq'"),
        ('when = { "variant.loss" = "sum" }', "g: when: variant.loss: no cell has this axis. None has a variant"),
        ("when = { B = { nto = 3 } }", "g: when: B: .* is no condition"),
        ('when = { dtype = "fp61" }', "g: when: dtype: 'fp61' never holds: input should be 'fp16'"),
        ('when = { dtype = "> 5" }', "g: when: dtype: '> 5' compares whole numbers, and dtype is none"),
        ("when = { B = [] }", r"g: when: B: \[\] never holds"),
        ("against = {}", "g: against: names backends, conditions"),
        ('against = { backends = "fused", same = { dtype = "fp16" } }', "g: against: .* one of the three"),
        ("against = { same = { Ldd = 3 } }", "g: against.same: Ldd: unknown axis. Did you mean 'Ld'"),
        ("speed = 3", "speed: Extra inputs"),
        ('only = { idealms = ">= 1" }', "neither a column"),
        ('only = { status = ">= 1" }', "g: only: 'status' is neither a column of numbers"),
        ('only = { ideal_ms = "20" }', "no bound"),
        ('against = { backends = "fusde" }', "g: against.backends: 'fusde' is no backend. Did you mean 'fused'"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_file_and_key(tmp_path: Path, line: str, told: str) -> None:
    text = {"id": '"g"', "text": '"t"', "metric": '"latency_ms"', "bound": '">= 1"'}
    key, _, value = line.partition(" = ")
    text[key] = value
    rows = 'rows = { experiment = "forward", backend = "fused", gpu = "h200" }'
    body = "\n".join(f"{k} = {v}" for k, v in text.items())
    (tmp_path / "some.toml").write_text(f'title = "x"\n[[goals]]\n{body}\n{rows}\n')
    with pytest.raises(ReportError, match=told) as caught:
        read_goals(tmp_path, load_directory(ROOT / "experiments"))
    assert "some.toml" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"forward"', '"foward"', "one: rows.experiment: 'foward' is no experiment. Did you mean 'forward'"),
        ('"fused"', '["fused", "fusde"]', "one: rows.backend: 'fusde' is no backend. Did you mean 'fused'"),
        ("# end", ENTRY, "one: id: stands twice in the file"),
    ],
)
def test_what_nobody_measures_and_an_id_that_stands_twice_are_told(
    tmp_path: Path, old: str, new: str, told: str
) -> None:
    (tmp_path / "some.toml").write_text(f'title = "x"\n{ENTRY}# end\n'.replace(old, new))
    with pytest.raises(ReportError, match=told):
        read_goals(tmp_path, load_directory(ROOT / "experiments"))


def test_a_file_of_goals_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "some.toml").write_bytes(b'title = "\xff"\n')
    with pytest.raises(ReportError, match=r"some\.toml: byte 9 is not UTF-8"):
        read_goals(tmp_path)


@pytest.mark.parametrize("bound", ["<= 1000", ">= 0"])
def test_nan_is_the_worst_wherever_it_stands(made: Any, bound: str) -> None:
    cells = [made.modelled(made.cell(B=B), "fused") for B in (10, 100, 1000)]
    nan = made.modelled(made.cell(B=500), "fused").model_copy(update={"latency_ms": float("nan")})
    for at in range(4):
        one = assess([goal(bound=bound)], made.results([*cells[:at], nan, *cells[at:]]))[0]
        assert (one.verdict, one.at, one.met) == ("missed", nan, 3)
        assert one.best == (max if goal(bound=bound).wants_more else min)(row.latency_ms for row in cells)


def test_a_goal_whose_rows_all_crashed_is_missed(made: Any) -> None:
    crashed = made.modelled(made.cell(), "fused").model_copy(update={"status": "crash", "latency_ms": None})
    one = assess([goal()], made.results([crashed]))[0]
    assert (one.verdict, one.rows, one.failed) == ("missed", 0, 1)
    (table,) = goal_tables(made.results([crashed]), [Goals(title="t", goals=(one.goal,), name="n")])
    assert (table.frame["verdict"][0], table.frame["rows"][0]) == ("missed", "1 failed")
    assert "missed" in table.markdown()


def test_the_declared_goals_are_read_and_shown_without_any_results(made: Any) -> None:
    declared = read_goals(ROOT / "experiments" / "goals", load_directory(ROOT / "experiments"))
    tables = list(goal_tables(made.results([]), declared))
    assert [t.name for t in tables] == [f"goals/{one.name}" for one in declared]
    assert set(tables[0].frame["verdict"]) == {"not measured"}
    for one in declared:
        assert len({g.id for g in one.goals}) == len(one.goals), one.name


def test_what_binds_stands_beside_a_missed_goal_only(made: Any) -> None:
    results = made.results(made.sweep([made.cell()], ["fused"]))
    both = Goals(
        title="t", name="x", goals=(goal(bound="<= 1000", binds="why"), goal(id="h", bound="<= 1e-9", binds="why"))
    )
    frame = next(goal_tables(results, [both])).frame
    assert list(frame["verdict"]) == ["met", "missed"]
    assert list(frame["binds"]) == ["", "why"]


def test_times_of_one_cell_are_compared_round_by_round_with_an_interval(tmp_path: Path, made: Any) -> None:
    """Samples drift together: medians of all of them are off by the drift, pairs are not."""
    rows = made.sweep([made.cell()], ["lik", "fused"])
    root = made.written(tmp_path / "results", rows)
    drift = [1.0] * 20 + [2.0] * 21
    kept = {
        row.key: {"ms": [factor * d for d in drift[:length]], "round": list(range(length))}
        for row, factor, length in zip(rows, (3.0, 1.0), (41, 20), strict=True)
    }
    append_samples(root / "h200" / "forward.csv", kept)
    one = assess([goal(bound=">= 2", against={"backends": ["lik"]})], load([root]))[0]
    assert (one.worst, one.low, one.high) == pytest.approx((3.0, 3.0, 3.0))
    (table,) = goal_tables(load([root]), [Goals(title="t", goals=(one.goal,), name="n")])
    assert table.frame["interval"].to_list() == ["3.00 to 3.00"]


def test_the_measurement_before_stands_beside_the_newest(tmp_path: Path, made: Any) -> None:
    """Three runs of three versions: of each cell the one before the last, and of what was measured once nothing."""
    rows = [
        made.modelled(made.cell(B=B), "fused").model_copy(
            update={"backend_version": str(run), "measured_at": f"2026-01-0{run}T00:00:00Z", "latency_ms": ms}
        )
        for run, B, ms in ((1, 1000, 9.0), (2, 1000, 3.0), (2, 2000, 5.0), (3, 1000, 1.0), (3, 2000, 2.0))
    ]
    results = load([made.written(tmp_path, rows)])
    asked = (
        goal(bound="<= 4"),
        goal(id="h", bound="<= 4", against={"backends": ["fused"]}),
        goal(id="i", bound=">= 0.5", against={"when": {"B": 1000}}),
    )
    frame = next(goal_tables(results, [Goals(title="t", goals=asked)])).frame
    assert list(frame["before"]) == ["5.00, 1 of 2", "", "0.600, 2 of 2"]
    assert list(frame["worst"])[:1] == [2.0]
    crashed = Row(
        cell=rows[2].cell, gpu=rows[2].gpu, backend="fused", backend_version="2", status="crash", error="signal 9",
        measured_at=rows[2].measured_at,
    )  # fmt: skip
    for given, told in (([*rows[:2], crashed, *rows[3:]], "3.00, 1 of 1, 1 failed"), ([crashed, rows[-1]], "1 failed")):
        failed = load([made.written(tmp_path / f"failed-{len(given)}", given)])
        assert list(next(goal_tables(failed, [Goals(title="t", goals=asked[:1])])).frame["before"]) == [told]
    once = load([made.written(tmp_path / "once", rows[-1:])])
    assert list(next(goal_tables(once, [Goals(title="t", goals=asked[:1])])).frame["before"]) == [""]


def test_the_worst_leads_to_its_row(made: Any) -> None:
    rows = made.sweep([made.cell(B=B) for B in (1000, 10_000)], ["fused"])
    table = next(goal_tables(made.results(rows), [Goals(title="t", goals=(goal(bound="<= 1000"),))]))
    worst = max(rows, key=lambda row: row.latency_ms or 0.0)
    assert table.columns[-1].key == "cell_hash"
    assert list(table.frame["cell_hash"]) == [worst.cell.hash()]
    assert list(table.frame["at"]) == ["forward: Nq = 1, B = 10K, Lq = 32, Ld = 300, d = 128, timing_policy = cold_l2"]
