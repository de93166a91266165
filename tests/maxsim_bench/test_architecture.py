"""The table of rooms holds: who imports whom, who touches clocks, what is imported only where it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HARNESS, KERNELS = ROOT / "harness" / "maxsim_bench", ROOT / "kernels" / "maxsim"

# Room → what it may import of ours, beside itself. A row holds its cell, so whoever reads rows knows `declare` too.
HARNESS_ROOMS = {
    "declare": set(),
    "record": {"declare"},
    "measure": set(),
    "backends": {"declare", "maxsim"},
    "run": {"declare", "record", "measure", "backends"},
    "retrieve": {"declare", "record", "backends", "maxsim"},  # the operator itself: contrastive training
    "report": {"declare", "record"},
}  # fmt: skip
# The kernels' floors, lowest first; float64 input goes to the reference from every floor above it, baselines included.
KERNEL_ROOMS = {
    "tokens": set(),
    "reference": {"tokens"},
    "baselines": {"tokens", "reference"},
    "fused": {"tokens", "reference"},
    "training": {"tokens", "reference", "fused"},
    "quantized": {"tokens", "reference", "fused"},
    "operator": {"tokens", "reference", "baselines", "fused", "training", "quantized"},
    "blocks": {"tokens", "quantized"},
    "search": {"tokens", "blocks", "operator", "quantized"},
    "integrations": {"operator"},
}
HEAVY = {
    "torch", "triton", "matplotlib", "transformers", "sentence_transformers", "beir", "ir_datasets", "flash_maxsim",
    "late_interaction_kernels", "colpali_engine", "pylate", "maxsim",
}  # fmt: skip
# Triton kernels exist from the import of their module on; these are imported inside functions only.
DEFINES_KERNELS = {"measure/streaming.py", "backends/floor/kernels.py"}
CLOCKS = {
    "time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "process_time", "now", "utcnow",
    "today", "Event", "elapsed_time", "timeit",
}  # fmt: skip
CLOCK_OWNERS = {"time", "datetime", "cuda", "timeit", "date"}


def sources(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


def imported(tree: ast.AST, package: str, file: Path) -> Iterator[tuple[ast.stmt, str]]:
    """Every import with the dotted name it binds or takes from, `from package import room` as `package.room`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import; write the full name"
            if node.module == package:
                yield from ((node, f"{package}.{alias.name}") for alias in node.names)
            else:
                yield node, node.module or ""


def room_of(file: Path, package: Path) -> str:
    return file.relative_to(package).parts[0].removesuffix(".py")


def violations(package: Path, rooms: dict[str, set[str]]) -> list[str]:
    """Imports of other rooms that the table does not allow, and of modules beside the rooms, which no room may know."""
    root, found = package.parent, []
    ours = {room_of(file, package) for file in sources(package)} - {"__init__"}
    for file in sources(package):
        room = room_of(file, package)
        if room not in rooms:
            continue
        for node, name in imported(ast.parse(file.read_text("utf-8")), package.name, file):
            top, _, rest = name.partition(".")
            other = rest.split(".")[0] if top == package.name else top if top == "maxsim" else ""
            known = {*ours, *HARNESS_ROOMS, *KERNEL_ROOMS, "maxsim"}
            if other in known and other != room and other not in rooms[room]:
                found.append(f"{file.relative_to(root)}:{node.lineno}: {room} imports {name}")
    return found


def test_no_room_of_the_harness_reaches_where_the_table_does_not_let_it() -> None:
    assert violations(HARNESS, HARNESS_ROOMS) == []


def test_no_room_of_the_kernels_reaches_where_the_table_does_not_let_it() -> None:
    assert violations(KERNELS, KERNEL_ROOMS) == []


def test_the_kernels_know_nothing_of_the_harness() -> None:
    for file in sources(KERNELS):
        assert "maxsim_bench" not in {n.split(".")[0] for _, n in imported(ast.parse(file.read_text()), "maxsim", file)}


