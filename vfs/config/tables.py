"""What `foremount.toml` may say: tables, keys, types and defaults, and how they are read together. Pure: no I/O, no clock.

Defaults live here, once, with their origin.
"""

from __future__ import annotations

import os
from typing import Annotated, Literal

import msgspec

from vfs.model import LakePath, SiteName, SitePath, join
from vfs.units import Bytes, Seconds

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class TlsFiles(_Document, frozen=True, kw_only=True):
    """PEM files of one side of a line between hosts, read again when they change (`vfs/tls.py`).

    Attributes:
        certificate, key: what it shows.
        authority: whose certificates it believes. "": a client the system's, a server asks for none.
    """

    certificate: str = ""
    key: str = ""
    authority: str = ""


READERS_PER_COPY = 156
"""That one copy bears at a time, where nothing was measured: 10,000 / 64 = 20,000 / 128 = 156.25 (PROBLEM.md A2)."""


class _Site(_Document, frozen=True, kw_only=True):
    """What any site may say of itself, for copies that are put there (docs/foresight.md).

    Attributes:
        labels: what it counts as where duties of residency are concerned: "eu", "eu-west".
        encrypted: what lies there is encrypted at rest.
        rack, uplink: what fails, or is full, together with it; "": nothing else's.
        copies: directory for copies that are made ahead; "": none are put there. It has to be a site that can be written.
        copies_size: of all copies there together, at most.
        readers: that one copy there bears at a time.
    """

    labels: list[str] = []
    encrypted: bool = False
    rack: str = ""
    uplink: str = ""
    copies: str = ""
    copies_size: Bytes = Bytes(1 << 40)
    readers: Annotated[int, msgspec.Meta(ge=1)] = READERS_PER_COPY


class WebSite(_Site, frozen=True, kw_only=True):
    """A site that is spoken to over HTTP(S). The three: as in `TlsFiles`."""

    certificate: str = ""
    key: str = ""
    authority: str = ""


class LocalSite(_Site, frozen=True, tag_field="kind", tag="local"):
    """A directory of this host. Served in kernel passthrough, straight by the fs worker.

    Attributes:
        path: absolute.
    """

    path: str


class HttpSite(WebSite, frozen=True, tag_field="kind", tag="http"):
    """An HTTP(S) server that serves ranges.

    Attributes:
        url: of the root, with or without trailing slash.
        listing: how directories are listed: "autoindex" (nginx JSON or HTML, recognised by content type) or "manifest".
        manifest: with listing = "manifest": path below `url` of a JSON file that names every object.
        headers_file: file of "Name: value" lines that are sent along, read again when the server answers 401 or 403.
        connections: sockets at most.
        writes: how files are uploaded: "no", "put" (PUT straight to the name: the server must show a file only when it is
            complete), or "webdav" (PUT under a hidden name, then MOVE; also MKCOL and DELETE).
    """

    url: str
    listing: Literal["autoindex", "manifest"] = "autoindex"
    manifest: str = "manifest.json"
    headers_file: str | None = None
    connections: int = 32
    writes: Literal["no", "put", "webdav"] = "no"


class WebHdfsSite(WebSite, frozen=True, tag_field="kind", tag="webhdfs"):
    """HDFS through WebHDFS.

    Attributes:
        url: of the NameNode's HTTP port, "http://namenode:9870".
        root: directory in HDFS.
        user: sent as user.name where security is off.
        token_file: holds a delegation token; read again when it is rejected.
        connections: sockets at most.
    """

    url: str
    root: str = "/"
    user: str | None = None
    token_file: str | None = None
    connections: int = 32


class S3Site(_Site, frozen=True, tag_field="kind", tag="s3"):
    """A bucket or a prefix of one, at Amazon's S3 or another store of its protocol.

    Attributes:
        url: "s3://bucket/prefix".
        endpoint: "https://host:port" of a store that is not Amazon's.
        region: from the environment where it is not said, else us-east-1.
        credentials_file: an AWS shared credentials file; read again when the store rejects its keys. Without it: the
            environment, the user's own credentials file, the machine's role.
        profile: section of the credentials file.
        anonymous: send no keys: for public buckets.
    """

    url: str
    endpoint: str | None = None
    region: str | None = None
    credentials_file: str | None = None
    profile: str = "default"
    anonymous: bool = False


class ArrowSite(_Site, frozen=True, tag_field="kind", tag="arrow"):
    """Anything else that pyarrow.fs opens: gs://, abfs://, hdfs://, file://.

    Attributes:
        url: as pyarrow.fs.FileSystem.from_uri takes it, with the root's path.
        threads: blocking calls at a time.
    """

    url: str
    threads: int = 32


class MemorySite(_Site, frozen=True, tag_field="kind", tag="memory"):
    """Holds objects in the agent's memory: for tests and trials."""


SiteConfig = LocalSite | HttpSite | WebHdfsSite | S3Site | ArrowSite | MemorySite


