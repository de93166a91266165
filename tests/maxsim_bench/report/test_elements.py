"""Figures and tables made of rows: what is plotted, what is marked, what is chosen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from maxsim_bench.backends.registry import backends
from maxsim_bench.catalogue import experiments
from maxsim_bench.declare.cell import Cell
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples
from maxsim_bench.report import names, style
from maxsim_bench.report.axes import MOST_PANELS, panels, slice_for_figures, varying
from maxsim_bench.report.elements import artefacts, makers
from maxsim_bench.report.elements.headline import SIZES
from maxsim_bench.report.figures import Figure, _apart
from maxsim_bench.report.load import load
from maxsim_bench.report.tables import Table

EXPERIMENTS = Path(__file__).parents[3] / "experiments"


def found(results: Any) -> dict[str, Any]:
    return {a.name: a for a in artefacts(results)}


def test_every_metric_has_a_table_and_a_figure_over_each_axis_that_varies(made: Any, forward_rows: list[Row]) -> None:
    names = set(found(made.results(forward_rows)))
    for metric in ("latency", "memory", "speedup", "ceiling"):
        assert {f"forward/{metric}", f"forward/{metric}-over-B"} <= names
    assert "forward/latency-over-Nq" not in names


def test_a_line_of_times_names_what_was_measured_in_another_sitting(made: Any) -> None:
    """Most of a line is one sitting; of two equal ones the newer is. A paper's table has no room for it."""
    at = {"eager": "10:00", "eager_tf32": "10:04", "chunked": "10:09", "fused": "10:31", "flash_maxsim": "09:49"}

    def rows(B: int, *backends: str) -> list[Row]:
        stamped = made.sweep([made.cell(B=B)], backends)
        return [r.model_copy(update={"measured_at": f"2026-01-02T{at[r.backend]}:00+00:00"}) for r in stamped]

    lines = [*rows(10, *at), *rows(100, "eager", "chunked"), *rows(1000, "chunked", "fused")]
    shown = found(made.results(lines))
    table = shown["forward/latency"]
    assert dict(zip(table.frame["B"], table.frame["apart"], strict=True)) == {
        10: "flash-maxsim; fused (ours)", 100: "", 1000: "chunked",
    }  # fmt: skip
    assert "more than ten minutes from the others of the line" in table.caption
    assert "| apart |" in table.markdown()
    assert "& apart" not in table.latex()
    assert "apart" not in shown["forward/memory"].frame
    together = found(made.results(rows(10, "eager", "chunked")))["forward/latency"]
    assert "apart" not in together.markdown()
    assert "ten minutes" not in together.caption


def test_what_was_measured_again_alone_keeps_the_speedup_of_its_last_turn(tmp_path: Path, made: Any) -> None:
    """Its time is the newest; that an experiment was measured again by ours alone is no reason to lose a ratio."""
    first = made.sweep([made.cell(B=b) for b in (10, 100, 1000)], ["eager", "fused"])
    again = [
        row.model_copy(update={
            "backend_version": "2.0", "measured_at": "2026-02-03T04:05:06Z", "latency_ms": 2 * row.latency_ms,
            "latency_p20_ms": 2 * row.latency_p20_ms, "latency_p80_ms": 2 * row.latency_p80_ms,
            "speedup": None, "speedup_low": None, "speedup_high": None, "speedup_baseline": None,
        })
        for row in first if row.backend == "fused" and row.cell.B != 1000
    ]  # fmt: skip
    results = load([made.written(tmp_path / "results", [*first, *again])])
    shown = found(results)
    before = found(load([made.written(tmp_path / "before", first)]))
    pd.testing.assert_series_equal(shown["forward/speedup"].frame["fused"], before["forward/speedup"].frame["fused"])
    old, new = (x["forward/latency"].frame["fused"].astype(float) for x in (before, shown))
    assert (new / old).tolist() == pytest.approx([2, 2, 1])
    lines = shown["forward/speedup-over-B"].data
    assert lines.loc[lines["backend"] == "fused", "y"].notna().all()
    failed = Row(
        cell=again[0].cell, backend="fused", backend_version="2.0", status="incorrect", error="wrong",
        gpu=again[0].gpu, environment_id=again[0].environment_id, measured_at=again[0].measured_at,
    )  # fmt: skip
    wrong = found(load([made.written(tmp_path / "wrong", [*first, failed])]))
    assert wrong["forward/speedup"].frame["fused"].tolist()[0] == names.STATUS_WORDS["incorrect"]  # that stays told


def searched(made: Any, B: int, ceiling: str, extra: str) -> Row:
    at = made.cell("search_scaling", op="search", k=10, B=B, timing_policy="host")
    row: Row = made.modelled(at, "fused").model_copy(update={"backend": "search", "ceiling": ceiling, "extra": extra})
    return row