def test_every_module_of_the_harness_is_in_a_room_or_beside_the_command_line() -> None:
    loose = {room_of(f, HARNESS) for f in sources(HARNESS)} - set(HARNESS_ROOMS)
    rooms = {"declare", "record", "measure", "backends", "run", "retrieve", "report"}
    assert rooms <= {room_of(f, HARNESS) for f in sources(HARNESS)}
    for name in loose - {"__init__"}:
        head = (HARNESS / f"{name}.py").read_text("utf-8").split('"""')[1]
        assert "Orchestration" in head, f"{name}.py does not say that it is orchestration"


def test_every_module_of_a_room_names_it_at_its_head() -> None:
    silent = []
    for file in sources(HARNESS):
        room = room_of(file, HARNESS)
        head = "\n".join(file.read_text("utf-8").splitlines()[:10])
        if room in HARNESS_ROOMS and f"Room: `{room}`" not in head and f"Room `{room}`" not in head:
            silent.append(file.relative_to(HARNESS).as_posix())
    assert silent == []


def at_import_time(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported: not inside functions, not under TYPE_CHECKING."""
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        yield node
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            pending += node.orelse
            continue
        pending += [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt)]


def test_the_harness_imports_heavy_packages_in_the_function_that_needs_them() -> None:
    found = []
    for file in sources(HARNESS):
        if file.relative_to(HARNESS).as_posix() in DEFINES_KERNELS:
            continue
        for node in at_import_time(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = {a.name for a in node.names} if isinstance(node, ast.Import) else {node.module or ""}
                if {n.split(".")[0] for n in names} & HEAVY:
                    found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_only_measure_touches_clocks_and_events() -> None:
    found = []
    for file in sources(HARNESS):
        if room_of(file, HARNESS) == "measure":
            continue
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in CLOCKS:
                owner = node.value.attr if isinstance(node.value, ast.Attribute) else getattr(node.value, "id", "")
                clock = owner in CLOCK_OWNERS
            elif isinstance(node, ast.ImportFrom):
                clock = node.module in ("time", "timeit") and bool({a.name for a in node.names} & CLOCKS)
            else:
                clock = False
            if clock:
                found.append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert found == []


def test_the_report_never_imports_torch() -> None:
    for file in sources(HARNESS / "report"):
        names = {n.split(".")[0] for _, n in imported(ast.parse(file.read_text("utf-8")), "maxsim_bench", file)}
        assert not names & {"torch", "triton", "maxsim"}, file


@pytest.mark.parametrize("package", ["cli", "declare", "record", "report"])
def test_nothing_heavy_is_loaded_by_importing(package: str) -> None:
    program = (
        "import importlib, pkgutil, sys\n"
        f"room = importlib.import_module('maxsim_bench.{package}')\n"
        "for m in pkgutil.iter_modules(getattr(room, '__path__', [])):\n"
        "    importlib.import_module(f'{room.__name__}.{m.name}')\n"
        "heavy = {'torch', 'triton', 'matplotlib', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_violation_is_seen(tmp_path: Path) -> None:
    """The checker itself: a room that reaches upstream by either spelling is named."""
    package = tmp_path / "maxsim_bench"
    (package / "declare").mkdir(parents=True)
    (package / "loose.py").write_text("")
    (package / "declare" / "bad.py").write_text(
        "from maxsim_bench.run.sweep import x\ndef f():\n    import maxsim\n"
        "from maxsim_bench import __version__, loose\n"
    )
    told = violations(package, HARNESS_ROOMS)
    assert told == [
        "maxsim_bench/declare/bad.py:1: declare imports maxsim_bench.run.sweep",
        "maxsim_bench/declare/bad.py:4: declare imports maxsim_bench.loose",
        "maxsim_bench/declare/bad.py:3: declare imports maxsim",
    ]
