"""Properties of the expanded grid: nothing twice, nothing lost without a reason, one identity a cell."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import DRAWN, AllowedFailure, Experiment, LeaveOut, axis_of, axis_value
from maxsim_bench.declare.grid import expand

sizes = st.lists(st.integers(1, 64), min_size=1, max_size=3, unique=True)
axes = st.fixed_dictionaries(
    {"B": sizes, "Nq": st.integers(1, 4), "d": sizes},
    optional={
        "Lq, Ld": st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=3, unique=True),
        "dtype": st.lists(st.sampled_from(["fp16", "bf16", "fp32"]), min_size=1, unique=True),
        "chunk": st.lists(st.one_of(st.just("none"), st.integers(0, 64)), min_size=1, max_size=3, unique=True),
        "variant": st.fixed_dictionaries({"loss": st.just(["sum", "infonce"]), "path": st.just("csr")}),
    },
)


def experiment(**changes: Any) -> Experiment:
    fields: dict[str, Any] = {"name": "tiny", "title": "t", "backends": ["eager", "fused"], "axes": {"B": [1, 2]}}
    return Experiment.model_validate(fields | changes)


@given(axes=axes, bound=st.integers(1, 64))
def test_every_point_of_the_product_is_planned_once_or_left_out_with_a_reason(axes: dict[str, Any], bound: int) -> None:
    rule = LeaveOut(when={"B": f"> {bound}"}, why="too many")
    plan = expand(experiment(axes=axes, leave_out=[rule]), "h200")
    planned = [p.cell for p in plan.planned]
    dropped = [o.cell for o in plan.left_out]
    everything = planned + dropped
    assert len(set(everything)) == len(everything)
    points = 1
    for key, values in axes.items():
        points *= 2 if key == "variant" else len(values) if isinstance(values, list) else 1
    assert len(everything) == points
    assert all(c.B is not None and bound >= c.B for c in planned)
    assert all(o.why == "too many" and o.cell.B is not None and bound < o.cell.B for o in plan.left_out)


@given(axes=axes)
def test_different_cells_of_a_grid_have_different_hashes(axes: dict[str, Any]) -> None:
    cells = experiment(axes=axes).cells("h200")
    assert len({c.hash() for c in cells}) == len(cells)


@pytest.mark.parametrize("field", [f for f in Cell.model_fields if f != "seed"], ids=lambda field: f"axis_{field}")
def test_every_axis_moves_the_hash(field: str) -> None:
    base = {"experiment": "a", "gpu": "h200", "op": "forward"}
    other = {
        "experiment": "b", "gpu": "cpu", "op": "search", "dtype": "fp16", "layout": "packed", "pairing": "pairs",
        "precision": "tf32", "timing_policy": "graph", "length_distribution": "scifact", "inputs": "scifact",
        "dataset": "scifact", "split": "test", "encoder": "minilm", "quantiser": "int8", "variant": "loss=sum",
    }.get(field, 7)  # fmt: skip
    assert Cell(**(base | {field: other})).hash() != Cell(**base).hash()  # type: ignore[arg-type]
    assert Cell(**base, seed=1).hash() != Cell(**base).hash()  # type: ignore[arg-type]


def test_a_constraint_on_backends_keeps_the_cell_and_drops_only_them() -> None:
    rule = {"when": {"B": {"not": 2}}, "backends": ["fused"], "why": "only at two"}
    plan = experiment(leave_out=[rule]).plan("h200")
    assert [(p.cell.B, p.backends) for p in plan.planned] == [(1, ("eager",)), (2, ("eager", "fused"))]
    assert [(o.cell.B, o.backends, o.why) for o in plan.left_out] == [(1, ("fused",), "only at two")]


@pytest.mark.parametrize(
    ("condition", "kept"),
    [(4, [1, 16]), ([1, 4], [16]), ("> B", [1, 4]), (">= 4", [1]), ("!= 4", [4]), ({"not": [1, 4]}, [1, 4])],
)
def test_conditions_compare_with_values_lists_and_other_axes(condition: Any, kept: list[int]) -> None:
    tiny = experiment(axes={"B": 4, "chunk": [1, 4, 16]}, leave_out=[{"when": {"chunk": condition}, "why": "w"}])
    assert [c.chunk for c in tiny.cells("h200")] == kept


def test_an_unused_axis_matches_no_comparison() -> None:
    tiny = experiment(axes={"B": 4, "chunk": ["none", 1]}, leave_out=[{"when": {"chunk": "< 9"}, "why": "w"}])
    assert [c.chunk for c in tiny.cells("h200")] == [None]


def test_any_stands_for_every_card_but_not_for_the_processor() -> None:
    tiny = experiment(axes={"B": 1, "gpu": ["h200", "any"]})
    assert [c.gpu for c in tiny.cells("l40s")] == ["l40s"]
    assert tiny.cells("cpu") == []
    assert experiment(axes={"B": 1, "gpu": ["h200"]}).cells("l4") == []


def test_a_profile_replaces_whole_axes_and_the_linked_keys_that_share_one() -> None:
    tiny = experiment(
        axes={"Lq, Ld": [[1, 2], [3, 4]], "B": [1, 2]},
        profiles={"smoke": {"axes": {"Lq": 9, "Ld": [8, 7]}, "backends": ["fused"], "timing": {"seconds": 0.5}}},
        baseline="eager",
    )
    assert [(c.B, c.Lq, c.Ld) for c in tiny.cells("h200", "smoke")] == [(1, 9, 8), (1, 9, 7), (2, 9, 8), (2, 9, 7)]
    changed = tiny.under("smoke")
    assert (changed.backends, changed.baseline, changed.timing.seconds) == (("fused",), None, 0.5)
    assert tiny.under("paper") is tiny


def test_a_cell_has_the_same_identity_in_every_profile() -> None:
    tiny = experiment(profiles={"smoke": {"axes": {"B": 2}}})
    assert set(tiny.cells("h200", "smoke")) < set(tiny.cells("h200"))


def test_a_cell_whose_inputs_exceed_the_card_is_left_out_with_the_sizes() -> None:
    big = {"axes": {"B": [10, 10**6], "Ld": 1024, "Lq": 32, "Nq": 1, "d": 128, "dtype": "fp16"}}
    plan = experiment(**big).plan("a100-40gb")
    assert [p.cell.B for p in plan.planned] == [10]
    assert "262.1 GB, and on a100-40gb there are 42.4 GB. Lower B" in plan.left_out[0].why
    assert len(experiment(**big, unfit="run").cells("a100-40gb")) == 2


def test_only_a_search_of_more_documents_than_are_drawn_repeats_them() -> None:
    """With all drawn it is the cell without, under a second name; other operators have no corpus."""
    axes = {"B": [100, 101], "Ld": 8, "Lq": 2, "Nq": 1, "d": 8, "dtype": "fp16", "variant": {"drawn": ["none", 100]}}
    plan = experiment(axes=axes, op="search").plan("h200")
    assert [(p.cell.B, p.cell.variant) for p in plan.planned] == [(100, None), (101, None), (101, "drawn=100")]
    assert "for searches of more documents than are drawn" in plan.left_out[0].why
    assert [p.cell.variant for p in experiment(axes=axes).plan("h200").planned] == [None, None]


@pytest.mark.parametrize("value", ["words", 1.5, True, 0, -5, "1e2", "", "²"])
def test_documents_are_drawn_in_whole_numbers(value: Any) -> None:
    with pytest.raises(ValueError, match="whole number, at least 1"):
        axis_value(DRAWN, value)


def test_a_constraint_is_idle_where_others_leave_out_all_that_it_matches() -> None:
    tiny = experiment(
        axes={"B": [1, 2, 10**6], "Ld": 1024, "Lq": 32, "Nq": 1, "d": 128, "dtype": "fp16", "gpu": "a100-40gb"},
        leave_out=[
            {"when": {"B": 2}, "why": "acts"},
            {"when": {"B": [1, 2]}, "why": "acts on what is left"},
            {"when": {"B": "<= 2"}, "why": "hidden"},
            {"when": {"B": 2}, "backends": ["fused"], "why": "of a cell that is left out"},
            {"when": {"B": 10**6}, "backends": ["fused"], "why": "of a cell that does not fit"},
            {"when": {"B": 4}, "why": "matches none"},
            {"when": {"B": 4}, "why": "matches none"},
            {"when": {"B": 3}, "backends": ["eager"], "why": "acts where the profile has the cell"},
            {"when": {"B": 3, "Lq": 32}, "backends": ["eager"], "why": "of a backend that is left out"},
            {"when": {"B": 3}, "backends": ["fused"], "why": "of a backend that the profile does not have"},
        ],
        profiles={"smoke": {"axes": {"B": [3]}, "backends": ["eager"]}},
    )
    assert [rule.why for rule in tiny.idle()] == [
        "hidden", "of a cell that is left out", "of a cell that does not fit", "matches none", "matches none",
        "of a backend that is left out", "of a backend that the profile does not have",
    ]  # fmt: skip


def test_a_constraint_that_is_written_twice_is_idle_once() -> None:
    twice = {"when": {"B": 1}, "why": "acts"}
    assert len(experiment(axes={"B": [1, 2]}, leave_out=[twice, twice]).idle()) == 1


def test_variants_are_axes_of_their_own() -> None:
    tiny = experiment(
        axes={"variant": {"path": ["csr", "atomic"], "loss": "sum"}},
        leave_out=[{"when": {"variant.path": "atomic"}, "why": "w"}],
    )
    (cell,) = tiny.cells("h200")
    assert cell.variant == "loss=sum;path=csr"
    assert (axis_of(cell, "variant.path"), axis_of(cell, "variant.x")) == ("csr", None)


class _Row:
    def __init__(self, status: str, backend: str = "eager", B: int = 1) -> None:
        self.status, self.backend = status, backend
        self.cell = Cell(experiment="tiny", gpu="h200", op="forward", B=B)


def test_only_a_failure_that_no_declaration_covers_counts() -> None:
    allowed = AllowedFailure(status="oom", backends="eager", when={"B": ">= 5"}, why="materialises")
    tiny = experiment(allow=[allowed])
    assert not tiny.failed(_Row("oom", B=5))
    assert tiny.failed(_Row("oom", B=4))
    assert tiny.failed(_Row("oom", backend="fused", B=5))
    assert tiny.failed(_Row("incorrect", B=5))
    assert not any(tiny.failed(_Row(s)) for s in ("ok", "unsupported", "skipped"))