def test_a_search_says_whether_copies_from_host_memory_are_among_its_ceilings(made: Any) -> None:
    """A row with `percent_of_copy` is of a session that measured them, whichever ceiling binds; others are not."""
    before = [searched(made, B, "memory", '{"exact_topk": 1.0}') for B in (10, 100)]
    after = [searched(made, 1000, "copy", '{"percent_of_copy": 97.0}')]
    after += [searched(made, 2000, "compute", '{"percent_of_copy": 40.0}')]
    told = {}
    for name, rows in {"before": before, "after": after, "both": before + after}.items():
        shown = found(made.results(rows))
        told[name] = shown["search_scaling/ceiling"].caption
        assert told[name].split(" In %.")[0] in shown["search_scaling/ceiling-over-B"].caption
    copies, partly = "the read bandwidth or the rate of copies from pinned host memory", "Without the copies"
    assert "how fast copies from there are was not measured" in told["before"]
    assert copies not in told["before"]
    assert copies in told["after"]
    assert partly not in told["after"]
    assert copies in told["both"]
    assert partly in told["both"]


def test_what_has_nothing_to_copy_is_of_products_and_reads(made: Any, forward_rows: list[Row]) -> None:
    assert "copies" not in found(made.results(forward_rows))["forward/ceiling"].caption
    searches = [searched(made, B, "memory", "{}") for B in (10, 100)]
    here = [row.model_copy(update={"cell": row.cell.model_copy(update={"gpu": "cpu"})}) for row in searches]
    assert "copies" not in found(made.results(here))["search_scaling/ceiling"].caption


def test_running_out_of_memory_is_a_point_with_a_mark_never_a_gap(made: Any, forward_rows: list[Row]) -> None:
    data = found(made.results(forward_rows))["forward/latency-over-B"].data
    failed = data[(data["backend"] == "eager") & (data["x"] == 100_000) & (data["panel"].str.contains("Lq = 1024"))]
    assert list(failed["mark"]) == ["oom", "oom"]
    assert failed["y"].isna().all()
    expected = sum(row.status in ("ok", "oom") for row in forward_rows)
    assert len(data) == expected


def test_what_a_backend_does_not_claim_is_no_mark(made: Any) -> None:
    rows = made.sweep([made.cell(B=B) for B in (10, 100)], ["eager", "fused"])
    other = Row(
        cell=made.cell(B=10), backend="lik", backend_version="1", gpu="x", status="unsupported", error="d above 512"
    )
    data = found(made.results([*rows, other]))["forward/latency-over-B"].data
    assert "lik" not in set(data["backend"])


def test_a_line_that_ends_at_what_its_backend_does_not_take_has_a_mark_there(made: Any) -> None:
    rows = made.sweep([made.cell(B=B) for B in (10, 100, 1000)], ["eager", "fused"])
    rows += made.sweep([made.cell(B=B) for B in (10, 100)], ["lik"])
    refused = made.cell(B=1000)
    rows += [Row(cell=refused, backend="lik", backend_version="1", gpu="x", status="unsupported", error="too large")]
    for name in ("forward/latency-over-B", "forward/memory-over-B"):
        figure = found(made.results(rows))[name]
        lik = figure.data[figure.data["backend"] == "lik"]
        assert list(lik["mark"]) == ["", "", "unsupported"]
        assert "n/a: the backend does not take the cell" in figure.caption


def test_a_table_of_steps_over_ranks_says_how_many_gpus_each_took(made: Any) -> None:
    """B / Nq of them, fewest first; on a processor they are processes, and elsewhere every row is of one."""
    ranks = {"op": "training_step", "variant": "over=ranks;tau=0.02"}
    cells = [made.cell("ddp", Nq=Nq, B=B, **ranks) for Nq, B in ((128, 512), (256, 256), (128, 256))]
    table = found(made.results(made.sweep(cells, ["eager", "fused"])))["ddp/latency"]
    assert [c.header for c in table.columns][:4] == ["GPU", "GPUs", "Nq", "B"]
    assert [line[:4] for line in table.cells()] == [
        ["H200", "1", "256", "256"], ["H200", "2", "128", "256"], ["H200", "4", "128", "512"],
    ]  # fmt: skip
    here = [row.model_copy(update={"cell": row.cell.model_copy(update={"gpu": "cpu"})}) for row in made.sweep(cells)]
    for other in (made.results(here), made.results(made.sweep([made.cell(B=B) for B in (10, 100)]))):
        assert not [
            t for t in found(other).values() if isinstance(t, Table) and "GPUs" in [c.header for c in t.columns]
        ]


