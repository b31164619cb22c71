"""A supervisor's control socket without a broker: it answers what a test says."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path

from mpbroker.ipc.pointer import CONTROL_NAME


class FakeSupervisor:
    """Answers every request with the next reply; b"" closes without an answer."""

    def __init__(self, runtime_dir: Path) -> None:
        self.requests: list[dict[str, object]] = []
        self.replies: list[bytes] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        directory = os.open(runtime_dir, os.O_PATH)
        self._listener.bind(f"/proc/self/fd/{directory}/{CONTROL_NAME}")
        os.close(directory)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _address = self._listener.accept()
            except OSError:  # closed: the test is over
                return
            with connection:
                self.requests.append(json.loads(connection.recv(65536)))
                if reply := self.replies.pop(0):
                    connection.send(reply)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
