"""Building a report and checking it: everything follows from the rows, and what does not is named."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from maxsim_bench.record.row import Row
from maxsim_bench.record.samples import append_samples
from maxsim_bench.record.store import Store
from maxsim_bench.report.build import PAGE, Places, build_report
from maxsim_bench.report.check import check
from maxsim_bench.report.load import ReportError
from maxsim_bench.report.readme import BEGIN, END, current_block

ROOT = Path(__file__).parents[3]


class Built:
    """A small checkout with a report in it."""

    def __init__(self, root: Path) -> None:
        self.results, self.figures, self.readme = root / "results", root / "figures", root / "README.md"
        self.places = Places(ROOT / "experiments")

    def build(self) -> Any:
        return build_report([self.results], self.figures, places=self.places, readme=self.readme)

    def check(self) -> list[str]:
        return check([self.results], self.figures, places=self.places, readme=self.readme)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory, made: Any) -> tuple[Path, Any]:
    """A checkout whose report was built once, and what building it said."""
    root = tmp_path_factory.mktemp("fresh")
    one = Built(root)
    one.readme.write_text(f"# title\n\n{BEGIN}\n{END}\n\nAfter.\n")
    made.written(one.results, made.sweep([made.cell(B=B) for B in (100, 1000)], ["eager", "flash_maxsim", "fused"]))
    return root, one.build()


@pytest.fixture
def built(tmp_path: Path, fresh: tuple[Path, Any]) -> Built:
    """A copy of it, to be changed."""
    shutil.copytree(fresh[0], tmp_path / "checkout")
    return Built(tmp_path / "checkout")


def test_a_report_that_was_just_built_is_up_to_date_and_building_again_draws_nothing(
    built: Built, fresh: tuple[Path, Any]
) -> None:
    assert fresh[1].drawn == 4
    assert built.check() == []
    again = built.build()
    assert (again.drawn, again.removed) == (0, ())
    assert built.check() == []


def test_figures_of_the_same_data_are_copied_from_another_report_not_drawn(built: Built, tmp_path: Path) -> None:
    names = ["latency-over-B.pdf", "latency-over-B.png", "latency-over-B.csv"]
    again = build_report([built.results], tmp_path / "like", like=built.figures)
    assert again.drawn == 0
    for name in names:
        assert (tmp_path / "like/forward" / name).read_bytes() == (built.figures / "forward" / name).read_bytes()
    (built.figures / "forward" / names[0]).unlink()
    assert build_report([built.results], tmp_path / "torn", like=built.figures).drawn == 1, "a file is missing there"


def test_every_artefact_says_what_made_it_of_which_csv(built: Built) -> None:
    told = json.loads((built.figures / "forward" / "latency-over-B.json").read_text())
    assert told["provenance"]["command"] == "maxsim-bench report"
    assert list(told["provenance"]["inputs"]) == ["h200/forward.csv"]
    assert re.fullmatch("[0-9a-f]{64}", told["data_sha256"])
    assert {f"forward/{name}" for name in told["files"]} == {
        p.relative_to(built.figures).as_posix()
        for p in built.figures.glob("forward/latency-over-B.*")
        if p.suffix != ".json"
    }


def test_new_rows_make_the_report_stale_by_name(built: Built, made: Any) -> None:
    made.written(built.results, made.sweep([made.cell(B=5000)], ["fused"]))
    told = "\n".join(built.check())
    for name in ("forward/latency", "forward/latency-over-B", PAGE, "README.md"):
        assert name in told
    built.build()
    assert built.check() == []


def test_a_row_whose_time_its_own_samples_contradict_fails_the_check_even_of_a_report_made_of_it(
    built: Built, made: Any
) -> None:
    at = made.cell(B=1000)
    row = next(r for r in made.sweep([at], ["eager", "fused"]) if r.backend == "fused")
    append_samples(built.results / "h200" / "forward.csv", {row.key: {"ms": [7.0, 8.0], "round": [0, 1]}})
    built.build()
    (told,) = built.check()
    assert told.startswith(
        f"h200/forward.csv: latency_ms is {row.latency_ms!r}, but the median of its samples is 7.5; "
    )
    assert row.key in told
    assert told in html.unescape((built.figures / PAGE).read_text())


@pytest.mark.parametrize("name", ["latency.md", "latency-over-B.csv", "latency-over-B.png", "latency-over-B.pdf"])
def test_a_file_that_was_changed_by_hand_is_seen(built: Built, name: str) -> None:
    path = built.figures / "forward" / name
    path.write_bytes(path.read_bytes().replace(b"sha256:", b"sha256;").replace(b"100", b"900"))
    assert any(name in told for told in built.check())


@pytest.mark.slow
def test_a_file_that_is_gone_is_seen_and_made_again(built: Built) -> None:
    (built.figures / "forward" / "latency-over-B.pdf").unlink()
    assert any("latency-over-B.pdf" in told for told in built.check())
    assert built.build().drawn == 1
    assert built.check() == []


@pytest.mark.slow
def test_what_no_row_makes_any_more_is_named_and_removed(built: Built, made: Any) -> None:
    made.written(built.results, made.sweep([made.cell("lengths", B=B) for B in (4, 16)], ["eager", "fused"]))
    built.build()
    (built.results / "h200" / "lengths.csv").unlink()
    assert any("lengths/latency.json: nothing in the results makes this" in told for told in built.check())
    assert "lengths/latency" in built.build().removed
    assert not list(built.figures.glob("lengths/*"))


def test_the_readme_keeps_what_stands_around_the_block(built: Built) -> None:
    text = built.readme.read_text()
    assert text.startswith("# title\n\n")
    assert text.endswith(f"{END}\n\nAfter.\n")
    block = current_block(built.readme)
    assert block is not None
    assert "| eager's [MB] |\n" in block  # the column of cells is for where there is room
    assert "| eager's [MB] | cell |\n" in (built.figures / "summary" / "forward-h200.md").read_text()
    assert "fused (ours) [ms]" in block
    for link in re.findall(r"\]\(([^)]+)\)", block):
        assert (built.readme.parent / link).exists(), link


def test_what_the_readme_counts_as_measured_was_measured(built: Built, made: Any) -> None:
    """A row that says why there is no number is told apart: it is none of those that the numbers are made of."""
    refused = {"latency_ms": None, "status": "unsupported", "error": "takes no such cell"}
    lost = {"latency_ms": None, "status": "oom", "error": "out of memory"}
    rows = [
        Row.model_validate(
            {"cell": made.cell(B=7), "backend": backend, "backend_version": "1.0", "gpu": "NVIDIA H200", **changes}
        )
        for backend, changes in (("lik", refused), ("fused", refused), ("eager", lost))
    ]
    before = current_block(built.readme) or ""
    assert before.startswith("Measured rows: 6 on H200. The newest of each cell")
    Store(built.results / "h200" / "forward.csv").append(rows)
    paths = built.build()
    block = current_block(built.readme) or ""
    assert block.startswith(
        "Measured rows: 6 on H200; 3 more say why they hold no number (2 unsupported, 1 oom). The newest of each cell"
    )
    page = paths.page.read_text()
    assert "<p>9 rows, 6 of them measured; the others say why they hold no number. Of the" in page


def test_a_goal_that_is_not_measured_is_told_in_the_readme_with_its_command(built: Built) -> None:
    block = current_block(built.readme) or ""
    unmeasured = [line for line in block.splitlines() if "| not measured" in line]
    assert unmeasured
    assert all(re.search(r"\| not measured: `(maxsim-bench|python -m) [^`]+` \|\s+\|$", line) for line in unmeasured)


def test_a_block_that_was_edited_is_seen(built: Built) -> None:
    built.readme.write_text(built.readme.read_text().replace("textual", "textural"))
    assert any("the generated block" in told for told in built.check())


def test_a_readme_without_markers_is_refused_with_the_markers(built: Built) -> None:
    built.readme.write_text("# nothing\n")
    with pytest.raises(ReportError, match="results:begin"):
        built.build()


class Loads(HTMLParser):
    """Everything that a page would load, its ids, and the targets of its links."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.pictures: list[str] = []
        self.ids: set[str] = set()
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag in ("script", "link", "iframe"):
            self.loaded.append(tag)
        if tag == "img":
            self.pictures.append(str(given["src"]))
        if given.get("id"):
            self.ids.add(str(given["id"]))
        if tag == "a":
            self.links.add(str(given["href"]))


