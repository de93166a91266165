"""Index files: what is written is read back, half the size, and what is wrong is refused by the name of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from maxsim import tokens
from maxsim.quantized import QuantizedTokens, quantize_fp8, quantize_int8
from maxsim.quantized.index import MANIFEST, QUANTISERS, IndexFileError, open_index, write_index
from maxsim.tokens import TokenBatch

LENGTHS = torch.tensor([5, 0, 3, 5, 1, 2, 4])
IDS = ["a", "ü", "c c", "4", "e", "f", "g"]


def embeddings(L: int = 5, d: int = 32) -> torch.Tensor:
    return torch.randn(len(IDS), L, d, generator=torch.Generator().manual_seed(0)).half()


def blocks(step: int = 3):
    X = embeddings()
    for i in range(0, len(IDS), step):
        yield IDS[i : i + step], tokens(X[i : i + step], lengths=LENGTHS[i : i + step])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A finished index of three shards."""
    write_index(tmp_path / "index", blocks(), encoder="an encoder")
    return tmp_path / "index"


def rows_of(batch: TokenBatch, values: torch.Tensor, n: int) -> torch.Tensor:
    start = int(batch.row_starts()[n])
    return values[start : start + int(batch.row_lengths()[n])]


@pytest.mark.parametrize("quantiser", QUANTISERS)
def test_what_is_written_is_read_back(tmp_path, quantiser):
    write_index(tmp_path, blocks(), encoder="an encoder", quantiser=quantiser)
    index = open_index(tmp_path)
    assert (index.ids(), index.count, index.d, len(index)) == (IDS, 7, 32, 3)
    assert index.manifest["encoder"] == "an encoder"
    X = embeddings()
    n = 0
    for shard in index:
        codes = shard.codes if isinstance(shard, QuantizedTokens) else shard
        values = shard.dequantize().values if isinstance(shard, QuantizedTokens) else codes.values
        for i in range(codes.count):
            want = X[n : n + 1, : LENGTHS[n]]
            if quantiser != "none":
                quantise = quantize_int8 if quantiser.startswith("int8") else quantize_fp8
                want = quantise(want, "token" if quantiser.endswith("token") else "document").dequantize().values
            assert torch.equal(rows_of(codes, values, i), want.reshape(-1, 32).to(values.dtype))
            n += 1
    assert n == 7


@pytest.mark.parametrize("quantiser", ["int8_per_token", "int8_per_document", "fp8_per_token"])
def test_a_corpus_of_passages_takes_at_most_52_percent_of_fp16(tmp_path, quantiser):
    generator = torch.Generator().manual_seed(0)
    X = torch.randn(300, 60, 128, generator=generator).half()
    ids = [f"passage-{n}" for n in range(300)]
    index = write_index(tmp_path, [(ids, X)], encoder="e", quantiser=quantiser)
    size = sum(file.stat().st_size for file in tmp_path.iterdir())
    assert size == index.nbytes
    assert size <= 0.52 * X.numel() * 2


