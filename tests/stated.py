"""What a site says of a file, for tests and benchmarks that tell a controller of it in a job's place."""

from __future__ import annotations

from vfs.checkpoints.manifest import ManifestFile
from vfs.model import SiteName, SitePath
from vfs.sites.http import HttpSite


async def stated(url: str, path: str) -> ManifestFile:
    """Return a file of a checkpoint, by its path below `url`, as a mount whose origin that is would tell of it."""
    site, at = HttpSite(SiteName("origin"), url), SitePath(path)
    try:
        version = (await site.stat(at)).version
    finally:
        await site.close()
    return ManifestFile(path.rpartition("/")[2], version.size, "", at, version)
