"""The Hopper kernel without a GPU: it compiles for sm_90 within its budget, to the instructions it was written for."""

from __future__ import annotations

import os
import re
import subprocess
from collections import Counter
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from maxsim.fused.hopper_launch import parameters
from maxsim.fused.offline import compile_offline
from maxsim.quantized import hopper, hopper_kernels, hopper_tiles, quantize_fp8, quantize_int8
from maxsim.quantized.hopper import EPILOGUES, HopperShape, by_tiles, contiguous, launch_shape, programs, unsupported
from maxsim.quantized.integer import score_integer

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") == "1", reason="Gluon is compiled, it cannot run in the interpreter"
)
SHARED_BYTES = 227 * 1024
REGISTERS = {1: 255, 2: 168}  # of the launch; consumers of two warpgroups then take 240 and the loader 24
# A scale a token holds 128 accumulators and 32 scales: some words of the walk over documents are kept in memory then.
SPILLED_BYTES = {"document": 32, "token": 128, "token_any": 192, "fp8_document": 32, "fp8_token": 128}
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"

SHAPES = {
    "one long query": launch_shape(1024, 128),
    "128 rows": launch_shape(128, 128),
    "one short query": launch_shape(32, 128),
    "64 rows": launch_shape(64, 128),
    "d = 384": launch_shape(1024, 384),
    "d = 2048": launch_shape(1024, 2048),
    "d = 20": launch_shape(1024, 20),
}


@cache
def build(epilogue: str, shape: HopperShape, group: int, ragged: bool, tiles: bool = False) -> Any:
    """One variant, compiled for sm_90; `tiles`: of the kernel in which every document begins a tile."""
    element, name = (gl.float8e4nv, "fp8e4nv") if epilogue.startswith("fp8") else (gl.int8, "i8")
    rows = 32 if ragged and not tiles else shape.BN
    constants = dict(
        {name: n for name, n in vars(shape).items() if name not in ("residents", "short")},
        BR=rows,
        SHORT=shape.short,
        G=group,
        MODE=EPILOGUES[epilogue],
        HAS_STARTS=ragged,
        HAS_LENGTHS=ragged,
        BALANCED=ragged,
        R1=240,
        R2=24,
        num_warps=4,
    )
    query, document = (gl.NVMMASharedLayout.get_default_for([n, shape.BK], element) for n in (shape.BM, rows))
    scales = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=1)
    types = {
        "q_desc": f"tensordesc<{name}[{shape.BM}, {shape.BK}],{query!r}>",
        "d_desc": f"tensordesc<{name}[{rows}, {shape.BK}],{document!r}>",
        "s_desc": f"tensordesc<fp32[{shape.BN}],{scales!r}>",
        "out_ptr": "*fp32",
        "qs_ptr": "*fp32",
        "ds_ptr": "*fp32",
        "start_ptr": "*i64",
        "len_ptr": "*i32",
    }
    kernel = (hopper_tiles if tiles else hopper_kernels).maxsim_quantized
    constants = {name: value for name, value in constants.items() if name in kernel.arg_names}
    signature = {a: types.get(a, "constexpr" if a in constants else "i32") for a in kernel.arg_names}
    places = {(kernel.arg_names.index(k),): v for k, v in constants.items()}
    source = GluonASTSource(kernel, signature, places, {})
    options = {"num_warps": 4} | ({"maxnreg": 128} if shape.residents == 2 else {})
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)


def compiled(
    epilogue: str, shape: HopperShape, group: int, ragged: bool, folder: str, tiles: bool = False
) -> tuple[int, str, Counter[str]]:
    """Shared bytes, resource line and instruction counts of one variant."""
    binary = build(epilogue, shape, group, ragged, tiles)
    file = Path(folder) / f"{epilogue}.cubin"
    file.write_bytes(binary.asm["cubin"])
    usage = subprocess.run([TOOLS / "cuobjdump", "-res-usage", file], capture_output=True, text=True, check=True).stdout
    sass = subprocess.run([TOOLS / "nvdisasm", "-c", file], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+\s+)?([A-Z0-9_]+)", sass, re.MULTILINE)
    return binary.metadata.shared, usage, Counter(found)


