"""What a configuration must not say though each of its values is of its type. Pure: no I/O, no clock."""

from __future__ import annotations

import os

from vfs.config.addresses import LOOPBACK, host_and_port, is_plain_elsewhere
from vfs.config.tables import (
    DRAIN_S_MAX,
    Admin,
    Config,
    Foresight,
    LocalSite,
    Node,
    TlsFiles,
    WebSite,
    can_be_written,
    mount_prefix,
    mount_replicas,
)
from vfs.errors import InvalidConfig


def check(config: Config, name: str) -> None:
    """Refuse what is well typed but can't work."""
    if not config.mounts:
        raise InvalidConfig(f"{name}: mounts", "is empty", 'add a [[mounts]] table with "prefix" and "site"')
    prefixes: set[str] = set()
    for index, mount in enumerate(config.mounts):
        where = f"{name}: mounts[{index}]"
        prefix = mount_prefix(mount)
        if prefix in prefixes:
            raise InvalidConfig(f"{where}.prefix", f"{mount.prefix!r} is mounted twice", "give each mount its own prefix")
        prefixes.add(prefix)
        for site in (mount.site, *(replica.site for replica in mount_replicas(mount))):
            if site not in config.sites:
                known = ", ".join(sorted(config.sites)) or "none"
                raise InvalidConfig(where, f"names the unknown site {site!r}", f"known sites: {known}")
        if mount.writable and not can_be_written(config.sites[mount.site]):
            hint = "S3, WebHDFS and local sites can, and HTTP sites with writes"
            raise InvalidConfig(f"{where}.writable", f"site {mount.site!r} can't be written", hint)
        if prefix.split("/")[0] == ".foremount":
            raise InvalidConfig(f"{where}.prefix", "/.foremount belongs to the status files", "choose another prefix")
        if prefix.split("/")[0] == ".jobs":
            raise InvalidConfig(f"{where}.prefix", "/.jobs belongs to the samples of jobs", "choose another prefix")
    _check_admin(config.admin, name)
    _check_foresight(config.foresight, name)
    _check_node(config.node, name)
    _check_lines(config, name)
    if config.staging.drain > DRAIN_S_MAX:
        raise InvalidConfig(f"{name}: staging.drain", f"is more than {DRAIN_S_MAX:g}s, after which the agent is killed")
    for site, kind in config.sites.items():
        if isinstance(kind, LocalSite) and not os.path.isabs(kind.path):
            raise InvalidConfig(f"{name}: sites.{site}.path", f"{kind.path!r} is not absolute")


def _check_lines(config: Config, name: str) -> None:
    """Refuse lines between hosts that anybody on the way could read or answer."""
    tables: dict[str, TlsFiles | None] = {
        key: getattr(config, key) for key in ("admin", "node", "samples", "replica_server", "foresight")
    }
    sites = {f"sites.{key}": site for key, site in config.sites.items() if isinstance(site, WebSite)}
    for where, table in {**tables, **sites}.items():
        if table is not None and bool(table.certificate) != bool(table.key):
            raise InvalidConfig(f"{name}: {where}", "has one of certificate and key", "name both, or none")
    for where in ("replica_server", "foresight"):
        address, table = getattr(tables[where], "address", ""), tables[where]
        if not address or table is None:
            continue
        host, _ = _address(address, f"{name}: {where}.address")
        if host not in LOOPBACK and not table.certificate:
            raise InvalidConfig(f"{name}: {where}.certificate", "is missing", "other hosts are spoken to with TLS alone")
        if table.authority and not table.certificate:
            raise InvalidConfig(f"{name}: {where}.certificate", "is missing", "who asks for certificates has to show one")
    asked = {"samples.nodes": config.samples.nodes if config.samples else []}
    asked["foresight.controllers"] = config.foresight.controllers if config.foresight else []
    for where, urls in asked.items():
        for url in filter(is_plain_elsewhere, urls):
            raise InvalidConfig(f"{name}: {where}", f"{url!r} is not encrypted", "write https://")


def _check_foresight(foresight: Foresight | None, name: str) -> None:
    """Refuse a controller on the network that would believe anybody."""
    if foresight is None:
        return
    if (foresight.address or foresight.controllers) and not foresight.tokens:
        hint = "what goes over the network is signed; openssl rand -hex 24 makes a secret"
        raise InvalidConfig(f"{name}: foresight.tokens", "is missing", hint)


def _check_admin(admin: Admin, name: str) -> None:
    """Refuse TCP without TLS and tokens."""
    if admin.traces and not admin.traces.startswith(("http://", "https://")):
        raise InvalidConfig(f"{name}: admin.traces", "is no URL", 'write "http://collector:4318/v1/traces"')
    if not admin.address:
        return
    _address(admin.address, f"{name}: admin.address")
    for key in ("certificate", "key", "tokens"):
        if not getattr(admin, key):
            hint = "the API goes over TCP with TLS and tokens only; the Unix socket needs neither"
            raise InvalidConfig(f"{name}: admin.{key}", "is missing", hint)


def _check_node(node: Node, name: str) -> None:
    """Refuse TCP to other hosts without TLS, and numbers that make no sense."""
    if not node.address:
        return
    host, _ = _address(node.address, f"{name}: node.address")
    needed = ["tokens"]
    if host not in LOOPBACK or node.certificate or node.authority:
        needed += ["certificate", "key"]
    for key in needed:
        if not getattr(node, key):
            raise InvalidConfig(f"{name}: node.{key}", "is missing", "the node service needs tokens, and TLS for other hosts")
    if node.operators and not node.keys:
        raise InvalidConfig(f"{name}: node.keys", "is missing", "operators of one's own are signed: foremount operator sign")
    if not 0 <= node.cpu <= 1 or not 0 <= node.memory_free < 1 or node.queue <= 0 or node.sample_memory <= 0:
        raise InvalidConfig(
            f"{name}: node", "has a bound that lets nothing through", "0 < cpu <= 1, queue and sample_memory > 0"
        )
    if node.processes < 0 or node.samples_per_process < 1:
        raise InvalidConfig(f"{name}: node", "has no processes", "processes >= 0, samples_per_process >= 1")


def _address(text: str, where: str) -> tuple[str, int]:
    """Return host and port; raises InvalidConfig with where the text stands."""
    try:
        return host_and_port(text)
    except ValueError as exc:
        raise InvalidConfig(where, str(exc), 'write "host:port"') from exc
