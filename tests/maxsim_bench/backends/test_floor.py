"""What no scorer can avoid: readers read every byte once, however the operands are dealt out, and score for nobody."""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import torch

from maxsim_bench.backends import registry
from maxsim_bench.backends.base import Inputs
from maxsim_bench.backends.floor import words
from maxsim_bench.backends.inputs import make_inputs
from maxsim_bench.declare.cell import Cell
from maxsim_bench.run.truth import truths_of
from maxsim_bench.run.work import work_served

pytest.importorskip("triton")

from maxsim_bench.backends.floor import kernels

READERS = ("read_streaming", "read_persistent")
BACKENDS = (*READERS, "empty_launch")
WAYS = ("streaming", "persistent")


def cell(**changes: Any) -> Cell:
    usual: dict[str, Any] = {
        "experiment": "t", "gpu": "cpu", "op": "forward", "Nq": 1, "B": 9, "Lq": 5, "Ld": 21, "d": 24, "dtype": "fp16",
        "layout": "dense", "pairing": "all", "variant": "against=floor",
    }  # fmt: skip
    return Cell.model_validate(usual | changes)


def judged(name: str, c: Cell, inputs: Inputs, output: object) -> str | None:
    """What is wrong with an output of this backend."""
    truth = truths_of(c, inputs, registry.get("reference"), {name: registry.get(name)})[name]
    return truth.judge(output, 0.0).wrong


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dtype": "bf16", "layout": "packed", "length_distribution": "uniform:2:21"},
        {"dtype": "fp32", "Nq": 3, "B": 2, "pairing": "candidates"},
    ],
)
def test_on_a_processor_each_gives_what_it_says(name: str, changes: dict[str, Any]) -> None:
    c = cell(**changes)
    inputs, backend = make_inputs(c, "cpu"), registry.get(name)
    assert backend.supports(c, "cpu") is None
    assert judged(name, c, inputs, backend.prepare(c, inputs)()) is None


@pytest.mark.parametrize("name", BACKENDS)
def test_no_cell_of_scorers_gets_one(name: str) -> None:
    backend = registry.get(name)
    for changes in ({"variant": None}, {"variant": "against=peers"}, {"op": "search", "k": 3}):
        assert "scores nothing" in str(backend.supports(cell(**changes), "cuda"))


@pytest.mark.parametrize("name", READERS)
def test_padding_and_tokens_of_odd_bytes_are_refused(name: str) -> None:
    backend = registry.get(name)
    assert "padding need not be read" in str(backend.supports(cell(layout="masked"), "cuda"))
    assert "padding need not be read" in str(backend.supports(cell(variant="against=floor;query_lengths=half"), "cuda"))
    assert "a token of 34 bytes" in str(backend.supports(cell(d=17), "cuda"))


def test_they_are_charged_the_bytes_of_the_operands_or_nothing_and_no_product() -> None:
    c = cell(layout="packed")
    for name in READERS:
        work = work_served(c, registry.get(name), [1, 2, 3])
        assert (work.flops, work.bytes_min) == (0.0, (5 + 6) * 24 * 2)
    empty = work_served(c, registry.get("empty_launch"), [1, 2, 3])
    assert (empty.flops, empty.bytes_min) == (0.0, 0.0)


def test_a_change_of_the_kernels_is_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    from maxsim_bench.backends import identity

    before, launcher = identity.room_hash.__wrapped__("floor"), identity.source_hash("fused/hopper_launch.py")
    assert registry.get("empty_launch").version() == before
    assert {registry.get(name).version() for name in READERS} == {before[:6] + launcher[:6]}
    monkeypatch.setattr(identity, "_DATA", (".toml",))
    assert identity.room_hash.__wrapped__("floor") != before
    with pytest.raises(FileNotFoundError, match="cellar is not part of this room"):
        identity.room_hash("cellar")


