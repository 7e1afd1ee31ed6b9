"""The subjects: how each is installed and started, with the settings that favour it, one worker and no logs."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from app import __version__
from lab.benchmarks.relay.environments import Missing, python_environment, version

ROOT = Path(__file__).parents[3]
WINDOW = 4_000_000
"""Tokens: nothing is compacted. What a compaction costs is measured elsewhere; here all relay the same bytes."""


@dataclass(frozen=True, slots=True)
class Place:
    """Folders and addresses that a subject needs."""

    environments: Path
    folder: Path
    """Folder of its own, to run in."""
    port: int
    upstream: int
    """The upstream's port."""
    window: int = WINDOW

    @property
    def upstream_url(self) -> str:
        return f"http://127.0.0.1:{self.upstream}"


@dataclass(frozen=True, slots=True)
class Command:
    """Command that starts a subject."""

    arguments: Sequence[str]
    version: str
    environment: Mapping[str, str] = field(default_factory=dict)
    start_seconds: float = 60.0


Subject = Callable[[Place], Command]
"""Installs it if need be; raises `Missing`."""


def steno(place: Place) -> Command:
    """`steno serve` as a user starts it, with its own database file."""
    settings = {
        "SECRET": "a secret for the benchmark",
        "UPSTREAM__DISCOVER_WINDOWS": "false",
        "MODELS": json.dumps([{"match": "*", "context_window": WINDOW}]),
    }
    return Command(
        arguments=(
            *(sys.executable, "-m", "app.cli.main", "serve"),
            *("--upstream", f"{place.upstream_url}/v1", "--port", str(place.port)),
        ),
        version=__version__,
        environment={"PYTHONPATH": str(ROOT), **{f"STENO_{name}": value for name, value in settings.items()}},
    )


def nginx(place: Place) -> Command:
    if (program := shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")) is None:
        raise Missing("nginx is not installed (on Debian: apt-get install nginx-light)")
    shown = subprocess.run([program, "-v"], capture_output=True, text=True, check=True)  # noqa: S603 - nginx
    place.folder.mkdir(parents=True, exist_ok=True)
    (place.folder / "nginx.conf").write_text(NGINX.format(port=place.port, upstream=place.upstream))
    arguments = (program, "-p", str(place.folder), "-c", "nginx.conf", "-e", "errors")
    return Command(arguments, shown.stderr.strip().rpartition("/")[2])


NGINX = """
worker_processes 1; daemon off; pid nginx.pid; error_log errors warn;
events {{ worker_connections 8192; }}
http {{
  access_log off; keepalive_requests 1000000; keepalive_timeout 120s; client_max_body_size 0;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  upstream provider {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    client_body_buffer_size 64k;
    location / {{
      proxy_pass http://provider; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;
      proxy_buffering off; proxy_request_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""


def litellm(place: Place) -> Command:
    """LiteLLM in production mode, without keys, database or logs of spending."""
    environment = python_environment(place.environments, "litellm")
    place.folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_list": [
            {
                "model_name": "*",
                "litellm_params": {"model": "openai/*", "api_base": f"{place.upstream_url}/v1", "api_key": "sk-bench"},
            }
        ],
        "litellm_settings": {"telemetry": False, "set_verbose": False, "num_retries": 0, "request_timeout": 600},
        "general_settings": {"disable_spend_logs": True, "disable_error_logs": True},
    }
    # JSON is YAML.
    (place.folder / "litellm.yaml").write_text(json.dumps(config))
    return Command(
        arguments=(
            *(str(environment / "bin" / "litellm"), "--config", "litellm.yaml"),
            *("--host", "127.0.0.1", "--port", str(place.port), "--num_workers", "1"),
        ),
        version=version(environment, "litellm"),
        environment={
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_TELEMETRY": "False",
            # For local use only, it says: without, each request would have to be authorised, which costs time.
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
            "NO_PROXY": "*",
        },
        start_seconds=180,
    )


def plain(place: Place) -> Command:
    environment = python_environment(place.environments, "plain")
    return Command(
        arguments=(
            *(str(environment / "bin" / "uvicorn"), "lab.benchmarks.relay.plain:app"),
            *("--host", "127.0.0.1", "--port", str(place.port), "--loop", "uvloop", "--http", "httptools"),
            *("--no-access-log", "--log-level", "warning", "--backlog", "4096", "--timeout-keep-alive", "120"),
        ),
        version=f"{version(environment, 'fastapi')}, httpx {version(environment, 'httpx')}",
        environment={"UPSTREAM": place.upstream_url, "PYTHONPATH": str(ROOT)},
    )


def headroom(place: Place) -> Command:
    """Headroom as a relay: with its compression switched off."""
    environment = python_environment(place.environments, "headroom")
    return Command(
        arguments=(
            *(str(environment / "bin" / "headroom"), "proxy", "--port", str(place.port)),
            *("--no-rate-limit", "--no-cache", "--no-optimize"),
        ),
        version=version(environment, "headroom_ai"),
        environment={
            "OPENAI_TARGET_API_URL": place.upstream_url,
            "HEADROOM_TELEMETRY": "off",
            "HEADROOM_LOG_LEVEL": "WARNING",
            "HF_HUB_OFFLINE": "1",
        },
        start_seconds=180,
    )


def context_guardian(place: Place) -> Command:
    environment = python_environment(place.environments, "context-guardian")
    settings = {
        "UPSTREAM_URL": f"{place.upstream_url}/v1",
        "PORT": str(place.port),
        "DATA_DIR": str(place.folder / "data"),
        "NUM_CTX": str(place.window),
        "DETECT_CONTEXT": "0",
        "OLLAMA_CONTEXT": "0",
        "VERSION_CHECK": "0",
        "VERBOSE": "0",
    }
    return Command(
        arguments=(str(environment / "bin" / "context-guardian"),),
        version=version(environment, "context_guardian"),
        environment={f"GUARDIAN_{name}": value for name, value in settings.items()},
    )


SUBJECTS: Mapping[str, Subject] = {
    "steno": steno,
    "nginx": nginx,
    "plain": plain,
    "context-guardian": context_guardian,
    "headroom": headroom,
    "litellm": litellm,
}
DIRECT = "direct"
"""No relay at all: always measured, and what "added" is added to."""

TITLES = {
    "steno": "Steno",
    "litellm": "LiteLLM",
    "plain": "FastAPI + httpx",
}
