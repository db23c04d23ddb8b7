from __future__ import annotations

from pathlib import Path

import pytest

from vfs import config
from vfs.config import Replica, local_path, mount_prefix, mount_replicas
from vfs.errors import InvalidConfig
from vfs.model import SiteName, SitePath

SITE = '[sites.disk]\nkind = "local"\npath = "/srv"\n'
A = '[[mounts]]\nprefix = "a/"\nsite = "disk"\n'
MOUNT = '[[mounts]]\nprefix = "/"\nsite = "disk"\n'


def refusal(text: str) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as raised:
        config.parse(text, "lake.toml")
    return raised.value


def test_smallest_configuration_has_the_defaults() -> None:
    loaded = config.parse(SITE + MOUNT)
    assert loaded.limits.memory == 256 << 20
    assert loaded.limits.origin_deadline == 60
    assert loaded.mounts[0].writable is False


def test_units_are_read_with_their_names() -> None:
    loaded = config.parse(SITE + MOUNT + '[cache]\nsize = "2GiB"\n[limits]\norigin_deadline = "1500ms"\n')
    assert loaded.cache.size == 2 << 30
    assert loaded.limits.origin_deadline == 1.5


@pytest.mark.parametrize(
    ("text", "subject", "reason", "hint"),
    [
        (SITE + MOUNT + "[chache]\n", "lake.toml: chache", "unknown key", "did you mean 'cache'?"),
        (SITE + MOUNT + "[limits]\nmemroy = 1\n", "lake.toml: limits.memroy", "unknown key", "did you mean 'memory'?"),
        (SITE + MOUNT + "writeable = true\n", "lake.toml: mounts[0].writeable", "unknown key", "did you mean 'writable'?"),
        (SITE.replace("path", "paht") + MOUNT, "lake.toml: sites[...].paht", "unknown key", "did you mean 'path'?"),
        (SITE + MOUNT + "[qqqqqq]\n", "lake.toml: qqqqqq", "unknown key", "remove it, or see docs/configuration.md"),
    ],
    ids=["table", "key", "key of a mount", "key of a site", "like nothing"],
)
def test_unknown_key_is_refused_with_its_place_and_the_nearest_known_one(
    text: str, subject: str, reason: str, hint: str
) -> None:
    error = refusal(text)
    assert (error.subject, error.reason, error.hint) == (subject, reason, hint)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (SITE, "mounts: is empty"),
        (SITE + MOUNT + MOUNT, "mounts[1].prefix: '/' is mounted twice"),
        (SITE + MOUNT + (A + A.replace("a/", "/a")), "mounts[2].prefix: '/a' is mounted twice"),
        (SITE + MOUNT.replace('"disk"', '"disc"'), "mounts[0]: names the unknown site 'disc' (known sites: disk)"),
        (SITE + MOUNT + 'replicas = ["other:x"]\n', "names the unknown site 'other'"),
        (SITE + MOUNT.replace('"/"', '"/.jobs"'), "belongs to the samples of jobs"),
        (SITE + MOUNT.replace('"/"', '"/.foremount/x"'), "belongs to the status files"),
        (SITE.replace("/srv", "srv") + MOUNT, "'srv' is not absolute"),
        (SITE.replace("local", "lokal") + MOUNT, "Invalid value 'lokal'"),
        (SITE + MOUNT + '[cache]\nsize = "many"\n', "cache.size"),
        (SITE + MOUNT + "[limits]\norigin_deadline = [1]\n", "limits.origin_deadline"),
        ("[sites", "is no TOML"),
    ],
    ids=[
        "no mounts", "prefix twice", "prefix twice in other words", "unknown site", "unknown replica", "prefix of samples",
        "reserved prefix",
        "relative path", "unknown kind", "bad size", "bad duration", "no TOML",
    ],
)  # fmt: skip
def test_what_can_not_work_is_refused_with_its_place(text: str, expected: str) -> None:
    error = refusal(text)
    assert error.subject.startswith("lake.toml")
    assert expected in str(error)


