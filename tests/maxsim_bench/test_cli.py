"""The commands as a user sees them: whole outputs, exit codes, messages that say what to do."""

from __future__ import annotations

import json
import re
import shlex
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from maxsim_bench.catalogue import find_cell
from maxsim_bench.cli import main
from maxsim_bench.cli_page import page
from maxsim_bench.declare.cell import Cell
from maxsim_bench.declare.experiment import Experiment, matches
from maxsim_bench.declare.select import Filters, parse_where, select, where_text
from maxsim_bench.doctor import EXTRAS, Diagnosis, diagnosis_lines, why_not
from maxsim_bench.measure.ceilings import Ceilings
from maxsim_bench.record.environments import add_environments
from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples
from maxsim_bench.record.store import Store
from maxsim_bench.report.declared import Declared
from maxsim_bench.report.origins import command as command_of

ROOT = Path(__file__).parents[2]
TINY = """\
name = "tiny"
title = "A tiny grid"
backends = ["reference", "eager"]
baseline = "eager"
axes = { gpu = ["cpu", "h200"], B = [1, 2], Nq = 1, Lq = 3, Ld = 4, d = 8, dtype = "fp32", layout = "dense", pairing = "all", inputs = "random" }
timing = { seconds = 0.01, min_samples = 2, max_samples = 3 }

[[leave_out]]
when = { B = 2 }
backends = "reference"
why = "for the test"
"""  # noqa: E501
HASHES = [
    Cell(
        experiment="tiny", gpu="h200", op="forward", B=B, Nq=1, Lq=3, Ld=4, d=8, dtype="fp32", layout="dense",
        pairing="all", inputs="random", timing_policy="cold_l2",
    ).hash()
    for B in (1, 2)
]  # fmt: skip

Invoke = Callable[..., Result]


@pytest.fixture
def invoke(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Invoke:
    """Runs a command in a folder that has `experiments/tiny.toml` and nothing else."""
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "tiny.toml").write_text(TINY)
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> Result:
        return CliRunner().invoke(main, list(arguments), catch_exceptions=False)

    return call


def tiny_row(B: int = 1, **changes: object) -> Row:
    cell = Cell(experiment="tiny", gpu="h200", op="forward", B=B)
    fields = {
        "cell": cell,
        "backend": "eager",
        "backend_version": "v",
        "gpu": "H200",
        "status": "ok",
        "latency_ms": 0.5,
    }
    return Row.model_validate(fields | changes)


def test_plan_shows_every_cell_what_is_left_out_and_what_waits(invoke: Invoke) -> None:
    done = invoke("plan", "--gpu", "h200")
    assert (done.exit_code, done.output) == (
        0,
        "tiny (full) on h200: 2 cells, 3 measurements, about 2 s; inputs up to 352 B, similarity tensor up to 96 B\n"
        f"  {HASHES[0]}  B=1  reference eager\n"
        f"  {HASHES[1]}  B=2  eager\n"
        "  left out: 1 × reference: for the test\n"
        "  elsewhere: 2 cells for cpu: on that machine `maxsim-bench run tiny --profile full`, "
        "then merge its CSV here\n",
    )


def test_a_plan_without_cells_ends_as_its_run_would(invoke: Invoke) -> None:
    planned, run = invoke("plan", "tiny", "--where", "B=9"), invoke("run", "tiny", "--where", "B=9")
    assert (planned.exit_code, planned.stderr) == (run.exit_code, run.stderr)
    assert planned.exit_code == 2
    assert "tiny (full) on cpu: no cells" in planned.stdout


def test_plan_takes_filters_and_prints_json(invoke: Invoke) -> None:
    done = invoke("plan", "--gpu", "h200", "--where", "B>1", "--json")
    (plan,) = json.loads(done.output)
    assert [(p["cell"]["B"], p["backends"]) for p in plan["planned"]] == [(2, ["eager"])]
    assert (plan["gpu"], plan["profile"], plan["elsewhere"]) == ("h200", "full", {"cpu": 1})