def test_error_bars_are_the_20th_and_80th_percentile(made: Any) -> None:
    rows = made.sweep([made.cell(B=B) for B in (10, 100)], ["eager", "fused"])
    data = found(made.results(rows))["forward/latency-over-B"].data
    row = next(r for r in rows if r.backend == "fused" and r.cell.B == 10)
    line = data[(data["backend"] == "fused") & (data["x"] == 10)].iloc[0]
    assert (line["y"], line["low"], line["high"]) == (row.latency_ms, row.latency_p20_ms, row.latency_p80_ms)


def test_a_figure_takes_several_cards(made: Any, forward_rows: list[Row]) -> None:
    figure = found(made.results(forward_rows))["forward/latency-over-B"]
    assert set(figure.data["device"]) == {"h200", "a100-80gb"}
    labels = [text.get_text() for legend in figure.draw(figure.data).legends for text in legend.get_texts()]
    assert labels[0] == "fused (ours)"
    assert labels[-3:] == ["OOM", "A100 80 GB", "H200"]
    styles = {line.get_linestyle() for line in figure.draw(figure.data).axes[0].lines}
    assert {"-", "--"} <= styles


def test_a_baselines_speed_up_over_itself_is_the_line_at_one(made: Any, forward_rows: list[Row]) -> None:
    data = found(made.results(forward_rows))["forward/speedup-over-B"].data
    assert set(data.loc[data["mark"] == "", "backend"]) >= {"fused", "lik"}
    assert "eager" not in set(data.loc[data["mark"] == "", "backend"])


def test_a_baseline_alone_has_no_figure_of_speed_ups(made: Any) -> None:
    names = set(found(made.results(made.sweep([made.cell(B=B) for B in (1, 10, 100)], ["eager"]))))
    assert "forward/latency-over-B" in names
    assert "forward/speedup-over-B" not in names


def test_at_most_six_panels_and_the_caption_says_what_is_left_out(made: Any) -> None:
    rows = made.sweep(
        [made.cell("lengths", B=B, Lq=Lq, Ld=Ld) for B in (4, 8, 64) for Lq in (32, 64, 128) for Ld in (128, 256, 512)],
        ["eager", "fused"],
    )
    figure = found(made.results(rows))["lengths/latency-over-Ld"]
    assert figure.data["panel"].nunique() == MOST_PANELS
    other = found(made.results(rows))["lengths/latency-over-B"]
    assert "6 of 9 settings are shown" in other.caption


def test_figures_show_one_type_and_policy_and_say_which(made: Any) -> None:
    cells = [
        made.cell(dtype=t, timing_policy=p, B=B) for t in ("bf16", "fp16") for p in ("graph", "cold_l2") for B in (1, 2)
    ]
    frame = made.results(made.sweep(cells, ["fused"])).frame
    shown, told = slice_for_figures(frame)
    assert set(shown["dtype"]) == {"fp16"}
    assert set(shown["timing_policy"]) == {"cold_l2"}
    assert told == "cold L2, fp16"
    assert varying(shown) == ["B"]


def test_a_setting_with_one_point_has_no_line(made: Any) -> None:
    frame = made.results(made.sweep([made.cell(B=10), made.cell(B=20, Ld=64)], ["fused"])).frame
    shown, _, _ = panels(frame, "B")
    assert shown.empty


def titles(made: Any, cells: list[Cell]) -> tuple[list[str], str]:
    """Titles of the panels over B, and what the caption is told of them."""
    _, panel, told = panels(made.results(made.sweep(cells, ["fused"])).frame, "B")
    return list(panel.cat.categories), told


def test_panels_name_their_settings_in_words_and_leave_to_the_caption_what_they_share(made: Any) -> None:
    def over(*given: dict[str, Any]) -> tuple[list[str], str]:
        return titles(made, [made.cell(B=B, **axes) for axes in given for B in (10, 100)])

    assert over({"memory_cap": None}, {"memory_cap": 42_400_000_000}) == (["no cap", "cap = 42.4 GB"], "")
    stages = [{"variant": f"loss=cross_entropy;stage={stage}"} for stage in ("dd", "dq")]
    assert over(*stages) == (["stage = dd", "stage = dq"], " All panels: loss = cross entropy.")
    drawn = ({"k": 10, "variant": "host=pageable"}, {"k": 10, "variant": "drawn=20000;host=pageable"})
    assert set(over(*drawn)[0]) == {"all documents differ", "20K documents repeated"}
    packed = [
        {"layout": "packed", "length_distribution": f"{words}:10:512"} for words in ("uniform", "lognormal:4.6:0.7")
    ]
    assert set(over(*packed)[0]) == {"lengths 10–512", "lengths 10–512, median 99"}
    alike = [{"layout": "packed", "length_distribution": f"lognormal:4.6:{spread}:10:512"} for spread in (0.7, 0.9)]
    assert len(set(over(*alike)[0])) == 2, "what words hide is told as it is configured"


