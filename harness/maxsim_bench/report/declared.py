"""What the experiments' files declare, expanded once: grids by card and profile.

Room: `report`. May import: declare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from maxsim_bench.declare.experiment import Experiment, Planned, ProfileName
from maxsim_bench.declare.load import load_directory
from maxsim_bench.declare.select import Filters


def measuring(experiment: Experiment, profile: ProfileName) -> str:
    """The command that measures an experiment on the card at hand; rankings have one of their own."""
    return Filters().command([experiment.name], profile, experiment.verb)


@dataclass
class Declared:
    """Experiments by name, and their grids, each expanded when first asked for."""

    experiments: Mapping[str, Experiment]
    _grids: dict[tuple[str, str, str], list[Planned]] = field(default_factory=dict)

    @classmethod
    def below(cls, folder: Path) -> Declared:
        """Everything that a folder declares; nothing for one that is not there."""
        return cls(load_directory(folder) if folder.is_dir() else {})

    def grid(self, name: str, card: str, profile: ProfileName) -> list[Planned]:
        """Cells of an experiment with their backends on one card; empty for an experiment that nobody declares."""
        place = (name, card, profile)
        if place not in self._grids:
            experiment = self.experiments.get(name)
            self._grids[place] = experiment.plan(card, profile).planned if experiment is not None else []
        return self._grids[place]