def test_a_memory_cap_becomes_part_of_every_cell(invoke: Invoke) -> None:
    (plan,) = json.loads(invoke("plan", "--gpu", "h200", "--memory-cap", "40GB", "--json").output)
    assert {p["cell"]["memory_cap"] for p in plan["planned"]} == {42_400_000_000}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["plan", "tinny"], "Error: no experiment 'tinny' in experiments. Did you mean 'tiny'?\n"),
        (["plan", "--where", "b=1"], "Error: --where b=1: unknown axis 'b'. Did you mean 'B'?\n"),
        (["plan", "--backend", "eagre"], "Error: --backend eagre: no such backend. Did you mean 'eager'?\n"),
        (["plan", "--gpu", "h20"], "Error: --gpu h20: unknown card. Did you mean 'h200'?\n"),
        (
            ["plan", "--experiments", "none"],
            "Error: none: no such folder. Run in the checkout, or name it with --experiments.\n",
        ),
        (
            ["merge", "none", "here"],
            "Error: none: is not there. Name a CSV of results, or a directory that holds some.\n",
        ),
        (["show", "x"], "Error: x: no cell, declared or measured, begins so. `maxsim-bench plan` lists them.\n"),
        (
            ["run", "tiny", "--where", "B=9"],
            "Error: no cell of tiny is declared for cpu under profile full with B=9. "
            "Without these filters there are. `maxsim-bench plan` shows what is declared.\n",
        ),
    ],
)
def test_wrong_usage_is_a_message_with_a_remedy_and_exit_code_2(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = invoke(*arguments)
    assert (done.exit_code, done.stderr, done.stdout) == (2, told, "")


def declare_for_gpus(name: str, smoke: str = "") -> None:
    """A grid of GPUs alone, whose profile smoke is what `smoke` makes of it."""
    text = TINY.replace('"tiny"', f'"{name}"').replace('"cpu", "h200"', '"h200"')
    Path(f"experiments/{name}.toml").write_text(text + smoke)


@pytest.mark.parametrize(
    ("smoke", "arguments", "told"),
    [
        (
            "",
            ["--where", "B=1"],
            "What a processor can measure are the grids of `maxsim-bench plan --profile smoke`; begin with "
            "`maxsim-bench run tiny --profile smoke`.",
        ),
        (
            '[profiles.smoke.axes]\ngpu = "cpu"\n',
            ["--where", "B=1"],
            "Under profile smoke there are: `maxsim-bench run big --profile smoke --where B=1`.",
        ),
        (
            '[profiles.smoke.axes]\ngpu = "cpu"\n',
            ["--where", "B=9"],
            "Under profile smoke, without these filters, there are: `maxsim-bench run big --profile smoke`.",
        ),
    ],
)
def test_a_grid_of_other_cards_is_refused_with_what_can_be_measured_here(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, smoke: str, arguments: list[str], told: str
) -> None:
    """What the message names is a plan with cells."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    declare_for_gpus("big", smoke)
    done = invoke("run", "big", *arguments)
    assert done.exit_code == 2
    assert done.stderr.endswith(f" {told}\n")
    for command in re.findall(r"`maxsim-bench \w+ (.*?)`", told):
        assert invoke("plan", *shlex.split(command)).exit_code == 0


@pytest.mark.parametrize(
    ("smoke", "told"),
    [
        (
            "",
            "What l4 can measure are the grids of `maxsim-bench plan --profile smoke --gpu l4`; on that machine begin "
            "with `maxsim-bench run small --profile smoke`.",
        ),
        (
            '[profiles.smoke.axes]\ngpu = "l4"\n',
            "Under profile smoke there are: `maxsim-bench plan big --profile smoke --gpu l4 --where B=1`.",
        ),
        (
            '[profiles.smoke.axes]\ngpu = "l4"\nB = 9\n',
            "Under profile smoke, without these filters, there are: `maxsim-bench plan big --profile smoke --gpu l4`.",
        ),
    ],
)
def test_a_plan_for_a_card_without_cells_says_what_that_card_can_measure(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch, smoke: str, told: str
) -> None:
    """Not what the machine at hand can; `run` here would not measure it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    declare_for_gpus("big", smoke)
    Path("experiments/small.toml").write_text(TINY.replace('"tiny"', '"small"').replace('"cpu", "h200"', '"l4"'))
    done = invoke("plan", "big", "--gpu", "l4", "--where", "B=1")
    assert done.exit_code == 2
    assert done.stderr.endswith(f" {told}\n")
    for command in re.findall(r"`maxsim-bench plan (.*?)`", told):
        assert invoke("plan", *shlex.split(command)).exit_code == 0


def test_what_can_be_measured_here_is_looked_for_in_the_folder_that_was_given(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    declare_for_gpus("big", '[profiles.smoke.axes]\ngpu = "cpu"\n')
    Path("experiments").rename("grids")
    done = invoke("run", "big", "--experiments", "grids", "--where", "B=9")
    assert done.exit_code == 2
    assert done.stderr.endswith("there are: `maxsim-bench run big --profile smoke --experiments grids`.\n")


def test_every_mistake_of_a_grid_is_printed_with_file_and_line(invoke: Invoke) -> None:
    Path("experiments/tiny.toml").write_text(TINY.replace("baseline", "basline").replace('"eager"]', '"eger"]'))
    done = invoke("plan")
    assert done.exit_code == 2
    assert done.stderr == (
        "Error: experiments/tiny.toml:3: backends: unknown backend 'eger'. Did you mean 'eager'?\n"
        "experiments/tiny.toml:4: basline: unknown key. Did you mean 'baseline'?\n"
    )


def test_a_dry_run_measures_nothing(invoke: Invoke) -> None:
    done = invoke("run", "--dry-run")
    assert done.exit_code == 0
    assert done.output.startswith("tiny (full) on cpu: 2 cells, 3 measurements")
    assert not Path("results").exists()


@pytest.mark.slow
def test_run_tells_before_the_first_cell_of_a_constraint_that_leaves_nothing_out(invoke: Invoke) -> None:
    path = Path("experiments/tiny.toml")
    path.write_text(path.read_text() + '\n[[leave_out]]\nwhen = { B = 20 }\nwhy = "mistyped"\n')
    done = invoke("run", "tiny", "--where", "B=1", "--backend", "eager")
    first, second = done.stderr.splitlines()
    assert first == "tiny, a constraint that leaves nothing out, on any card under any profile: mistyped"
    assert second.startswith("[1/1] tiny")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("run", "smoke", "--into"), ("report", "--results"), ("plan", "--experiments")])