def test_an_interrupted_index_goes_on_where_it_stopped(tmp_path, folder):
    def interrupted():
        yield from list(blocks())[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_index(tmp_path / "again", interrupted(), encoder="an encoder")
    with pytest.raises(IndexFileError, match="unfinished, 6 documents"):
        open_index(tmp_path / "again")
    first = (tmp_path / "again" / "shard-00000.safetensors").stat().st_mtime_ns
    write_index(tmp_path / "again", blocks(), encoder="an encoder")
    assert (tmp_path / "again" / "shard-00000.safetensors").stat().st_mtime_ns == first
    assert open_index(tmp_path / "again").manifest == open_index(folder).manifest


def test_a_shard_cut_while_it_was_written_is_written_again(tmp_path):
    def interrupted():
        yield next(blocks())
        (tmp_path / "shard-00001.partial").write_bytes(b"half a sh")
        (tmp_path / "shard-00001.safetensors").write_bytes(b"not in the manifest")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_index(tmp_path, interrupted(), encoder="e")
    write_index(tmp_path, blocks(), encoder="e")
    assert open_index(tmp_path).ids() == IDS


@pytest.mark.parametrize(
    ("encoder", "quantiser", "step", "message"),
    [
        ("another", "int8_per_token", 3, "encoder is 'e', not 'another'"),
        ("e", "int8_per_document", 3, "quantiser is 'int8_per_token'"),
        ("e", "int8_per_token", 2, "shard-00000.safetensors: holds other documents"),
    ],
)
def test_resuming_with_other_settings_or_documents_is_refused(tmp_path, encoder, quantiser, step, message):
    def interrupted():
        yield next(blocks())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_index(tmp_path, interrupted(), encoder="e")
    with pytest.raises(IndexFileError, match=message):
        write_index(tmp_path, blocks(step), encoder=encoder, quantiser=quantiser)


def test_a_finished_index_is_not_written_over(folder):
    with pytest.raises(IndexFileError, match="finished"):
        write_index(folder, blocks(), encoder="an encoder")


@pytest.mark.parametrize("keep", [0.0, 0.5, 0.999])
def test_a_truncated_shard_is_refused_by_name(folder, keep):
    file = folder / "shard-00001.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(IndexFileError, match=r"shard-00001\.safetensors: \d+ bytes"):
        open_index(folder, verify=False)


@pytest.mark.parametrize("where", [2, 0.5, -1])
def test_a_changed_byte_anywhere_in_a_shard_is_refused_by_name(folder, where):
    file = folder / "shard-00002.safetensors"
    data = bytearray(file.read_bytes())
    data[where if isinstance(where, int) else int(len(data) * where)] ^= 1
    file.write_bytes(data)
    with pytest.raises(IndexFileError, match=r"shard-00002\.safetensors: does not match its checksum"):
        open_index(folder)


def test_a_missing_shard_and_a_swapped_one_are_refused_by_name(folder):
    first, second = folder / "shard-00000.safetensors", folder / "shard-00001.safetensors"
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
    with pytest.raises(IndexFileError, match=r"shard-00000\.safetensors"):
        open_index(folder)
    first.unlink()
    with pytest.raises(IndexFileError, match=r"shard-00000\.safetensors: missing"):
        open_index(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[]", "not a maxsim-index"),
        ('{"format": "maxsim-index", "version": 99}', "version 1"),
        ('{"format": "maxsim-index", "version": 1, "shards": []}', "missing or unknown"),
    ],
)
def test_a_manifest_of_another_kind_is_refused_by_name(folder, text, message):
    (folder / MANIFEST).write_text(text)
    with pytest.raises(IndexFileError, match=f"manifest.json: .*{message}"):
        open_index(folder)


def test_a_folder_without_a_manifest_is_not_an_index(tmp_path):
    with pytest.raises(IndexFileError, match=r"manifest\.json: not there"):
        open_index(tmp_path)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        ((["a"], torch.ones(2, 3, 4)), "1 ids for 2 documents"),
        (([1, 2], torch.ones(2, 3, 4)), "id 1 is not a string"),
        ((["a", "a"], torch.ones(2, 3, 4)), "id 'a' occurs twice"),
        ((["a", "b"], torch.full((2, 3, 4), torch.nan)), "NaN"),
    ],
)
def test_a_block_that_cannot_be_written_is_refused(tmp_path, block, message):
    with pytest.raises(ValueError, match=message):
        write_index(tmp_path, [block], encoder="e")


@pytest.mark.parametrize("quantiser", QUANTISERS)
@pytest.mark.parametrize(
    ("block", "error", "message"),
    [
        (torch.ones(2, 3, 4, device="meta"), ValueError, "is on the device meta, which holds no numbers"),
        (tokens(torch.ones(2, 3, 4, device="meta")), ValueError, "is on the device meta, which holds no numbers"),
        (quantize_int8(torch.ones(2, 3, 4)).codes, ValueError, r"dtype is torch\.int8; embeddings are"),
        (quantize_fp8(torch.ones(2, 3, 4)).codes, ValueError, r"dtype is torch\.float8_e4m3fn; embeddings are"),
        (torch.ones(2), ValueError, r"shape is \(2,\)"),
        ([[1.0], [1.0]], TypeError, r"expected a torch\.Tensor or TokenBatch, got list"),
    ],
    ids=["meta", "batch on meta", "int8", "fp8", "shape", "list"],
)
def test_what_is_no_block_of_embeddings_is_refused_by_its_number(tmp_path, quantiser, block, error, message):
    given = [(["a", "b"], torch.ones(2, 3, 4)), (["c", "d"], block)]
    with pytest.raises(error, match=f"^block 1: {message}"):
        write_index(tmp_path, given, encoder="e", quantiser=quantiser)


