"""The layers of the design, as the import contracts in pyproject.toml hold them."""

from importlinter.cli import EXIT_STATUS_SUCCESS, lint_imports


def test_imports_point_inward_only() -> None:
    assert lint_imports(no_cache=True) == EXIT_STATUS_SUCCESS