def test_a_folder_without_a_name_is_refused_before_anything_is_written_here(
    invoke: Invoke, words: tuple[str, ...]
) -> None:
    done = invoke(*words, "")
    assert done.exit_code == 2
    assert "the name of the folder is empty" in done.output


def test_run_measures_resumes_and_forces(invoke: Invoke) -> None:
    done = invoke("run", "tiny", "--timeout", "60")
    assert (done.exit_code, done.stdout) == (0, "measured: 3 ok; finished before: 0; rows in results/local\n")
    first, second = done.stderr.splitlines()
    assert re.fullmatch(r"\[1/2, \d+ s left\] tiny B=1: reference [\d.e-]+ ms, eager [\d.e-]+ ms", first)
    assert re.fullmatch(r"\[2/2\] tiny B=2: eager [\d.e-]+ ms", second)
    rows = Store("results/local/tiny.csv").rows()
    assert [(r.cell.B, r.backend, r.status) for r in rows] == [
        (1, "reference", "ok"),
        (1, "eager", "ok"),
        (2, "eager", "ok"),
    ]
    again = invoke("run", "tiny")
    assert (again.exit_code, again.stdout) == (0, "measured: nothing new; finished before: 3; rows in results/local\n")
    forced = json.loads(invoke("run", "tiny", "--force", "--where", "B=2", "--json").stdout)
    assert (forced["measured"], forced["resumed"]) == ({"ok": 1}, 0)
    assert len(Store("results/local/tiny.csv").rows()) == 3


def test_forcing_some_of_the_backends_of_a_cell_tells_which_ratios_will_be_missing(invoke: Invoke) -> None:
    """Of rows that are replaced; nothing is told where all are measured, or where those of other sources stay."""
    from maxsim_bench.backends.registry import get

    Store("results/local/tiny.csv").append(
        [
            tiny_row(backend=backend, backend_version=version, cell=Cell.model_validate(planned["cell"]))
            for planned in json.loads(invoke("plan", "tiny", "--gpu", "cpu", "--json").output)[0]["planned"]
            for backend in planned["backends"]
            for version in ({"eager": get("eager").version(), "reference": "earlier"}[backend],)
        ]
    )
    told = [
        invoke("run", "tiny", "--force", *options).stderr.splitlines()
        for options in (
            ["--where", "B=1", "--backend", "eager"],
            ["--where", "B=1", "--backend", "reference"],
            ["--where", "B=1"],
            ["--where", "B=2"],
        )
    ]
    assert told[0][0] == (
        "tiny: rows of eager are replaced, those of reference stay (1 of the cells): ratios between the two will be "
        "missing until one run measures both"
    )
    assert not any("will be missing" in line for lines in (told[0][1:], *told[1:]) for line in lines)


def test_a_failed_row_that_is_not_allowed_gives_exit_code_1_and_its_reason(invoke: Invoke) -> None:
    """A finished failure is found again, not measured again, and still counts."""
    from maxsim_bench.backends.registry import get

    (cell,) = [
        p["cell"] for p in json.loads(invoke("plan", "--gpu", "cpu", "--where", "B=2", "--json").output)[0]["planned"]
    ]
    fields = {
        "backend": "eager",
        "backend_version": get("eager").version(),
        "gpu": "c",
        "status": "crash",
        "error": "died\nx",
    }
    Store("results/local/tiny.csv").append([Row.model_validate({"cell": cell, **fields})])
    done = invoke("run", "--where", "B=2")
    assert done.exit_code == 1
    assert done.stdout == (
        "measured: nothing new; finished before: 1; rows in results/local\n"
        "failed: tiny Nq=1 B=2 Lq=3 Ld=4 d=8 dtype=fp32 layout=dense pairing=all inputs=random seed=0 "
        "timing_policy=cold_l2 eager: crash: died\n"
    )


