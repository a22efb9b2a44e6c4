"""A small judge server on the loopback interface that fails after a number of responses, with a given failure."""

import json
import os
import signal
import socket
import struct
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FAILURES = ("refused", "reset", "mid-body", "500", "garbled")


class FailingServer(ThreadingHTTPServer):
    """Answers `n_answers` chat requests (None: all) with the smallest value that their schema allows, then fails with
    `failure`; `answered` counts the texts of the requests that were answered."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, failure="refused", n_answers=None, port=0, **model):
        super().__init__(("127.0.0.1", port), _Handler)
        self.model = {"id": "judge"} | model
        self.failure, self.n_answers = failure, n_answers
        self.answered = Counter()
        self.lock = threading.Lock()
        self.stopped = False
        self.pid_to_kill = None
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def handle_error(self, *_):
        pass

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def stop(self):
        if not self.stopped:
            self.stopped = True
            self.shutdown()
            self.server_close()

    def admit(self, key):
        """Whether this request is answered."""
        with self.lock:
            if self.n_answers is not None and sum(self.answered.values()) >= self.n_answers:
                return False
            self.answered[key] += 1
            return True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.reply({"data": [self.server.model]} if self.path == "/v1/models" else {})

    def do_POST(self):
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        key = json.dumps(request["messages"])
        if not self.server.admit(key):
            self.fail()
            return
        choice = {"finish_reason": "stop", "message": {"content": None}}
        if "response_format" in request:
            choice["message"]["content"] = json.dumps(smallest(request["response_format"]["json_schema"]["schema"]))
        else:
            tokens = request.get("structured_outputs", {}).get("choice") or [str(i) for i in range(6)]
            tops = [{"token": t, "logprob": -1.0 - i} for i, t in enumerate(tokens)]
            choice["message"]["content"] = tokens[0]
            choice["logprobs"] = {"content": [{"token": tokens[0], "logprob": -1.0, "top_logprobs": tops}]}
        self.reply({"choices": [choice]})

    def reply(self, value, status=200):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def fail(self):
        self.close_connection = True
        match self.server.failure:
            case "refused":
                threading.Thread(target=self.server.stop, daemon=True).start()
            case "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            case "mid-body":
                self.send_response(200)
                self.send_header("content-length", "1000")
                self.end_headers()
                self.wfile.write(b'{"choices": [')
                self.wfile.flush()
            case "500":
                self.reply({"error": "down"}, 500)
            case "200":
                self.reply({"error": "down"})
            case "kill":
                os.kill(self.server.pid_to_kill, signal.SIGKILL)
            case "garbled":
                self.wfile.write(b"\x00\x01 no HTTP\r\n\r\n")


def smallest(schema):
    """The smallest value that a rubric's JSON schema allows."""
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return smallest(schema[key][0])
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: smallest(of) for name, of in schema.get("properties", {}).items()}
        case "array":
            return [smallest(schema["items"])] * schema.get("minItems", 0)
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return False
        case _:
            return "x"
