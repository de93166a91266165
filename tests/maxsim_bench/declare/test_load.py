"""A file's mistakes are told at once, with line, key and a suggestion."""

from __future__ import annotations

from pathlib import Path

import pytest

from maxsim_bench.declare.experiment import DeclarationError, Experiment, parse_bytes
from maxsim_bench.declare.load import load, load_directory

KNOWN = ("eager", "fused", "chunked")
COLLECTIONS = ("cranfield", "scifact")
GOOD = """\
name = "tiny"
title = "A tiny grid"
backends = ["eager", "fused"]
baseline = "eager"

[axes]
"Lq, Ld" = [[32, 300]]
B = [1, 2]
memory_cap = ["none", "40GB"]
Nq = 1
d = 128
dtype = "fp16"
"""


def problems(tmp_path: Path, text: str, name: str = "tiny.toml") -> list[str]:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DeclarationError) as caught:
        load(path, KNOWN, COLLECTIONS)
    return [p.removeprefix(f"{tmp_path}/") for p in caught.value.problems]


def test_a_good_file_loads_and_caps_have_the_papers_meaning(tmp_path: Path) -> None:
    path = tmp_path / "tiny.toml"
    path.write_text(GOOD)
    experiment = load(path, KNOWN)
    assert [c.memory_cap for c in experiment.cells("h200")] == [None, 42_400_000_000] * 2
    assert experiment.source == str(path)


