"""Makes the site that a configuration names, and what writes to it. Each implementation is imported when it is used: pyarrow
takes 0.3 s and 60 MB, the S3 client that writes as much again."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

from vfs import config
from vfs.model import SiteName
from vfs.sites.protocol import Site
from vfs.sites.writing import SiteWriter
from vfs.tls import files_of


def build_site(name: SiteName, site: config.SiteConfig) -> Site:
    """Return the site; nothing is opened or connected before its first call."""
    match site:
        case config.LocalSite():
            from vfs.sites.local import LocalSite

            return LocalSite(name, site.path)
        case config.HttpSite():
            from vfs.sites.http import HttpSite

            server = HttpSite(
                name, site.url, headers_file=site.headers_file, connections=site.connections, files=files_of(site)
            )
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
                files=files_of(site),
            )
        case config.S3Site():
            from vfs.sites.s3 import S3Site

            return S3Site(
                name,
                site.url,
                endpoint=site.endpoint,
                region=site.region,
                credentials_file=site.credentials_file,
                profile=site.profile,
                anonymous=site.anonymous,
            )
        case config.ArrowSite():
            from vfs.sites.arrow import ArrowSite

            return ArrowSite(name, site.url, threads=site.threads)
        case config.MemorySite():
            from vfs.sites.memory import MemorySite

            return MemorySite(name)


def open_sites(settings: Mapping[str, config.SiteConfig], stack: AsyncExitStack) -> dict[SiteName, Site]:
    """Return the sites of a configuration; the stack closes them."""
    sites = {SiteName(name): build_site(SiteName(name), site) for name, site in settings.items()}
    for site in sites.values():
        stack.push_async_callback(site.close)
    return sites


def build_writer(site: Site, settings: config.SiteConfig) -> SiteWriter | None:
    """Return what writes to the place that `site` reads, None where nothing can; nothing is opened before its first call.

    Raises:
        InvalidConfig: what it takes is not installed.
    """
    match settings:
        case config.LocalSite():
            from vfs.sites.localwriter import LocalWriter

            return LocalWriter(site.name, settings.path)
        case config.HttpSite(writes="put" | "webdav" as way, listing="autoindex"):
            from vfs.sites.http import HttpSite
            from vfs.sites.httpwriter import HttpWriter

            assert isinstance(site, HttpSite)
            return HttpWriter(site, way)
        case config.WebHdfsSite():
            from vfs.sites.webhdfs import WebHdfsSite
            from vfs.sites.webhdfswriter import WebHdfsWriter

            assert isinstance(site, WebHdfsSite)
            return WebHdfsWriter(site)
        case config.S3Site(anonymous=False):
            from vfs.sites.s3writer import S3Writer

            return S3Writer(
                site,
                settings.url,
                endpoint=settings.endpoint,
                region=settings.region,
                credentials_file=settings.credentials_file,
                profile=settings.profile,
            )
        case config.MemorySite():
            from vfs.sites.memory import MemorySite
            from vfs.sites.memorywriter import MemoryWriter

            assert isinstance(site, MemorySite)
            return MemoryWriter(site)
        case _:
            return None