def test_tables_hold_a_word_where_no_number_is(made: Any, forward_rows: list[Row]) -> None:
    table = found(made.results(forward_rows))["forward/latency"]
    line = next(c for c in table.cells() if c[:4] == ["A100 80 GB", "100K", "1024", "1024"])
    place = [c.key for c in table.columns].index("eager")
    assert line[place] == "OOM"


def test_the_memory_figure_knows_its_caps(made: Any) -> None:
    rows = made.sweep(
        [
            made.cell("memory_scaling", B=B, Lq=1024, Ld=1024, memory_cap=cap)
            for cap in (42_400_000_000, None)
            for B in (1000, 20_000)
        ],
        ["eager", "fused"],
    )  # fmt: skip
    made_of = found(made.results(rows))
    data = made_of["memory_scaling/footprint"].data
    assert list(dict.fromkeys(data["panel"])) == ["40 GB card", "whole card"]
    eager = data[(data["panel"] == "40 GB card") & (data["backend"] == "eager")]
    assert list(eager["mark"]) == ["", "oom"]
    largest = made_of["memory_scaling/largest"].frame.set_index(["memory_cap", "backend"])
    assert largest.loc[(42.4e9, "eager"), "first_oom"] == 20_000
    assert largest.loc[(42.4e9, "fused"), "largest"] == 20_000
    assert largest["first_refused"].isna().all()
    refused = Row(
        cell=made.cell("memory_scaling", B=50_000, Lq=1024, Ld=1024), backend="fused", backend_version="1", gpu="x",
        status="unsupported", error="more than it can address",
    )  # fmt: skip
    frame = found(made.results([*rows, refused]))["memory_scaling/largest"].frame.set_index(["memory_cap", "backend"])
    told = frame.loc[frame["first_refused"].notna(), "first_refused"]
    assert [(backend, B) for (_, backend), B in told.items()] == [("fused", 50_000)]


def test_the_frontier_has_a_point_a_chunk_and_one_for_each_other_backend(made: Any) -> None:
    rows = made.sweep(
        [made.cell("frontier_chunked", Lq=512, Ld=1024, B=2000, chunk=c) for c in (0, 64, 1024)],
        ["chunked", "fused", "eager"],
    )
    data = found(made.results(rows))["frontier_chunked/frontier"].data
    assert sorted(data["backend"]) == ["chunked", "chunked", "chunked", "eager", "fused"]


def ranking(backend: str, delta: float, dataset: str = "scifact") -> Row:
    cell = Cell(experiment="fidelity", gpu="h200", op="fidelity", dataset=dataset, split="test", encoder="minilm")
    return Row(
        cell=cell, backend=backend, backend_version="1", gpu="NVIDIA H200", status="ok", ndcg_at_10=0.7 + delta,
        ndcg_at_10_reference=0.7, delta=delta, delta_low=delta - 1e-4, delta_high=delta + 1e-4, queries=300,
    )  # fmt: skip


def test_fidelity_has_a_table_and_a_figure_with_intervals(made: Any) -> None:
    made_of = found(
        made.results([ranking("fused", 0.0), ranking("fused_int8", -2e-3), ranking("fused", 1e-5, "apidocs")])
    )
    assert list(made_of["fidelity/fidelity"].frame["collection"]) == ["apidocs", "scifact", "scifact"]
    data = made_of["fidelity/difference"].data
    assert set(data["collection"]) == {"apidocs", "scifact"}
    assert (data["delta_high"] > data["delta"]).all()
    assert len(made_of["fidelity/difference"].draw(data).axes) == 1


def test_the_short_table_of_quality_holds_the_largest_difference_of_each_kind_and_a_verdict(made: Any) -> None:
    rows = [
        ranking("reference", 0.0), ranking("fused", -2e-5), ranking("search", 4e-5), ranking("lik", 0.0),
        ranking("eager", 2e-3), ranking("fused_int8", -2e-3), ranking("fused", -6e-4, "apidocs"),
        ranking("fused_int8_doc", 4e-3, "apidocs"), ranking("fused", 0.0, "cranfield"),
        ranking("lik", 0.0, "cranfield").model_copy(update={"status": "crash", "delta": None}),
        ranking("flash_maxsim", 0.0, "cranfield").model_copy(update={"status": "unsupported", "delta": None}),
    ]  # fmt: skip
    frame = found(made.results(rows))["summary/quality"].frame.set_index("collection")
    scifact = frame.loc["scifact"]
    assert (scifact["ours"], scifact["peers"], scifact["eager"], scifact["token"]) == (4e-5, 0.0, 2e-3, 2e-3)
    assert scifact["backends"] == 5
    assert scifact["verdict"] == "exact: holds, INT8: holds"
    assert frame.loc["apidocs", "verdict"] == "exact: 6.0e-04 exceeds 0.0005, INT8: 4.0e-03 exceeds 0.003"
    assert frame.loc["cranfield", "verdict"] == "LIK failed, exact: holds"


