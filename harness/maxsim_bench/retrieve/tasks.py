"""What a fidelity run is asked to do, and how: cells with the names, paths and first stages behind them; settings.

Room: `retrieve`. May import: declare, record, backends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from maxsim_bench.declare.cell import Cell, Dtype
from maxsim_bench.declare.experiment import Planned
from maxsim_bench.retrieve.audit import LIMIT


@dataclass(frozen=True)
class Task:
    """One data set under one encoder, and who ranks it.

    Attributes:
        cell: op "fidelity", with dataset, split, encoder and dtype; `k` and variant "first_stage=..." for reranking.
        backends: names.
        source, encoder_source: what to load where it is not `cell.dataset` and `cell.encoder`: paths, which no result
            should hold.
        first_stage: "bm25" or a TREC run file, None for full ranking.
        options: for the loader of the data set (level, documents, queries, revision ...).
    """

    cell: Cell
    backends: tuple[str, ...]
    source: str | None = None
    encoder_source: str | None = None
    first_stage: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Settings:
    """How and where tasks run.

    Attributes:
        device: "cpu" or "cuda": what ranks.
        devices: where encoders run; default every visible GPU, or the processor.
        gpu_name, environment_id, measured_at: recorded in the rows.
        limit: largest |ΔnDCG@10| of a backend that claims to be exact.
        data_dir: folder with data sets; default $MAXSIM_BENCH_DATA.
        isolate: own processes; default on a GPU only.
        timeout_s: for a data set with all its backends, where isolated.
        jobs: data sets audited at a time, where isolated; default by processors and device memory.
        threads: of each of them on the processor; default torch's.
        runs_dir: write every ranking there as a TREC run file.
        force: audit again what the store has.
    """

    device: str
    gpu_name: str
    devices: tuple[str, ...] = ()
    environment_id: str | None = None
    measured_at: str | None = None
    limit: float = LIMIT
    data_dir: Path | None = None
    isolate: bool | None = None
    timeout_s: float = 1800.0
    jobs: int | None = None
    threads: int | None = None
    runs_dir: Path | None = None
    force: bool = False


def tasks_of(planned: Iterable[Planned]) -> list[Task]:
    """The tasks of a declared experiment's cells."""
    return [Task(p.cell, p.backends) for p in planned]


def plan_tasks(
    datasets: Sequence[str],
    encoder: str,
    backends: Sequence[str],
    gpu: str,
    *,
    split: str | None = None,
    level: int | None = None,
    dtype: Dtype = "fp16",
    first_stage: str | None = None,
    depth: int = 100,
    options: Mapping[str, Any] | None = None,
) -> list[Task]:
    """One task a data set, for what a command line asks for.

    Args:
        datasets: names or paths; a path is recorded by its last part.
        encoder: name with options; a folder in it is recorded by its last part.
        split: default "test", or the level's.
        first_stage: "bm25" or a TREC run file, for reranking `depth` documents a query.
    """
    tasks = []
    for name in datasets:
        path = Path(name)
        shown = path.name.split(".")[0] if path.exists() else name
        kind, _, where = encoder.partition(":")
        encoder_name = f"{kind}:{Path(where).name}" if where and Path(where).exists() else encoder
        stage = None if first_stage is None else f"first_stage={_word(Path(first_stage).name)}"
        cell = Cell(
            experiment="fidelity",
            gpu=gpu,
            op="fidelity",
            dataset=shown,
            split=split or _default_split(name, level),
            encoder=encoder_name,
            dtype=dtype,
            k=depth if first_stage is not None else None,
            variant=stage,
        )
        extra = {**(options or {}), **({"level": level} if level is not None else {})}
        tasks.append(
            Task(
                cell,
                tuple(backends),
                source=name if shown != name else None,
                encoder_source=encoder if encoder_name != encoder else None,
                first_stage=first_stage,
                options=extra,
            )
        )
    return tasks


def _default_split(name: str, level: int | None) -> str | None:
    if name.startswith("ir_datasets:"):
        return None  # the id names it
    if level is not None or name.startswith(("realmmrag:", "realmmrag-qa:")):
        return f"L{level or 0}"
    return "test"


def _word(text: str) -> str:
    """A value of a cell's variant, which "=" and ";" would break."""
    return text.replace("=", "-").replace(";", "-")
