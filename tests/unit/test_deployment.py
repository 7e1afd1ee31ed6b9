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

from app.commands.serve import SPARE_FILES
from app.edge.admission import HEADER_BYTES, HEADER_COUNT
from app.settings import Settings, environment_name, every_setting, load

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
STENO, BALANCER = COMPOSE["services"]["steno"], COMPOSE["services"]["balancer"]
HAPROXY = (ROOT / "config" / "haproxy.cfg").read_text()
DEFAULTS = Settings.model_construct()
MANIFESTS = ROOT / "config" / "kubernetes"
KUBERNETES = {name: (MANIFESTS / f"{name}.yaml").read_text() for name in ("gateway", "sidecar", "monitor")}
UNIT = (ROOT / "config" / "steno.service").read_text()
VARIABLE = re.compile(r"\$\{\w+:-(.*?)\}")


def said_by_make(*arguments: str) -> str:
    """What make would run."""
    command = ["make", "--dry-run", "--no-print-directory", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout  # noqa: S603


@pytest.mark.parametrize("target", ["run", "doctor"])
def test_make_leaves_the_choice_of_the_database_to_the_settings(target: str) -> None:
    """With a settings file as without: otherwise naming one would start an empty database."""
    plain = said_by_make(target)
    assert "DATABASE_URL" not in plain
    assert said_by_make(target, "CONFIG=mine.yaml").replace(" --config 'mine.yaml'", "").split() == plain.split()


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


def test_several_replicas_do_not_want_one_thing_of_the_machine() -> None:
    """`--scale steno=2` cannot give two containers one port or one name."""
    assert STENO["deploy"] == {"replicas": 2}
    assert not STENO.keys() & {"ports", "container_name", "network_mode", "hostname"}


def test_ports_are_open_on_this_machine_only() -> None:
    ports = [port for service in COMPOSE["services"].values() for port in service.get("ports", ())]
    assert [VARIABLE.sub(r"\1", port) for port in ports] == ["127.0.0.1:8080:8080"]


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
    known = {environment_name(key) for key, _ in every_setting()}
    of_compose = set(re.findall(r"\$\{(\w+)", (ROOT / "docker-compose.yml").read_text()))
    named = set(re.findall(r"^#?([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    assert {"STENO_SECRET", "POSTGRES_PASSWORD", "PORT", "CONFIG"} <= named <= known | of_compose


def seen_by_compose(folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    (folder / "docker-compose.yml").write_text((ROOT / "docker-compose.yml").read_text())
    (folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
    command = ["docker-compose", "config"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="docker-compose is not installed")
def test_compose_wants_the_secrets_and_gives_what_is_in_env_to_the_replicas(tmp_path: Path) -> None:
    secrets = {"STENO_SECRET": "s" * 32, "POSTGRES_PASSWORD": "p" * 24}
    for missing in secrets:
        ended = seen_by_compose(tmp_path, **{name: value for name, value in secrets.items() if name != missing})
        assert ended.returncode != 0
        assert missing in ended.stderr
    ended = seen_by_compose(tmp_path, **secrets, STENO_LOG__LEVEL="debug")
    replica = yaml.safe_load(ended.stdout)["services"]["steno"]["environment"]
    assert replica["STENO_SECRET"] == secrets["STENO_SECRET"]
    assert secrets["POSTGRES_PASSWORD"] in replica["DATABASE_URL"]
    assert replica["STENO_LOG__LEVEL"] == "debug"


def test_a_stop_leaves_time_to_drain() -> None:
    steno, balancer = (seconds(service["stop_grace_period"]) for service in (STENO, BALANCER))
    assert DEFAULTS.server.drain_seconds + 10 <= steno < balancer


def test_the_balancer_knows_the_replicas_by_compose_s_name_for_them() -> None:
    assert mounts(BALANCER) == {"/usr/local/etc/haproxy/haproxy.cfg": "./config/haproxy.cfg"}
    [template] = of_balancer("server-template")
    assert template.split()[2] == f"steno:{STENO['environment']['STENO_SERVER__PORT']}"
    assert of_balancer("bind") == [":8080"]
    assert of_balancer("http-check send meth GET uri") == ["/readyz"]


def test_the_balancer_is_more_patient_than_steno_and_takes_what_steno_takes() -> None:
    longest = DEFAULTS.upstream.first_byte_seconds + DEFAULTS.compaction.wait_seconds
    for option in ("timeout client", "timeout server"):
        [time] = of_balancer(option)
        assert seconds(time) > longest
    [size], [count] = of_balancer("tune.bufsize"), of_balancer("tune.http.maxhdr")
    assert int(size) > HEADER_BYTES + 16_384
    assert int(count) > HEADER_COUNT


def test_the_balancer_repeats_only_what_cannot_have_been_received() -> None:
    assert of_balancer("retry-on") == ["conn-failure"]


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_the_balancer_takes_its_configuration() -> None:
    command = ["haproxy", "-c", "-f", "config/haproxy.cfg"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert ended.returncode == 0, ended.stderr


# Kubernetes; that the manifests are valid is checked by `make lint`


def the(name: str, kind: str) -> dict[str, Any]:
    """The only object of that kind in a file."""
    [found] = objects(name, kind)
    return found


def objects(name: str, kind: str) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(KUBERNETES[name]) if document["kind"] == kind]


def pods() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Each pod with its container of Steno."""
    for name in KUBERNETES:
        for deployment in objects(name, "Deployment"):
            pod = deployment["spec"]["template"]["spec"]
            containers = [*pod.get("initContainers", ()), *pod["containers"]]
            yield pod, next(container for container in containers if container["name"] == "steno")


def test_there_are_manifests_for_a_sidecar_and_a_gateway() -> None:
    assert [len(objects(name, "Deployment")) for name in KUBERNETES] == [1, 1, 0]


def test_pods_run_as_nobody_on_a_read_only_root_with_a_limit_of_memory() -> None:
    for pod, steno in pods():
        security = pod["securityContext"] | steno["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] == 65532
        assert security["readOnlyRootFilesystem"]
        assert not security["allowPrivilegeEscalation"]
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert steno["resources"]["limits"]["memory"]
        assert not pod["automountServiceAccountToken"]


def test_pods_and_replicas_migrate_before_a_probe_waits_for_them() -> None:
    """With the same database and rights, for as long as it takes. A pod starts without its database, too."""
    for pod, steno in pods():
        migrate = pod["initContainers"][0]
        assert migrate["args"] == ["migrate", "--if-reachable"]
        assert migrate.keys().isdisjoint({"restartPolicy", "startupProbe", "livenessProbe"})
        for key in ("image", "securityContext", "volumeMounts"):
            assert migrate[key] == steno[key], key
        databases = [
            [each for each in container.get("env", ()) if each["name"] in ("DATABASE_URL", "STENO_CONFIG")]
            for container in (migrate, steno)
        ]
        assert databases[0] == databases[1]
    migrate = COMPOSE["services"]["migrate"]
    assert migrate["command"] == ["migrate"]
    assert {key: migrate[key] for key in ("environment", "env_file", "volumes")} == {
        key: STENO[key] for key in ("environment", "env_file", "volumes")
    }
    assert STENO["depends_on"] == {"migrate": {"condition": "service_completed_successfully"}}


def test_pods_have_the_memory_that_sizing_says_they_take() -> None:
    """By the figures of docs/operations.md: what a process takes, its caches, and large bodies at once."""
    page = (ROOT / "docs" / "operations.md").read_text()
    process = re.search(r"A process takes (\d+) MB, `limits.cache_bytes`", page)
    times = re.search(r"up to ([\d.]+) times\s+`limits.in_flight_bytes`", page)
    assert process is not None
    assert times is not None
    for name, (_, steno) in zip(("gateway", "sidecar"), pods(), strict=True):
        text = KUBERNETES[name]
        cached, in_flight = (
            int(re.search(rf"{setting}\W+(?:value\W+)?(\d+)", text, re.IGNORECASE)[1])  # type: ignore[index]
            for setting in ("cache_bytes", "in_flight_bytes")
        )
        used, memory = int(process[1]) * 1_000_000 + cached, steno["resources"]
        assert used <= bytes_of(memory["requests"]["memory"]), name
        assert used + float(times[1]) * in_flight <= bytes_of(memory["limits"]["memory"]), name


def bytes_of(memory: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", memory).groups()  # type: ignore[union-attr]
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


def test_pods_have_time_to_drain_and_are_asked_whether_they_live_and_are_ready() -> None:
    for pod, steno in pods():
        waits = steno.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
        assert pod["terminationGracePeriodSeconds"] >= waits + DEFAULTS.server.drain_seconds + 10
        for probe, path in (("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez")):
            assert path in str(steno[probe]), probe


def test_the_sidecar_serves_its_own_pod_only_and_is_asked_there() -> None:
    [steno] = [steno for pod, steno in pods() if steno in pod.get("initContainers", ())]
    assert {"name": "STENO_SERVER__HOST", "value": "127.0.0.1"} in steno["env"]
    assert steno["restartPolicy"] == "Always"
    assert {name for name in steno if name.endswith("Probe") and "exec" not in steno[name]} == set()


def test_variables_and_settings_in_the_manifests_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {environment_name(key) for key, _ in every_setting()} | {"STENO_CONFIG", "DATABASE_URL"}
    for _, steno in pods():
        assert {entry["name"] for entry in steno["env"]} <= known
    for settings in objects("gateway", "ConfigMap"):
        [(name, content)] = settings["data"].items()
        (tmp_path / name).write_text(content)
        monkeypatch.setenv("STENO_CONFIG", str(tmp_path / name))
        assert load().upstream.base_url == DEFAULTS.upstream.base_url


def test_replicas_share_a_database_and_a_secret_that_stand_in_no_manifest() -> None:
    [deployment] = objects("gateway", "Deployment")
    [steno] = deployment["spec"]["template"]["spec"]["containers"]
    secrets = {entry["name"]: entry["valueFrom"]["secretKeyRef"] for entry in steno["env"] if "valueFrom" in entry}
    assert set(secrets) == {"STENO_SECRET", "DATABASE_URL"}
    assert all(f"--from-literal={secret['key']}=" in KUBERNETES["gateway"] for secret in secrets.values())
    assert not objects("gateway", "Secret")


def test_replicas_come_and_go_with_their_cpu_one_always_serves_and_postgresql_has_room_for_all() -> None:
    """A number of replicas in the manifest would be back with each deployment."""
    scaling, labels = the("gateway", "HorizontalPodAutoscaler")["spec"], {"app.kubernetes.io/name": "steno"}
    assert scaling["scaleTargetRef"]["name"] == the("gateway", "Deployment")["metadata"]["name"]
    assert "replicas" not in the("gateway", "Deployment")["spec"]
    assert the("gateway", "Deployment")["spec"]["template"]["metadata"]["labels"] == labels
    budget = the("gateway", "PodDisruptionBudget")["spec"]
    assert (budget["selector"]["matchLabels"], budget["minAvailable"]) == (labels, 1)
    assert budget["minAvailable"] < scaling["minReplicas"]
    page = (ROOT / "docs" / "operations.md").read_text()
    connections = re.search(r"up to (\d+) connections a process", page)
    assert connections is not None
    assert scaling["maxReplicas"] * int(connections[1]) <= 100


def test_the_operators_port_is_for_monitoring_alone_and_callers_find_the_other() -> None:
    _, gateway = next(pods())
    ports = {port["name"]: port["containerPort"] for port in gateway["ports"]}
    settings = yaml.safe_load(the("gateway", "ConfigMap")["data"]["steno.yaml"])
    assert settings["server"]["admin"] == f"0.0.0.0:{ports['admin']}"
    assert [port["targetPort"] for port in the("gateway", "Service")["spec"]["ports"]] == ["http"]
    policy = the("gateway", "NetworkPolicy")["spec"]
    allowed = {port["port"]: rule["from"] for rule in policy["ingress"] for port in rule["ports"]}
    [monitoring] = allowed.pop("admin")
    assert monitoring == {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert allowed == {"http": [{"namespaceSelector": {}}]}
    assert {443, 5432, 53} == {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    service, monitor = the("monitor", "Service"), the("monitor", "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"] == service["metadata"]["labels"]
    assert [each["port"] for each in monitor["endpoints"]] == [port["name"] for port in service["spec"]["ports"]]
    assert [port["targetPort"] for port in service["spec"]["ports"]] == ["admin"]
    annotations = the("gateway", "Deployment")["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(ports["admin"])


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kustomize_puts_the_gateway_and_its_monitor_together() -> None:
    command = ["kubectl", "kustomize", "config/kubernetes"]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603
    assert ended.returncode == 0, ended.stderr
    built = sorted(document["kind"] for document in yaml.safe_load_all(ended.stdout))
    listed = [document["kind"] for name in ("gateway", "monitor") for document in yaml.safe_load_all(KUBERNETES[name])]
    assert built == sorted(listed)
    [deployment] = [each for each in yaml.safe_load_all(ended.stdout) if each["kind"] == "Deployment"]
    [steno] = deployment["spec"]["template"]["spec"]["containers"]
    assert steno["image"] == next(pods())[1]["image"]


# systemd


def of_unit(option: str) -> list[str]:
    return re.findall(rf"^{option}=(.*)$", UNIT, re.MULTILINE)


def test_the_service_has_time_to_drain_and_files_enough() -> None:
    assert int(of_unit("TimeoutStopSec")[0]) >= DEFAULTS.server.drain_seconds + 10
    assert int(of_unit("LimitNOFILE")[0]) >= 2 * DEFAULTS.limits.connections + SPARE_FILES
    assert "STENO_HOME=%S/steno" in of_unit("Environment")
    assert of_unit("RuntimeDirectory") == ["steno"]


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