VARIANTS = [(name, epilogue, True) for name in SHAPES for epilogue in ("document", "token")]
VARIANTS += [("one long query", epilogue, False) for epilogue in EPILOGUES]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "epilogue", "ragged"), VARIANTS)
def test_every_variant_compiles_within_registers_and_shared_memory_without_spills(name, epilogue, ragged, tmp_path):
    shape = SHAPES[name]
    if epilogue == "token" and shape.BK * shape.KC > 260:
        epilogue = "token_any"  # exponent arithmetic is used up to d = 260
    group = shape.BM
    shared, usage, _ = compiled(epilogue, shape, group, ragged, str(tmp_path))
    registers, stack = map(int, re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    assert registers <= (128 if shape.residents == 2 else REGISTERS[shape.NC])
    assert stack <= SPILLED_BYTES[epilogue]
    assert (shared + 1024) * shape.residents <= SHARED_BYTES + 1024


def test_one_scale_a_document_runs_the_maximum_in_threes_on_integers(tmp_path):
    _, _, found = compiled("document", SHAPES["one long query"], 128, False, str(tmp_path))
    assert found["VIMNMX3"] >= 2 * 60  # of the 64 that fold the 128 accumulators of either consumer's full tile
    assert found["I2FP"] < 20
    assert found["FMNMX"] == 0


def test_a_scale_a_token_is_one_fused_multiply_add_an_accumulator(tmp_path):
    _, _, found = compiled("token", SHAPES["one long query"], 128, False, str(tmp_path))
    assert found["I2FP"] == 0
    # two consumers, and for each the whole tile, the document it begins in and those that begin inside it
    assert found["FFMA"] == 2 * 3 * 128


@pytest.mark.slow
@pytest.mark.parametrize("epilogue", ["token", "token_any", "fp8_token"])
def test_the_tight_loop_of_a_scale_a_token_compiles_without_spills(epilogue, tmp_path):
    shared, usage, found = compiled(epilogue, SHAPES["one long query"], 128, True, str(tmp_path), tiles=True)
    assert "STACK:0" in usage
    assert shared <= SHARED_BYTES
    if epilogue == "token":
        assert found["I2FP"] == 0
        assert found["FFMA"] == 2 * (128 + 64)  # two consumers, a whole tile and half a tile


@pytest.mark.slow
def test_every_role_of_the_tight_loop_reads_start_and_length_of_every_document(tmp_path):
    """The compiler once kept the first length of the loader's loop for all documents, and the pipeline stopped."""
    ir = build("token", SHAPES["one long query"], 128, True, True).asm["ttgir"]
    roles = re.split(r"\n    (?:default|partition\d+)", ir)[1:]
    found = []
    for role in roles:
        loop = re.search(r"\n      (?:%\S+ = )?scf\.for.*?\n      \}", role, re.DOTALL)
        assert loop is not None
        found.append(loop[0].count("tt.load"))
    assert found == [2, 2, 2]


def test_the_tight_loop_scores_where_a_scale_belongs_to_a_token_and_both_consumers_are_full():
    token, document = quantize_int8(torch.ones(1, 4, 32)), quantize_int8(torch.ones(1, 4, 32), "document")
    assert by_tiles(launch_shape(1024, 128), token)
    assert not by_tiles(launch_shape(1024, 128), document)
    assert not by_tiles(launch_shape(128, 128), token)
    assert not by_tiles(launch_shape(32, 128), token)


def test_the_arguments_are_laid_out_as_the_direct_launch_packs_them():
    ptx = build("token", SHAPES["one short query"], 32, True).asm["ptx"]
    code, scale = ["map", "I", "I", "Q", "Q"], ["map", "I", "Q"]
    assert parameters(ptx) == [*code, *code, *scale, *["Q"] * 5, *["I"] * 7, "Q", "Q"]


@pytest.mark.parametrize("d", [1, 17, 32, 64, 96, 128, 200, 256, 260, 384, 512, 768, 1024, 1536, 2048])
@pytest.mark.parametrize("rows", [1, 32, 64, 65, 128, 512, 100_000])
def test_query_rows_and_at_least_three_stages_fit_into_shared_memory(d, rows):
    shape = launch_shape(rows, d)
    assert d <= shape.BK * shape.KC
    assert shape.ST >= 3
    held = shape.NC * shape.KC * shape.BM * shape.BK + shape.ST * shape.BN * (shape.BK + 4)
    assert held * shape.residents <= SHARED_BYTES


def test_a_dimension_that_does_not_fit_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match="path='portable'"):
        launch_shape(32, 2049)


