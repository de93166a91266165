"""Index files: what is written is read back, half the size, and what is wrong is refused by the name of the file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

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
