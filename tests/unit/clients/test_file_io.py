"""A small file is one request to the object store."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pyiceberg.io import load_file_io

from topicberg.clients.file_io import LakeFileIO

KEYS = {"s3.region": "eu-west-1", "s3.access-key-id": "key", "s3.secret-access-key": "secret"}


class Store(ThreadingHTTPServer):
    """Accepts everything, and keeps what was requested."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[str] = []


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        assert self.headers["Transfer-Encoding"] == "chunked"
        while size := int(self.rfile.readline(), 16):
            self.rfile.read(size + len("\r\n"))
        self.rfile.readline()
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        assert isinstance(self.server, Store)
        self.server.requests.append(f"{self.command} {self.path}")
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def store() -> Iterator[Store]:
    with Store() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_small_file_is_one_request(store: Store) -> None:
    io = load_file_io(
        {
            **KEYS,
            "s3.endpoint": f"http://127.0.0.1:{store.server_port}",
            "py-io-impl": f"{LakeFileIO.__module__}.{LakeFileIO.__name__}",
        }
    )
    with io.new_output("s3://lake/a/b.avro").create(overwrite=True) as stream:
        stream.write(b"content" * 1000)
    assert store.requests == ["PUT /lake/a/b.avro"]


def test_other_options_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    given = LakeFileIO({**KEYS, "s3.connect-timeout": "7", "s3.proxy-uri": "http://proxy:80"})
    _, (options,) = given.fs_by_scheme("s3", "lake").__reduce__()
    assert (options["connect_timeout"], options["proxy_options"]["host"]) == (7.0, "proxy")
    assert options["access_key"] == "key"
    # Keys that change are not kept: the client looks for them each time.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    _, (options,) = LakeFileIO({"s3.region": "x"}).fs_by_scheme("s3", "lake").__reduce__()
    assert not options["access_key"]