def test_all_mistakes_of_a_file_are_told_in_one_failure_in_the_order_of_the_lines(tmp_path: Path) -> None:
    told = problems(
        tmp_path,
        """\
name = "other"
title = "A tiny grid"
backend = "x"
backends = ["eager", "fuse"]
baseline = "chunked"

[axes]
Lq = [32, 0]
ld = 300
B = []
dtype = "fp61"
gpu = "h20"

[timing]
second = 1

[[leave_out]]
when = { Bb = 3 }
why = "w"

[[leave_out]]
when = { B = "> many" }

[profiles.smok]
""",
    )
    assert told == [
        "tiny.toml:1: name: 'other', but the file is tiny.toml. Name both alike, the CSV too takes this name.",
        "tiny.toml:3: backend: unknown key. Did you mean 'backends'?",
        "tiny.toml:4: backends: unknown backend 'fuse'. Did you mean 'fused'?",
        "tiny.toml:5: baseline: 'chunked' is not among the backends of this experiment. Choose from eager, fuse.",
        "tiny.toml:8: axes.Lq: Lq = 0, but input should be greater than or equal to 1. Remove or correct it.",
        "tiny.toml:9: axes.ld: unknown axis 'ld'. Did you mean 'Ld'?",
        "tiny.toml:10: axes.B: is empty, so the grid has no cell. Give at least one value, or remove the axis.",
        "tiny.toml:11: axes.dtype: dtype = 'fp61', but input should be 'fp16', 'bf16' or 'fp32'. Remove or correct it.",
        "tiny.toml:12: axes.gpu: unknown card 'h20'. Did you mean 'h200'?",
        "tiny.toml:15: timing.second: unknown key. Did you mean 'seconds'?",
        "tiny.toml:18: leave_out.when.Bb: unknown axis. Did you mean 'B'?",
        "tiny.toml:21: leave_out: why is missing.",
        "tiny.toml:22: leave_out.when.B: '> many' compares with neither a whole number nor an axis. "
        "Choose from B, Ld, Lq, Nq, chunk, d, dataset, dtype, encoder, gpu, inputs, k, layout, length_distribution, "
        "memory_cap, pairing, precision, quantiser, seed, split, timing_policy.",
        "tiny.toml:24: profiles.smok: unknown profile. Did you mean 'smoke'? The file itself is full.",
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("B = [1, 2]", "B = [1, 1]"), "tiny.toml:8: axes.B: holds 1 twice. Remove one."),
        (("[[32, 300]]", "[[32]]"), "tiny.toml:7: axes.Lq, Ld: [32] is not one value for each of Lq, Ld. "
         "Write [[32, 300], [32, 1024]]."),
        (("B = [1, 2]", "Ld = 4"), "tiny.toml:6: axes: Ld is given twice. Name it in one key only."),
        (('"40GB"', '"40 lots"'), "tiny.toml:9: axes.memory_cap: memory_cap = '40 lots', but '40 lots' is not a size. "
         "Write bytes, or a number with MB, GB, MiB or GiB: 40GB. Remove or correct it."),
        (("B = [1, 2]", "B = [1, 2"), "tiny.toml:9: not TOML: Unclosed array."),
        (("[axes]", "allow = [3]\n[axes]"),
         "tiny.toml:6: allow: 3, but input should be a table."),
        (("[axes]", "profiles = { smoke = 3 }\n[axes]"),
         "tiny.toml:6: profiles.smoke: 3, but input should be a table."),
        (("[axes]", "profiles = { smoke = { backends = 3 } }\n[axes]"), "tiny.toml:6: profiles.smoke.backends: "
         "3, but input should be a list."),
        (('"eager", "fused"]', '"eager", 3]'), "tiny.toml:3: backends: 3, but input should be a valid string."),
        (('"eager", "fused"]', '"eager", ["fused"]]'),
         "tiny.toml:3: backends: ['fused'], but input should be a valid string."),
        (("B = [1, 2]", 'gpu = [["cpu"]]'), "tiny.toml:8: axes.gpu: unknown card ['cpu']. Did you mean 'cpu'?"),
        (('baseline = "eager"', 'isolation = ["fresh"]'),
         "tiny.toml:4: isolation: ['fresh'], but input should be 'shared' or 'fresh'."),
        (("B = [1, 2]", "variant = 3"), "tiny.toml:8: axes.variant: is a table: [axes.variant] with one list for each "
         "free axis."),
        (('"none", "40GB"', '["40GB"]'), "tiny.toml:9: axes.memory_cap: memory_cap = ['40GB'], but ['40GB'] is not a "
         "size. Write bytes, or a number with MB, GB, MiB or GiB: 40GB. Take it out of its inner list."),
        (('"none", "40GB"', "true"), "tiny.toml:9: axes.memory_cap: memory_cap = True, but True is not a size. "
         "Write bytes, or a number with MB, GB, MiB or GiB: 40GB. Remove or correct it."),
        (('baseline = "eager"', 'baseline = "eager"\nname = "x"'), "tiny.toml:5: not TOML: Cannot overwrite a value."),
    ],
)  # fmt: skip
def test_each_mistake_has_its_line_and_its_remedy(tmp_path: Path, change: tuple[str, str], told: str) -> None:
    assert problems(tmp_path, GOOD.replace(*change)) == [told]


@pytest.mark.parametrize(
    ("given", "shown", "todo"),
    [
        ('"al"', "'al'", "Remove or correct it."),
        ('["al"]', "'al'", "Remove or correct it."),
        ('[["all"]]', "['all']", "Take it out of its inner list."),
        ("[[]]", "[]", "Take it out of its inner list."),
        ("[true]", "True", "Remove or correct it."),
        ('{ of = "all" }', "{'of': 'all'}", "Remove or correct it."),
    ],
)
@pytest.mark.parametrize("table", ["axes", "profiles.smoke.axes"])
def test_a_word_that_an_axis_does_not_take_is_told_with_those_that_it_does(
    tmp_path: Path, table: str, given: str, shown: str, todo: str
) -> None:
    text = f"{GOOD}[profiles.smoke.axes]\npairing = {given}\n" if "." in table else f"{GOOD}pairing = {given}\n"
    assert problems(tmp_path, text) == [
        f"tiny.toml:{14 if '.' in table else 13}: {table}.pairing: pairing = {shown}, but input should be 'all', "
        f"'pairs' or 'candidates'. {todo}"
    ]


