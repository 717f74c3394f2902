"""Who may use the admin port, which paths it has, and that nothing that is asked is an error of ours."""

import asyncio
import io
import json
from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio

from tests.surface.written import ROOT
from tests.toy.agent import Shape, make_session
from tests.toy.house import ADMIN_TOKEN, House, make_settings
from tests.toy.product import Product, serve
from tests.toy.upstream import ToyUpstream

pytestmark = pytest.mark.asyncio(loop_scope="module")

_BEARER = {"Authorization": f"Bearer {ADMIN_TOKEN}"}
_STATIC = ROOT / "gateway" / "page" / "static"
_NOWHERE = "0123456789abcdef"
_HUGE = "9" * 400


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_house() -> AsyncIterator[House]:
    """Without a token."""
    async with ToyUpstream() as toy, serve(make_settings(toy, more="admin: {port: 0}\n")) as product:
        yield House(toy, product, "sk-a")


async def get(
    product: Product, path: str, headers: dict[str, str] | None = None, method: str = "GET", body: bytes = b""
) -> tuple[int, str, bytes]:
    """Status, content type and body."""
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.request(method, product.admin_url + path, data=io.BytesIO(body) if body else None) as response,
    ):
        assert "Access-Control-Allow-Origin" not in response.headers
        return response.status, response.content_type, await response.read()


async def send_raw(product: Product, *lines: str) -> bytes:
    """The bytes as they are: a client would make a path shorter."""
    reader, writer = await asyncio.open_connection("127.0.0.1", product.admin_port)
    writer.write("\r\n".join([*lines, "Connection: close", "", ""]).encode("latin-1"))
    async with asyncio.timeout(60):
        response = await reader.read()
    writer.close()
    return response


@pytest.mark.parametrize("path", ["/metrics", "/api/v1/conversations", "/api/conversations", "/api/events"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer nearly"}, 401),
        ({"Authorization": f"Basic {ADMIN_TOKEN}"}, 401),
        ({"Authorization": f"Bearer {ADMIN_TOKEN}x"}, 401),
        (_BEARER, 200),
        ({**_BEARER, "Host": "localhost:1"}, 200),
        ({**_BEARER, "Host": "evil.example"}, 403),
        ({**_BEARER, "Origin": "http://evil.example"}, 403),
        ({**_BEARER, "Origin": "null"}, 403),
        ({**_BEARER, "Origin": "http://["}, 403),
    ],
)
async def test_only_requests_with_the_token_and_the_right_origin_are_served(
    house: House, headers: dict[str, str], status: int, path: str
) -> None:
    async with (
        aiohttp.ClientSession(headers=headers) as client,
        client.get(house.product.admin_url + path) as response,
    ):
        assert response.status == status


@pytest.mark.parametrize(
    ("site", "path", "status"),
    [
        ("cross-site", "/api/v1/conversations", 403),
        ("same-site", "/metrics", 403),
        ("cross-site", "/api/v1/events", 403),
        ("same-origin", "/api/v1/conversations", 200),
        ("none", "/metrics", 200),
        # A link to the page, which holds no data.
        ("cross-site", "/", 200),
        ("cross-site", "/healthz", 200),
    ],
)
async def test_another_page_cannot_ask_with_an_image_or_a_script(
    open_house: House, site: str, path: str, status: int
) -> None:
    """Browsers send no Origin with those."""
    assert (await get(open_house.product, path, {"Sec-Fetch-Site": site}))[0] == status


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/v1/tenants/purge"),
        ("POST", f"/api/v1/conversations/{_NOWHERE}/compact"),
        ("DELETE", f"/api/v1/conversations/{_NOWHERE}"),
        ("PUT", f"/api/v1/conversations/{_NOWHERE}/summaries/ab"),
        ("OPTIONS", f"/api/v1/conversations/{_NOWHERE}"),
    ],
)
@pytest.mark.parametrize("origin", ["null", "http://evil.example", "http://127.0.0.1:1", "https://localhost"])
async def test_another_page_can_change_nothing(
    open_house: House, method: str, path: str, origin: str
) -> None:
    """Also by requests that need no preflight, such as a form's."""
    headers = {"Origin": origin, "Content-Type": "text/plain"}
    assert (await get(open_house.product, path, headers, method, b"{}"))[0] == 403


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "/metrics", 200),
        ("POST", "/metrics", 405),
        ("HEAD", "/api/events", 405),
        ("GET", f"/api/conversations/{_NOWHERE}/compact", 405),
        ("GET", "/metrics/", 404),
        ("GET", "/", 200),
        ("GET", "/v1/models", 404),
        ("GET", "/api", 404),
        ("GET", "/api/conversations/", 404),
    ],
)
async def test_each_page_has_its_methods(open_house: House, method: str, path: str, status: int) -> None:
    found, kind, body = await get(open_house.product, path, method=method)
    assert found == status
    if status >= 400 and method != "HEAD":
        assert kind == "application/problem+json" and json.loads(body)["status"] == status