def test_show_tells_a_cell_its_rows_and_its_command(invoke: Invoke) -> None:
    (plan,) = json.loads(invoke("plan", "--gpu", "h200", "--where", "B=1", "--json").output)
    cell = Cell.model_validate(plan["planned"][0]["cell"])
    Store("results/h200/tiny.csv").append([tiny_row().model_copy(update={"cell": cell})])
    done = invoke("show", HASHES[0][:6])
    assert (done.exit_code, done.output) == (
        0,
        f"{HASHES[0]}  tiny forward on h200\n"
        "  Nq=1 B=1 Lq=3 Ld=4 d=8 dtype=fp32 layout=dense pairing=all inputs=random seed=0 timing_policy=cold_l2\n"
        "  eager 0.5 ms  (results/h200/tiny.csv, version v)\n"
        "  measure it on h200: maxsim-bench run tiny --profile paper --force --where Nq=1 --where B=1 --where Lq=3 "
        "--where Ld=4 --where d=8 --where dtype=fp32 --where layout=dense --where pairing=all --where inputs=random "
        "--where timing_policy=cold_l2\n",
    )


def test_show_tells_the_newest_row_of_a_backend_from_those_it_replaced(invoke: Invoke) -> None:
    (plan,) = json.loads(invoke("plan", "--gpu", "h200", "--where", "B=1", "--json").output)
    old = tiny_row(cell=plan["planned"][0]["cell"], measured_at="2026-01-01T10:00:30+00:00")
    new = old.model_copy(
        update={
            "backend_version": "w",
            "measured_at": "2026-01-02T10:00:30+00:00",
            "latency_ms": 0.4,
            "environment_id": "e",
        }
    )
    Store("results/h200/tiny.csv").append([old, new])
    assert invoke("show", HASHES[0]).output.splitlines()[2:-1] == [
        "  eager 0.4 ms  (results/h200/tiny.csv, version w, environment e, 2026-01-02 10:00 UTC)",
        "  replaced by the newer rows above, not in the report:",
        "  eager 0.5 ms  (results/h200/tiny.csv, version v, 2026-01-01 10:00 UTC)",
    ]


def test_show_sets_backends_in_a_column_and_says_where_the_host_is_in_a_time(invoke: Invoke) -> None:
    (plan,) = json.loads(invoke("plan", "--gpu", "h200", "--where", "B=1", "--json").output)
    row = tiny_row(cell=plan["planned"][0]["cell"], extra=json.dumps({"starved_samples_percent": 5.0}))
    waits = row.model_copy(
        update={"backend": "train_flash_atomic", "extra": json.dumps({"starved_samples_percent": 5.5})}
    )
    Store("results/h200/tiny.csv").append([row, waits])
    where = "(results/h200/tiny.csv, version v)"
    assert invoke("show", HASHES[0]).output.splitlines()[2:-1] == [
        f"  eager              0.5 ms  {where}",
        f"  train_flash_atomic 0.5 ms  {where}; "
        "6 % of the samples began before the host was through: they may hold waits",
    ]


def test_the_command_of_a_ranking_is_the_one_that_makes_rankings(tmp_path: Path) -> None:
    row = tiny_row(
        cell=Cell(
            experiment="fidelity",
            gpu="h200",
            op="fidelity",
            dataset="scifact",
            split="test",
            encoder="minilm",
            dtype="bf16",
        ),
        latency_ms=None,
    )
    Store(tmp_path / "results/h200/fidelity.csv").append([row])
    (tmp_path / "declared").mkdir()
    found = find_cell(row.cell.hash(), tmp_path / "declared", tmp_path / "results")
    assert found.command == "maxsim-bench fidelity scifact --encoder minilm --split test --dtype bf16 --force"


def test_merge_says_what_it_added_and_refuses_contradictions(invoke: Invoke) -> None:
    Store("theirs/h200/tiny.csv").append([tiny_row(1), tiny_row(2)])
    Store("results/h200/tiny.csv").append([tiny_row(2)])
    done = invoke("merge", "theirs", "results")
    assert (done.exit_code, done.output) == (0, "results/h200/tiny.csv: 1 rows added to 1\n")
    Store("other/h200/tiny.csv").append([tiny_row(2, latency_ms=9.0)])
    refused = invoke("merge", "other", "results")
    assert refused.exit_code == 2
    assert refused.stderr == (
        f"Error: {tiny_row(2).key}: results/h200/tiny.csv and other/h200/tiny.csv disagree: latency_ms 0.5 and 9.0\n"
        "Nothing was merged. Delete the rows that are wrong, then merge again.\n"
    )


@pytest.mark.parametrize(("ms", "code"), [(0.5, 0), (4.2, 1)])
def test_merge_ends_with_1_where_an_added_row_contradicts_its_samples(invoke: Invoke, ms: float, code: int) -> None:
    """It is merged all the same: whoever measured it has to say which of the two is right."""
    Store("theirs/h200/tiny.csv").append([tiny_row(1)])
    append_samples(Path("theirs/h200/tiny.csv"), {tiny_row(1).key: {"ms": [ms]}})
    done = invoke("merge", "theirs", "results")
    assert done.exit_code == code
    assert done.stdout == "results/h200/tiny.csv: 1 rows added to 0\n"
    told = f"theirs/h200/tiny.csv: latency_ms is 0.5, but the median of its samples is {ms} ({tiny_row(1).key}). "
    assert done.stderr.startswith(told if code else "")
    assert bool(done.stderr) == bool(code)
    assert len(Store("results/h200/tiny.csv").rows()) == 1


