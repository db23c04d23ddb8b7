"""The page: files without facts in them; the facts come from the API, with the caller's own rights.

No build step, nothing from elsewhere: what the browser gets is what lies in `vfs/admin/static/`.
"""

from __future__ import annotations

from importlib import resources

from aiohttp import web

_FILES = {
    "/": ("index.html", "text/html"),
    "/page/app.js": ("app.js", "text/javascript"),
    "/page/chart.js": ("chart.js", "text/javascript"),
    "/page/nodes.js": ("nodes.js", "text/javascript"),
    "/page/foresight.js": ("foresight.js", "text/javascript"),
    "/page/foresight.css": ("foresight.css", "text/css"),
    "/page/style.css": ("style.css", "text/css"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def add_page(app: web.Application) -> None:
    """Serve the page's files."""
    directory = resources.files("vfs.admin") / "static"
    for path, (name, media) in _FILES.items():
        app.router.add_get(path, _serve((directory / name).read_bytes(), media))


def _serve(content: bytes, media: str):  # type: ignore[no-untyped-def]  # aiohttp's handler type
    async def serve(request: web.Request) -> web.Response:
        return web.Response(body=content, content_type=media, charset="utf-8", headers=_HEADERS)

    return serve