@pytest.mark.parametrize("given", ["3", '"all"', '["all"]', "[]"])
def test_free_axes_of_a_profile_that_are_no_table_are_told_and_not_applied(tmp_path: Path, given: str) -> None:
    assert problems(tmp_path, f"{GOOD}[profiles.smoke.axes]\nvariant = {given}\n") == [
        "tiny.toml:14: profiles.smoke.axes.variant: is a table: [axes.variant] with one list for each free axis."
    ]


def test_what_stands_in_an_unknown_profile_is_not_told_beside_its_name(tmp_path: Path) -> None:
    assert problems(tmp_path, f"{GOOD}[profiles.big]\nsize = 3\n") == [
        "tiny.toml:13: profiles.big: unknown profile. Choose from paper, smoke. The file itself is full."
    ]


@pytest.mark.parametrize("given", ["al", ["al"], [["all"]]])
def test_a_grid_declared_in_code_says_which_axis_takes_which_words(given: object) -> None:
    experiment = Experiment(name="tiny", title="t", backends=("eager",), axes={"Nq": 1, "pairing": given})
    value = given[0] if isinstance(given, list) else given
    with pytest.raises(DeclarationError) as caught:
        experiment.cells("h200")
    assert caught.value.problems == [
        f"tiny: axes.pairing: pairing = {value!r}, but input should be 'all', 'pairs' or 'candidates'."
    ]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("uniform:9:3", "it is not uniform:LOW:HIGH with whole numbers, 0 <= LOW <= HIGH"),
        ("uniform:1", "it is not uniform:LOW:HIGH with whole numbers, 0 <= LOW <= HIGH"),
        ("lognormal:4:-1", "it is not lognormal:MU:SIGMA or lognormal:MU:SIGMA:LOW:HIGH with finite MU, SIGMA >= 0 and "
         "whole 0 <= LOW <= HIGH"),
        ("unifrom:1:4", "there is no such distribution. Did you mean 'uniform'? Write uniform:LOW:HIGH, "
         "lognormal:MU:SIGMA or lognormal:MU:SIGMA:LOW:HIGH, or the name of a collection: cranfield, scifact"),
        ("scifakt", "there is no such distribution. Did you mean 'scifact'? Write uniform:LOW:HIGH, "
         "lognormal:MU:SIGMA or lognormal:MU:SIGMA:LOW:HIGH, or the name of a collection: cranfield, scifact"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("table", ["axes", "profiles.smoke.axes"])
def test_lengths_that_nothing_can_draw_are_told_where_they_are_declared(
    tmp_path: Path, table: str, given: str, told: str
) -> None:
    """They were rows `error`, the whole grid of them, once it ran."""
    text = f'{GOOD}layout = "packed"\n[profiles.smoke.axes]\n' if "." in table else f'{GOOD}layout = "packed"\n'
    assert problems(tmp_path, f'{text}length_distribution = ["scifact", "{given}"]\n') == [
        f"tiny.toml:{15 if '.' in table else 14}: {table}.length_distribution: length_distribution = {given!r}, but "
        f"{told}. Remove or correct it."
    ]


RAGGED = f"""{GOOD.replace('"Lq, Ld" = [[32, 300]]', '"Lq, Ld" = [[32, 300], [32, 100]]')}layout = ["masked", "dense"]
length_distribution = ["uniform:9:200", "lognormal:4:1:9:400", "scifact", "none"]
"""
BEYOND = (
    "length_distribution = 'uniform:9:200', but HIGH = 200 exceeds Ld = 100. Lower it, or raise Ld, "
    "or leave such cells out."
)


def test_uniform_lengths_beyond_a_documents_are_told_unless_such_cells_are_left_out(tmp_path: Path) -> None:
    """Others are cut at Ld, and dense documents have no lengths."""
    assert problems(tmp_path, RAGGED) == [f"tiny.toml:14: axes.length_distribution: {BEYOND}"]
    rule = '[[leave_out]]\nwhen = { Ld = 100, length_distribution = "uniform:9:200" }\nwhy = "w"\n'
    path = tmp_path / "tiny.toml"
    path.write_text(RAGGED + rule)
    assert load(path, KNOWN, COLLECTIONS).cells("h200")
    assert problems(tmp_path, f"{RAGGED}{rule}[profiles.smoke]\naxes = {{ Lq = 1, Ld = [50, 200] }}\n") == [
        f"tiny.toml:14: axes.length_distribution: {BEYOND.replace('100', '50')}"
    ]
    linked = GOOD.replace('"Lq, Ld" = [[32, 300]]', 'Lq = 32\n"Ld, length_distribution" = [[300, "uniform:1:300"]]')
    linked += 'layout = "packed"\n[profiles.smoke.axes]\n"Ld, length_distribution" = [[30, "uniform:1:40"]]\n'
    assert problems(tmp_path, linked) == [
        "tiny.toml:16: profiles.smoke.axes.Ld, length_distribution: length_distribution = 'uniform:1:40', but "
        "HIGH = 40 exceeds Ld = 30. Lower it, or raise Ld, or leave such cells out."
    ]


def test_lengths_beyond_a_document_are_told_where_one_card_of_any_has_the_cell(tmp_path: Path) -> None:
    only = '[[leave_out]]\nwhen = { Ld = 100, gpu = { not = "l4" } }\nwhy = "w"\n'
    assert problems(tmp_path, RAGGED + only) == [f"tiny.toml:14: axes.length_distribution: {BEYOND}"]


@pytest.mark.parametrize(("given", "told"), [("uniform:9:3", "it is not uniform:LOW:HIGH"), ("uniform:1:9", "exceeds")])
def test_lengths_of_a_grid_declared_in_code_are_told_when_it_is_expanded(given: str, told: str) -> None:
    axes = {"Ld": 8, "layout": "packed", "length_distribution": given}
    experiment = Experiment(name="tiny", title="t", backends=("eager",), axes=axes)
    with pytest.raises(DeclarationError, match=f"tiny: axes.length_distribution: .* = {given!r}, but .*{told}"):
        experiment.cells("h200")


def test_a_condition_on_lengths_that_no_cell_has_never_holds(tmp_path: Path) -> None:
    rule = '[[leave_out]]\nwhen = { length_distribution = "uniform:9:3" }\nwhy = "w"\n'
    assert problems(tmp_path, GOOD + rule) == [
        "tiny.toml:14: leave_out.when.length_distribution: 'uniform:9:3' never holds: it is not uniform:LOW:HIGH with "
        "whole numbers, 0 <= LOW <= HIGH."
    ]


def test_a_constraint_of_a_profile_names_backends_of_the_experiment(tmp_path: Path) -> None:
    """One of several names that is mistyped leaves nothing out, beside others that do."""
    rule = '[[profiles.smoke.leave_out]]\nwhen = { B = 1 }\nwhy = "w"\nbackends = ["fuse", "eager"]\n'
    assert problems(tmp_path, GOOD + rule) == [
        "tiny.toml:16: profiles.smoke.leave_out.backends: 'fuse' is not among the backends of this experiment. "
        "Did you mean 'fused'?"
    ]


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ('{ dtype = "> 5" }', "dtype: '> 5' compares whole numbers, and dtype is none. "
         "Write a value, or a list of values."),
        ('{ B = "> dtype" }', "B: '> dtype' compares whole numbers, and dtype is none. "
         "Write a value, or a list of values."),
        ('{ "variant.loss" = "> 5" }', "variant.loss: no cell has this axis. None has a variant."),
        ('{ B = "> -1" }', "B: '> -1': -1 never holds: input should be greater than or equal to 1."),
        ("{ B = [] }", "B: [] never holds. Give at least one value, or remove the condition."),
    ],
)  # fmt: skip
def test_a_condition_that_no_cell_can_be_judged_by_is_a_mistake(tmp_path: Path, when: str, told: str) -> None:
    assert problems(tmp_path, f'{GOOD}\n[[leave_out]]\nwhy = "w"\nwhen = {when}\n') == [
        f"tiny.toml:16: leave_out.when.{told}"
    ]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("setup_seconds = { fused = nan }", "timing.setup_seconds.fused: nan, but input should be a finite number."),
        ("setup_seconds = { fused = -1 }", "timing.setup_seconds.fused: -1, but input should be greater "
         "than or equal to 0."),
        ("setup_seconds = { fuse = 1 }", "timing.setup_seconds: 'fuse' is not among the backends of this experiment. "
         "Did you mean 'fused'?"),
        ("timeout_s = inf", "timing.timeout_s: inf, but input should be a finite number."),
        ("max_samples = 3", "timing.max_samples: 3 is less than min_samples = 10."),
    ],
)  # fmt: skip
def test_timing_that_no_run_can_keep_is_a_mistake(tmp_path: Path, line: str, told: str) -> None:
    assert problems(tmp_path, f"{GOOD}\n[timing]\n{line}\n") == [f"tiny.toml:15: {told}"]