class Mount(_Document, frozen=True):
    """One line of the mount table.

    Attributes:
        prefix: lake path that it appears at; "" or "/" is the whole lake. The longest matching prefix wins.
        site: the origin, which says what is there and in which version.
        root: path at the origin that the prefix stands for.
        replicas: sites that may hold copies, in order of preference, "name" or "name:root".
        writable: at a local origin changes go straight to the directory, at others through the staging area.
    """

    prefix: str
    site: str
    root: str = ""
    replicas: list[str] = []
    writable: bool = False


class Cache(_Document, frozen=True):
    """Where fetched bytes are kept.

    Attributes:
        directory: on a local file system; one daemon at a time. Not inside the mount point.
        size: never exceeded, but for the blocks in flight.
    """

    directory: str = "/var/cache/foremount"
    size: Bytes = Bytes(100 << 30)


DRAIN_S_MAX = 2.5
"""The keeper gives the agent 3 s from SIGTERM to SIGKILL."""


class Staging(_Document, frozen=True):
    """Where files are written before they are at a remote origin.

    Attributes:
        directory: on a local file system, of one mount alone; "": `staging` in the cache's directory. What is in it exists
            nowhere else until it is uploaded.
        size: new files wait for uploads, and fail with ENOSPC in the end, while it holds more. A file that is open goes on.
        drain: at the end of the mount uploads may go on for so long. What is not done stays there; the next mount goes on.
            The keeper kills what has not ended after 3 s.
    """

    directory: str = ""
    size: Bytes = Bytes(100 << 30)
    drain: Seconds = Seconds(2.0)


class Limits(_Document, frozen=True):
    """Bounds of this host's daemon.

    Attributes:
        memory: bytes in flight between sites and cache in the agent. 256 MiB keeps a 10 Gbit/s link of 100 ms twice full.
        origin_deadline: a kernel request that needs a site fails with EIO when this has passed, unless a policy rule says
            otherwise.
        listing_ttl: how long attributes and listings of remote sites are believed, unless a policy rule says otherwise.
        read_ahead: of the kernel on cached reads. A mapped file is read up to six times as far beyond what was touched, and
            over a line nobody wants these bytes: the agent fetches ahead by what it knows of the file instead.
        requests: a second that one caller at one address may make of each of our HTTP services, twice as many at once. 200
            pages that ask once a second are one caller where one user has opened all.
    """

    memory: Bytes = Bytes(256 << 20)
    origin_deadline: Seconds = Seconds(60.0)
    listing_ttl: Seconds = Seconds(60.0)
    read_ahead: Bytes = Bytes(64 << 10)
    requests: Annotated[int, msgspec.Meta(ge=1)] = 300


class Admin(TlsFiles, frozen=True):
    """The admin API over TCP. The Unix socket in the run directory is always there.

    Attributes:
        address: "host:port"; "" for none. Needs tokens, certificate and key. With an authority, callers need both.
        tokens: file of lines "ROLE NAME TOKEN", ROLE being read, operate or admin; mode 0600, read again when it changes.
        traces: URL of a collector that takes OTLP over HTTP; "" for none. Independent of the others.
    """

    address: str = ""
    tokens: str = ""
    traces: str = ""


SAMPLES_READ_AHEAD = 4 << 20
"""The kernel's, on samples too large to be pushed: they are read whole and in order, from a local file."""


class Samples(TlsFiles, frozen=True):
    """Samples of training jobs at `.jobs`. An empty table switches them on; without one there is no second mount.

    Attributes:
        push: samples up to so large are put into the page cache before their step; larger ones are read from their file.
        declarations: lake directories whose `*.toml` declare jobs.
        directory: of prepared samples, of one mount alone; "": `samples` in the cache's directory.
        size: of the samples there; preparation pauses while they take more.
        nodes: node services that prepare samples, "https://host:port".
        token_file: holds the token that they know us by; read again for each connection.
        seats: processes of this host that run operators for jobs with fallback = "local"; 0: none.
        operators: directory of operators of one's own; "": only those that are built in.
        keys: public keys that these have to be signed with.
    """

    push: Bytes = Bytes(64 << 20)
    declarations: list[str] = []
    directory: str = ""
    size: Bytes = Bytes(10 << 30)
    nodes: list[str] = []
    token_file: str = ""
    seats: int = 0
    operators: str = ""
    keys: str = ""


class ReplicaServer(TlsFiles, frozen=True):
    """A server of copies on this host (docs/foresight.md).

    Attributes:
        address: "host:port". Needs certificate and key unless it is of this host alone.
        directory: on a local file system, of this server alone.
        size: copies that do not fit are refused.
        tokens: file of lines "read TOKEN" or "write TOKEN", mode 0600, read again when it changes.
        rate: bytes a second that it sends at most; 0: as many as go.
    """

    address: str
    directory: str
    tokens: str
    size: Bytes = Bytes(100 << 30)
    rate: Bytes = Bytes(0)


