"""What rows were measured on: `environment.json` beside the CSVs, by environment id, with the sessions of each.

Room: `record`. Imports nothing else of ours. An id stands for what decides whether times may be compared (card, driver,
libraries, processor). The checkout, the packages and the ceilings may change from one session to the next under one id,
so they are kept for each session, and a row's is the last that began before the row was measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from maxsim_bench.record.files import StoreError, hold, replace_file

# Facts of a session; all others are of the environment.
SESSION = ("captured_at", "git_commit", "git_dirty", "packages", "ceilings", "python", "os")

_SHOWN = 60  # characters of a value that is wrong
_Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Rates = dict[str, _Rate]
_Time = Annotated[float, Field(ge=0, allow_inf_nan=False)]  # a call that does nothing may be below a clock's tick


class _Ceilings(BaseModel):
    """What a record of measured ceilings may hold, as `measure.ceilings` writes it.

    What is missing was not measured: earlier writers knew fewer of them. What is there is a number of its kind.
    """

    model_config = ConfigDict(strict=True)

    device: str | None = None
    matmul_tflops: _Rates = {}
    read_gbs: _Rate | None = None
    launch_ms: _Time | None = None
    host_launch_ms: _Time | None = None
    sources: dict[str, str] = {}
    all_measured: _Rates = {}
    missing: dict[str, str] = {}
    read_by_bytes: _Rates = {}
    host_copy_gbs: _Rate | None = None


def read_environments(folder: Path) -> dict[str, Any]:
    """Environment id → facts, with `sessions`, earliest first; empty if there is no `environment.json`.

    Raises:
        StoreError: for a file that is not JSON, or holds no environments by id, or ceilings that are no positive
            numbers, naming the file and the key.
    """
    path = folder / "environment.json"
    if not path.exists():
        return {}
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # the second for a thousand brackets one in another
        raise StoreError(f"{path}: not JSON: {error}. Restore the file, or delete it.") from None
    if not isinstance(found, dict) or not all(_whole(facts) for facts in found.values()):
        raise StoreError(f"{path}: holds no environments by id. Restore the file, or delete it.")
    for key, facts in found.items():
        _require_ceilings(path, key, facts)
    return {key: _by_session(facts) for key, facts in found.items()}


def add_environments(folder: Path, environments: Mapping[str, Any]) -> None:
    """Keep environments by id, and every session once.

    Args:
        environments: id → facts as captured, those of the session among them; or as `read_environments` returns them.
            Facts of an environment that are there stay; those that an earlier writer did not have are added.
    """
    # Every sweep of a folder writes here, for a moment: a second one waits, it does not end.
    with hold(folder / "environment.json.lock", what=str(folder / "environment.json"), wait=True):
        known = read_environments(folder)
        merged = known | {key: _joined(known.get(key, {}), _by_session(facts)) for key, facts in environments.items()}
        if merged != known:
            text = json.dumps(merged, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
            replace_file(folder / "environment.json", text.encode("utf-8"))


def session_of(facts: Mapping[str, Any], measured_at: str | None) -> dict[str, Any]:
    """The session that a row of this time is of: the last begun before it, else the first; {} where none is kept."""
    sessions: list[dict[str, Any]] = facts.get("sessions", [])
    begun = [s for s in sessions if measured_at and _began(s) <= measured_at]
    return begun[-1] if begun else sessions[0] if sessions else {}


def _whole(facts: Any) -> bool:
    """Whether facts of an environment, and of its sessions, have the types that a capture gives them."""
    sessions = facts.get("sessions", []) if isinstance(facts, dict) else None
    if not isinstance(sessions, list) or not all(isinstance(session, dict) for session in sessions):
        return False
    packages = [one.get("packages") for one in (facts, *sessions)]
    return all(table is None or isinstance(table, dict) for table in packages)


def _require_ceilings(path: Path, identity: str, facts: Mapping[str, Any]) -> None:
    """StoreError for ceilings that no session measured; None and a text (why there are none) are as good as none."""
    sessions = facts.get("sessions", [])
    told = [
        (f"{identity}.ceilings", facts),
        *((f"{identity}.sessions[{i}].ceilings", s) for i, s in enumerate(sessions)),
    ]
    for where, session in told:
        ceilings = session.get("ceilings")
        if ceilings is None or isinstance(ceilings, str):
            continue
        if not isinstance(ceilings, dict):
            raise StoreError(_odd(path, where, ceilings, "expected a table of ceilings, or none"))
        try:
            _Ceilings.model_validate(ceilings)
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join([where, *map(str, first["loc"])])
            raise StoreError(_odd(path, place, first["input"], first["msg"])) from None


def _odd(path: Path, place: str, value: Any, expected: str) -> str:
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
    return f"{path}: {place} is {shown}: {expected}. Restore the file, or take out what is wrong."


def _began(session: Mapping[str, Any]) -> str:
    return str(session.get("captured_at") or "")


def _by_session(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts with their session apart, which a capture has among the others."""
    own = {name: fact for name, fact in facts.items() if name not in (*SESSION, "sessions")}
    captured = {name: facts[name] for name in SESSION if name in facts}
    sessions = [*facts.get("sessions", []), *([captured] if captured else [])]
    return {**own, "sessions": sessions} if sessions else own


def _joined(known: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Both, with the sessions of both in the order in which they began; equal ones once."""
    sessions: list[Any] = list(known.get("sessions", []))
    sessions += [session for session in new.get("sessions", []) if session not in sessions]
    joined = {**new, **known}
    return {**joined, "sessions": sorted(sessions, key=_began)} if sessions else joined
