"""A backend's version changes when what decides its result changes."""

from __future__ import annotations

import pytest

from maxsim_bench.backends.identity import installed_version, missing, source_hash


def test_different_sources_have_different_hashes() -> None:
    """Two rooms of the kernels are two identities."""
    assert source_hash("tokens.py") != source_hash("reference.py")


def test_a_renamed_source_cannot_leave_the_identity_unnoticed() -> None:
    """A part that is not there is an error, not an empty hash."""
    with pytest.raises(FileNotFoundError, match=r"no_such\.py"):
        source_hash("no_such.py")


def test_a_missing_peer_names_its_install_line() -> None:
    """The reason says how to get it; nothing is imported to find out."""
    assert installed_version("surely-not-installed") == "not installed"
    assert missing("surely_not_installed", "pip install x") == "surely_not_installed is not installed: pip install x"
    assert missing("json", "pip install x") is None