def test_embeddings_that_a_shard_cannot_keep_are_refused_before_they_are_written(tmp_path):
    """They would be written, and then no index of them could be opened."""
    with pytest.raises(ValueError, match=r"^block 0: dtype is torch\.float64; an index keeps float16, bfloat16 or"):
        write_index(tmp_path, [(["a"], torch.ones(1, 2, 4).double())], encoder="e", quantiser="none")
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        folder = tmp_path / str(dtype)
        write_index(folder, [(["a"], torch.ones(1, 2, 4).to(dtype))], encoder="e", quantiser="none")
        assert open_index(folder).shard(0).dtype == dtype


@pytest.mark.parametrize("resumed", [False, True])
def test_embeddings_that_are_kept_are_all_of_one_dtype(tmp_path, resumed):
    first, second = (["a"], torch.ones(1, 2, 4).half()), (["b"], torch.ones(1, 2, 4))

    def interrupted():
        yield first
        raise KeyboardInterrupt

    if resumed:
        with pytest.raises(KeyboardInterrupt):
            write_index(tmp_path, interrupted(), encoder="e", quantiser="none")
        with pytest.raises(ValueError, match=r"^block 0: dtype is torch\.float32, but earlier blocks hold F16"):
            write_index(tmp_path, [(["a"], torch.ones(1, 2, 4))], encoder="e", quantiser="none")
    with pytest.raises(ValueError, match=r"^block 1: dtype is torch\.float32, but earlier blocks hold F16"):
        write_index(tmp_path, [first, second], encoder="e", quantiser="none")
    write_index(tmp_path, [first, (["b"], second[1].half())], encoder="e", quantiser="none")
    assert [shard.dtype for shard in open_index(tmp_path)] == [torch.float16] * 2


def test_blocks_of_several_dtypes_are_quantised_into_one_index(tmp_path):
    given = [([str(t)], torch.ones(1, 2, 4).to(t)) for t in (torch.float16, torch.bfloat16, torch.float32)]
    write_index(tmp_path, given, encoder="e")
    assert open_index(tmp_path).count == 3


def test_an_id_of_an_earlier_run_counts_when_resuming(tmp_path):
    def interrupted():
        yield ["a"], torch.ones(1, 2, 4)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_index(tmp_path, interrupted(), encoder="e")
    with pytest.raises(ValueError, match="'a' occurs twice"):
        write_index(tmp_path, [(["a"], torch.ones(1, 2, 4)), (["a"], torch.ones(1, 2, 4))], encoder="e")


def test_the_manifest_states_documents_tokens_and_bytes_of_every_shard(folder):
    shards = json.loads((folder / MANIFEST).read_text())["shards"]
    assert [s["documents"] for s in shards] == [3, 3, 1]
    assert [s["tokens"] for s in shards] == [8, 8, 4]
    assert [s["bytes"] for s in shards] == [(folder / s["file"]).stat().st_size for s in shards]


