"""Options that several commands share, one function each.

Orchestration beside `cli.py`. May import: declare.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from maxsim_bench.declare.experiment import PROFILES, parse_bytes

F = TypeVar("F", bound=Callable[..., Any])


class Size(click.ParamType):
    """Bytes, as "16GB", "16GiB" or a number; "40GB" and "80GB" are the cards of the paper."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Bytes as an integer, or a usage error."""
        try:
            return parse_bytes(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Finite(click.FloatRange):
    """A number with a lower bound; "nan" and "inf", which every comparison would let pass, are usage errors."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number as a float, or a usage error."""
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


class Folder(click.Path):
    """A folder, there or to be made. An empty name, as of a shell variable that is not set, is a usage error."""

    def __init__(self) -> None:
        super().__init__(path_type=Path, file_okay=False)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The folder as a `Path`, or a usage error."""
        if value == "":
            self.fail("the name of the folder is empty; '.' is this one.", param, ctx)
        return super().convert(value, param, ctx)


def experiments_option(command: F) -> F:
    """Where grids are declared."""
    return click.option(
        "--experiments", type=Folder(), default=Path("experiments"),
        show_default=True, help="Folder of TOML files.",
    )(command)  # fmt: skip


def results_option(command: F) -> F:
    """Where measured rows lie."""
    return click.option(
        "--results", type=Folder(), default=Path("results"),
        show_default=True, help="Folder of measured rows; this machine writes below its `local`.",
    )(command)  # fmt: skip


def grid_options(command: F) -> F:
    """Which part of which grid."""
    for option in (
        click.argument("names", metavar="[EXPERIMENT]...", nargs=-1),
        click.option("--profile", type=click.Choice(PROFILES), default="full", show_default=True, help="Size of grid."),
        click.option(
            "--where", multiple=True, metavar="AXIS=VALUE", help="Only such cells: Lq=32, B>=1000, B>Nq, dtype!=fp32."
        ),
        click.option("--backend", "backends", multiple=True, metavar="NAME", help="Only this backend (repeatable)."),
        click.option("--memory-cap", type=Size(), help="Device memory that a cell may use: 40GB, 16GiB."),
        experiments_option,
    ):
        command = option(command)
    return command


def places_options(command: F) -> F:
    """Folders of the checkout that a report reads and writes."""
    folder = Folder()
    for option in (
        experiments_option,
        click.option("--results", type=folder, default=Path("results"), show_default=True, help="Measured rows."),
        click.option("--figures", type=folder, default=Path("figures"), show_default=True, help="Tables and figures."),
        click.option(
            "--readme", type=click.Path(path_type=Path, dir_okay=False), default=Path("README.md"), show_default=True,
            help="File whose block of results is generated.",
        ),
    ):  # fmt: skip
        command = option(command)
    return command


def json_option(command: F) -> F:
    """For scripts."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")(command)