def test_file_that_can_not_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"can't be read: No such file"):
        config.load(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xff")
    with pytest.raises(InvalidConfig, match="is not UTF-8"):
        config.load(tmp_path / "latin.toml")


def test_message_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "lake.toml").write_text("x = 1\n")
    with pytest.raises(InvalidConfig) as raised:
        config.load(tmp_path / "lake.toml")
    assert raised.value.subject == f"{tmp_path}/lake.toml: x"


def test_prefixes_and_roots_are_paths_without_slashes_around() -> None:
    loaded = config.parse(
        SITE + '[[mounts]]\nprefix = "/a/b/"\nsite = "disk"\nroot = "/r/"\nreplicas = ["disk", "disk:/c/"]\n'
    )
    (mount,) = loaded.mounts
    assert mount_prefix(mount) == "a/b"
    assert mount_replicas(mount) == [
        Replica(SiteName("disk"), SitePath("r")),
        Replica(SiteName("disk"), SitePath("c")),
    ]


def test_local_path_is_below_the_site() -> None:
    site = config.LocalSite(path="/srv")
    assert local_path(site, SitePath("")) == "/srv"
    assert local_path(site, SitePath("r"), "f") == "/srv/r/f"


@pytest.mark.parametrize(
    ("keys", "subject"),
    [
        ('address = "0.0.0.0:1"\ntokens = "t"', "node.certificate"),
        ('address = "127.0.0.1:1"', "node.tokens"),
        ('address = "127.0.0.1:1"\ntokens = "t"\noperators = "/ops"', "node.keys"),
        ('address = "127.0.0.1:1"\ntokens = "t"\ncpu = 1.5', "node"),
        ('address = "127.0.0.1"\ntokens = "t"', "node.address"),
    ],
)
def test_node_service_that_would_not_be_safe_is_refused(keys: str, subject: str) -> None:
    assert refusal(SITE + MOUNT + f"[node]\n{keys}\n").subject == f"lake.toml: {subject}"


REPLICAS = '[replica_server]\ndirectory = "/copies"\ntokens = "t"\naddress = "{}"\n'


@pytest.mark.parametrize(
    ("tables", "subject"),
    [
        (REPLICAS.format("10.0.0.1:1"), "replica_server.certificate"),
        (REPLICAS.format("127.0.0.1:1") + 'authority = "a"\n', "replica_server.certificate"),
        (REPLICAS.format("127.0.0.1:1") + 'certificate = "c"\n', "replica_server"),
        ('[foresight]\naddress = "0.0.0.0:1"\ntokens = "t"\n', "foresight.certificate"),
        ('[foresight]\ncontrollers = ["http://controller:1"]\ntokens = "t"\n', "foresight.controllers"),
        ('[samples]\nnodes = ["https://node:1", "http://node:1"]\n', "samples.nodes"),
        ('[samples]\nkey = "k"\n', "samples"),
        ('[node]\naddress = "127.0.0.1:1"\ntokens = "t"\nauthority = "a"\n', "node.certificate"),
        ('[sites.web]\nkind = "http"\nurl = "https://web"\ncertificate = "c"\n', "sites.web"),
    ],
)
def test_line_to_another_host_that_is_not_encrypted_is_refused(tables: str, subject: str) -> None:
    assert refusal(SITE + MOUNT + tables).subject == f"lake.toml: {subject}"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_lines_within_this_host_may_be_plain(host: str) -> None:
    plain = f'controllers = ["http://{host}:1"]\ntokens = "t"\naddress = "{host}:1"\n'
    config.parse(SITE + MOUNT + REPLICAS.format(f"{host}:1") + f"[foresight]\n{plain}")


def test_node_service_of_this_host_alone_needs_no_certificate() -> None:
    loaded = config.parse(SITE + MOUNT + '[node]\naddress = "127.0.0.1:1"\ntokens = "t"\n')
    assert loaded.node.queue == 2 << 30
