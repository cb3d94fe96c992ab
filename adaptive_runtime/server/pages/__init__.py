"""The live page: public files without data of the model. The page itself asks for the token before it shows data."""

import importlib.util
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

FOLDER = Path(__file__).parent
FILES = {"/": "page.html", "/page.js": "page.js", "/page.css": "page.css"}
PLOTLY = "/plotly.js"
PATHS = frozenset((*FILES, PLOTLY))
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


async def file(request: Request) -> Response:
    """A file of the page."""
    return FileResponse(FOLDER / FILES[request.url.path], headers=HEADERS)


async def plotly(request: Request) -> Response:
    """plotly.js; an empty script if it is not installed, in which case the page has no charts."""
    found = plotly_file()
    if found is None:
        return Response("", media_type="text/javascript", headers=HEADERS)
    return FileResponse(found, media_type="text/javascript", headers={**HEADERS, "Cache-Control": "max-age=86400"})


def plotly_file() -> Path | None:
    """plotly.js beside the page, if the wheel of a device contains it; else that of the package plotly, if it is installed."""
    own = FOLDER / "plotly.min.js"
    if own.is_file():
        return own
    package = importlib.util.find_spec("plotly")  # finds the package without importing it
    places = [] if package is None else package.submodule_search_locations or []
    files = (Path(place) / "package_data" / "plotly.min.js" for place in places)
    return next((one for one in files if one.is_file()), None)
