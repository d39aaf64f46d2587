"""A Hub in this process: what `huggingface_hub` asks of it to push, list and fetch a model, and faults on demand."""

import base64
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

Fault = Literal["500", "503", "429", "401", "403", "404", "hang", "late", "drop", "slow", "lost", "cut"]
USER = "me"
# When a repository begins: each commit is one minute after the one before it.
FIRST_COMMIT = 1_700_000_000
_LARGE = (".safetensors", ".pt", ".pth", ".bin", ".distcp")
_LARGE_SIZE = 10_000_000


@dataclass
class Commit:
    """One state of a repository: all of its files."""

    oid: str
    message: str
    files: dict[str, bytes]
    added: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    date: str = ""
    changed: dict[str, "Commit"] = field(default_factory=dict)


@dataclass
class Repo:
    """A model repository."""

    name: str
    private: bool
    commits: list[Commit] = field(default_factory=list)

    @property
    def files(self) -> dict[str, bytes]:
        return self.commits[-1].files

    def put(self, message: str, added: dict[str, bytes], deleted: tuple[str, ...] = ()) -> Commit:
        """Commit, at once or not at all."""
        before = self.commits[-1].files if self.commits else {}
        gone = {
            name for name in before for one in deleted if name == one or (one.endswith("/") and name.startswith(one))
        }
        files = {name: content for name, content in before.items() if name not in gone} | added
        oid = hashlib.sha1(f"{self.name} {len(self.commits)} {message}".encode()).hexdigest()
        date = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(FIRST_COMMIT + 60 * len(self.commits)))
        made = Commit(oid, message, files, tuple(added), deleted, date)
        former = self.commits[-1].changed if self.commits else {}
        made.changed = {name: former.get(name, made) for name in files} | dict.fromkeys(added, made)
        self.commits.append(made)
        return made

    def at(self, revision: str) -> Commit | None:
        if revision in ("main", ""):
            return self.commits[-1]
        return next((one for one in self.commits if one.oid == revision), None)


@dataclass
class _Planned:
    fault: Fault
    pattern: re.Pattern[str]
    times: int
    seconds: float


