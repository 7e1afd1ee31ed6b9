"""Settings: flags, then the environment, then a YAML file, then a preset, then the defaults of the sections.

`make generate` writes `config/steno.yaml` and `docs/settings.md` from the sections.
"""

from __future__ import annotations

from app.settings.loading import environment_name, every_setting, load
from app.settings.problems import problems_in
from app.settings.sections.clients import ClientSettings, EventSettings, IdentitySettings
from app.settings.sections.compaction import BackgroundSettings, CompactionSettings
from app.settings.sections.models import CalibrationSettings, ModelSettings, entry_of
from app.settings.sections.server import LimitSettings
from app.settings.sections.summary import FallbackSettings, SummarySettings
from app.settings.sections.trigger import TriggerSettings
from app.settings.sections.upstreams import DEFAULT_UPSTREAM, NamedUpstreamSettings, UpstreamSettings
from app.settings.settings import Settings
from app.settings.sources import read_file
from app.settings.types import ConfigurationError
