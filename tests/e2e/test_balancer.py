"""The balancer of docker-compose.yml, before two replicas that share a database."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from app.http.loopback import RunningServer
from lab.simulator import Simulator
from tests.e2e import commands
from tests.e2e.commands import Serving, until
from tests.e2e.histories import chat, turns
from tests.e2e.scripted import closed_port

CONFIGURATION = (Path(__file__).parents[2] / "config" / "haproxy.cfg").read_text()
IN_COMPOSE = "bind :8080"
FOUND_BY_DOCKER = "server-template steno 1-20 steno:8080"

pytestmark = [
    pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed"),
]


@dataclass(frozen=True)
class Cluster:
    url: str
    replicas: list[Serving]

    def ask(self, number: int, **members: Any) -> httpx2.Response:
        """A request with so many turns of one conversation, on a connection of its own."""
        body = chat(turns(number), conversation_id="order-4711", **members)
        headers = {"authorization": "Bearer k", "content-type": "application/json"}
        answer = httpx2.post(f"{self.url}/v1/chat/completions", content=body, headers=headers, timeout=30)
        return answer.raise_for_status()


@pytest.fixture
def cluster(provider: RunningServer, postgres_url: str, tmp_path: Path) -> Iterator[Cluster]:
    """HAProxy with the file as it is, but for its own address and those that Docker's DNS knows."""
    variables = {
        "DATABASE_URL": postgres_url,
        "STENO_SECRET": "what every replica has to know",
        "STENO_MODELS": '[{"match": "*", "context_window": 8000}]',
        "STENO_UPSTREAM__BASE_URL": f"{provider.url}/v1",
    }
    url = f"127.0.0.1:{closed_port()}"
    with ExitStack() as stack:
        replicas = []
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            replicas.append(commands.serve([], tmp_path / name, commands.ROOT, "app.cli.main", **variables))
            stack.callback(replicas[-1].kill)
        servers = "\n    ".join(f"server {at.folder.name} {at.url.removeprefix('http://')}" for at in replicas)
        adapted = CONFIGURATION.replace(IN_COMPOSE, f"bind {url}").replace(FOUND_BY_DOCKER, servers)
        (tmp_path / "haproxy.cfg").write_text(adapted)
        command = ["haproxy", "-db", "-f", str(tmp_path / "haproxy.cfg")]
        balancer = stack.enter_context(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))  # noqa: S603
        stack.callback(balancer.terminate)
        until(lambda: balancer.poll() is not None or is_ready(url))
        assert balancer.poll() is None
        yield Cluster(f"http://{url}", replicas)


def is_ready(address: str) -> bool:
    try:
        return httpx2.get(f"http://{address}/readyz", timeout=5).status_code == 200
    except httpx2.TransportError:
        return False


def test_any_replica_goes_on_with_what_another_summarised_and_one_that_stops_gets_nothing(
    cluster: Cluster, simulator: Simulator
) -> None:
    chunks = cluster.ask(15).json()["context"]["chunks"]
    assert chunks
    simulator.clear_log()
    assert [cluster.ask(15).json()["context"]["chunks"] for _ in range(6)] == [chunks] * 6
    assert b"data: [DONE]" in cluster.ask(15, stream=True).content
    cluster.replicas[0].terminate()
    assert [cluster.ask(15).json()["context"]["chunks"] for _ in range(6)] == [chunks] * 6
    assert cluster.replicas[0].wait() == 0
    assert cluster.ask(15).json()["context"]["chunks"] == chunks
    assert {record.kind for record in simulator.log} <= {"chat", "other"}  # Nothing was summarised again.


def test_without_any_replica_the_balancer_says_so_as_an_api_would(cluster: Cluster) -> None:
    for replica in cluster.replicas:
        replica.kill()
    answer = httpx2.get(f"{cluster.url}/readyz", timeout=30)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "overloaded"