@dataclass
class Answer:
    """What is sent back."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)


class HubServer:
    """The server, in threads of this process. `close` ends it; requests that hang are let go by `release`.

    Attributes:
        asked: every request: "POST /api/models/me/x/commit/main".
        tokens: the tokens that requests came with, and the requests.
        only_token: if set, nobody else sees a repository.
        page: entries of a tree by request.
        part: if set, large files are taken in parts of so many bytes.
        sends_elsewhere: large files are fetched from another place, by a signed address.
        knows_ranges: else whole files are sent.
        spoils: commits store other bytes under names that this finds.
        before_commit: called once, before the next commit is looked at.
        retry_after: seconds, told with a 429.
    """

    def __init__(self) -> None:
        self.repos: dict[str, Repo] = {}
        self.asked: list[str] = []
        self.tokens: dict[str | None, list[str]] = {}
        self.uploaded: dict[str, bytes] = {}
        self._bodies: list[tuple[str, bytes]] = []
        self.parts: dict[str, dict[int, bytes]] = {}
        self.only_token: str | None = None
        self.page = 1000
        self.part: int | None = None
        self.sends_elsewhere = False
        self.knows_ranges = True
        self.spoils: re.Pattern[str] | None = None
        self.before_commit: Callable[[], object] | None = None
        self.retry_after = 1
        self.released = threading.Event()
        self._lock = threading.RLock()
        self._planned: list[_Planned] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), name="hub", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def plan(self, fault: Fault, pattern: str, *, times: int = 1 << 30, seconds: float = 0.2) -> None:
        """Answer the next requests that match ("POST .*commit") with a fault.

        "slow" answers as usual, but `seconds` later; "late" as soon as it is let go; "hang" never.
        """
        with self._lock:
            self._planned.append(_Planned(fault, re.compile(pattern), times, seconds))

    def heal(self) -> None:
        """No more faults; what hangs is let go."""
        with self._lock:
            self._planned.clear()
        self.released.set()
        self.released = threading.Event()

    def repo(self, name: str, *, private: bool = False) -> Repo:
        """The repository of a name, made where there is none."""
        with self._lock:
            if name not in self.repos:
                self.repos[name] = Repo(name, private)
                self.repos[name].put("initial commit", {".gitattributes": b"*.bin filter=lfs\n"})
            return self.repos[name]

    def count(self, pattern: str) -> int:
        return sum(1 for one in list(self.asked) if re.search(pattern, one))

    def bodies(self, pattern: str) -> list[bytes]:
        """What was sent with the requests that match, to the API."""
        return [body for request, body in list(self._bodies) if re.search(pattern, request)]

    def note_body(self, request: str, body: bytes) -> None:
        if " /api/" in request:
            self._bodies.append((request, body))

    def fault_for(self, request: str) -> _Planned | None:
        with self._lock:
            for one in self._planned:
                if one.times > 0 and one.pattern.search(request):
                    one.times -= 1
                    return one
        return None

    def answer(self, method: str, path: str, body: bytes, query: str = "") -> Answer:
        """What the Hub says."""
        with self._lock:
            for pattern, handle in _ROUTES:
                found = re.fullmatch(pattern, f"{method} {path}")
                if found:
                    more = {"query": parse_qs(query)} if handle is _tree else {}
                    return handle(self, body, *found.groups(), **more)
        return Answer(404, {"error": f"no such place: {method} {path}"})


def _who(hub: HubServer, body: bytes) -> Answer:
    return Answer(body={"type": "user", "name": USER, "fullname": USER, "orgs": [], "auth": {"type": "access_token"}})


def _create(hub: HubServer, body: bytes) -> Answer:
    asked = json.loads(body)
    name = f"{asked.get('organization') or USER}/{asked['name']}"
    known = name in hub.repos
    private = asked.get("private") is True or asked.get("visibility") == "private"
    hub.repo(name, private=private)
    told = {"url": f"{hub.address}/{name}", "name": name, "id": name}
    return Answer(409 if known else 200, {**told, **({"error": "You already created this repo"} if known else {})})


def _at(hub: HubServer, name: str, revision: str) -> tuple[Repo, Commit] | Answer:
    repo = hub.repos.get(name)
    if repo is None:
        return Answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
    commit = repo.at(revision)
    if commit is None:
        return Answer(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
    return repo, commit


def _info(hub: HubServer, body: bytes, name: str, revision: str | None = None) -> Answer:
    found = _at(hub, name, revision or "main")
    if isinstance(found, Answer):
        return found
    repo, commit = found
    siblings = [{"rfilename": one} for one in commit.files]
    return Answer(
        body={"_id": "1", "id": name, "modelId": name, "sha": commit.oid, "private": repo.private, "siblings": siblings}
    )


def _git_oid(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _is_large(path: str, size: int) -> bool:
    return size > 0 and (path.endswith(_LARGE) or size > _LARGE_SIZE)


def _oid(path: str, content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if _is_large(path, len(content)) else _git_oid(content)


def _entry(commit: Commit, path: str, expand: bool) -> dict[str, Any]:
    content = commit.files[path]
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": _git_oid(content)}
    if _is_large(path, len(content)):
        entry["lfs"] = {"oid": _oid(path, content), "size": len(content), "pointerSize": 130}
    if expand:
        last = commit.changed[path]
        entry["lastCommit"] = {"id": last.oid, "title": last.message, "date": last.date}
    return entry


def _tree(
    hub: HubServer, body: bytes, name: str, revision: str, folder: str | None = None, *, query: dict[str, list[str]]
) -> Answer:
    found = _at(hub, name, revision)
    if isinstance(found, Answer):
        return found
    commit = found[1]
    prefix = f"{unquote(folder)}/" if folder else ""
    names = sorted(one for one in commit.files if one.startswith(prefix))
    if prefix and not names:
        return Answer(404, {"error": f"{prefix} does not exist on main"}, {"X-Error-Code": "EntryNotFound"})
    expand = query.get("expand", [""])[0].lower() in ("true", "1")
    entries = [_entry(commit, one, expand) for one in names]
    folders = {one[: one.index("/", at)] for one in names for at in range(len(prefix), len(one)) if "/" in one[at:]}
    entries += [{"type": "directory", "path": one, "size": 0, "oid": _git_oid(one.encode())} for one in sorted(folders)]
    begin = int(query.get("cursor", ["0"])[0])
    end = begin + hub.page
    headers = {}
    if end < len(entries):
        rest = "&".join(f"{key}={value[0]}" for key, value in query.items() if key != "cursor")
        place = f"{hub.address}/api/models/{name}/tree/{revision}" + (f"/{folder}" if folder else "")
        headers["Link"] = f'<{place}?{rest}&cursor={end}>; rel="next"'
    return Answer(body=entries[begin:end], headers=headers)


def _paths_info(hub: HubServer, body: bytes, name: str, revision: str) -> Answer:
    found = _at(hub, name, revision)
    if isinstance(found, Answer):
        return found
    asked = parse_qs(body.decode())
    expand = asked.get("expand", [""])[0].lower() == "true"
    return Answer(body=[_entry(found[1], one, expand) for one in asked.get("paths", []) if one in found[1].files])


def _preupload(hub: HubServer, body: bytes, name: str, revision: str) -> Answer:
    found = _at(hub, name, revision)
    if isinstance(found, Answer):
        return found
    known = found[1].files
    told = []
    for one in json.loads(body)["files"]:
        path = one["path"]
        mode = "lfs" if _is_large(path, one["size"]) else "regular"
        told.append({"path": path, "uploadMode": mode, "shouldIgnore": False})
        if path in known:
            told[-1]["oid"] = _oid(path, known[path])
    return Answer(body={"files": told})


def _batch(hub: HubServer, body: bytes, name: str) -> Answer:
    objects = []
    for one in json.loads(body)["objects"]:
        told = {"oid": one["oid"], "size": one["size"]}
        if one["oid"] not in hub.uploaded:
            href, header = f"{hub.address}/lfs/{one['oid']}", {}
            if hub.part and one["size"] > hub.part:
                count = -(-one["size"] // hub.part)
                header = {f"{number:05}": f"{href}/{number}" for number in range(1, count + 1)}
                header["chunk_size"] = str(hub.part)
            told["actions"] = {"upload": {"href": href, "header": header}}
        objects.append(told)
    return Answer(body={"transfer": "basic", "objects": objects})


def _put(hub: HubServer, body: bytes, oid: str) -> Answer:
    if hashlib.sha256(body).hexdigest() != oid:
        return Answer(400, {"error": "checksum"})
    hub.uploaded[oid] = body
    return Answer()


def _put_part(hub: HubServer, body: bytes, oid: str, number: str) -> Answer:
    hub.parts.setdefault(oid, {})[int(number)] = body
    return Answer(headers={"ETag": f'"{hashlib.md5(body).hexdigest()}"'})


def _complete(hub: HubServer, body: bytes, oid: str) -> Answer:
    parts = hub.parts.pop(oid)
    return _put(hub, b"".join(parts[one["partNumber"]] for one in json.loads(body)["parts"]), oid)


def _fetch(hub: HubServer, body: bytes, oid: str) -> Answer:
    return Answer(body=hub.uploaded[oid])


def _commit(hub: HubServer, body: bytes, name: str, revision: str) -> Answer:
    first, hub.before_commit = hub.before_commit, None
    if first is not None:
        first()
    found = _at(hub, name, revision)
    if isinstance(found, Answer):
        return found
    repo, head = found
    added: dict[str, bytes] = {}
    deleted: list[str] = []
    message = ""
    for line in body.decode().splitlines():
        item = json.loads(line)
        key, value = item["key"], item["value"]
        if key == "header":
            message = value["summary"]
            if value.get("parentCommit") not in (None, head.oid):
                return Answer(412, {"error": "A commit has happened since. Please refresh and try again."})
        elif key == "file":
            added[value["path"]] = base64.b64decode(value["content"])
        elif key == "lfsFile":
            if value["oid"] not in hub.uploaded:
                return Answer(400, {"error": "LFS object is not there"})
            added[value["path"]] = hub.uploaded[value["oid"]]
        elif key == "deletedFile":
            if value["path"] not in head.files:
                return Answer(404, {"error": "A file with this name doesn't exist"}, {"X-Error-Code": "EntryNotFound"})
            deleted.append(value["path"])
        elif key == "deletedFolder":
            deleted.append(value["path"].rstrip("/") + "/")
    if hub.spoils is not None:
        added = {name: content[:-1] + b"!" if hub.spoils.search(name) else content for name, content in added.items()}
    made = repo.put(message, added, tuple(deleted))
    return Answer(body={"commitUrl": f"{hub.address}/{name}/commit/{made.oid}", "commitOid": made.oid, "success": True})


def _resolve(hub: HubServer, body: bytes, name: str, revision: str, path: str) -> Answer:
    found = _at(hub, name, unquote(revision))
    if isinstance(found, Answer):
        return found
    commit = found[1]
    path = unquote(path)
    headers = {"X-Repo-Commit": commit.oid}
    if path not in commit.files:
        return Answer(404, {"error": "Entry not found"}, {**headers, "X-Error-Code": "EntryNotFound"})
    content = commit.files[path]
    if hub.sends_elsewhere and _is_large(path, len(content)):
        return Answer(302, {}, {**headers, "Location": f"{hub.address}/lfs/{_oid(path, content)}?Signature=abc"})
    return Answer(body=content, headers={**headers, "ETag": f'"{_oid(path, content)}"', "Accept-Ranges": "bytes"})


def _yaml(hub: HubServer, body: bytes) -> Answer:
    return Answer(body={"errors": [], "warnings": []})


_NAME = r"([^/]+/[^/]+)"
_ROUTES: list[tuple[str, Callable[..., Answer]]] = [
    (r"GET /api/whoami-v2", _who),
    (r"POST /api/repos/create", _create),
    (r"POST /api/validate-yaml", _yaml),
    (rf"POST /api/models/{_NAME}/preupload/([^/]+)", _preupload),
    (rf"POST /api/models/{_NAME}/commit/([^/]+)", _commit),
    (rf"GET /api/models/{_NAME}/tree/([^/]+)(?:/([^/]+))?", _tree),
    (rf"POST /api/models/{_NAME}/paths-info/([^/]+)", _paths_info),
    (rf"GET /api/models/{_NAME}/revision/([^/]+)", _info),
    (rf"GET /api/models/{_NAME}", _info),
    (rf"POST /{_NAME}\.git/info/lfs/objects/batch", _batch),
    (r"PUT /lfs/([0-9a-f]+)", _put),
    (r"PUT /lfs/([0-9a-f]+)/([0-9]+)", _put_part),
    (r"POST /lfs/([0-9a-f]+)", _complete),
    (r"GET /lfs/([0-9a-f]+)", _fetch),
    (rf"(?:GET|HEAD) /{_NAME}/resolve/([^/]+)/(.+)", _resolve),
]


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        # An answer goes out in one piece, at once.
        wbufsize = -1
        disable_nagle_algorithm = True

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _serve(self) -> None:
            path, query = urlsplit(self.path).path, urlsplit(self.path).query
            request = f"{self.command} {path}"
            hub.asked.append(request)
            header = self.headers.get("Authorization")
            token = header and header.removeprefix("Bearer ")
            is_signed = path.startswith("/lfs/")
            if not is_signed:
                hub.tokens.setdefault(token, []).append(request)
            planned = hub.fault_for(request)
            fault = planned.fault if planned else None
            if fault == "drop":
                self._drop()
                return
            body = self._body()
            hub.note_body(request, body)
            if planned and fault == "slow":
                time.sleep(planned.seconds)
            elif fault == "late":
                hub.released.wait(60)
            elif fault == "hang":
                hub.released.wait(60)
                self._drop()
                return
            elif fault == "lost":
                hub.answer(self.command, path, body, query)
                self._drop()
                return
            elif fault is not None and fault != "cut":
                headers = _codes(fault) | ({"Retry-After": str(hub.retry_after)} if fault == "429" else {})
                self._send(Answer(int(fault), {"error": f"as planned: {fault}"}, headers))
                return
            if hub.only_token not in (None, token) and not is_signed:
                self._send(_unseen(token))
                return
            self._send(hub.answer(self.command, path, body, query), is_cut=fault == "cut")

        def _drop(self) -> None:
            """Reset the connection, whatever has been sent of the request."""
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
            self.connection.close()

        def _send(self, answer: Answer, *, is_cut: bool = False) -> None:
            is_bytes = isinstance(answer.body, bytes)
            content = answer.body if is_bytes else json.dumps(answer.body).encode()
            headers, status = dict(answer.headers), answer.status
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            if wanted and is_bytes and status == 200 and hub.knows_ranges:
                first, last = int(wanted[1]), min(int(wanted[2] or len(content) - 1), len(content) - 1)
                headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
                content, status = content[first : last + 1], 206
                if last < first:
                    headers["Content-Range"] = f"bytes */{last + 1}"
                    content, status = b"", 416
            self.send_response(status)
            self.send_header("Content-Type", "application/octet-stream" if is_bytes else "application/json")
            self.send_header("Content-Length", str(len(content)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if is_cut else content)
            self.wfile.flush()
            if is_cut:
                self._drop()

        def handle(self) -> None:
            try:
                super().handle()
            except (OSError, ValueError):  # the other side, or `_drop`, has closed the connection
                self.close_connection = True

        def finish(self) -> None:
            try:
                super().finish()
            except (OSError, ValueError):
                self.close_connection = True

        do_GET = do_HEAD = do_POST = do_PUT = _serve

    return Handler


def _codes(fault: str) -> dict[str, str]:
    """As the Hub says it: a token that is no good cannot see a private repository."""
    return {"X-Error-Code": "RepoNotFound"} if fault in ("401", "404") else {}


def _unseen(token: str | None) -> Answer:
    """As the Hub says it to a stranger, and to a token that is no good."""
    if token is None:
        return Answer(401, {"error": "Invalid username or password."}, {"X-Error-Code": "RepoNotFound"})
    return Answer(401, {"error": "Invalid credentials in Authorization header"})
