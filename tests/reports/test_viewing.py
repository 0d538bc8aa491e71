"""The served page: on this machine only, only with its secret, only what it was given."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import onnx
import pytest

import torchport as tp
from torchport.errors import OptionError
from torchport.reports.viewing import Viewing


@pytest.fixture(scope="module")
def viewing(onnx_file: Path) -> Iterator[Viewing]:
    with tp.view(onnx_file) as served:
        yield served


def ask(
    viewing: Viewing, method: str, path: str, body: bytes | None = None, **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Ask for a path behind the secret, or one that begins with a slash as it is."""
    address = urlsplit(viewing.url)
    connection = http.client.HTTPConnection("127.0.0.1", address.port, timeout=20)
    whole = path if path.startswith("/") else address.path + path
    connection.request(method, whole, body, {name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def own(viewing: Viewing) -> dict[str, str]:
    return {"Origin": f"http://{urlsplit(viewing.url).netloc}", "Content_Type": "application/json"}


def test_the_page_is_there_with_its_policy(viewing: Viewing) -> None:
    status, headers, body = ask(viewing, "GET", "")
    assert status == 200
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert b"connect-src 'self'" in body


@pytest.mark.parametrize("path", ["/", "/wrong/", "/../../etc/passwd", "../model.onnx", "small.onnx", "%2e%2e/", "cut"])
def test_nothing_else_is_there(viewing: Viewing, path: str) -> None:
    assert ask(viewing, "GET", path)[0] == 404


def test_another_name_of_the_machine_is_refused(viewing: Viewing) -> None:
    """A site that lets its own name point to this machine gets nothing."""
    assert ask(viewing, "GET", "", Host="evil.example:80")[0] == 404


def test_only_this_machine_can_connect(viewing: Viewing) -> None:
    port = urlsplit(viewing.url).port
    assert port is not None
    others = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)}
    for host in (name for name in others if not str(name).startswith("127.")):
        with pytest.raises(OSError), socket.create_connection((str(host), port), timeout=2):
            pass


def test_a_part_is_cut(viewing: Viewing) -> None:
    body = json.dumps({"inputs": ["relu"], "outputs": ["logits"]}).encode()
    status, _, content = ask(viewing, "POST", "cut", body, **own(viewing))
    assert status == 200
    assert [node.op_type for node in onnx.load_from_string(content).graph.node] == ["ReduceMean", "Gemm"]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"inputs": ["nope"], "outputs": []}', 400),
        (b'{"inputs": "x", "outputs": []}', 400),
        (b"[" * 100_000, 400),
        (b"{}", 400),
    ],
)
def test_a_cut_that_cannot_be_says_why(viewing: Viewing, body: bytes, status: int) -> None:
    found, headers, content = ask(viewing, "POST", "cut", body, **own(viewing))
    assert (found, headers["Content-Type"]) == (status, "text/plain; charset=utf-8")
    assert b"Traceback" not in content


def test_another_site_cannot_ask_for_a_cut(viewing: Viewing) -> None:
    body = b'{"inputs": [], "outputs": []}'
    assert ask(viewing, "POST", "cut", body, **{**own(viewing), "Origin": "http://evil.example"})[0] == 404
    assert ask(viewing, "POST", "cut", body, **{**own(viewing), "Content_Type": "text/plain"})[0] == 404


def test_a_port_that_is_taken_is_said(viewing: Viewing, onnx_file: Path) -> None:
    with pytest.raises(OptionError, match="cannot be used"):
        tp.view(onnx_file, port=urlsplit(viewing.url).port or 0)
    with pytest.raises(OptionError):
        tp.view(onnx_file, port=99999)


def test_it_shows_itself_in_a_notebook(viewing: Viewing) -> None:
    assert f'src="{viewing.url}"' in viewing._repr_html_()


def test_the_command_serves_until_it_is_interrupted(onnx_file: Path) -> None:
    command = [str(Path(sys.executable).with_name("torchport")), "view", str(onnx_file), "--no-browser", "-q"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    url = urlsplit(process.stdout.readline().strip())
    connection = http.client.HTTPConnection("127.0.0.1", url.port, timeout=20)
    connection.request("GET", url.path)
    assert connection.getresponse().status == 200
    connection.close()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors.strip()) == (0, "ended")