def test_the_short_table_of_quality_says_what_its_data_sets_are(made: Any) -> None:
    """A reader of the README meets their names there first; what only somebody's own folder holds is not explained."""
    rows = [ranking("fused", 0.0, name) for name in ("limit-small", "mine", "cranfield")]
    (note,) = found(made.results(rows))["summary/quality"].notes
    assert note.startswith("What the data sets are. cranfield: Cranfield: abstracts on aerodynamics")
    assert note.count("limit-small: ") == 1
    assert "mine: " not in note


def test_the_limits_shown_are_those_that_the_audit_holds_scorers_to() -> None:
    from maxsim_bench.report.elements import fidelity, quality
    from maxsim_bench.retrieve import audit

    assert (fidelity.LIMIT, quality.INT8_LIMIT) == (audit.LIMIT, audit.INT8_LIMIT)


def test_a_sentence_says_what_int8_gains_where_products_and_where_reading_bind(made: Any) -> None:
    """Of two cells of one kind the larger is told; bytes are those of the documents, the difference is the largest."""
    places = ((1000, 1024, 1024), (100, 1024, 1024), (1000, 32, 1024))
    fp16 = [made.modelled(made.cell("int8", B=B, Lq=Lq, Ld=Ld), "fused") for B, Lq, Ld in places]
    gain = (2.0, 5.0, 1.5)
    int8 = [
        row.model_copy(
            update={"backend": "fused_int8", "latency_ms": row.latency_ms / g, "prepare_bytes": row.input_bytes // 2}
        )
        for row, g in zip(fp16, gain, strict=True)
    ]
    ranked = [ranking("fused_int8", -2e-3), ranking("fused_int8", 1e-3, "apidocs")]
    sentence, _ = found(made.results([*fp16, *int8, *ranked]))["summary/quality"].notes
    assert sentence == (
        "What INT8 gains and costs on H200: one scale a token is 2.00× as fast as our fp16 where products bind (Lq = "
        "1024, Ld = 1024, B = 1K) and 1.50× as fast as our fp16 where reading binds (Lq = 32, Ld = 1024, B = 1K), in "
        "50 % of its bytes, with a |ΔnDCG@10| of at most 2.0e-03 in 2 audits of 2 data sets."
    )


def test_per_query_values_are_read_from_the_file_beside_the_store(tmp_path: Path, made: Any) -> None:
    row = ranking("fused", -0.1)
    made.written(tmp_path, [row])
    side = tmp_path / "h200" / "fidelity" / f"scifact-test-minilm-{row.cell.hash()}.csv"
    side.parent.mkdir()
    side.write_text("query,reference,fused\nq1,1.0,-0.25\nq2,0.5,\nq3,1.0,-0.25\n")
    figure = found(load([tmp_path]))["fidelity/queries"]
    assert figure.data.to_dict("list") == {
        "panel": ["scifact"] * 2, "backend": ["fused"] * 2, "x": [1.0, 0.5], "y": [0.75, 0.5], "queries": [2, 1],
    }  # fmt: skip
    assert "2 of 3 pairs of a query and a scorer did" in figure.caption


def test_two_encoders_of_a_data_set_are_two_panels_and_two_lines(tmp_path: Path, made: Any) -> None:
    rows = [ranking("fused", 0.0), ranking("fused", 0.0)]
    cell = rows[1].cell.model_copy(update={"encoder": "minilm-colbert-128"})
    rows[1] = rows[1].model_copy(update={"cell": cell})
    made.written(tmp_path, rows)
    for row in rows:
        side = tmp_path / "h200" / "fidelity" / f"scifact-test-{row.cell.encoder}-{row.cell.hash()}.csv"
        side.parent.mkdir(exist_ok=True)
        side.write_text("query,reference,fused\nq1,1.0,\n")
    shown = found(load([tmp_path]))
    assert list(shown["fidelity/queries"].data["panel"]) == ["scifact\nminilm", "scifact\nminilm-colbert-128"]
    assert list(shown["summary/quality"].frame["encoder"]) == ["minilm", "minilm-colbert-128"]
    assert "encoder" in {column.key for column in shown["summary/quality"].columns}


def test_the_square_of_lengths_shows_ours_against_the_best_other(made: Any) -> None:
    rows = made.sweep(
        [made.cell("lengths", Lq=Lq, Ld=Ld) for Lq in (32, 64) for Ld in (128, 256)], ["eager", "lik", "fused"]
    )
    data = found(made.results(rows))["lengths/square-ahead-h200"].data
    at = {(r.cell.Lq, r.cell.Ld, r.backend): r.latency_ms for r in rows}
    first = data.iloc[0]
    best = min(at[32, 128, "eager"], at[32, 128, "lik"])
    assert first["value"] == pytest.approx(best / at[32, 128, "fused"])


@pytest.mark.parametrize(("taken", "interval"), [(6, "2.00 to 2.00"), (5, "")])
@pytest.mark.parametrize("experiment", ["forward", "forward_limits"])
def test_the_readmes_tables_show_ours_as_it_took_turns_with_a_peer(
    tmp_path: Path, made: Any, experiment: str, taken: int, interval: str
) -> None:
    """The interval with it where enough was taken for one."""
    lik, fused = made.sweep([made.cell(experiment, B=1000, Lq=32, Ld=300)], ["lik", "fused"])
    alone = fused.model_copy(
        update={"backend_version": "newer", "measured_at": "2099-01-01T00:00:00+00:00", "latency_ms": 1e-6}
    )
    root = made.written(tmp_path, [lik, fused, alone])
    times, rounds = {lik.key: 2.0, fused.key: 1.0, alone.key: 1e-6}, list(range(taken))
    company = {lik.key: ["fused", "lik"], fused.key: ["fused", "lik"], alone.key: ["fused"]}
    append_samples(
        root / "h200" / f"{experiment}.csv",
        {key: {"ms": [ms] * taken, "round": rounds, "interleaved_with": company[key]} for key, ms in times.items()},
    )
    name, column = {"forward": ("forward", "fused"), "forward_limits": ("limits", "ours")}[experiment]
    (line,) = found(load([root]))[f"summary/{name}-h200"].frame.to_dict("records")
    assert (line[column], line["ratio"]) == (fused.latency_ms, pytest.approx(2.0))
    assert line["interval"] == interval


def test_no_two_functions_make_the_same_artefact_and_all_are_found() -> None:
    assert {"sweeps.sweep_figures", "memory.chunk_frontier", "fidelity.fidelity_table", "headline.headline"} <= set(
        makers()
    )


def test_every_drawing_of_every_element_can_be_saved(tmp_path: Path, made: Any) -> None:
    """One small figure of each kind, with the hash of its data in both files."""
    rows = made.sweep([made.cell(B=B) for B in (10, 100)], ["eager", "fused"])
    rows += made.sweep([made.cell("frontier_chunked", B=2000, chunk=c) for c in (64, 1024)], ["chunked", "fused"])
    rows += made.sweep([made.cell("lengths", Lq=Lq) for Lq in (32, 64)], ["eager", "fused"])
    rows += [ranking("fused", 0.0)]
    kinds: dict[Any, Figure] = {}
    for figure in (a for a in artefacts(made.results(rows)) if isinstance(a, Figure)):
        kinds.setdefault(getattr(figure.draw, "func", figure.draw), figure)
    assert len(kinds) == 4
    for figure in kinds.values():
        for path in style.save(
            figure.draw(figure.data), tmp_path / figure.name, title="t", data_hash=figure.data_hash()
        ):
            assert f"data sha256:{figure.data_hash()}".encode() in path.read_bytes()


def test_nothing_measured_gives_nothing(made: Any) -> None:
    assert [a for a in artefacts(made.results([])) if isinstance(a, (Table, Figure))] == []


def test_cells_where_ours_is_slower_are_listed_largest_first(made: Any) -> None:
    rows = made.sweep([made.cell(B=B) for B in (10, 100, 1000)], ["eager", "lik", "fused"])
    times = {(r.cell.B, r.backend): r.latency_ms for r in rows}
    worse = [
        r.model_copy(update={"latency_ms": factor * times[B, "eager"]}) if (r.backend, r.cell.B) == ("fused", B) else r
        for r in rows
        for B, factor in [(r.cell.B, {10: 1.5, 100: 3.0, 1000: 0.001}[r.cell.B])]
    ]
    table = found(made.results(worse))["losses/slower"]
    assert list(table.frame["B"]) == [100, 10]
    assert list(table.frame["rival"]) == ["eager", "eager"]
    assert table.frame["ratio"].to_list() == pytest.approx([3.0, 1.5])
    assert table.caption.startswith("2 of 3 cells")


@pytest.mark.parametrize(
    ("ours", "slower"),
    [
        ({"fused": 2.0}, {("fused", "flash_maxsim_int8"): 2.0}),
        ({"fused": 2.0, "fused_int8": 0.9}, {}),
        ({"fused": 2.0, "fused_int8": 1.5}, {("fused_int8", "flash_maxsim_int8"): 1.5}),
        ({"fused": 3.3, "fused_int8": 0.9}, {("fused", "lik"): 1.1}),
        ({"fused": 2.0, "fused_fp8": 0.5}, {("fused", "flash_maxsim_int8"): 2.0}),
    ],
    ids=["ours of fp16 alone", "ours of codes wins", "ours of codes loses", "fp16 loses, too", "codes of another kind"],
)
def test_scores_of_codes_are_compared_with_ours_of_the_same_codes(made: Any, ours: Any, slower: Any) -> None:
    times = {"flash_maxsim_int8": 1.0, "lik": 3.0, **ours}
    rows = [
        made.modelled(made.cell(), "lik").model_copy(update={"backend": backend, "latency_ms": ms})
        for backend, ms in times.items()
    ]
    frame = found(made.results(rows))["losses/slower"].frame
    told = {(line.backend, line.rival): pytest.approx(line.ratio) for line in frame.itertuples()}
    assert told == slower


def test_first_calls_are_shown_beside_warm_ones(made: Any) -> None:
    rows = [
        made.modelled(made.cell("cold_start", variant=f"study=first_call;cache={cache}"), "fused").model_copy(
            update={"extra": extra}
        )
        for cache, extra in (("populated", '{"first_call_s": 2.2}'), ("empty", '{"first_call_s": 7.3}'), ("x", "{}"))
    ]
    frame = found(made.results(rows))["cold_start/first_call"].frame
    assert list(frame["cache"]) == ["empty", "populated"]
    assert list(frame["seconds"]) == [7.3, 2.2]
    assert list(frame["latency_ms"]) == [rows[1].latency_ms, rows[0].latency_ms]
    assert "cold_start/first_call" not in found(made.results(made.sweep([made.cell()], ["fused"])))


def test_traffic_that_was_counted_stands_beside_what_is_computed(made: Any) -> None:
    cell = made.cell("traffic", Lq=128, Ld=1024)
    told = {
        "eager_tf32": {"hbm_gb_computed": 1.3, "hbm_gb_counted": 1.5, "hbm_read_gb": 1.0, "hbm_written_gb": 0.5},
        "fused": {"hbm_gb_computed": 0.26, "hbm_gb_counted": 0.3, "hbm_read_gb": 0.3, "hbm_written_gb": 0.0},
        "flash_maxsim": {"hbm_gb_computed": 0.26},
        "lik": {},
    }
    rows = [
        made.modelled(cell, backend).model_copy(update={"extra": json.dumps(extra), "latency_ms": 0.1})
        for backend, extra in told.items()
    ]
    table = found(made.results(rows))["traffic/bytes"]
    lines = table.frame.set_index("backend")
    assert list(lines.index) == ["eager_tf32", "flash_maxsim", "fused"]
    assert lines.loc["fused", "computed_ratio"] == pytest.approx(5.0)
    assert lines.loc["fused", "counted_ratio"] == pytest.approx(5.0)
    assert lines.loc["fused", "rate"] == pytest.approx(0.3 / 1e-4)
    assert lines.loc["eager_tf32", "written"] == pytest.approx(500.0)
    (note,) = table.notes
    assert note.startswith("eager, FP32/TF32 at Lq = 128: more bytes than the card's memory moves")
    assert lines.loc["flash_maxsim", ["counted", "counted_ratio", "rate"]].isna().all()
    assert table.element == "tab:traffic"
    assert "traffic/bytes" not in found(made.results(made.sweep([made.cell()], ["fused"])))


def test_lines_of_steps_over_ranks_do_not_cross_numbers_of_gpus(made: Any) -> None:
    """B / Nq GPUs: over B at a fixed Nq a line would go from one number of GPUs to another."""
    ranks = {"op": "training_step", "variant": "over=ranks;tau=0.02"}
    cells = [made.cell("ddp", Nq=B // gpus, B=B, **ranks) for gpus in (1, 2) for B in (256, 512)]
    drawn = found(made.results(made.sweep(cells, ["eager", "fused"])))
    assert [name for name in drawn if name.startswith("ddp/latency-over")] == ["ddp/latency-over-B"]
    data = drawn["ddp/latency-over-B"].data
    assert set(zip(data["panel"], data["x"], strict=True)) == {
        (panel, B) for panel in ("1 GPU", "2 GPUs") for B in (256, 512)
    }


def test_wrong_throttled_and_wide_rows_are_reported(made: Any) -> None:
    good = made.modelled(made.cell(), "fused")
    wrong = Row(cell=made.cell(), backend="lik", backend_version="1", gpu="x", status="incorrect", error="off by 3")
    hot = made.modelled(made.cell(B=7), "fused").model_copy(update={"throttled": "thermal"})
    wide = made.modelled(made.cell(B=8), "fused").model_copy(update={"ci_width_percent": 30.0})
    frame = found(made.results([good, wrong, hot, wide]))["losses/doubtful"].frame
    assert sorted(frame["what"]) == ["throttled: thermal", "wide interval", "wrong result"]
    assert "losses/doubtful" not in found(made.results([good]))


def test_the_table_of_limits_sets_ours_beside_the_faster_peer(made: Any) -> None:
    """The ratio is the better peer's time over ours; a ragged cell names its distribution instead of a length.

    Whose documents they are is told: sixty-four queries with their own read as many times as much.
    """
    cells = [
        made.cell(experiment="forward_limits", Nq=64),
        made.cell(experiment="forward_limits", layout="packed", length_distribution="uniform:20:512"),
        made.cell(
            experiment="forward_limits", Nq=32, pairing="candidates", layout="masked",
            length_distribution="uniform:20:512",
        ),
    ]  # fmt: skip
    rows = made.sweep(cells, ["eager", "fused", "flash_maxsim", "lik"])
    table = found(made.results(rows))["summary/limits-h200"]
    peers = {r.backend: r.latency_ms for r in rows if r.cell.Nq == 64 and r.status == "ok"}
    first = table.frame[table.frame["Nq"] == 64].iloc[0]
    assert first["ratio"] == pytest.approx(min(peers["flash_maxsim"], peers["lik"]) / peers["fused"])
    assert "uniform:20:512 (packed)" in set(table.frame["Ld"])
    told = {int(line["Nq"]): (line["documents"], line["Ld"]) for _, line in table.frame.iterrows()}
    assert told[64] == ("shared", str(cells[0].Ld))
    assert told[32] == ("their own", "uniform:20:512 (masked)")


def test_a_line_of_a_short_table_leads_to_its_cell(made: Any, forward_rows: list[Row]) -> None:
    """As `maxsim-bench show` takes it: last, in full in the CSV; the README has no room for it."""
    audited = [ranking("reference", 0.0), ranking("fused", 0.0)]
    limited = made.sweep([made.cell(experiment="forward_limits", Nq=64)], ["eager", "fused", "lik"])
    tables = found(made.results([*forward_rows, *limited, *audited]))
    for name, rows in (
        ("summary/forward-h200", [row for row in forward_rows if row.cell.gpu == "h200" and row.cell.B in SIZES]),
        ("summary/limits-h200", limited),
        ("summary/quality", audited),
    ):
        lines = tables[name].frame["cell_hash"]
        assert set(lines) == {row.cell.hash() for row in rows}, name
        assert [line[-1] for line in tables[name].cells()] == [digest[:8] for digest in lines]
        assert tables[name].csv().splitlines()[0].endswith(",cell_hash")
        assert "cell_hash" not in [column.key for column in tables[name].narrow().columns]


@pytest.mark.parametrize(
    ("x", "log", "shown"),
    [
        ([1.0, 2.0, 3.0], False, [1.0, 2.0, 3.0]),
        ([1e3, 1e4, 1e5, 1.5e5, 1.75e5], True, [1e3, 1e4, 1.75e5]),  # 100K lies too close to 175K
        ([7.0, 14.0, 80.0, 150.0, 156.0], False, [7.0, 80.0, 156.0]),
        ([5.0], False, [5.0]),
    ],
)
def test_labels_of_an_axis_leave_room_for_each_other(x: list[float], log: bool, shown: list[float]) -> None:
    assert _apart(np.array(x), log=log, room=style.PANEL_POINTS) == shown


def test_every_backend_has_a_name_for_readers_and_a_look_that_no_other_of_its_experiments_has() -> None:
    for name in backends():
        assert name in names.BACKENDS, name
        assert name in style.LOOKS, name
    for experiment in experiments(EXPERIMENTS, ()):
        looks = [style.look(name) for name in experiment.backends]
        assert len(set(looks)) == len(looks), experiment.name


@pytest.mark.parametrize(
    ("text", "wide", "lines"),
    [
        ("Lq = 32, Ld = 300", 2, ["Lq = 32, Ld = 300"]),
        ("Lq = 32, Ld = 512, layout = packed, length_distribution = uniform:20:512", 2,
         ["Lq = 32, Ld = 512,", "layout = packed,", "length_distribution =", "uniform:20:512"]),
        ("Lq = 32, Ld = 512, layout = packed, length_distribution = uniform:20:512", 1,
         ["Lq = 32, Ld = 512, layout = packed,", "length_distribution = uniform:20:512"]),
        ("variant = corpus=500000;stage=rerank", 2, ["variant = corpus=500000;", "stage=rerank"]),
    ],
)  # fmt: skip
def test_a_title_is_broken_where_its_panel_ends(text: str, wide: int, lines: list[str]) -> None:
    assert style.title(text, wide).split("\n") == lines


def test_what_is_unused_in_a_setting_is_not_named_in_its_title(made: Any) -> None:
    cells = [made.cell(B=B) for B in (10, 100)]
    cells += [made.cell(B=B, layout="packed", length_distribution="uniform:20:512") for B in (10, 100)]
    figure = found(made.results(made.sweep(cells, ["eager", "fused"])))["forward/latency-over-B"]
    titles = set(figure.data["panel"])
    assert titles == {"layout = dense", "layout = packed, lengths 20–512"}
