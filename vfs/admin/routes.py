"""The table of the admin API: what can be asked, by whom, and what comes back.

Pure: no I/O, no clock. The server, the OpenAPI document, the reference in docs/ and the tests are made of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from vfs import __version__
from vfs.admin import records
from vfs.admin.records import PATH_CHARS_MAX
from vfs.foresight.board import Board

READ, OPERATE, ADMIN = "read", "operate", "admin"
JSON, LINES, EVENTS, TEXT = "application/json", "application/x-ndjson", "text/event-stream", "text/plain"


@dataclass(frozen=True)
class Route:
    """One thing that can be asked.

    Attributes:
        name: of the handler in `vfs/admin/api.py`.
        role: who may.
        answer: type of the body; of each line or event where `media` is a stream.
        snapshot: its answer may be half a second old, and is made once for all who ask meanwhile.
        etag: it carries a version; If-Match is heeded where something changes.
    """

    method: str
    path: str
    name: str
    role: str
    about: str
    answer: Any
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    media: str = JSON
    snapshot: bool = False
    etag: bool = False


ROUTES = [
    Route("GET", "/v1/overview", "overview", READ, "all that the page shows, in one answer", records.Overview,
          snapshot=True),
    Route("GET", "/v1/status", "status", READ, "the mount as `foremount status` shows it", records.StatusFacts,
          snapshot=True),
    Route("GET", "/v1/stats", "stats", READ, "operations, bytes and waits; the last two minutes second by second",
          records.Stats, snapshot=True),
    Route("GET", "/v1/jobs", "jobs", READ, "what each job did and waited for", records.Jobs, snapshot=True),
    Route("GET", "/v1/why", "why", READ, "where the time of a process, a job or everybody went, and what would change it",
          records.Why, query=records.WhyQuery),
    Route("GET", "/v1/explain", "explain", READ, "which site, version, cache state and policy rules serve a path",
          dict[str, Any], query=records.ExplainQuery),
    Route("GET", "/v1/config", "config", READ, "the configuration, without secrets", dict[str, Any], snapshot=True),
    Route("GET", "/v1/policies", "policies", READ, "the policy documents in force", records.PolicyFacts, etag=True),
    Route("GET", "/v1/cache", "cache", READ, "the stores, and objects of the cache", records.CacheFacts,
          query=records.CacheQuery),
    Route("GET", "/v1/replicas", "replicas", READ, "places that may hold copies, with their lines", records.Replicas,
          snapshot=True),
    Route("GET", "/v1/transfers", "transfers", READ, "what is being fetched", records.Transfers, snapshot=True),
    Route("GET", "/v1/checkpoints", "checkpoints", READ, "checkpoints at and below a path, and how far each is",
          records.CheckpointsFound, query=records.PathQuery),
    Route("GET", "/v1/snapshots", "snapshots", READ, "snapshots that rules can pin prefixes to", records.SnapshotsHeld),
    Route("GET", "/v1/samples", "samples", READ, "jobs whose samples are shown at .jobs, how far each is and what it cost",
          dict[str, Any]),
    Route("GET", "/v1/samples/timeline", "timeline", READ, "when each (step, rank) of a job was prepared, read and left",
          dict[str, Any], query=records.TimelineQuery),
    Route("GET", "/v1/foresight", "foresight", READ, "evaluations on a time line, copies by rack, who reads from them", Board,
          snapshot=True),
    Route("GET", "/v1/rooms", "rooms", READ, "facts that have no resource of their own", records.Rooms, snapshot=True),
    Route("GET", "/v1/events", "events", READ, "what happens, as server-sent events", records.Event,
          query=records.EventsQuery, media=EVENTS),
    Route("GET", "/metrics", "metrics", READ, "counters for Prometheus (docs/metrics.md)", str, media=TEXT, snapshot=True),
    Route("GET", "/v1/openapi.json", "openapi", READ, "this document", dict[str, Any], snapshot=True),
    Route("POST", "/v1/fetch", "fetch", OPERATE, "make trees local; progress as JSON lines", dict[str, Any],
          body=records.PathsBody, media=LINES),
    Route("POST", "/v1/evict", "evict", OPERATE, "drop local copies", records.Evicted, body=records.PathsBody),
    Route("POST", "/v1/verify", "verify", OPERATE, "check local copies; progress as JSON lines", dict[str, Any],
          body=records.PathsBody, media=LINES),
    Route("POST", "/v1/snapshots/take", "take_snapshot", OPERATE, "list a prefix with its versions, for rules to pin it to; "
          "progress as JSON lines", dict[str, Any], body=records.SnapshotBody, media=LINES),
    Route("POST", "/v1/snapshots/drop", "drop_snapshot", OPERATE, "forget a snapshot that no rule names",
          records.SnapshotFacts, body=records.SnapshotName),
    Route("POST", "/v1/samples/start", "start_job", OPERATE, "open a job's schedule and show its samples", dict[str, Any],
          body=records.StartBody),
    Route("POST", "/v1/samples/stop", "stop_job", OPERATE, "forget a job and what was prepared for it", dict[str, Any],
          body=records.JobBody),
    Route("POST", "/v1/samples/tell", "tell_job", OPERATE, "say which step a job is about to read", dict[str, Any],
          body=records.TellBody),
    Route("POST", "/v1/trace", "trace", OPERATE, "record what is opened and read, as JSON lines", dict[str, Any],
          media=LINES),
    Route("POST", "/v1/trace/end", "trace_end", OPERATE, "end the recording with what was read until now", records.Ended),
    Route("POST", "/v1/policies/reload", "reload", ADMIN, "read the documents now; with If-Match only where that version "
          "is in force", records.ReloadFacts, etag=True),
]  # fmt: skip

REFUSALS = {
    400: "the request can't be understood, or asks for what this mount can't do",
    401: "no token, or a wrong one",
    403: "not allowed: by the role, or by the origin",
    404: "nothing is there",
    408: "the body did not come within 30 seconds",
    409: "another recording goes on, the object was replaced meanwhile, or the name is taken or in use",
    412: "another version is in force than If-Match says",
    413: "the body is larger than 1 MiB",
    415: "the body is no application/json",
    422: "the documents, or a job's schedule, can't be used",
    429: "too many requests: come again after Retry-After seconds",
    502: "the origin failed",
    503: "too many streams or orders at a time",
    504: "the origin did not answer in time",
}


def openapi() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the table."""
    kinds = [route.answer for route in ROUTES] + [route.body for route in ROUTES if route.body] + [records.Refusal]
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    answers, bodies, refusal = schemas[: len(ROUTES)], iter(schemas[len(ROUTES) : -1]), schemas[-1]
    paths: dict[str, Any] = {}
    for route, answer in zip(ROUTES, answers, strict=True):
        operation: dict[str, Any] = {
            "operationId": route.name,
            "summary": route.about,
            "security": [{"token": [route.role]}],
            "responses": {"200": _success(route, answer), **_refusals(route, refusal)},
        }
        if parameters := _parameters(route):
            operation["parameters"] = parameters
        if route.body is not None:
            operation["requestBody"] = {"required": True, "content": {JSON: {"schema": next(bodies)}}}
        paths.setdefault(route.path, {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Foremount admin API", "version": __version__, "description": __doc__ and _ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "over TCP only"}},
        },
    }