def sized(q_groups: int, d_groups: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random words of so many groups of 16 bytes."""
    generator = torch.Generator().manual_seed(d_groups)
    return tuple(  # type: ignore[return-value]
        torch.randint(-(2**31), 2**31, (4 * n,), dtype=torch.int32, generator=generator) for n in (q_groups, d_groups)
    )


# (groups of Q, groups of D, multiprocessors): one group; whole blocks; tails of both; a Q of several blocks, twice.
SIZES = [(1, 1, 1), (512, 16384, 4), (512, 3 * 16384 + 77, 4), (4096 + 5, 40_001, 3), (2049, 31, 132)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
def test_every_group_is_dealt_out_once_and_all_persistent_programs_are_resident(
    way: kernels.Way, size: tuple[int, int, int]
) -> None:
    q, d = sized(*size[:2])
    chosen = kernels.plan(way, q, d, size[2])
    block = kernels.GROUPS[way]
    assert (chosen.d_programs - 1) * chosen.share < chosen.d_groups <= chosen.d_programs * chosen.share
    assert (chosen.q_programs - 1) * block < chosen.q_groups <= chosen.q_programs * block
    assert chosen.share % 32 == 0
    if way == "streaming":
        assert chosen.share == block * kernels.STEPS
    else:
        assert chosen.programs <= kernels.RESIDENT * size[2]


def test_words_that_are_no_whole_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="6 and 8 words"):
        kernels.plan("streaming", torch.zeros(6, dtype=torch.int32), torch.zeros(8, dtype=torch.int32), 1)


@pytest.fixture(scope="module")
def interpreted(can_interpret: None) -> Iterator[Callable[..., Any]]:
    """`kernels.read` in triton's interpreter, which is chosen when triton is imported: in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TRITON_INTERPRET", "1")
            pool.submit(torch.set_num_threads, 1).result()  # starts it
        yield lambda *args: pool.submit(kernels.read, *args).result(timeout=240)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
def test_the_kernels_add_up_every_word_once(
    interpreted: Callable[..., Any], way: str, size: tuple[int, int, int]
) -> None:
    q, d = sized(*size[:2])
    sums, chosen, _ = interpreted(way, q, d, size[2])
    assert sums.shape == (chosen.programs,)
    assert int(sums.sum()) % 2**32 == (int(q.sum()) + int(d.sum())) % 2**32
    each = [int(part.sum()) for part in (*d.split(4 * chosen.share), *q.split(4 * kernels.GROUPS[chosen.way]))]
    assert [int(x) % 2**32 for x in sums] == [x % 2**32 for x in each]


@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_gives_what_a_cells_reader_is_judged_by(interpreted: Callable[..., Any], way: str) -> None:
    c = cell(layout="packed", length_distribution="uniform:2:21")
    inputs = make_inputs(c, "cpu")
    sums, _, _ = interpreted(way, words(inputs.Q), words(inputs.D), 2)
    assert judged(f"read_{way}", c, inputs, sums) is None
    less, _, _ = interpreted(way, words(inputs.Q), words(inputs.D)[:-4], 2)
    assert "did not read what it was given" in str(judged(f"read_{way}", c, inputs, less))


@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_compiles_for_sm_90_to_whole_loads_without_spills(way: kernels.Way) -> None:
    """Loads of 16 bytes, whatever the size: narrower ones would make a slow reader and no floor."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.compiler import compile as triton_compile

    from maxsim.fused.hopper_launch import parameters
    from maxsim.fused.offline import compile_offline

    kernel = kernels.KERNELS[way]
    pointers = {"q_ptr": "*i32", "d_ptr": "*i32", "sum_ptr": "*fp64"}
    constants = {"GROUPS": kernels.GROUPS[way], "STEPS": kernels.STEPS}
    signature = {name: pointers.get(name, "i32") for name in kernel.arg_names if name not in constants}
    used = compile_offline(kernel, signature, constants, 90, num_warps=kernels.WARPS, aligned=tuple(pointers))
    assert used.spills == 0
    resident = 65536 // (32 * kernels.WARPS * -(-used.registers // 8) * 8)  # registers of a multiprocessor
    assert resident >= (kernels.RESIDENT if way == "persistent" else 2)

    place = kernel.arg_names.index
    source = ASTSource(
        fn=kernel,
        signature={n: "constexpr" if n in constants else signature[n] for n in kernel.arg_names},
        constexprs={(place(n),): value for n, value in constants.items()},
        attrs={(place(n),): [["tt.divisibility", 16]] for n in pointers},
    )
    compiled = triton_compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": kernels.WARPS})
    loads = re.findall(r"ld\.global[\w.]*", compiled.asm["ptx"])
    assert loads
    assert set(loads) == {"ld.global.v4.b32"}
    assert parameters(compiled.asm["ptx"]) == ["Q"] * 3 + ["I"] * 4 + ["Q"] * 2  # as the direct launch fills them in


@pytest.mark.gpu
@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("changes", [{}, {"B": 3000, "Ld": 300, "d": 128}, {"layout": "packed", "B": 1000}])
def test_on_a_gpu_each_gives_what_it_says_again_and_again_and_in_a_graph(name: str, changes: dict[str, Any]) -> None:
    from maxsim_bench.measure.graphs import capture
    from maxsim_bench.run.check import poison_outputs

    c = cell(gpu="any", **changes)
    inputs = make_inputs(c, "cuda")
    call = registry.get(name).prepare(c, inputs)
    for again in (call, call, capture([call])[0]):
        output = again()
        assert judged(name, c, inputs, output) is None
        poison_outputs(output)
