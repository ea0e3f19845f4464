"""A proxy that has a server in a folder of its own site, and nothing else."""

import contextlib
import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FOLDER = "/sounds/of%20ours"
BETWEEN_TWO = ("connection", "transfer-encoding", "keep-alive")


@contextlib.contextmanager
def in_folder(port):
    """Yields the URL of the folder of a proxy for a server, and the other paths asked of it."""
    strays = []

    class Passing(BaseHTTPRequestHandler):
        def do_GET(self):
            if not self.path.startswith(f"{FOLDER}/"):
                strays.append(self.path)
                return self.send_error(404)
            length = int(self.headers.get("content-length", 0))
            server = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            headers = {k: v for k, v in self.headers.items() if k.lower() not in BETWEEN_TWO}
            path = self.path.removeprefix(FOLDER)
            server.request(self.command, path, self.rfile.read(length), headers)
            answer = server.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in BETWEEN_TWO:
                    self.send_header(name, value)
            self.end_headers()
            with contextlib.closing(server), contextlib.suppress(ConnectionError):
                while part := answer.read1(65536):
                    self.wfile.write(part)
                    self.wfile.flush()

        do_POST = do_GET  # noqa: N815 - the name that is called

        def log_message(self, *words):
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Passing) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_port}{FOLDER}", strays
        finally:
            proxy.shutdown()
            thread.join()
