"""tp.view: the page of a model, served on this machine only, for as long as it is looked at."""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
import threading
from collections.abc import Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

from torchport.editing.extract import cut
from torchport.errors import OptionError, TorchportError, UserError
from torchport.files import onnx_files
from torchport.files.onnx_files import ModelLike, as_model
from torchport.reports.report import page_of

_LARGEST_REQUEST = 1 << 20
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Viewing:
    """A page that is served until it is closed. Whoever does not know its address gets nothing.

    Attributes:
        url: where the page is; the address holds a secret.
    """

    def __init__(self, page: bytes, model: ModelLike, port: int) -> None:
        self._server = _Server(page, model, port)
        self.url = self._server.url
        self._thread = threading.Thread(target=self._server.serve_forever, name="torchport view", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the page is closed from elsewhere."""
        self._thread.join()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Viewing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Viewing({self.url!r})"

    def _repr_html_(self) -> str:
        """Show the page in a notebook on the same machine."""
        return f'<iframe src="{self.url}" width="100%" height="640"></iframe><br><a href="{self.url}">{self.url}</a>'


def view(model: ModelLike, *, results: Sequence[object] = (), port: int = 0) -> Viewing:
    """Serve the page of a model to browsers on this machine. It can save the parts that are cut out by hand.

    Args:
        model: an ONNX file, or a model in memory.
        results: what other verbs found of it, as for `report`.
        port: of the address; 0 for any that is free.

    Raises:
        FileError: the model is missing, broken or of another format.
        OptionError: the port is taken.
        ViewerMissingError: torchport runs from its sources, and the viewer has not been built.

    Example:
        >>> viewing = tp.view("model.onnx")
        >>> viewing.url
        'http://127.0.0.1:40123/u3Jb.../'
        >>> viewing.close()
    """
    return Viewing(page_of(model, results=results, served=True).encode(), model, port)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, page: bytes, model: ModelLike, port: int) -> None:
        self.page = page
        self.model = model
        self.token = secrets.token_urlsafe(24)
        self.cutting = threading.Lock()
        try:
            super().__init__(("127.0.0.1", port), _Handler)
        except (OSError, OverflowError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OptionError(
                f"port {port} cannot be used: {reason}", where=f"--port {port}", next_step="leave --port out"
            ) from error
        self.hosts = {f"{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")}
        self.url = f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that goes away before it has its answer."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 30  # seconds that a request may take to come in

    def do_GET(self) -> None:
        if self._may() and self._path() == "":
            self._answer(HTTPStatus.OK, "text/html; charset=utf-8", self.server.page)
        else:
            self._refuse()

    def do_POST(self) -> None:
        """Cut the part that the page asks for, and give the file."""
        if not self._may() or self._path() != "cut" or not self._is_own():
            self._refuse()
            return
        try:
            asked = self._asked()
            with self.server.cutting:
                content = _part(self.server.model, asked["inputs"], asked["outputs"])
        except TorchportError as error:
            status = HTTPStatus.BAD_REQUEST if isinstance(error, UserError) else HTTPStatus.UNPROCESSABLE_ENTITY
            self._answer(status, "text/plain; charset=utf-8", str(error).encode())
        else:
            self._answer(HTTPStatus.OK, "application/octet-stream", content)

    def _may(self) -> bool:
        """Check the secret, and that the browser was led here by no other name, which another site could own."""
        first = self.path.lstrip("/").partition("/")[0]
        known = secrets.compare_digest(first.encode(), self.server.token.encode())
        return known and self.headers.get("Host", "") in self.server.hosts

    def _is_own(self) -> bool:
        origin = self.headers.get("Origin", "").removeprefix("http://")
        return origin in self.server.hosts and self.headers.get("Content-Type") == "application/json"

    def _path(self) -> str | None:
        _, slash, rest = self.path.lstrip("/").partition("/")
        return rest if slash else None

    def _asked(self) -> dict[str, list[str]]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > _LARGEST_REQUEST:
            raise OptionError("the request has no length, or is too long")
        try:
            asked = json.loads(self.rfile.read(int(length)))
            found = {key: asked[key] for key in ("inputs", "outputs")}
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise OptionError("the request names no inputs and outputs") from error
        if not all(isinstance(names, list) and all(isinstance(n, str) for n in names) for names in found.values()):
            raise OptionError("inputs and outputs are lists of names")
        return found

    def _answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self) -> None:
        self.close_connection = True
        self._answer(HTTPStatus.NOT_FOUND, "text/plain; charset=utf-8", b"there is nothing here\n")

    def version_string(self) -> str:
        return "torchport"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the address holds the secret."""


def _part(model: ModelLike, inputs: list[str], outputs: list[str]) -> bytes:
    part = cut(as_model(model), inputs, outputs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "part.onnx")
        onnx_files.save(part, path, external=False)
        return path.read_bytes()
