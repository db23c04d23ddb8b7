"""The admin API against its own OpenAPI document: whatever schemathesis makes up is answered as the document says."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest

from tests.lake import why_no_mount
from tests.mount.observed import TOKENS, Observed, observed, why_no_tls
from tests.servers.wan_origin import WanOrigin
from vfs.admin import routes

schemathesis = pytest.importorskip("schemathesis")
hypothesis = pytest.importorskip("hypothesis")

pytestmark = [
    pytest.mark.mount,
    pytest.mark.root,
    pytest.mark.skipif(bool(why_no_mount() or why_no_tls()), reason=why_no_mount() or why_no_tls()),
]
ENDLESS = ["/v1/events", "/v1/trace"]
"""Streams that end when their client goes; `test_admin.py` and `test_trace.py` look at them."""
REFUSALS = [400, 401, 403, 404, 405, 409, 412, 413, 415, 422, 429]
"""What a request that breaks the document's rules may be answered with."""
ANSWERS = ["2xx", 401, 403, 404, 409, 412, 429]
"""What one that follows them may be answered with: nothing has to be there, and versions move on."""
_config = schemathesis.Config.from_dict(
    {
        "checks": {
            "negative_data_rejection": {"expected-statuses": REFUSALS},
            "positive_data_acceptance": {"expected-statuses": ANSWERS},
        }
    }
)
schema = schemathesis.openapi.from_dict(routes.openapi(), config=_config).exclude(path=ENDLESS)


@pytest.fixture(scope="module")
def mount(wan_origin_server: WanOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    """One mount for all operations."""
    with observed(tmp_path_factory.mktemp("schema"), wan_origin_server, "schema") as mount:
        (mount.origin / "ckpt/file").write_bytes(b"x" * 1000)
        yield mount


def _answers_as_its_document_says(label: str) -> Callable[..., None]:
    """Return the test of one operation."""
    method, path = label.split(" ", 1)

    @schema.include(method=method, path=path).parametrize()
    @hypothesis.settings(
        max_examples=12,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def test(case: schemathesis.Case, mount: Observed) -> None:
        headers = {"Authorization": f"Bearer {TOKENS['admin']}"}
        case.call_and_validate(base_url=mount.url, headers=headers, verify=str(mount.lake.base / "host.pem"), timeout=20)

    return test  # type: ignore[no-any-return]


# A function for each: the tests of one function would share one name, and of those pytest-xdist runs one.
for _operation in schema.get_all_operations():
    _label = _operation.ok().label
    globals()["test_" + re.sub(r"\W+", "_", _label.lower()) + "_answers_as_its_document_says"] = (
        _answers_as_its_document_says(_label)
    )
