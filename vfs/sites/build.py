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

            server = HttpSite(name, site.url, headers_file=site.headers_file, connections=site.connections)
            if site.listing == "autoindex":
                return server
            from vfs.sites.manifest import ManifestSite

            return ManifestSite(server, site.manifest)
        case config.WebHdfsSite():
            from vfs.sites.webhdfs import WebHdfsSite

            return WebHdfsSite(
                name,
                site.url,
                root=site.root,
                user=site.user,
                token_file=site.token_file,
                connections=site.connections,
            )
        case config.ArrowSite():
            from vfs.sites.arrow import ArrowSite

            return ArrowSite(
                name,
                site.url,
                credentials_file=site.credentials_file,
                profile=site.profile,
                threads=site.threads,
            )
        case config.MemorySite():
            from vfs.sites.memory import MemorySite

            return MemorySite(name)
