"""A stand-in for EC2's metadata service, for several machines at once: http://127.0.0.1:PORT/NODE/latest/..."""

import http.server
import threading

TOKEN = "/latest/api/token"
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"


class MetadataService:
    """version 2 wants a token with every question, version 1 knows none. notices: text by (node, path)."""

    def __init__(self, version=2):
        self.version, self.notices, self.asked = version, {}, []
        self.tokens = set()
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_PUT(self):
                node, path = service._split(self.path)
                service.asked.append(("PUT", path))
                if service.version == 1 or path != TOKEN:
                    self._answer(405 if path == TOKEN else 404)
                elif not self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "").isdigit():
                    self._answer(400)
                else:
                    token = f"token-{node}-{len(service.tokens)}"
                    service.tokens.add(token)
                    self._answer(200, token)

            def do_GET(self):
                node, path = service._split(self.path)
                token = self.headers.get("X-aws-ec2-metadata-token")
                service.asked.append(("GET", path, token))
                if service.version == 2 and token not in service.tokens:
                    self._answer(401)
                    return
                text = service.notices.get((node, path))
                self._answer(404 if text is None else 200, text or "")

            def _answer(self, code, text=""):
                self.send_response(code)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *unused):
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    @staticmethod
    def _split(path):
        node, _, rest = path.lstrip("/").partition("/")
        return (node, "/" + rest) if node != "latest" else ("", path)

    def close(self):
        self._server.shutdown()
        self._server.server_close()
