"""An index on disk: token embeddings as memory-mapped shards, with checksums, lengths, ids, encoder and quantiser.

Room: `quantized`. May import: fused, tokens.

A folder of safetensors shards (`codes` [T, d], `scales` fp32 [T] or [documents], `lengths` int32 [documents], `ids` a
JSON list in UTF-8) and `manifest.json`, which is rewritten after every shard: whatever it lists is on the disk whole.
Opening checks every size and checksum, the manifest's fields and what the shards' headers say of them, and refuses what
is wrong by the name of the file and the field.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from maxsim.quantized.batch import QuantizedTokens, owned_rows
from maxsim.quantized.quantizers import quantize_fp8, quantize_int8
from maxsim.tokens import Names, TokenBatch, named_tokens, require_embeddings, require_numbers

FORMAT = "maxsim-index"
VERSION = 1
MANIFEST = "manifest.json"
Quantiser = Literal["int8_per_token", "int8_per_document", "fp8_per_token", "fp8_per_document", "none"]
QUANTISERS = ("int8_per_token", "int8_per_document", "fp8_per_token", "fp8_per_document", "none")
# Names of element types in a shard's header.
_KEPT = {torch.float16: "F16", torch.bfloat16: "BF16", torch.float32: "F32"}  # by quantiser "none"
_CODES = {"int8": ("I8",), "fp8": ("F8_E4M3",), "none": tuple(_KEPT.values())}


class IndexFileError(ValueError):
    """A file of an index is missing, truncated, changed or of another kind."""


@dataclass(frozen=True)
class Index:
    """An opened index; tensors are read from the memory map when a shard is asked for.

    Attributes:
        path: its folder.
        manifest: what `manifest.json` says: encoder, quantiser, d, and file, bytes, sha256, documents, tokens of every
            shard.
    """

    path: Path
    manifest: dict[str, Any]

    @property
    def count(self) -> int:
        """Documents in all shards."""
        return sum(shard["documents"] for shard in self.manifest["shards"])

    @property
    def d(self) -> int:
        """Embedding dimension."""
        return int(self.manifest["d"])

    @property
    def quantiser(self) -> str:
        """One of `QUANTISERS`."""
        return str(self.manifest["quantiser"])

    @property
    def nbytes(self) -> int:
        """Bytes on disk: shards and manifest."""
        return sum(shard["bytes"] for shard in self.manifest["shards"]) + (self.path / MANIFEST).stat().st_size

    def __len__(self) -> int:
        """Number of shards."""
        return len(self.manifest["shards"])

    def __iter__(self) -> Iterator[QuantizedTokens | TokenBatch]:
        """Shard after shard, in the order of document numbers."""
        return (self.shard(i) for i in range(len(self)))

    def shard(self, i: int) -> QuantizedTokens | TokenBatch:
        """Documents of shard i on the CPU, over the memory map: a plain `TokenBatch` where nothing is quantised."""
        file = self.path / self.manifest["shards"][i]["file"]
        parts = _read(file, ("codes", "scales", "lengths"))
        lengths = parts["lengths"].long()
        total = int(lengths.sum())
        if total != parts["codes"].shape[0] or (lengths.numel() and int(lengths.min()) < 0):
            raise IndexFileError(f"{file}: lengths add up to {total}, but codes has {parts['codes'].shape[0]} rows")
        starts = torch.cumsum(lengths, 0) - lengths
        batch = TokenBatch(
            values=parts["codes"],
            count=lengths.shape[0],
            pitch=0,
            max_length=int(lengths.max()) if lengths.numel() else 0,
            starts=starts,
            lengths=parts["lengths"],
            total_rows=parts["codes"].shape[0],
        )
        if self.quantiser == "none":
            return batch
        return QuantizedTokens(batch, parts["scales"], "token" if self.quantiser.endswith("token") else "document")

    def ids(self) -> list[str]:
        """Id of every document, by document number."""
        out: list[str] = []
        for shard in self.manifest["shards"]:
            out += _ids(self.path / shard["file"], shard["documents"])
        return out


def open_index(path: str | Path, *, verify: bool = True) -> Index:
    """Opens a finished index.

    Args:
        path: its folder.
        verify: read every shard once and compare its SHA-256. Sizes are compared, and headers read, in any case.

    Raises:
        IndexFileError: naming the file that is missing, truncated, changed, unfinished or of another kind, and the
            field that is wrong.
    """
    index = _open(Path(path))
    if not index.manifest["complete"]:
        raise IndexFileError(f"{index.path}: unfinished, {index.count} documents so far; call write_index again")
    if verify:
        for shard in index.manifest["shards"]:
            if _sha256(index.path / shard["file"]) != shard["sha256"]:
                raise IndexFileError(f"{index.path / shard['file']}: does not match its checksum; write it again")
    _check_headers(index)
    return index


def write_index(
    path: str | Path,
    blocks: Iterable[tuple[Sequence[str], Tensor | TokenBatch]],
    *,
    encoder: str,
    quantiser: Quantiser = "int8_per_token",
) -> Index:
    """Quantises a corpus block by block and writes one shard a block; a shard is whole on the disk or absent.

    Called again on an unfinished folder with the same blocks it goes on where it stopped: blocks whose ids are there
    already are skipped.

    Args:
        path: folder, made if needed.
        blocks: ids and embeddings ([N, L, d] or a `TokenBatch`, fp16 / bf16 / fp32) of consecutive documents; all in
            one dtype where nothing is quantised. Memory holds one block, so this is also the size of a shard.
        encoder: what made the embeddings; recorded, and must be the same when resuming.
        quantiser: see `QUANTISERS`; "none" keeps the embeddings as they are (for exact rescoring).

    Raises:
        IndexFileError: if the folder holds an index of other settings or other documents, or a finished one.
        ValueError: for ids that do not match the block, are not strings, cannot be written as UTF-8 or occur twice; for
            embeddings of another dtype or dimension than can be kept or than earlier blocks have, or on the device
            meta; see `quantize_int8`.
        TypeError: for a block that is neither a tensor nor a `TokenBatch`.
    """
    if quantiser not in QUANTISERS:
        raise ValueError(f"quantiser = {quantiser!r}: choose one of {', '.join(QUANTISERS)}")
    _require_utf8("encoder", encoder)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    manifest = _resume(folder, encoder, quantiser)
    written = [_ids(folder / shard["file"], shard["documents"]) for shard in manifest["shards"]]
    seen = {name for names in written for name in names}
    kept = _header(folder / _name(0))["codes"][0] if written and quantiser == "none" else None
    for i, (ids, block) in enumerate(blocks):
        names = list(ids)
        batch = named_tokens(Names(f"block {i}"), block)
        _check_block(names, batch, manifest, i, kept)
        if i < len(written):
            if names != written[i]:
                raise IndexFileError(f"{folder / _name(i)}: holds other documents than block {i}; use a new folder")
            continue
        for name in names:
            if name in seen:
                raise ValueError(f"block {i}: id {name!r} occurs twice")
            seen.add(name)
        manifest["d"] = batch.d
        if quantiser == "none":
            kept = _KEPT[batch.dtype]
        manifest["shards"].append(_write_shard(folder / _name(i), names, batch, quantiser))
        _write_manifest(folder, manifest)
    manifest["complete"] = True
    _write_manifest(folder, manifest)
    return Index(folder, manifest)


def _check_block(names: list[str], batch: TokenBatch, manifest: dict[str, Any], i: int, kept: str | None) -> None:
    """ValueError for a block that cannot be written; `kept`: element type of earlier blocks that are not quantised."""
    require_embeddings(f"block {i}", batch.dtype)
    require_numbers(f"block {i}", batch.device)
    if len(names) != batch.count:
        raise ValueError(f"block {i}: {len(names)} ids for {batch.count} documents")
    for name in names:
        _require_utf8(f"block {i}: id", name)
    if manifest["d"] not in (None, batch.d):
        raise ValueError(f"block {i}: d = {batch.d}, but earlier blocks have d = {manifest['d']}")
    if manifest["quantiser"] == "none":
        if batch.dtype not in _KEPT:
            raise ValueError(f"block {i}: dtype is {batch.dtype}; an index keeps float16, bfloat16 or float32")
        if kept not in (None, _KEPT[batch.dtype]):
            raise ValueError(f"block {i}: dtype is {batch.dtype}, but earlier blocks hold {kept}; give all in one")


def _require_utf8(what: str, text: object) -> None:
    """ValueError unless it is a string that a file in UTF-8 can hold: a lone surrogate is none."""
    if not isinstance(text, str):
        raise ValueError(f"{what} {text!r} is not a string")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} {text!r} cannot be written as UTF-8: {error.reason} at {error.start}") from None


def _write_shard(file: Path, names: list[str], batch: TokenBatch, quantiser: Quantiser) -> dict[str, Any]:
    rows, _ = owned_rows(batch)
    parts: dict[str, Tensor] = {"lengths": batch.row_lengths().int().cpu().contiguous()}
    if quantiser == "none":
        parts["codes"] = batch.values[rows].cpu().contiguous()
    else:
        quantise = quantize_int8 if quantiser.startswith("int8") else quantize_fp8
        q = quantise(batch, "token" if quantiser.endswith("token") else "document")
        raw = q.codes.values.view(torch.uint8)[rows].view(q.codes.dtype)
        parts["codes"] = raw.cpu().contiguous()
        parts["scales"] = (q.scales[rows] if q.kind == "token" else q.scales).cpu().contiguous()
    parts["ids"] = torch.frombuffer(bytearray(json.dumps(names, ensure_ascii=False).encode()), dtype=torch.uint8)
    partial = file.with_suffix(".partial")
    save_file(parts, partial)
    with partial.open("rb+") as handle:
        os.fsync(handle.fileno())
    digest = _sha256(partial)
    partial.replace(file)
    return {
        "file": file.name,
        "bytes": file.stat().st_size,
        "sha256": digest,
        "documents": batch.count,
        "tokens": rows.shape[0],
    }


def _resume(folder: Path, encoder: str, quantiser: Quantiser) -> dict[str, Any]:
    if not (folder / MANIFEST).exists():
        return {
            "format": FORMAT,
            "version": VERSION,
            "encoder": encoder,
            "quantiser": quantiser,
            "d": None,
            "complete": False,
            "shards": [],
        }
    index = _open(folder)
    _check_headers(index)
    manifest = index.manifest
    for key, value in (("encoder", encoder), ("quantiser", quantiser)):
        if manifest[key] != value:
            raise IndexFileError(f"{folder / MANIFEST}: {key} is {manifest[key]!r}, not {value!r}; use a new folder")
    if manifest["complete"]:
        raise IndexFileError(f"{folder / MANIFEST}: this index is finished; use a new folder")
    return manifest


def _open(folder: Path) -> Index:
    file = folder / MANIFEST
    try:
        manifest = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise IndexFileError(f"{file}: not there, so {folder} is not an index") from None
    except OSError as error:
        raise IndexFileError(f"{file}: cannot be read ({error.strerror}); an index is a folder") from None
    except ValueError as error:
        raise IndexFileError(f"{file}: not JSON ({error})") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT or manifest.get("version") != VERSION:
        raise IndexFileError(f"{file}: not a {FORMAT} of version {VERSION}")
    missing = {"encoder", "quantiser", "d", "complete", "shards"} - manifest.keys()
    if missing or manifest["quantiser"] not in QUANTISERS:
        raise IndexFileError(f"{file}: {', '.join(sorted(missing)) or 'quantiser'} missing or unknown")
    _check_fields(file, manifest)
    for shard in manifest["shards"]:
        path = folder / shard["file"]
        if not path.exists():
            raise IndexFileError(f"{path}: missing")
        if path.stat().st_size != shard["bytes"]:
            raise IndexFileError(f"{path}: {path.stat().st_size} bytes, but {shard['bytes']} were written")
    return Index(folder, manifest)


def _check_fields(file: Path, manifest: dict[str, Any]) -> None:
    """IndexFileError unless every field is of its kind and the shards are those of `write_index`, in their order."""
    shards = manifest["shards"]
    if not isinstance(shards, list):
        raise IndexFileError(f"{file}: shards is {shards!r}; expected a list")
    fields: list[tuple[str, object, bool, str]] = [
        ("encoder", manifest["encoder"], isinstance(manifest["encoder"], str), "a string"),
        ("complete", manifest["complete"], isinstance(manifest["complete"], bool), "true or false"),
    ]
    if shards or manifest["d"] is not None:  # only a block tells d
        fields.append(("d", manifest["d"], _whole(manifest["d"], 1), "a whole number, at least 1"))
    for i, shard in enumerate(shards):
        if not isinstance(shard, dict):
            raise IndexFileError(f"{file}: shards[{i}] is {shard!r}; expected an object")
        digest = shard.get("sha256")
        fields.append((f"shards[{i}].file", shard.get("file"), shard.get("file") == _name(i), repr(_name(i))))
        fields.append((f"shards[{i}].sha256", digest, isinstance(digest, str), "a string"))
        for key in ("bytes", "documents", "tokens"):
            fields.append((f"shards[{i}].{key}", shard.get(key), _whole(shard.get(key), 0), "a whole number"))
    for name, value, right, expected in fields:
        if not right:
            raise IndexFileError(
                f"{file}: {name} is {'missing' if value is None else repr(value)}; expected {expected}"
            )


def _whole(x: object, least: int) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x >= least


def _check_headers(index: Index) -> None:
    """IndexFileError unless the tensors of every shard are those that the manifest speaks of. No tensor is read."""
    d, quantiser = index.manifest["d"], index.quantiser
    for i, shard in enumerate(index.manifest["shards"]):
        documents, rows = shard["documents"], shard["tokens"]
        expected: list[tuple[str, tuple[str, ...], list[int], str]] = [
            ("lengths", ("I32",), [documents], f"shards[{i}].documents = {documents}"),
            (
                "codes",
                _CODES[quantiser.partition("_")[0]],
                [rows, d],
                f"quantiser = {quantiser!r}, shards[{i}].tokens = {rows}, d = {d}",
            ),
        ]
        if quantiser != "none":
            scales = rows if quantiser.endswith("token") else documents
            expected.append(("scales", ("F32",), [scales], f"quantiser = {quantiser!r}"))
        file = index.path / shard["file"]
        held = _header(file)
        for name, dtypes, shape, said in expected:
            if name not in held:
                raise IndexFileError(f"{file}: holds no {name}")
            dtype, found = held[name]
            if dtype not in dtypes or found != shape:
                raise IndexFileError(
                    f"{file}: {name} is {dtype} {found}, but {MANIFEST} says {said}: {' or '.join(dtypes)} {shape}"
                )


def _header(file: Path) -> dict[str, tuple[str, list[int]]]:
    """Element type and shape of every tensor of a shard."""
    try:
        with safe_open(str(file), framework="pt") as handle:
            parts = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
            return {name: (part.get_dtype(), list(part.get_shape())) for name, part in parts.items()}
    except (SafetensorError, OSError) as error:
        raise IndexFileError(f"{file}: not a readable shard ({error})") from None


def _read(file: Path, names: Iterable[str]) -> dict[str, Tensor]:
    try:
        with safe_open(str(file), framework="pt") as handle:
            return {name: handle.get_tensor(name) for name in names if name in handle.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise IndexFileError(f"{file}: not a readable shard ({error})") from None


def _ids(file: Path, documents: int) -> list[str]:
    parts = _read(file, ("ids",))
    if "ids" not in parts:
        raise IndexFileError(f"{file}: holds no ids")
    try:
        names = json.loads(bytes(parts["ids"].numpy()).decode())
    except ValueError as error:
        raise IndexFileError(f"{file}: ids is not JSON ({error})") from None
    if not isinstance(names, list) or len(names) != documents:
        raise IndexFileError(f"{file}: ids is not a list of {documents}, one a document")
    return [str(name) for name in names]


def _write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    partial = folder / (MANIFEST + ".partial")
    with partial.open("w", encoding="utf-8") as handle:
        json.dump(manifest, handle, indent=1, ensure_ascii=False)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(folder / MANIFEST)


def _sha256(file: Path) -> str:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _name(i: int) -> str:
    return f"shard-{i:05d}.safetensors"
