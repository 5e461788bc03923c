"""The explorer of a small random model, served by a process of its own on loopback.

As a script: python explorer_process.py LIMITS_AS_JSON [KEY] prints its port and serves.
"""

import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
RESPONSE_SECONDS = 60  # a bound on waiting, not a requirement


class ExplorerProcess:
    """A context manager; `ask` sends one request, `log` is what the process wrote to stderr."""

    def __init__(self, key: str | None = None, **limits: float):
        self.arguments = [json.dumps(limits), *([key] if key else [])]

    def __enter__(self) -> "ExplorerProcess":
        self.stderr = tempfile.TemporaryFile()
        path = os.pathsep.join([str(HERE.parents[1]), str(HERE.parent / "explore")])
        self.process = subprocess.Popen(
            [sys.executable, __file__, *self.arguments],
            stdout=subprocess.PIPE,
            stderr=self.stderr,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())
        return self

    def __exit__(self, *error: object) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        finally:
            self.process.kill()
            self.process.wait()
            self.stderr.close()

    def connect(self, sent: bytes = b"") -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), RESPONSE_SECONDS)
        connection.sendall(sent)
        return connection

    def ask(self, method="GET", path="/api/model", body=None, **headers):
        """Status, headers and content of the response."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=RESPONSE_SECONDS)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        received = {name.lower(): value for name, value in response.getheaders()}
        return response.status, received, content

    def log(self) -> str:
        self.stderr.seek(0)
        return self.stderr.read().decode()

    def memory_kb(self) -> int:
        """Resident memory."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(
            next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]
        )

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


def read_all(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)


def serve(limits: str, key: str | None = None) -> None:
    import torch
    from small_explorers import small

    from qkv.explore.app import make_app
    from qkv.web.limits import Limits
    from qkv.web.server import make_server

    torch.set_num_threads(1)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    make_server(make_app(small("generator"), key, Limits(**json.loads(limits)))).run([listener])


if __name__ == "__main__":
    serve(*sys.argv[1:])
