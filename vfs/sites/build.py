"""Makes the site that a configuration names. Each implementation is imported when it is used: pyarrow takes 0.3 s, 60 MB."""

from __future__ import annotations

from vfs import config
from vfs.model import SiteName
from vfs.sites.protocol import Site


def build_site(name: SiteName, site: config.SiteConfig) -> Site:
    """Return the site; nothing is opened or connected before its first call."""
    match site:
        case config.LocalSite():
            from vfs.sites.local import LocalSite

            return LocalSite(name, site.path)
        case config.HttpSite():
            from vfs.sites.http import HttpSite

            return HttpSite(name, site.url, headers_file=site.headers_file, connections=site.connections)
        case config.MemorySite():
            from vfs.sites.memory import MemorySite

            return MemorySite(name)
        case _:
            raise NotImplementedError(type(site).__name__)