def read(path: Path) -> Loads:
    """What a page loads and links to."""
    page = Loads()
    page.feed(path.read_text(encoding="utf-8"))
    return page


def broken(path: Path) -> list[str]:
    """Links of a page that lead nowhere: to a file that is not there, or to an id that its target has not."""
    found = []
    for link in sorted(read(path).links):
        name, _, target = link.partition("#")
        file = path.parent / name if name else path
        known = read(file).ids if file.suffix == ".html" and file.is_file() else None
        if not file.is_file() or (target and known is not None and target not in known):
            found.append(link)
    return found


def test_the_page_loads_its_own_pictures_only_and_has_every_part(built: Built) -> None:
    html = (built.figures / PAGE).read_text(encoding="utf-8")
    page = read(built.figures / PAGE)
    assert page.loaded == []
    assert len(page.pictures) == 4
    assert all((built.figures / picture).is_file() for picture in page.pictures)
    assert "url(" not in html
    assert {"summary", "environment", "protocol", "results", "goals", "claims", "failed", "missing"} <= page.ids
    assert broken(built.figures / PAGE) == []
    assert "env-h200" in html
    assert "maxsim-bench run lengths --profile paper" in html


def test_every_cell_of_a_table_leads_to_its_row_command_and_environment_and_back(built: Built, made: Any) -> None:
    """From the page to the row's page, from there to the CSV line, and back to the claim that it answers."""
    made.written(built.results, made.sweep([made.cell("forward", Lq=1024, Ld=1024)], ["eager", "flash_maxsim"]))
    built.build()
    digest = made.cell("forward", Lq=1024, Ld=1024).hash()
    page = read(built.figures / PAGE)
    assert f"rows/h200-forward.html#{digest}" in page.links
    rows = built.figures / "rows" / "h200-forward.html"
    assert broken(rows) == []
    text = rows.read_text(encoding="utf-8")
    section = text[text.index(f'id="{digest}"') :]
    assert "maxsim-bench run forward --profile paper --force --where Nq=1 --where B=1000" in section
    assert '<a href="../report.html#env-env-h200">env-h200</a>' in section
    untimed = {
        "cell": made.cell("gradient_audit_float64", timing_policy=None),
        "backend": "fused",
        "backend_version": "1.0",
        "gpu": "NVIDIA H200",
    }
    Store(built.results / "h200" / "gradient_audit_float64.csv").append(
        [Row.model_validate({**untimed, "status": "ok"})]
    )
    built.build()
    assert broken(built.figures / "rows" / "h200-gradient_audit_float64.html") == [], "no table shows it, goals may"
    assert "#claim-forward.tab-fwd.a100.nq1_b1000_lq1024_ld1024.fused.latency-ms" in section
    lines = (built.results / "h200" / "forward.csv").read_text(encoding="utf-8").splitlines()
    (number,) = set(re.findall(r"<td>eager</td>.*?forward\.csv#L(\d+)", section))
    assert lines[int(number) - 1].startswith(digest)
    assert ",eager," in lines[int(number) - 1]


