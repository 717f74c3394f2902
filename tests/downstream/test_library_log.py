import logging

import pytest

from gateway.downstream.library_log import make_library_log


def test_an_error_is_logged_by_its_class_without_the_line_that_it_quotes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = make_library_log()
    try:
        raise ValueError("Authorization: Bearer sk-secret")
    except ValueError as error:
        log.error("Error handling request: %s", error, exc_info=error)
    assert caplog.messages == ["ValueError on a connection"]
    assert "sk-secret" not in caplog.text


def test_a_record_without_an_exception_says_no_more_than_that_there_was_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    make_library_log().warning("x-api-key: %s", "sk-secret")
    assert caplog.messages == ["error on a connection"]


def test_the_filter_is_added_once() -> None:
    assert len(make_library_log().filters) == len(make_library_log().filters) == 1
    assert make_library_log() is logging.getLogger("gateway.http")