@pytest.mark.parametrize("groups", [1, 3, 66, 132, 133, 200, 1000])
@pytest.mark.parametrize("B", [1, 7, 10_000])
def test_programs_share_the_documents_of_a_group_and_fill_waves(groups, B):
    each = programs(groups, B, 132)
    assert 1 <= each <= B
    if B == 10_000:
        total = groups * each
        assert total / (-(-total // 132) * 132) >= 0.75


def test_two_programs_share_a_processor_where_reading_binds_and_both_rings_fit():
    assert launch_shape(32, 128).residents == 2
    assert launch_shape(64, 1024).residents == 1
    assert launch_shape(65, 128).residents == 1


def test_documents_are_one_stream_of_rows_only_where_nothing_lies_between_them():
    D = torch.ones(3, 8, 16)
    assert contiguous(quantize_int8(D).codes)
    assert contiguous(quantize_int8(D.flatten(0, 1), cu_seqlens=torch.tensor([0, 5, 5, 24])).codes)
    assert not contiguous(quantize_int8(D, lengths=torch.tensor([8, 2, 8])).codes)
    assert not contiguous(quantize_int8(D).codes.select(torch.tensor([2, 0])))


def test_operands_that_a_tensor_map_cannot_address_are_named():
    q = quantize_int8(torch.ones(1, 4, 32))
    assert unsupported(q, q) is None
    assert "d = 2064" in (
        unsupported(quantize_int8(torch.ones(1, 1, 2064)), quantize_int8(torch.ones(1, 1, 2064))) or ""
    )
    from dataclasses import replace

    shifted = torch.zeros(4 * 32 + 1, dtype=torch.int8)[1:].view(4, 32)
    assert "query codes" in (unsupported(replace(q, codes=replace(q.codes, values=shifted)), q) or "")
    narrow = torch.zeros(4, 33, dtype=torch.int8)[:, :32]
    assert "row stride is 33" in (unsupported(q, replace(q, codes=replace(q.codes, values=narrow))) or "")


@pytest.mark.parametrize("quantise", [quantize_int8, quantize_fp8])
@pytest.mark.parametrize("per", ["token", "document"])
@pytest.mark.parametrize("Lq", [9, 300])
@pytest.mark.parametrize("lengths", [None, [0, 0, 0], [0, 1, 9]])
def test_documents_without_a_row_score_as_empty_ones_and_an_empty_query_scores_zero(quantise, per, Lq, lengths):
    given = None if lengths is None else torch.tensor(lengths)
    q, d = quantise(torch.ones(3, Lq, 16), lengths=given), quantise(torch.zeros(4, 0, 16), per)
    scores = hopper.score_hopper(q, d)
    assert scores.dtype == torch.float32
    assert torch.equal(scores, score_integer(q, d))
    packed = quantise(torch.zeros(0, 16), per, cu_seqlens=torch.zeros(5, dtype=torch.int64))
    assert torch.equal(hopper.score_hopper(q, packed), scores)


def test_the_grid_that_adds_parts_lies_along_x(monkeypatch):
    """A grid has 2^31 - 1 places along x and 65 535 along y, fewer than there may be queries."""
    grids = []
    monkeypatch.setattr(hopper, "kernel", lambda name, *_: lambda grid, *_: grids.append((name, grid)))
    for name in ("_launch", "_launch_tiles"):
        monkeypatch.setattr(hopper, name, lambda *_: None)
    hopper.score_hopper(quantize_int8(torch.ones(3, 300, 16)), quantize_int8(torch.ones(129, 2, 16)))
    many = hopper.QueryTiles(torch.empty(0), torch.empty(0), 128, 2, 70_000)
    monkeypatch.setattr(hopper, "query_tiles", lambda *_: many)
    hopper.score_hopper(quantize_int8(torch.ones(1, 300, 16)), quantize_int8(torch.ones(1, 2, 16)))
    assert grids == [("add_parts", (3 * 2, 1)), ("add_parts", (70_000, 1))]


@pytest.mark.parametrize(("Nq", "parts", "B"), [(1, 2, 1), (3, 3, 128), (4, 2, 129), (2, 5, 300)])
def test_parts_of_every_query_are_added_by_its_own_programs(monkeypatch, Nq, parts, B):
    """The kernel's own source, a program at a time, over tensors of a processor."""
    given = torch.rand(Nq, parts, B, dtype=torch.float64, generator=torch.Generator().manual_seed(B))
    out = torch.full((Nq * B,), torch.nan)

    def load(at, mask, other):
        return torch.where(mask, given.flatten()[torch.where(mask, at, 0)], other)

    def store(at, value, mask):
        assert out[at[mask]].isnan().all(), "written once"
        out[at[mask]] = value[mask]

    for program in range(-(-B // 128) * Nq):
        language = SimpleNamespace(
            program_id=lambda axis, program=program: torch.tensor(program if axis == 0 else 0, dtype=torch.int32),
            arange=lambda first, last, layout: torch.arange(first, last, dtype=torch.int32),
            zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype),
            load=load, store=store, BlockedLayout=lambda *_: None, constexpr=None,
            int64=torch.int64, float32=torch.float32, float64=torch.float64,
        )  # fmt: skip
        monkeypatch.setattr(hopper_kernels, "gl", language)
        hopper_kernels.add_parts.fn(0, 0, B, parts, 4)
    assert torch.equal(out.view(Nq, B), given.sum(1).float())


def test_the_kernel_that_adds_parts_compiles_for_sm_90():
    signature = {"part_ptr": "*fp64", "out_ptr": "*fp32", "B": "i32", "parts": "i32"}
    assert compile_offline(hopper_kernels.add_parts, signature, {"num_warps": 4}, 90).spills == 0