def test_a_free_axis_is_named_by_a_word(tmp_path: Path) -> None:
    """Its name stands in the cell as "name=value;name=value"."""
    assert problems(tmp_path, f'{GOOD}\n[axes.variant]\n"a=b;c" = 3\n') == [
        "tiny.toml:15: axes.variant.a=b;c: 'a=b;c' is no name. Write letters, digits and underscores."
    ]


def test_a_profile_that_loses_half_of_a_linked_axis_is_refused(tmp_path: Path) -> None:
    told = problems(tmp_path, GOOD + "\n[profiles.smoke.axes]\nLq = 32\n")
    assert told == [
        "tiny.toml:14: profiles.smoke.axes: replaces a linked axis but not Ld. Give every axis of the link."
    ]


def test_text_that_is_not_utf8_and_a_missing_file_are_messages(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_bytes(b"name = '\xff'")
    with pytest.raises(DeclarationError, match=r"a\.toml: byte 8 is not UTF-8"):
        load(tmp_path / "a.toml")
    with pytest.raises(DeclarationError, match=r"b\.toml: cannot be read: No such file"):
        load(tmp_path / "b.toml")


def test_a_directory_tells_the_mistakes_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("name = 3\n")
    (tmp_path / "b.toml").write_text("=")
    with pytest.raises(DeclarationError) as caught:
        load_directory(tmp_path)
    assert len({p.split(":")[0] for p in caught.value.problems}) == 2


@pytest.mark.parametrize(
    ("text", "size"),
    [("40GB", 42_400_000_000), ("80 gb", 85_000_000_000), ("16GB", 16 * 10**9), ("1.5GiB", 3 << 29), (7, 7)],
)
def test_sizes_are_read_in_both_kinds_of_units(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "1 XB", "-3GB", "nanGB", 0])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(text)


def test_a_grid_without_the_axes_of_its_operator_or_of_absurd_size_is_refused(tmp_path: Path) -> None:
    """Both would only show after hours: as rows that say the inputs need an axis, or as a plan that never ends."""
    bare = GOOD.replace("Nq = 1\nd = 128\n", "")
    assert problems(tmp_path, bare) == [
        "tiny.toml:6: axes: Nq, d not given, but op = 'forward' needs a value for each. Add them."
    ]
    many = GOOD.replace("Nq = 1", f"Nq = {list(range(1, 400))}").replace("d = 128", f"d = {list(range(1, 400))}")
    assert problems(tmp_path, many) == [
        "tiny.toml:6: axes: the axes span 636,804 cells, more than 100,000. Thin them out, or link some."
    ]
    many = f"{GOOD}\n[profiles.smoke.axes]\nB = {list(range(1, 60_000))}\n"
    assert problems(tmp_path, many) == [
        "tiny.toml:14: profiles.smoke.axes: the axes span 119,998 cells, more than 100,000. "
        "Thin them out, or link some."
    ]
