"""The tool that fills the launch table: what it picks and what it writes. Timing itself needs a GPU."""

from __future__ import annotations

import tomllib
from importlib.resources import files

import pytest

from maxsim.fused import launch
from maxsim_bench import tune

TILE = {"block_n": 64, "block_k": 128, "warps": 4, "stages": 3, "tokens": 0}
SHAPE = {"Nq": 1, "Lq": 32, "B": 10, "Ld": 300, "d": 128, "tflops": 1.0, "gbs": 2.0}


def test_the_least_geometric_mean_wins_and_a_tile_that_ran_on_some_shapes_only_cannot():
    rows = [
        {**SHAPE, **TILE, "ms": 1.0},
        {**SHAPE, **TILE, "ms": 4.0},
        {**SHAPE, **TILE, "warps": 8, "ms": 1.5},
        {**SHAPE, **TILE, "warps": 8, "ms": 1.5},
        {**SHAPE, **TILE, "warps": 2, "ms": 0.1},
    ]
    tile, why = tune.best(rows)
    assert tile["warps"] == 8
    assert why.endswith("the next best tile takes 1.33 times as long")


def test_an_entry_replaces_those_of_its_architecture_and_can_be_read_back():
    text = files("maxsim.fused").joinpath("launch_table.toml").read_text("utf-8")
    made = tune.entry(tune.KINDS[0], 90, None, [{**SHAPE, **TILE, "ms": 1.0}], "Some GPU")
    table = tomllib.loads(tune.replaced(text, 90, [made]))
    assert [tile for tile in table["tile"] if tile["arch"] == 90] == [
        {
            "arch": 90,
            "bits": 16,
            "rows": 16,
            "d": 128,
            **TILE,
            "why": "Some GPU: 1 TFLOP/s, 2 GB/s at Nq=1, Lq=32, B=10, Ld=300, d=128",
        }
    ]
    before = tomllib.loads(text)
    assert [t for t in table["tile"] if t["arch"] != 90] == [t for t in before["tile"] if t["arch"] != 90]
    assert table["device"] == before["device"]


def test_the_kinds_are_those_of_the_committed_table():
    kinds = {
        (k.bits, k.rows, k.d, launch.products(90, "ieee") if k.precision == "exact" else k.precision)
        for k in tune.KINDS
    }
    assert kinds == {(t["bits"], t["rows"], t["d"], t.get("precision")) for t in launch.tiles() if t["arch"] == 90}


def test_candidates_never_disagree_on_where_16_bit_sums_are_rounded():
    for d in {kind.d for kind in tune.KINDS if kind.bits == 16}:
        assert len({tile[1] for kind in tune.KINDS if kind.bits == 16 and kind.d == d for tile in kind.tiles}) == 1


def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["tune"])
    with pytest.raises(SystemExit):
        tune.main()
    assert "needs an NVIDIA GPU" in capsys.readouterr().err