@pytest.mark.slow
def test_a_page_of_rows_that_was_changed_or_has_no_csv_any_more_is_seen(built: Built) -> None:
    rows = built.figures / "rows" / "h200-forward.html"
    rows.write_text(rows.read_text(encoding="utf-8").replace("ok", "fine"), encoding="utf-8")
    assert any("h200-forward.html: does not show these rows" in told for told in built.check())
    rows.with_name("h200-gone.html").write_text("", encoding="utf-8")
    assert "rows/h200-gone.html" in built.build().removed
    assert built.check() == []


@pytest.mark.slow
def test_many_figures_are_drawn_by_several_processes_alike(tmp_path: Path, made: Any) -> None:
    from maxsim_bench.report import build

    rows = made.sweep([made.cell(B=B, Lq=q) for B in (1, 10, 100) for q in (8, 16, 32)], ["eager", "fused"])
    made.written(tmp_path / "results", rows)
    figures = [
        a for a in build.compose([tmp_path / "results"], Places(ROOT / "experiments")).artefacts if hasattr(a, "draw")
    ]
    told: list[str] = []
    assert build._draw(tmp_path / "one", figures[:2], told.append) == 2
    assert build._draw(tmp_path / "many", figures * 2, None) == 2 * len(figures)
    for file in (tmp_path / "one").rglob("*.pdf"):
        assert (tmp_path / "many" / file.relative_to(tmp_path / "one")).read_bytes() == file.read_bytes()
    assert len(told) == 2