def test_merge_tells_of_a_cut_line_and_ends_with_0(invoke: Invoke) -> None:
    """What a killed sweep leaves: nothing is wrong with the rows that are there."""
    source = Path("theirs/h200/tiny.csv")
    Store(source).append([tiny_row(1), tiny_row(2)])
    source.write_bytes(source.read_bytes()[:-5])
    done = invoke("merge", "theirs", "results")
    assert (done.exit_code, done.stderr) == (0, "theirs/h200/tiny.csv: the last line is cut; 1 rows read\n")


def test_plan_and_run_refuse_lengths_of_no_collection(invoke: Invoke) -> None:
    path = Path("experiments/tiny.toml")
    path.write_text(path.read_text().replace('layout = "dense"', 'layout = "packed", length_distribution = "scifakt"'))
    for command in ("plan", "run"):
        done = invoke(command, "tiny")
        assert done.exit_code == 2
        assert "experiments/tiny.toml:5: axes.length_distribution: length_distribution = 'scifakt', but" in done.stderr
        assert "Did you mean 'scifact'? Write uniform:LOW:HIGH, lognormal:" in done.stderr


def test_list_names_experiments_with_titles(invoke: Invoke) -> None:
    assert invoke("list", "experiments").output == "experiments (what each measures)\n  tiny  A tiny grid\n"
    assert json.loads(invoke("list", "experiments", "--json").output) == {"tiny": "A tiny grid"}


