"""What starts Steno besides the command line: make, Docker Compose with its balancer, Kubernetes and systemd."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.cli.serve import SPARE_FILES
from app.http.admission import HEADER_BYTES, HEADER_COUNT
from app.settings import Settings, environment_name, load
from scripts.generate_settings import keys

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
STENO, BALANCER = COMPOSE["services"]["steno"], COMPOSE["services"]["balancer"]
HAPROXY = (ROOT / "config" / "haproxy.cfg").read_text()
DEFAULTS = Settings.model_construct()
MANIFESTS = ROOT / "config" / "kubernetes"
KUBERNETES = {name: (MANIFESTS / f"{name}.yaml").read_text() for name in ("gateway", "sidecar", "monitor")}
UNIT = (ROOT / "config" / "steno.service").read_text()
VARIABLE = re.compile(r"\$\{\w+:-(.*?)\}")


# Docker Compose


def seconds(time: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)?", time).groups()  # type: ignore[union-attr]
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, None: 0.001}[unit]


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Each place in the container with the file that is there by default, read-only."""
    found = {}
    for mount in service["volumes"]:
        source, place, mode = VARIABLE.sub(r"\1", mount).split(":")
        assert mode == "ro"
        found[place] = source
    return found


def of_balancer(option: str) -> list[str]:
    """What the balancer's configuration says of an option."""
    return re.findall(rf"^ +{option} (.+)$", HAPROXY, re.MULTILINE)


def test_every_setting_reaches_the_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    """By .env, or by the file that is mounted."""
    assert STENO["env_file"] == [".env"]
    source = mounts(STENO)[STENO["environment"]["STENO_CONFIG"]]
    monkeypatch.chdir(ROOT)
    defaults = load()
    monkeypatch.setenv("STENO_CONFIG", source)
    assert load() == defaults
    set_here = {name for name in STENO["environment"] if name.startswith("STENO_")}
    assert set_here == {"STENO_CONFIG", "STENO_SECRET", "STENO_SERVER__HOST", "STENO_SERVER__PORT"}


def test_variables_in_the_example_are_settings_or_known_to_compose() -> None:
    known = {*map(environment_name, keys())}
    of_compose = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    named = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert {"STENO_SECRET", "POSTGRES_PASSWORD", "PORT", "CONFIG"} <= named <= known | of_compose


def test_the_image_copies_files_that_exist() -> None:
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert [name for names in copied for name in names.split() if not (ROOT / name).exists()] == []


def test_compose_does_not_start_without_its_secrets() -> None:
    text = (ROOT / "docker-compose.yml").read_text()
    assert all(f"${{{name}:?" in text for name in ("STENO_SECRET", "POSTGRES_PASSWORD"))


def test_a_stop_leaves_time_to_drain() -> None:
    steno, balancer = (seconds(service["stop_grace_period"]) for service in (STENO, BALANCER))
    assert DEFAULTS.server.drain_seconds + 10 <= steno < balancer


def test_the_balancer_is_more_patient_than_steno_and_takes_what_steno_takes() -> None:
    longest = DEFAULTS.upstream.first_byte_seconds + DEFAULTS.compaction.wait_seconds
    for option in ("timeout client", "timeout server"):
        [time] = of_balancer(option)
        assert seconds(time) > longest
    [size], [count] = of_balancer("tune.bufsize"), of_balancer("tune.http.maxhdr")
    assert int(size) > HEADER_BYTES + 16_384
    assert int(count) > HEADER_COUNT


# Kubernetes; that the manifests are valid is checked by `make lint`


def objects(name: str, kind: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(KUBERNETES[name]) if document["kind"] == kind]


def pods() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each pod with its container of Steno."""
    for name in KUBERNETES:
        for deployment in objects(name, "Deployment"):
            pod = deployment["spec"]["template"]["spec"]
            containers = [*pod.get("initContainers", ()), *pod["containers"]]
            yield pod, next(container for container in containers if container["name"] == "steno")


def test_pods_have_time_to_drain_and_are_asked_whether_they_live_and_are_ready() -> None:
    for pod, steno in pods():
        waits = steno.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert pod["terminationGracePeriodSeconds"] >= waits + DEFAULTS.server.drain_seconds + 10
        for probe, path in (("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
            assert path in str(steno[probe]), probe


def test_variables_and_settings_in_the_manifests_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {*map(environment_name, keys())} | {"STENO_CONFIG", "DATABASE_URL"}
    for _, steno in pods():
        assert {entry["name"] for entry in steno["env"]} <= known
    for settings in objects("gateway", "ConfigMap"):
        [(name, content)] = settings["data"].items()
        (tmp_path / name).write_text(content)
        monkeypatch.setenv("STENO_CONFIG", str(tmp_path / name))
        assert load().upstream.base_url == DEFAULTS.upstream.base_url


# systemd


def of_unit(option: str) -> list[str]:
    return re.findall(rf"^{option}=(.*)$", UNIT, re.MULTILINE)


def test_the_service_has_time_to_drain_and_files_enough() -> None:
    assert int(of_unit("TimeoutStopSec")[0]) >= DEFAULTS.server.drain_seconds + 10
    assert int(of_unit("LimitNOFILE")[0]) >= 2 * DEFAULTS.limits.connections + SPARE_FILES
    assert "STENO_HOME=%S/steno" in of_unit("Environment")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_service_and_finds_little_that_it_may_do(tmp_path: Path) -> None:
    unit = tmp_path / "steno.service"
    unit.write_text(UNIT.replace(of_unit("ExecStart")[0].split()[0], shutil.which("true") or ""))
    for check in (["verify"], ["security", "--offline=true", "--threshold=15", "--no-pager"]):
        ended = subprocess.run(  # noqa: S603 - our own unit
            ["systemd-analyze", *check, unit],  # noqa: S607
            capture_output=True,
            text=True,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stdout