_ABOUT = "Over the Unix socket the caller's user id decides; over TCP (TLS only) a token with a role: read, operate, admin."


def _success(route: Route, answer: dict[str, Any]) -> dict[str, Any]:
    streams = route.media in (LINES, EVENTS, TEXT)
    schema = {"type": "string"} if streams else answer
    found: dict[str, Any] = {"description": route.about, "content": {route.media: {"schema": schema}}}
    if streams and route.media != TEXT:
        found["content"][route.media]["x-item"] = answer
    if route.etag:
        found["headers"] = {"ETag": {"schema": {"type": "string"}, "description": "the version"}}
    return found


_ABOUT_PATHS = ("explain", "fetch", "evict", "verify", "checkpoints", "take_snapshot", "drop_snapshot")


def _refusals(route: Route, refusal: dict[str, Any]) -> dict[str, Any]:
    codes = {400, 401, 403, 429, 502, 503}
    codes |= {408, 413, 415} if route.method == "POST" else set()
    codes |= {409} if route.name == "trace" else set()
    codes |= {404, 409, 504} if route.name in _ABOUT_PATHS else set()
    codes |= {412, 422} if route.name == "reload" else set()
    codes |= {404, 409, 422, 504} if route.name in ("samples", "timeline", "start_job", "stop_job", "tell_job") else set()
    return {
        str(code): {"description": REFUSALS[code], "content": {JSON: {"schema": refusal}}} for code in sorted(codes)
    }  # fmt: skip


def _parameters(route: Route) -> list[dict[str, Any]]:
    found = []
    if route.query is not None:
        (_,), components = msgspec.json.schema_components([route.query], ref_template="#/components/schemas/{name}")
        schema = components[route.query.__name__]
        for name, field in schema["properties"].items():
            parts = [part for part in field.pop("anyOf", []) if part.get("type") != "null"]
            field |= parts[0] if parts else {}
            field.pop("default", None)
            about = field.pop("description", "")
            parameter = {"name": name, "in": "query", "required": name in schema.get("required", []), "schema": field}
            found.append(parameter | ({"description": about} if about else {}))
    if route.etag and route.method != "GET":
        about = "the version that the caller has seen"
        schema = {"type": "string", "maxLength": PATH_CHARS_MAX}
        found.append({"name": "If-Match", "in": "header", "required": False, "schema": schema, "description": about})
    return found


def reference() -> str:
    """Return the table as the reference for people: docs/api.md."""
    lines = [
        "# Admin API",
        "",
        "Generated from `vfs/admin/routes.py` (`python -m vfs.admin.document`). JSON over HTTP; `/v1/openapi.json` states",
        "every type. Errors have one body: `{\"error\": {\"kind\", \"subject\", \"reason\", \"hint\"}}`.",
        "",
        "Over the Unix socket `admin.sock` of the run directory: root and the user who mounted may do everything, nobody",
        "else anything. Over TCP with `[admin]` in foremount.toml: TLS only, and a token for each caller with a role.",
        "",
        "| request | role | query or body | answer |",
        "|---|---|---|---|",
    ]  # fmt: skip
    for route in ROUTES:
        asked = [f"`{name}`" for kind in (route.query, route.body) if kind for name in kind.__struct_fields__]
        asked += ["`If-Match`"] if route.etag and route.method != "GET" else []
        lines.append(f"| `{route.method} {route.path}` | {route.role} | {', '.join(asked)} | {route.about} |")
    lines += ["", "Limits: [configuration.md](configuration.md#limits), the same for all our HTTP services."]
    lines += ["", "| status | means |", "|---|---|"]
    lines += [f"| {code} | {about} |" for code, about in REFUSALS.items()]
    return "\n".join(lines) + "\n"
