"""Long suites: `make release-check` plays them, and no other run."""

from tests.e2e.conftest import _forks, before_scripted, provider, scripted, serve, simulator, start_steno, steno

__all__ = ["_forks", "before_scripted", "provider", "scripted", "serve", "simulator", "start_steno", "steno"]
