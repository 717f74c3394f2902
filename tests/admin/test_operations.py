"""The table that routes and document are made of."""

import pytest

from gateway.admin.operations import OPERATIONS, Operation, find_operation, list_paths


def test_names_and_routes_are_unique() -> None:
    assert len({each.name for each in OPERATIONS}) == len(OPERATIONS)
    assert len({(each.method, each.path) for each in OPERATIONS}) == len(OPERATIONS)


def test_each_operation_has_a_versioned_path_and_the_one_without_a_version() -> None:
    paths = list_paths(find_operation("listConversations"))
    assert paths == ["/api/v1/conversations", "/api/conversations"]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: each.name)
def test_what_shows_texts_may_be_refused_and_what_names_a_conversation_may_not_find_it(
    operation: Operation,
) -> None:
    assert not operation.shows_texts or 403 in operation.problems
    assert ("{id}" in operation.path) == (404 in operation.problems)
    assert operation.body is None or 400 in operation.problems
    assert operation.query is None or 400 in operation.problems