def rewritten(folder: Path, change) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    change(manifest)
    (folder / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(shards=None), r"manifest\.json: shards is None; expected a list"),
        (lambda m: m.update(shards=[1]), r"manifest\.json: shards\[0\] is 1; expected an object"),
        (lambda m: m.update(shards=[{}]), r"manifest\.json: shards\[0\]\.file is missing"),
        (lambda m: m["shards"][1].pop("sha256"), r"manifest\.json: shards\[1\]\.sha256 is missing"),
        (lambda m: m["shards"][1].update(bytes=True), r"manifest\.json: shards\[1\]\.bytes is True"),
        (lambda m: m["shards"][1].update(tokens=-1), r"manifest\.json: shards\[1\]\.tokens is -1"),
        (lambda m: m["shards"][1].update(m["shards"][0]), r"manifest\.json: shards\[1\]\.file is 'shard-00000"),
        (lambda m: m["shards"][1].update(file="../x"), r"manifest\.json: shards\[1\]\.file is '\.\./x'"),
        (lambda m: m.update(d="x"), r"manifest\.json: d is 'x'; expected a whole number"),
        (lambda m: m.update(d=None), r"manifest\.json: d is missing"),
        (lambda m: m.update(complete="no"), r"manifest\.json: complete is 'no'; expected true or false"),
        (lambda m: m.update(encoder=3), r"manifest\.json: encoder is 3; expected a string"),
        (lambda m: m.update(quantiser=[]), r"manifest\.json: quantiser missing or unknown"),
        (lambda m: m["shards"][1].update(documents=7), r"shard-00001.*: lengths is I32 \[3\], .*documents = 7"),
        (lambda m: m["shards"][1].update(tokens=7), r"shard-00001.*: codes is I8 \[8, 32\], .*tokens = 7"),
        (lambda m: m.update(d=9), r"shard-00000.*: codes is I8 \[3?8?, 32\], .*d = 9"),
        (lambda m: m.update(quantiser="fp8_per_token"), r"shard-00000.*: codes is I8 .*'fp8_per_token'.*F8_E4M3"),
        (lambda m: m.update(quantiser="none"), r"shard-00000.*: codes is I8 .*'none'.*F16 or BF16 or F32"),
        (lambda m: m.update(quantiser="int8_per_document"), r"shard-00000.*: scales is F32 \[8\].*'int8_per_document'"),
    ],
)
def test_a_manifest_that_is_not_of_its_shards_is_refused_by_file_and_field(folder, change, message, verify):
    rewritten(folder, change)
    with pytest.raises(IndexFileError, match=message):
        open_index(folder, verify=verify)


def test_resuming_checks_the_manifest_against_the_shards(tmp_path):
    def interrupted():
        yield next(blocks())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_index(tmp_path, interrupted(), encoder="e")
    rewritten(tmp_path, lambda m: m["shards"][0].update(tokens=5))
    with pytest.raises(IndexFileError, match=r"shard-00000.*tokens = 5"):
        write_index(tmp_path, blocks(), encoder="e")


def test_an_index_of_no_documents_opens(tmp_path):
    write_index(tmp_path, [], encoder="e")
    assert (open_index(tmp_path).count, open_index(tmp_path).ids()) == (0, [])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"lengths": torch.tensor([5, 0, 9], dtype=torch.int32)}, "lengths add up to 14, but codes has 8 rows"),
        ({"lengths": torch.tensor([9, -4, 3], dtype=torch.int32)}, "lengths add up to 8"),
        ({"ids": torch.frombuffer(bytearray(b'["a"]'), dtype=torch.uint8)}, "ids is not a list of 3"),
        ({"ids": torch.frombuffer(bytearray(b'["a"'), dtype=torch.uint8)}, "ids is not JSON"),
    ],
)
def test_a_shard_at_odds_with_itself_is_refused_when_it_is_read(folder, parts, message):
    file = folder / "shard-00000.safetensors"
    save_file({**load_file(file), **parts}, file)
    rewritten(folder, lambda m: m["shards"][0].update(bytes=file.stat().st_size))
    index = open_index(folder, verify=False)
    with pytest.raises(IndexFileError, match=rf"shard-00000\.safetensors: {message}"):
        index.shard(0) if "lengths" in parts else index.ids()


def test_a_file_is_not_an_index(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(IndexFileError, match="an index is a folder"):
        open_index(tmp_path / "file")


def test_text_that_utf_8_cannot_hold_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(ValueError, match=r"block 0: id 'a\\ud800' cannot be written as UTF-8"):
        write_index(tmp_path, [(["a\ud800"], torch.ones(1, 2, 4))], encoder="e")
    with pytest.raises(ValueError, match=r"encoder '\\ud800' cannot be written as UTF-8"):
        write_index(tmp_path, [(["a"], torch.ones(1, 2, 4))], encoder="\ud800")
    assert list(tmp_path.iterdir()) == []
