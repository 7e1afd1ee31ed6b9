"""The container image as it runs in production: as nobody, on a read-only root, with one folder to write to.

`make image` builds it and says where it is. It is started without an engine: in mount and process namespaces of its
own, with what its configuration says.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest

from app import __version__
from app.http.loopback import RunningServer
from tests.e2e.commands import Serving, until
from tests.e2e.histories import turns

ROOT = os.environ.get("IMAGE_ROOT", "")
USER = "65532:65532"
PORT = 9707

pytestmark = [
    pytest.mark.skipif(not ROOT, reason="no image was built: make image"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may change the root"),
]

INSIDE = """
set -e
mount --bind {root} {root}
mount -o remount,bind,ro {root}
mount --bind {data} {root}/data
mount --rbind /dev {root}/dev
mount -t proc proc {root}/proc
exec chroot --userspec={user} {root} /usr/bin/env -i -C {folder} {variables} {command}
"""


@dataclass(frozen=True)
class Image:
    config: dict[str, Any]
    data: Path
    """What is mounted at its volume."""

    def command(self, *command: str, **variables: str) -> list[str]:
        """In a container: the process is the first one there, and sees nothing of this machine but its network."""
        environment = dict(entry.split("=", 1) for entry in self.config["Env"]) | variables
        script = INSIDE.format(
            root=shlex.quote(ROOT),
            data=shlex.quote(str(self.data)),
            user=self.config["User"],
            folder=self.config["WorkingDir"],
            variables=shlex.join(f"{name}={value}" for name, value in environment.items()),
            command=shlex.join(command),
        )
        return ["unshare", "--mount", "--pid", "--fork", "sh", "-c", script]

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603 - our own image
            self.command(*command, **variables), capture_output=True, text=True, check=False, timeout=60
        )


@pytest.fixture
def image(tmp_path: Path) -> Image:
    data = tmp_path / "data"
    data.mkdir()
    os.chown(data, *map(int, USER.split(":")))
    config = json.loads(Path(os.environ["IMAGE_CONFIG"]).read_text())["Docker"]["config"]
    return Image(config, data)


def test_it_runs_as_nobody_with_one_volume_a_port_and_a_health_check(image: Image) -> None:
    assert image.config["User"] == USER
    assert list(image.config["Volumes"]) == ["/data"]
    assert list(image.config["ExposedPorts"]) == ["8080/tcp"]
    assert image.config["Entrypoint"] + image.config["Cmd"] == ["steno", "serve"]
    assert image.config["Healthcheck"]["Test"][0] == "CMD"


def test_nothing_but_the_volume_can_be_written(image: Image) -> None:
    for folder in ("/", "/opt/steno", "/opt/tables", "/tmp", "/var"):  # noqa: S108 - of the container
        assert image.run("touch", f"{folder}/x").returncode != 0, folder
    assert image.run("touch", "/data/x").returncode == 0


def test_what_it_does_not_need_to_run_is_not_in_it() -> None:
    root = Path(ROOT)
    assert not list(root.glob("opt/steno/lib/python3*/site-packages/pip"))
    assert not (root / "src").exists()
    assert not (root / "opt/build").exists()
    assert all(path.stat().st_size == 0 for path in root.glob("etc/pip.conf"))  # The place where it was mounted.


def test_the_program_says_its_version(image: Image) -> None:
    said = image.run("python", "-c", "import app, os; print(app.__version__, os.getuid())")
    assert said.stdout.split() == [__version__, USER.partition(":")[0]]


def test_it_counts_with_tables_compacts_is_healthy_and_stops_gracefully(
    image: Image, provider: RunningServer, tmp_path: Path
) -> None:
    variables = {"STENO_UPSTREAM__BASE_URL": f"{provider.url}/v1", "STENO_SERVER__PORT": str(PORT)}
    settings = {"STENO_MODELS": '[{"match": "*", "context_window": 8000}]', "STENO_SERVER__HOST": "127.0.0.1"}
    healthy = image.config["Healthcheck"]["Test"][1:]
    assert image.run(*healthy, **variables).returncode != 0
    command = image.command(*image.config["Entrypoint"], *image.config["Cmd"], **variables, **settings)
    with (tmp_path / "stdout").open("wb") as stdout, (tmp_path / "stderr").open("wb") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr)  # noqa: S603 - our own image
    serving = Serving(process, tmp_path, f"http://127.0.0.1:{PORT}")
    try:
        until(lambda: process.poll() is not None or any(line["event"] == "serving" for line in serving.log), 120)
        assert process.poll() is None, serving.errors
        assert image.run(*healthy, **variables).returncode == 0
        assert serving.get("/readyz") == {"status": "ok", "db": "ok", "tokenizer": "tiktoken"}
        with openai.OpenAI(base_url=f"{serving.url}/v1", api_key="sk-test", max_retries=0, timeout=30) as client:
            answer = client.chat.completions.create(model="gpt-4o", messages=turns(15))
        assert answer.model_extra is not None
        assert answer.model_extra["context_status"] == "summarized"
        os.kill(first_inside(process.pid), signal.SIGTERM)
        assert serving.wait() == 0, serving.errors
    finally:
        if process.poll() is None:
            os.kill(first_inside(process.pid), signal.SIGKILL)  # With it all that is in there ends.
        serving.kill()
    assert serving.log[-1]["event"] == "Finished server process [1]"
    assert {path.name for path in image.data.iterdir()} >= {"steno.db", "steno.secret"}
    assert {path.stat().st_uid for path in image.data.iterdir()} == {65532}


def first_inside(outside: int) -> int:
    """The only child of the process that made the namespaces."""
    return int(Path(f"/proc/{outside}/task/{outside}/children").read_text())