class Foresight(TlsFiles, frozen=True):
    """The controller of predictions and copies (docs/foresight.md). Without the table there is none.

    Attributes:
        controllers: "https://host:port" of those that this mount asks; empty: the agent is the controller itself.
        store: where the controller keeps the shared catalog: "etcd://host:port,host:port", or a directory on a local file
            system; "": `foresight` in the cache's directory.
        address: "host:port" that the controller is asked at, besides its socket; "" for none. Needs `tokens`, and certificate
            and key unless it is of this host alone.
        tokens: file of lines "NAME SECRET", mode 0600: who may ask a controller over TCP, and with what this mount signs: the
            first line.
    """

    controllers: list[str] = []
    store: str = ""
    address: str = ""
    tokens: str = ""


class Node(TlsFiles, frozen=True):
    """The node service (`foremount node`): transforms samples beside a site.

    Attributes:
        address: "host:port"; "" for none. Needs certificate and key unless it is of this host alone.
        tokens: as in `Admin`; agents need the role "operate".
        engine: who runs operators: processes of this host, or actors of a Ray cluster.
        ray_address: of the cluster; "": the one that this host belongs to.
        ray_resource: custom resource of the nodes beside the site; an actor takes one.
        processes: at once; 0: one for each core.
        samples_per_process: a new process after so many.
        sample_memory: that one sample may take.
        uid: that operators run as, where the service is root.
        idle: operators get only CPU time that nothing else wants.
        operators: directory of operators of one's own; `keys`: file of the public keys that may have signed them.
        queue: bytes of transformed samples that wait to be fetched.
        cpu: share of the cores that others may use before transforms stop; 0: no bound. 80 % is what the paper's authors use.
        memory_free: share of the memory below which they stop.
        egress: bytes a second above which samples that would grow are sent raw; 0: no bound.
        job_cpus: cores that one job's transforms may take on average; 0: no bound.
        job_queue: bytes of one job in the queue; 0: it is divided evenly.
    """

    address: str = ""
    tokens: str = ""
    engine: Literal["local", "ray"] = "local"
    ray_address: str = ""
    ray_resource: str = "foremount"
    processes: int = 0
    samples_per_process: int = 256
    sample_memory: Bytes = Bytes(1 << 30)
    uid: int = 65534
    idle: bool = True
    operators: str = ""
    keys: str = ""
    queue: Bytes = Bytes(2 << 30)
    cpu: float = 0.8
    memory_free: float = 0.1
    egress: Bytes = Bytes(0)
    job_cpus: float = 0.0
    job_queue: Bytes = Bytes(0)


class Config(_Document, frozen=True):
    """The whole document."""

    sites: dict[str, SiteConfig] = {}
    mounts: list[Mount] = []
    cache: Cache = Cache()
    staging: Staging = Staging()
    limits: Limits = Limits()
    admin: Admin = Admin()
    node: Node = Node()
    policies: list[str] = []
    samples: Samples | None = None
    replica_server: ReplicaServer | None = None
    foresight: Foresight | None = None


class Replica(msgspec.Struct, frozen=True):
    """A site that may hold a copy of what lies below a mount's root."""

    site: SiteName
    root: SitePath


def staging_directory(config: Config) -> str:
    """Return where writes to remote origins are staged."""
    return config.staging.directory or os.path.join(config.cache.directory, "staging")


def samples_directory(config: Config) -> str:
    """Return where prepared samples lie."""
    stated = config.samples.directory if config.samples is not None else ""
    return stated or os.path.join(config.cache.directory, "samples")


def mount_prefix(mount: Mount) -> LakePath:
    """Return the prefix as a lake path."""
    return LakePath(mount.prefix.strip("/"))


def mount_root(mount: Mount) -> SitePath:
    """Return the root at the origin as a site path."""
    return SitePath(mount.root.strip("/"))


def mount_replicas(mount: Mount) -> list[Replica]:
    """Return the sites that may hold copies, in order of preference; without a root of their own they use the mount's."""
    found = []
    for text in mount.replicas:
        name, colon, root = text.partition(":")
        found.append(Replica(SiteName(name), SitePath(root.strip("/")) if colon else mount_root(mount)))
    return found


def foresight_store(config: Config) -> str:
    """Return where the shared catalog of a controller is."""
    assert config.foresight is not None
    return config.foresight.store or os.path.join(config.cache.directory, "foresight")


def can_be_written(site: SiteConfig) -> bool:
    """Return whether there is a way to bring files to the site."""
    match site:
        case HttpSite(writes=writes, listing=listing):
            return writes != "no" and listing == "autoindex"
        case S3Site(anonymous=anonymous):
            return not anonymous
        case ArrowSite():
            return False
        case _:
            return True


def directories(config: Config) -> dict[SiteName, str]:
    """Return where the sites whose files lie on this host have them."""
    return {SiteName(name): site.path for name, site in config.sites.items() if isinstance(site, LocalSite)}


def local_path(site: LocalSite, root: SitePath, below: str = "") -> str:
    """Return where a path below `root` of a local site lies on this host."""
    return os.path.join(site.path, join(root, below)) if root or below else site.path