async def test_the_data_port_has_no_pages_of_its_own(open_house: House) -> None:
    """It relays the path to the upstream."""
    open_house.toy.reset()
    async with (
        aiohttp.ClientSession() as client,
        client.get(f"{open_house.product.root_url}/metrics") as response,
    ):
        assert response.status == 200
    assert [seen.path for seen in open_house.toy.requests] == ["/v1/metrics"]


@pytest.mark.parametrize(
    ("line", "status"), [("Authorization: Bearer s\xe9cret", 401), ("Authorization: Bearer secr\x01et", 400)]
)
async def test_a_header_that_cannot_be_read_is_refused_and_not_quoted_in_the_log(
    house: House, line: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    response = await send_raw(house.product, "GET /metrics HTTP/1.1", "Host: localhost", line)
    assert response.split(b" ")[1] == str(status).encode()
    assert "secr" not in caplog.text


async def test_an_admin_port_that_is_taken_does_not_stop_the_gateway(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with (
        ToyUpstream() as toy,
        serve(make_settings(toy, more=f"admin: {{port: {toy.port}}}\n")) as product,
    ):
        assert product.admin_port == 0
        async with aiohttp.ClientSession() as client, client.get(f"{product.root_url}/healthz") as response:
            assert response.status == 200
    assert "admin port not opened: " in caplog.text and "--admin-port N" in caplog.text


# The files of the page.

_MEDIA = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


async def test_every_file_of_the_page_is_served_as_it_is_without_a_token(house: House) -> None:
    files = [path for path in _STATIC.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert len(files) > 5
    async with aiohttp.ClientSession(house.product.admin_url) as client:
        for path in files:
            name = path.relative_to(_STATIC).as_posix()
            response = await client.get("/" if name == "index.html" else f"/{name}")
            assert (response.status, await response.read()) == (200, path.read_bytes())
            assert response.content_type == _MEDIA.get(path.suffix[1:], "text/plain")
            assert response.headers.items() >= _HEADERS.items()


async def test_a_file_that_has_not_changed_is_not_sent_again(house: House) -> None:
    async with aiohttp.ClientSession(house.product.admin_url) as client:
        tag = (await client.get("/")).headers["ETag"]
        again = await client.get("/", headers={"If-None-Match": tag})
        changed = await client.get("/", headers={"If-None-Match": '"other"'})
        assert (again.status, await again.read(), again.headers["ETag"]) == (304, b"", tag)
        assert again.headers.items() >= _HEADERS.items() and changed.status == 200
        # Its scripts would run in the origin of a foreign name.
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}):
            assert (await client.get("/", headers=headers)).status == 403


@pytest.mark.parametrize(
    "path",
    [
        *("/../pyproject.toml", "/app/../../pages.py", "/%2e%2e/%2e%2e/pyproject.toml"),
        *("/..%2f..%2fpyproject.toml", "/app%2f..%2f..%2f__init__.py", "/app/%00", "/app/\\..\\index.html"),
        *("//etc/passwd", "/etc/passwd", "/app", "/app/", "/.", "/index.html/"),
        *("/index.html/../api/v1/conversations", "/index.html%2f..%2fapi%2fv1%2fconversations"),
        *("/%2e%2e/api/v1/conversations", "//api/v1/conversations", "/./api/v1/conversations"),
        *("/healthz/../api/v1/conversations", "http://127.0.0.1/api/v1/conversations"),
    ],
)
async def test_no_path_leads_out_of_the_folder_or_around_the_token(house: House, path: str) -> None:
    response = await send_raw(house.product, f"GET {path} HTTP/1.1", "Host: localhost")
    assert response.split(b" ")[1] in (b"400", b"401", b"404"), response[:300]
    assert b'conversations":' not in response and b"root:" not in response


# What nobody means is refused with a problem, never with a 500.


@pytest.mark.parametrize(
    "query",
    [
        *("limit=0", "limit=-1", "limit=501", f"limit={_HUGE}", f"limit=-{_HUGE}", "limit=", "limit=ten"),
        *("limit=1.5", "limit=1e400", "limit=NaN", "limit=%00", "limit=0x10", "limit=001"),
        *("cursor=", "cursor=x", "cursor=%00%ff", "cursor=%F0%9F%90%9F", "cursor=AAAA", "cursor=%C3%A9"),
        *("cursor=" + "A" * 300, "cursor=../../etc/passwd", "cursor=====", "cursor=YWJj"),
        *("q=" + "x" * 257, "tenant=" + "x" * 257, "limit=1&cursor=%E2%82"),
    ],
)
async def test_a_query_that_is_not_understood_is_a_problem_that_quotes_nothing(
    open_house: House, query: str
) -> None:
    status, _, body = await get(open_house.product, f"/api/v1/conversations?{query}")
    problem = json.loads(body)
    assert (status, problem["status"], problem["title"]) == (400, 400, "Bad Request")
    assert len(problem["detail"]) < 200 and "xxxx" not in problem["detail"]


@pytest.mark.parametrize("query", ["", "?", "?limit=1", "?limit=500", "?other=1", "?q=%00", "?q=%FF"])
async def test_other_queries_have_a_list(house: House, query: str) -> None:
    status, listed = await house.admin(f"/v1/conversations{query}")
    assert status == 200 and listed.keys() == {"conversations", "next"}


@pytest.mark.parametrize(
    "body",
    [
        *(b"{}", b"{", b"[]", b"null", b'"tag"', b"\xff\xfe", b'{"tag": "x"}', b'{"tag": 1}'),
        *(b'{"tag": "%s", "more": 1}' % (b"0" * 32), b'{"tag": "\\ud800"}', b"[" * 100_000),
        b'{"tag": "' + b"x" * 1_100_000 + b'"}',
    ],
    ids=range(12),
)
async def test_a_body_that_is_not_understood_is_a_problem(open_house: House, body: bytes) -> None:
    status, _, text = await get(open_house.product, "/api/v1/tenants/purge", method="POST", body=body)
    assert status == 400 and len(json.loads(text)["detail"]) < 200


@pytest.mark.parametrize(
    "name", [_NOWHERE, "..", "%2e%2e", "%C3%A9", "%00", "*", "%7B%7D", "a:b", "x" * 5_000, "%F0%9F%98%80"]
)
async def test_a_conversation_of_any_name_is_not_found(house: House, name: str) -> None:
    place = f"/api/v1/conversations/{name}"
    paths = ("", "/requests", "/log", "/originals", "/messages", "/summaries", "/summary", "/diff", "/export")
    for path in (*paths, "/nothing", "/search?q=x", f"/originals/{'0' * 64}"):
        assert (await get(house.product, place + path, _BEARER))[0] == 404, path
    for method, path in (("POST", "/compact"), ("PUT", "/summaries/ab"), ("POST", "/summaries/ab/restore")):
        assert (await get(house.product, place + path, _BEARER, method))[0] == 404, path
    assert (await get(house.product, place, _BEARER, "DELETE"))[0] == 404


_KEY = "{key}"
_GARBAGE = [
    *(
        ("GET", f"/messages?{name}={value}", b"")
        for name in ("start", "limit")
        for value in ("-1", "x", "", "1.5")
    ),
    *(
        ("GET", f"/messages?{query}", b"")
        for query in ("limit=0", "limit=501", f"limit={_HUGE}", f"start=-{_HUGE}")
    ),
    *(("GET", f"/originals?{query}", b"") for query in ("limit=0", "limit=10001", f"limit={_HUGE}")),
    *(("GET", f"/originals?cursor={cursor}", b"") for cursor in ("%ff", "x", "g" * 16, "")),
    *(("GET", f"/search?q={q}", b"") for q in ("", "x" * 1_001)),
    *(("GET", f"/search?q=x&limit={limit}", b"") for limit in ("0", "51", "x", "-1", _HUGE)),
    ("GET", "/search", b""),
    *(
        (method, path, body)
        for method, path in (("PUT", f"/summaries/{_KEY}"), ("POST", f"/summaries/{_KEY}/restore"))
        for body in (b"", b"{", b"[]", b"null", b"\xff", b'{"text": 1}', b'{"version": "1"}', b"[" * 50_000)
    ),
    *(
        ("PUT", f"/summaries/{_KEY}", b'{"text": %s}' % text)
        for text in (
            b'""',
            b'" \\n\\t"',
            b'"\\ud800"',
            b'"x", "more": 1',
            b'"x", "based_on": ' + _HUGE.encode(),
        )
    ),
    ("PUT", f"/summaries/{_KEY}", b'{"text": "%s"}' % (b"word " * 80_000)),
    ("PUT", f"/summaries/{_KEY}", b'{"text": "%s"}' % (b"x" * 600_000)),
    ("PUT", "/summaries/0", b'{"text": "x"}'),
    ("PUT", "/summaries/..", b'{"text": "x"}'),
    *(
        ("POST", f"/summaries/{_KEY}/restore", b'{"version": %s}' % version)
        for version in (b"-1", b"0", _HUGE.encode())
    ),
    *(
        ("POST", "/compact", b'{"instructions": %s}' % text)
        for text in (b"1", b'"%s"' % (b"x" * 100_000), b'"\\ud800"')
    ),
    ("DELETE", "/summaries", b""),
    ("PATCH", "", b""),
]


async def test_nothing_that_is_asked_of_a_conversation_is_a_500(house: House) -> None:
    run = await house.play(make_session(30, 3), Shape(max_tokens=1_000))
    await house.at_rest()
    place = f"/api/v1/conversations/{run.conversation}"
    listed = (await get(house.product, f"{place}/summaries", _BEARER))[2]
    key = json.loads(listed)["summaries"][0]["key"]
    for method, path, body in _GARBAGE:
        asked = f"{place}{path.replace(_KEY, key)}"
        status, kind, text = await get(house.product, asked, _BEARER, method, body)
        what = f"{method} {path[:80]} {body[:80]!r}: {status}"
        assert status in (400, 404, 405, 409, 422) and kind == "application/problem+json", what
        problem = json.loads(text)
        assert problem["status"] == status and len(problem["detail"]) < 500, what
    # Far behind the end there is nothing, and the summary is as it was.
    assert (await get(house.product, f"{place}/messages?start={_HUGE}", _BEARER))[0] in (200, 400)
    assert (await get(house.product, f"{place}/summaries", _BEARER))[2] == listed
