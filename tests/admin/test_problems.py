"""Errors as problem details."""

import json

import pytest

from gateway.admin.problems import CONTENT_TYPE, respond_problem


@pytest.mark.parametrize(("status", "title"), [(404, "Not Found"), (503, "Service Unavailable")])
def test_a_problem_has_its_status_title_and_detail(status: int, title: str) -> None:
    response = respond_problem(status, "Say “please”.", {"Retry-After": "1"})
    assert (response.status, response.content_type) == (status, CONTENT_TYPE)
    assert response.headers["Retry-After"] == "1"
    assert isinstance(response.body, bytes)
    assert json.loads(response.body) == {
        "type": "about:blank",
        "title": title,
        "status": status,
        "detail": "Say “please”.",
    }
