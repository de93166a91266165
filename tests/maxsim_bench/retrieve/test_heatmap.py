"""The heat map shows which document token each query token chose and what it gave to the score."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from maxsim_bench.cli import main
from maxsim_bench.retrieve.encoders.registry import EncoderKind, encoder_kinds
from maxsim_bench.retrieve.heatmap import draw, draw_page, heat_map, to_html

Q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
D = torch.tensor([[0.5, 0.0], [0.9, 0.1], [0.0, 0.8], [0.9, 0.0]])


def test_winners_and_shares_add_up_to_the_score() -> None:
    made = heat_map("q", "d", Q, D)
    assert made.winners.tolist() == [1, 2, 1], "the first one wins a tie"
    assert made.shares() == pytest.approx([0.0, 1.8, 0.8, 0.0])
    assert made.score == pytest.approx(sum(made.shares())) == pytest.approx(2.6)


def test_half_precision_operands_are_multiplied_in_fp32() -> None:
    made = heat_map("q", "d", Q.half(), D.half())
    assert made.similarities.dtype == torch.float32


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_the_picture_is_drawn_in_the_format_of_its_name(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / "deep" / f"map{suffix}"
    draw(heat_map("q$1", "d", Q, D, ["a", "b$", "c"], ["w", "x", "$y", "z"]), path)
    begin = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}[suffix]
    assert path.read_bytes().startswith(begin)


def test_a_long_document_is_drawn_with_every_nth_label(tmp_path: Path) -> None:
    draw(heat_map("q", "d", Q, torch.rand(700, 2)), tmp_path / "map.png")
    assert (tmp_path / "map.png").stat().st_size > 1000


def test_the_html_needs_no_other_file_and_escapes_what_texts_hold() -> None:
    page = to_html(heat_map("<q>", 'd"&', Q, D, ["<b>", "a&b", "c"], ["w", "<script>", "y", "z"]))
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"(src|href)=", page)
    assert page.count("<span") == 4
    assert page.count("background:") == 2 + 0, "two tokens were chosen"
    assert "1.800 from &lt;b&gt;, c" in page


def test_a_page_is_tinted_by_what_its_patches_give(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image", reason="pip install 'maxsim-bench[vision]'")
    out = io.BytesIO()
    image.new("RGB", (40, 40), "white").save(out, "PNG")
    made = heat_map("q", "page", Q, D)
    draw_page(made, out.getvalue(), (2, 2), tmp_path / "page.png")
    assert (tmp_path / "page.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="has 4 tokens"):
        draw_page(made, out.getvalue(), (2, 2), tmp_path / "page.png", first=1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((Q, torch.rand(4, 3)), "needed are"),
        ((Q, D[:0]), "with a token each"),
        ((Q, D, ["a"]), "query_tokens: 1 labels for 3 tokens"),
        ((Q, D, None, ["a"]), "document_tokens: 1 labels for 4 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(arguments, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        heat_map("q", "d", *arguments)


@pytest.fixture
def draw_map(beir_folder, letters, monkeypatch, tmp_path: Path):
    """The command on a small folder in BEIR layout under the encoder of letters."""
    kinds = {**encoder_kinds(), "letters": EncoderKind("letters", "letters", lambda options, device: letters(d=4))}
    monkeypatch.setattr("maxsim_bench.retrieve.encoders.registry.encoder_kinds", lambda: kinds)

    def run(*arguments: str):
        words = ["heatmap", str(beir_folder()), *arguments, "--encoder", "letters", "--into", str(tmp_path / "maps")]
        return CliRunner().invoke(main, words)

    return run


def test_the_command_draws_an_image_and_a_page_of_a_query_and_a_document(draw_map, tmp_path: Path) -> None:
    done = draw_map("q1", "d1")
    assert done.exit_code == 0, done.output
    image, page = sorted((tmp_path / "maps").iterdir(), key=lambda p: p.suffix, reverse=True)
    assert done.stdout.splitlines()[-2:] == [image.as_posix(), page.as_posix()]
    assert image.read_bytes().startswith(b"\x89PNG")
    score = done.stdout.splitlines()[0].removeprefix("MaxSim ")
    assert f"q1 · d1 · MaxSim {float(score):.3f}" in page.read_text()
    assert len(done.stdout.splitlines()) == 1 + len("first") + 2


def test_a_query_may_be_any_text(draw_map) -> None:
    asked = draw_map("T one", "d1")
    assert asked.exit_code == 0, asked.output
    assert asked.stdout.startswith("MaxSim 5.00"), "every letter finds itself"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("q1", "d3"), "has no document 'd3'. Some that it has: d1, d2"),
        (("q1", "d1", "--grid", "2", "2"), "document 'd1' has no page image"),
    ],
)
def test_what_cannot_be_drawn_is_a_message_and_exit_code_2(draw_map, arguments, told: str) -> None:
    done = draw_map(*arguments)
    assert done.exit_code == 2
    assert told in done.output