def test_list_says_of_every_backend_its_version_or_why_it_is_not_here(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    from maxsim_bench.backends.registry import backends

    listed = json.loads(invoke("list", "backends", "--json").output)
    assert list(listed) == list(backends())
    assert re.fullmatch(r"[0-9a-f]{12}", listed["eager"]["version"])
    assert listed["eager"]["problem"] is None


def test_list_says_of_every_backend_what_it_is(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name like `eager_tf32_cast` tells a newcomer nothing."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    listed = invoke("list", "backends").output.splitlines()
    assert any(
        re.fullmatch(r"  eager +PyTorch: all similarities in memory, in the operands' dtype \[[0-9a-f]{12}\]", line)
        for line in listed
    )
    assert any(
        re.fullmatch(r"  lik +late-interaction-kernels 0.4.5: .* \[not here: needs an NVIDIA GPU\]", line)
        for line in listed
    )


def test_doctor_names_device_backends_and_what_is_missing(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MAXSIM_BENCH_DATA", raising=False)
    done = invoke("doctor", "--no-ceilings")
    assert done.exit_code == 0
    lines = done.output.splitlines()
    headings = [line for line in lines if not line.startswith(" ")]
    backends = "backends (version, or the hash of the sources it runs)"
    assert headings == ["device and libraries", backends, "data sets", "missing, and how to get it"]
    assert any(re.fullmatch(r"  eager +[0-9a-f]{12}", line) for line in lines)
    assert any("export MAXSIM_BENCH_DATA=FOLDER" in line for line in lines)
    found = json.loads(invoke("doctor", "--no-ceilings", "--json").output)
    assert found["ceilings"] is None
    assert "torch" in found["environment"]


def test_doctor_tells_the_rate_of_copies_where_there_is_a_device_to_copy_to() -> None:
    ceilings = Ceilings("cuda", {}, 4500.0, 0.002, 0.01, {"read": "read_copy"}, host_copy_gbs=55.25)
    found = Diagnosis(environment={}, ceilings=ceilings.to_record(), backends=[], missing={}, data={})
    assert "  copy from host memory     55.2 GB/s (pinned)" in diagnosis_lines(found)
    processor = Ceilings("cpu", {}, 20.0, None, 0.001, {"read": "read_copy"}).to_record()
    assert "copy from" not in "\n".join(diagnosis_lines(found.model_copy(update={"ceilings": processor})))


def test_doctor_s_install_lines_add_an_extra_that_there_is_to_this_environment(
    invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bare `pip` is often another environment's."""
    monkeypatch.setattr("maxsim_bench.doctor.find_spec", lambda _: None)
    missing = json.loads(invoke("doctor", "--no-ceilings", "--json").output)["missing"]
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for module, (_, extra) in EXTRAS.items():
        assert missing[module].endswith(f": {shlex.quote(sys.executable)} -m pip install 'maxsim-bench[{extra}]'")
        distributions = [re.split(r"[><=; ]", told)[0].replace("-", "_") for told in declared[extra]]
        assert module in distributions


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_a_backend_measures_is_no_reason_why_it_is_not_here(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that another device would give, too, unless something is to be installed."""
    from maxsim_bench.backends.registry import backends

    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    told = {name: reason for name, one in backends().items() if (reason := why_not(one, device)) is not None}
    assert {"train_fused", "search", "ddp_sharded", "full_step_eager", "pipeline_fused"} & told.keys() == set()
    words = ("NVIDIA", "GPU kernels", "on a processor", "not installed")
    assert [f"{name}: {reason}" for name, reason in told.items() if not any(w in reason for w in words)] == []


def test_an_exception_that_is_not_ours_is_not_hidden(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("maxsim_bench.catalogue.catalogue", broken)
    with pytest.raises(ZeroDivisionError):
        invoke("list", "experiments")


def test_an_interrupted_command_says_that_nothing_is_lost(invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("maxsim_bench.catalogue.catalogue", interrupted)
    done = invoke("list", "experiments")
    assert (done.exit_code, done.stderr) == (
        1,
        "Stopped. Every finished row is kept; the same command goes on from there.\n",
    )


@pytest.mark.parametrize("name", list(main.commands))
def test_every_command_has_a_summary_and_an_example_that_is_a_command(invoke: Invoke, name: str) -> None:
    command = main.commands[name]
    assert command.get_short_help_str(60).endswith(".")
    assert not command.get_short_help_str(60).endswith("...")
    done = invoke("help", name)
    example = re.search(rf"Example: maxsim-bench {name}( .*)?$", done.output, re.MULTILINE)
    assert example, f"{name} has no example"
    arguments = (example[1] or "").split()
    context = click.Context(command, resilient_parsing=True)
    command.make_parser(context).parse_args(arguments)


def test_help_of_an_unknown_command_lists_the_commands(invoke: Invoke) -> None:
    done = invoke("help", "paln")
    assert done.exit_code == 2
    assert "no command 'paln'. Choose from plan, run, " in done.stderr


def test_the_page_of_commands_is_what_the_program_says() -> None:
    assert (ROOT / "docs" / "cli.md").read_text("utf-8") == page(main), "docs/cli.md is stale: run `make docs`"


def test_list_names_the_data_sets_of_the_folder_in_the_environment(
    invoke: Invoke, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sets" / "mine").mkdir(parents=True)
    (tmp_path / "sets" / "mine" / "corpus.jsonl").touch()
    (tmp_path / "sets" / "other.tar.gz").touch()
    (tmp_path / "sets" / "realmmrag_finslides_text.tar.gz").touch()
    monkeypatch.setenv("MAXSIM_BENCH_DATA", str(tmp_path / "sets"))
    listed = json.loads(invoke("list", "datasets", "--json").output)
    known = ["apidocs", "scifact", "cranfield", "limit-small", "finslides"]
    assert list(listed) == [*known, "mine", "other", "<BEIR name>", "ir_datasets:<id>", "<path>"]
    assert listed["mine"] == f"in {tmp_path}/sets"
    assert listed["finslides"].endswith(f" [in {tmp_path}/sets]"), "by the name that the audit takes"
    assert not listed["cranfield"].endswith("]")


def test_evaluate_judges_a_run_and_tells_what_it_counted(invoke: Invoke) -> None:
    Path("run.trec").write_text("q1 Q0 a 1 2.0 me\nq9 Q0 a 1 2.0 me\n")
    Path("qrels.tsv").write_text("q1\ta\t1\nq2\tb\t1\nq3\ta\t0\n")
    done = invoke("evaluate", "run.trec", "qrels.tsv")
    assert (done.exit_code, done.output) == (
        0,
        "nDCG@10   0.5000\nnDCG@5    0.5000\nR@10      0.5000\nR@100     0.5000\nRR@10     0.5000\n"
        "queries   2 (linear gain)\n"
        "  1 without results, counted as 0: q2\n"
        "  1 without a relevant document, left out: q3\n"
        "  1 in the run but not judged, ignored: q9\n",
    )
    assert json.loads(invoke("evaluate", "run.trec", "qrels.tsv", "--json").output)["means"]["ndcg_at_10"] == 0.5


def test_evaluate_refuses_a_run_that_holds_no_number(invoke: Invoke) -> None:
    Path("run.trec").write_text("q1 Q0 a 1 nan me\n")
    Path("qrels.tsv").write_text("q1\ta\t1\n")
    done = invoke("evaluate", "run.trec", "qrels.tsv")
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: ")


def test_list_without_an_argument_shows_all_three_under_headings(invoke: Invoke) -> None:
    lines = invoke("list").output.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        "experiments (what each measures)",
        "backends (what each is, and its version, or the hash of the sources it runs)",
        "datasets (what each is, and where it comes from)",
    ]
    assert lines[1] == "  tiny  A tiny grid"
    assert set(json.loads(invoke("list", "--json").output)) == {"experiments", "backends", "datasets"}


COMMITTED = [f"--{name}={ROOT / folder}" for name, folder in (("experiments", "experiments"), ("results", "results"))]


def test_claims_counts_every_claim_and_filters_by_element_and_verdict(invoke: Invoke) -> None:
    done = invoke("claims", *COMMITTED)
    assert done.exit_code == 0
    assert re.match(r"all +2598  ", done.output.splitlines()[-1])
    listed = json.loads(invoke("claims", *COMMITTED, "--element", "tab:fwd", "--json").output)
    assert len(listed) == 80
    assert {entry["element"] for entry in listed} == {"tab:fwd"}
    told = invoke("claims", *COMMITTED, "--element", "tab:fwd").output.splitlines()
    assert [line.split(": ")[0] for line in told if not line.startswith(" ")] == [e["claim_id"] for e in listed]
    one = invoke("claims", *COMMITTED, "--verdict", "superseded").output.splitlines()
    heads = [line for line in one if not line.startswith(" ")]
    assert len(heads) == 360
    assert all(": superseded: " in line for line in heads)


def test_a_claim_leads_to_its_rows_and_to_its_other_reading_in_the_terminal(invoke: Invoke) -> None:
    filters = [*COMMITTED, "--element", "tab:traffic"]
    entries = {entry["claim_id"]: entry for entry in json.loads(invoke("claims", *filters, "--json").output)}
    blocks: dict[str, list[str]] = {}
    for line in invoke("claims", *filters).output.splitlines():
        if not line.startswith("  "):
            blocks[line.split(": ")[0]] = lines = []
        lines.append(line)
    assert set(blocks) == set(entries)
    assert {len(block) for block in blocks.values()} <= {2, 3, 4}
    for claim_id, entry in entries.items():
        told = "\n".join(blocks[claim_id])
        assert f"comparable: {entry['comparable']}" in told
        assert entry["reading"] in told
        if entry["cell"]:
            assert f"`maxsim-bench show {entry['cell'][:8]}` ({entry['source']})" in told
    judged = [e for e in entries.values() if e["metric"] == "hbm_gb"]
    assert all(e["cell"] and e["reading"].startswith("computed, as published") for e in judged)
    shown = invoke("show", judged[0]["cell"][:8], *COMMITTED)
    assert (shown.exit_code, judged[0]["cell"] in shown.output) == (0, True)


def test_claims_says_that_none_matches_and_which_verdicts_there_are(invoke: Invoke) -> None:
    """An empty answer looks like a failure. Scripts get an empty list."""
    filters = ["--element", "abstract (intermediate)", "--verdict", "holds"]
    done = invoke("claims", *COMMITTED, *filters)
    assert (done.exit_code, done.output) == (
        0,
        "no claim of abstract (intermediate) has the verdict 'holds'; there are: 2 superseded\n",
    )
    assert json.loads(invoke("claims", *COMMITTED, *filters, "--json").output) == []


def test_a_claim_that_is_not_measured_is_listed_with_the_command_that_measures_it(invoke: Invoke) -> None:
    filters = ["--element", "tab:fwd", "--verdict", "not measured"]
    Path("none").mkdir()
    listed = invoke("claims", *COMMITTED, "--results=none", *filters)
    lines = listed.output.splitlines()
    assert len([line for line in lines if not line.startswith(" ")]) == 80
    assert len([line for line in lines if re.match(r"  command: `maxsim-bench run [^`]+`$", line)]) == 80


def test_claims_refuses_what_no_claim_has(invoke: Invoke) -> None:
    done = invoke("claims", *COMMITTED, "--verdict", "difers")
    assert (done.exit_code, done.stderr) == (2, "Error: --verdict difers: no claim has it. Did you mean 'differs'?\n")


def test_report_writes_the_page_and_check_sees_what_changed_since(invoke: Invoke) -> None:
    from maxsim_bench.report.readme import BEGIN, END

    Path("README.md").write_text(f"# x\n{BEGIN}\n{END}\n")
    Store("results/h200/tiny.csv").append([tiny_row(1)])
    places = [f"--experiments={ROOT / 'experiments'}"]
    done = invoke("report", *places)
    assert done.exit_code == 0
    assert done.stdout.startswith("figures/report.html: ")
    assert "claims: " in done.stdout
    checked = invoke("report", "--check", *places)
    assert (checked.exit_code, checked.stdout) == (0, "everything committed follows from the results\n")
    Store("results/h200/tiny.csv").append([tiny_row(2)])
    stale = invoke("report", "--check", *places)
    assert stale.exit_code == 1
    assert "figures/report.html: does not show these results" in stale.stdout


def test_compare_refuses_runs_that_share_no_row(invoke: Invoke) -> None:
    Store("a/tiny.csv").append([tiny_row(1)])
    Store("b/tiny.csv").append([tiny_row(2)])
    done = invoke("compare", "a", "b", f"--experiments={ROOT / 'experiments'}")
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: ")


def test_track_keeps_a_record_and_draws_the_trend(invoke: Invoke) -> None:
    Store("results/local/tiny.csv").append([tiny_row(1, speedup=2.0)])
    done = invoke("track")
    assert done.exit_code == 0
    record, trend = done.output.splitlines()
    assert record.startswith("results/history/")
    assert json.loads(Path(record).read_text())["values"]
    assert trend == "figures/trend.html"
    assert Path(trend).exists()


def test_a_run_that_was_measured_elsewhere_is_tracked_by_its_own_time_and_commit(invoke: Invoke) -> None:
    row = tiny_row(1, speedup=2.0).model_copy(
        update={"environment_id": "e", "measured_at": "2026-01-02T03:04:05+00:00"}
    )
    Store("elsewhere/tiny.csv").append([row])
    facts = {"captured_at": "2026-01-02T03:00:00+00:00", "git_commit": "0123456789abcdef"}
    add_environments(Path("elsewhere"), {"e": facts})
    done = invoke("track", "elsewhere")
    assert done.exit_code == 0
    record = json.loads(Path(done.output.splitlines()[0]).read_text())
    assert (record["measured_at"], record["revision"]) == ("2026-01-02T03:04:05+00:00", "0123456789abcdef")


@pytest.mark.parametrize("arguments", [("run", "tiny", "--timeout", "nan"), ("fidelity", "apidocs", "--limit", "nan")])
def test_a_limit_that_no_comparison_can_exceed_is_wrong_usage(invoke: Invoke, arguments: tuple[str, ...]) -> None:
    done = invoke(*arguments)
    assert done.exit_code == 2
    assert "nan is not a finite number" in done.output


def test_a_file_that_cannot_be_used_is_a_message_and_not_a_traceback(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "local" / "tiny.csv").mkdir(parents=True)
    done = invoke("merge", "local", "into")
    assert (done.exit_code, done.output) == (
        2,
        "Error: local/tiny.csv: Is a directory. Check the path, or name another.\n",
    )


def read_back(command: str) -> dict[str, object]:
    """What click's parser makes of a command that a reader copies into a shell."""
    program, verb, *words = shlex.split(command)
    assert program == "maxsim-bench"
    return main.commands[verb].make_context(verb, words).params


def test_every_command_that_is_told_is_read_back_as_it_was_meant(tmp_path: Path) -> None:
    """Quoted for a shell: filters with comparisons, names with spaces and quotes."""
    where = ("B>1", "dtype=fp16,fp32", "variant.loss=it's; rm -rf $HOME", "inputs=my data")
    experiments = tmp_path / "my grids & others"
    filters = Filters(where, ("eager", "a b"), 42_400_000_000, experiments)
    told = read_back(filters.command(["one", "two"], "paper", "run", force=True))
    assert (told["names"], told["profile"], told["force"]) == (("one", "two"), "paper", True)
    assert (told["where"], told["backends"]) == (where, ("eager", "a b"))
    assert (told["memory_cap"], told["experiments"]) == (42_400_000_000, experiments)
    told = read_back(filters.command(["one"], "full", "plan", "h200"))
    assert (told["names"], told["gpu"], told["where"]) == (("one",), "h200", where)
    told = read_back(filters.command(["one"], "smoke", "fidelity"))
    assert (told["datasets"], told["backends"], told["profile"]) == ((), ("eager", "a b"), "smoke")


def test_the_command_of_a_cell_chooses_that_cell_alone() -> None:
    axes = {
        "Nq": 1, "B": [1, 2], "Lq": 3, "Ld": 4, "d": 8, "dtype": "fp32", "inputs": ["my data", "random"],
        "length_distribution": "uniform:1:4", "memory_cap": ["none", "40GB"], "variant": {"loss": ["it's $HOME", "b"]},
    }  # fmt: skip
    experiment = Experiment(name="tiny", title="t", backends=("eager",), axes=axes)
    plan = experiment.plan("h200")
    capped = [one.cell for one in plan.planned if one.cell.memory_cap]
    assert len(capped) == 8
    for cell in capped:
        told = read_back(command_of(cell, Declared({"tiny": experiment})))
        assert told["names"] == ("tiny",)
        assert [one.cell for one in select(plan, parse_where(told["where"]))] == [cell]  # type: ignore[arg-type]


def test_the_command_of_a_ranking_is_quoted_too() -> None:
    cell = Cell(experiment="fidelity", gpu="cpu", op="fidelity", dataset="my folder/a", encoder="minilm:512", split="x")
    told = read_back(command_of(cell, Declared({})))
    assert (told["datasets"], told["encoder"], told["split"]) == (("my folder/a",), "minilm:512", "x")


@pytest.mark.parametrize(
    ("condition", "text"),
    [(32, "Lq=32"), ([32, 64], "Lq=32,64"), (">= 32", "Lq>=32"), ("< B", "Lq<B"), ("none", "Lq=none")],
)
def test_a_condition_of_a_grid_is_a_filter_that_means_the_same(condition: object, text: str) -> None:
    assert where_text("Lq", condition) == text
    cells = [Cell(experiment="x", gpu="cpu", op="forward", Lq=Lq, B=40) for Lq in (None, 16, 32, 64)]
    (read,) = parse_where([text])
    assert [matches(read, cell) for cell in cells] == [matches({"Lq": condition}, cell) for cell in cells]
