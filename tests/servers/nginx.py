"""A real nginx over a folder: /json/ lists its directories in JSON, /html/ in HTML, /plain/ not at all. /dav/ is written."""

from __future__ import annotations

import contextlib
import getpass
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.servers.lifecycle import accepts, free_port, program, running, wait_ready

START_S = 10
SECRET = "let me in"
"""What the header X-Secret must say below /secret/."""
_CONFIGURATION = """
daemon off;
master_process off;
{user}
pid {directory}/nginx.pid;
error_log {directory}/error.log warn;
events {{ worker_connections 1024; }}
http {{
    access_log {directory}/access.log;
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    default_type application/octet-stream;
    charset utf-8;
    sendfile on;
    keepalive_requests 100000;
    server {{
        listen 127.0.0.1:{port} backlog=1024;
        location /json/ {{ alias {root}/; autoindex on; autoindex_format json; }}
        location /html/ {{ alias {root}/; autoindex on; autoindex_exact_size on; }}
        location /plain/ {{ alias {root}/; }}
        location /dav/ {{
            alias {root}/; autoindex on; autoindex_format json;
            dav_methods PUT DELETE MKCOL MOVE; create_full_put_path on; client_max_body_size 0;
        }}
        location /small/ {{ alias {root}/; dav_methods PUT; create_full_put_path on; client_max_body_size 100k; }}
        location /secret/ {{
            if ($http_x_secret != "{secret}") {{ return 401; }}
            alias {root}/; autoindex on; autoindex_format json;
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True)
class Nginx:
    """A running nginx.

    Attributes:
        root: the folder that it serves.
        log: a line for each request that it has answered.
    """

    root: Path
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def requests(self, method: str, path: str) -> int:
        """Return how many requests of a method for an address that ends with `path` it has answered."""
        lines = self.log.read_text().splitlines()
        return sum(f'"{method} ' in line and f'{path} HTTP/1.1"' in line for line in lines)


@contextlib.contextmanager
def nginx(directory: Path, root: Path) -> Iterator[Nginx]:
    """Run nginx over `root`, with its files and logs in `directory`.

    Raises:
        Missing: it is not installed.
    """
    binary = program("nginx", "install the package nginx-light", "/usr/sbin")
    port = free_port()
    configuration = directory / "nginx.conf"
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""
    configuration.write_text(_CONFIGURATION.format(directory=directory, root=root, port=port, secret=SECRET, user=user))
    log = directory / "start.log"
    with running([binary, "-p", str(directory), "-c", str(configuration)], log) as child:
        wait_ready(child, lambda: accepts(port), log, START_S)
        yield Nginx(root, port, directory / "access.log")