def test_what_failed_is_on_the_page_with_its_reason(built: Built, made: Any) -> None:
    made.written(
        built.results, made.sweep([made.cell("memory_scaling", B=100_000, Lq=1024, Ld=1024)], ["eager", "fused"])
    )
    built.build()
    html = (built.figures / PAGE).read_text(encoding="utf-8")
    failed = html[html.index('id="failed"') : html.index('id="missing"')]
    assert "CUDA out of memory" in failed
    assert "<td>eager</td><td>oom</td>" in failed


def test_a_checkout_without_results_has_a_report_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "results").mkdir()
    readme = tmp_path / "README.md"
    readme.write_text(f"{BEGIN}\n{END}\n")
    paths = build_report(
        [tmp_path / "results"], tmp_path / "figures", places=Places(ROOT / "experiments"), readme=readme
    )
    assert "No results are committed yet" in readme.read_text()
    assert paths.figures == ()
    assert "nothing has been measured yet" in paths.page.read_text()


def test_composing_needs_neither_torch_nor_matplotlib(built: Built) -> None:
    """Checking draws nothing, so it runs where matplotlib is missing or slow."""
    program = (
        "import sys; from pathlib import Path; from maxsim_bench.report.check import check\n"
        "from maxsim_bench.report.build import Places\n"
        "results, figures, experiments = map(Path, sys.argv[1:])\n"
        "assert check([results], figures, places=Places(experiments)) == []\n"
        "assert not {'torch', 'triton', 'matplotlib'} & set(sys.modules)\n"
    )
    given = [str(built.results), str(built.figures), str(ROOT / "experiments")]
    done = subprocess.run([sys.executable, "-c", program, *given], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


DRAWS_FOR_EVER = """
import os
import time
from pathlib import Path
from maxsim_bench.report import build

def never(out, figure):
    os.write(1, b"drawing\\n")
    time.sleep(3600)

build._write_figure = never
build.os.cpu_count = lambda: 2
build._draw(Path("."), [None] * 24, None)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="figures are drawn in one process elsewhere")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_that_draw_end_with_the_report(number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", DRAWS_FOR_EVER], stdout=subprocess.PIPE, process_group=0) as report:
        assert report.stdout is not None
        try:
            assert report.stdout.readline() == b"drawing\n"
            report.send_signal(number)
            report.communicate(timeout=120)  # ends only when nobody holds the pipe any more
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(report.pid, signal.SIGKILL)


STOPPED_AT_ITS_START = """
import os, signal, time
from pathlib import Path
from maxsim_bench.report import build
from maxsim_bench.stopping import terminated_as_interrupted

def stopped_first(parent):
    os.kill(os.getpid(), {number})
    time.sleep(0.2)
    begin(parent)
    os.write(1, b"ready\\n")

begin, build._begin = build._begin, stopped_first
build._write_figure = lambda out, figure: str(figure)
build.os.cpu_count = lambda: 2
with terminated_as_interrupted():
    build._draw(Path("."), [None] * 24, None)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="figures are drawn in one process elsewhere")
@pytest.mark.parametrize(("number", "begun"), [(signal.SIGTERM, False), (signal.SIGINT, True)])
def test_a_worker_that_is_stopped_while_it_starts_prints_no_traceback(number: signal.Signals, begun: bool) -> None:
    """SIGTERM ends it as if it had begun, Ctrl-C is the parent's."""
    program = STOPPED_AT_ITS_START.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=240)
    assert "KeyboardInterrupt" not in done.stderr
    assert ("ready" in done.stdout) == begun


def _killed(out: Path, figure: object) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


@pytest.mark.skipif(sys.platform != "linux", reason="figures are drawn in one process elsewhere")
def test_a_worker_that_is_killed_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from maxsim_bench.report import build

    monkeypatch.setattr(build, "_write_figure", _killed)
    monkeypatch.setattr(build.os, "cpu_count", lambda: 2)
    with pytest.raises(ReportError, match=r"a process that draws figures was killed .* Run the same command again"):
        build._draw(tmp_path, [None] * 24, None)  # type: ignore[list-item]


def test_what_was_lost_of_a_file_stands_on_the_page(built: Built) -> None:
    path = built.results / "h200" / "forward.csv"
    path.write_bytes(path.read_bytes()[:-5])
    built.build()
    assert "<li>h200/forward.csv: the last line is cut; 5 rows read</li>" in (built.figures / PAGE).read_text()
