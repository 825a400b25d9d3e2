"""The AWS emulator's EMR Serverless and Athena on a port of their own, without signatures."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from topicberg_local.emulators.aws.athena import Athena
from topicberg_local.emulators.aws.emr_serverless import EmrServerless
from topicberg_local.emulators.aws.shapes import Refusal

URL_VARIABLES = ("AWS_ENDPOINT_URL_EMR_SERVERLESS", "AWS_ENDPOINT_URL_ATHENA")


@contextmanager
def serving(region: str = "us-east-1") -> Iterator[tuple[EmrServerless, Athena, str]]:
    """Yield the services and their address."""
    service, athena = EmrServerless("123456789012", region), Athena("123456789012", region)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            try:
                with lock:
                    if target := self.headers.get("x-amz-target"):
                        self.reply(200, athena.answer(target.rpartition(".")[2], body))
                        return
                    self.reply(200, service.answer(self.command, path, query, body))
            except Refusal as error:
                content = {"__type": error.code, "message": error.message}
                self.reply(error.status, content, error.code)

        def reply(self, status: int, content: dict[str, Any], code: str = "") -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("x-amzn-errortype", code)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Nothing."""

        do_GET = do_PATCH = do_POST = do_DELETE = do

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield service, athena, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
