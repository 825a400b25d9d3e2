"""The main module of a process of :mod:`topicberg.tableflow.decode.processes`.

``python -m topicberg.tableflow.decode.decoding_process SOCKET MEMORY``: the number of an open
socket, and how many bytes a batch may take.
"""

from __future__ import annotations

import signal
import socket
import sys

from topicberg.garbage import no_search

with no_search():
    from topicberg.tableflow.decode.processes import serve
    from topicberg.tableflow.values.compiling import wait_ready


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the engine ends it, or ends itself
        signal.signal(number, signal.SIG_IGN)
    wait_ready()
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))


if __name__ == "__main__":
    main()
