"""Settings and their sources. By precedence: flags, the environment, a YAML file, a preset, the sections' defaults.

`make generate` writes `config/steno.yaml` and `docs/settings.md` from the sections.
"""

from __future__ import annotations

from app.settings.compaction import BackgroundSettings
from app.settings.server import ClientSettings, EventSettings, LimitSettings
from app.settings.settings import Settings, environment_name, load
from app.settings.types import ConfigurationError
from app.settings.upstreams import DEFAULT_UPSTREAM, ModelSettings, NamedUpstreamSettings, UpstreamSettings, entry_of
